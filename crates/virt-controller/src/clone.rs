//! VirtualMachineClone: another machine that is like one that is there, or like a snapshot of one.
//!
//! It is a snapshot and a restore of that to a new machine, which both go once the copy has its own volumes.

pub mod patches;
pub mod plan;

use api::clone::v1beta1::{VirtualMachineClone, VirtualMachineCloneStatus};
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot};
use kit::queue::{Next, Queue};
use kit::store::{self, Key, Store, Watch};
use kit::{Task, clock};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use plan::{Plan, Step, World};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::copies::{machine_index, restore_indexes, snapshot_index, snapshot_indexes};
use crate::facts::index::claim_index;
use crate::setup::Setup;
use crate::stores::Changes;
use crate::{patch, snapshot, write};

/// The index value under which a clone is found by its restore.
fn restore_index(restore: &Key) -> String {
    format!("restore:{restore}")
}

/// Index values of a clone.
fn indexes(clone: &VirtualMachineClone) -> Vec<String> {
    let namespace = clone.namespace().unwrap_or_default();
    let key = |name: &str| Key::new(namespace.as_str(), name);
    let status = clone.status.as_ref();
    let mut words = vec![machine_index(&key(&plan::target_name(clone)))];
    if clone.spec.source.kind == plan::MACHINE {
        words.push(machine_index(&key(&clone.spec.source.name)));
    }
    words.extend(plan::snapshot_name(clone).map(|name| snapshot_index(&key(name))));
    words.extend(status.and_then(|status| status.restore_name.as_deref()).map(|name| restore_index(&key(name))));
    words
}

/// What it works with.
#[derive(Clone)]
struct Clones {
    context: Context,
    /// Copies of machines.
    clones: Store<VirtualMachineClone>,
}

/// Has copies of machines looked after.
pub(crate) fn register(setup: &mut Setup) {
    let own = Clones { context: setup.context.clone(), clones: Store::default() };
    let queue = Queue::default();
    wakes(&mut setup.changes, &own.clones, &queue);
    setup.keep(watch(&own, &queue));
    let (stores, clones) = (own.context.stores.clone(), own.clones.clone());
    let known = async move {
        tokio::join!(
            stores.vms.synced(),
            stores.vmis.synced(),
            stores.claims.synced(),
            stores.snapshots.synced(),
            stores.restores.synced(),
            clones.synced()
        );
    };
    setup.work(queue, 2, known, move |key| reconcile(own.clone(), key));
}

fn wakes(changes: &mut Changes, clones: &Store<VirtualMachineClone>, queue: &Queue<Key>) {
    let held = clones.clone();
    changes.vms.wake(queue, move |_, change| held.keys_by_index(&machine_index(change.key)));
    let held = clones.clone();
    changes.vmis.wake(queue, move |_, change| held.keys_by_index(&machine_index(change.key)));
    let held = clones.clone();
    changes.snapshots.wake(queue, move |_, change| held.keys_by_index(&snapshot_index(change.key)));
    let held = clones.clone();
    changes.restores.wake(queue, move |_, change| held.keys_by_index(&restore_index(change.key)));
    // A copy is whole once its claims are bound.
    let held = clones.clone();
    changes.claims.wake(queue, move |stores, change| {
        let restores = stores.restores.keys_by_index(&claim_index(&change.key.namespace, &change.key.name));
        restores.iter().flat_map(|restore| held.keys_by_index(&restore_index(restore))).collect::<Vec<_>>()
    });
}

fn watch(own: &Clones, queue: &Queue<Key>) -> Task<()> {
    let (api, queue) = (Api::all(own.context.client.clone()), queue.clone());
    let how = Watch { index: indexes, ..Watch::default() };
    store::watch(api, how, own.clones.clone(), move |change| queue.add(change.key.clone()))
}

/// Brings one clone a step further.
async fn reconcile(own: Clones, key: Key) -> Next {
    error::settled("vmclone", &key, Box::pin(sync(&own, &key)).await)
}

async fn sync(own: &Clones, key: &Key) -> Result<Next, Error> {
    let context = &own.context;
    let Some(clone) = own.clones.get(key) else { return Ok(Next::Wait) };
    if clone.metadata.deletion_timestamp.is_some() {
        return Ok(Next::Wait);
    }
    let world = look(context, &clone).await?;
    let Plan { step, status, event } = plan::plan(&clone, &world, clock::seconds(clock::now()));
    match step {
        Step::None => {}
        Step::Snapshot(wanted) => {
            let made = create(context, "virtualmachinesnapshot", &*wanted).await?;
            context.stores.snapshots.put(&made, snapshot_indexes(&made));
        }
        Step::Restore(wanted) => {
            let made = create(context, "virtualmachinerestore", &*wanted).await?;
            context.stores.restores.put(&made, restore_indexes(&made));
        }
        Step::TidyUp => tidy_up(context, &clone).await?,
        Step::Forget => {
            delete::<VirtualMachineClone>(context, "virtualmachineclone", &key.namespace, &key.name).await?;
            return Ok(Next::Wait);
        }
    }
    let old = clone.status.as_deref().cloned().unwrap_or_default();
    if old == status {
        return Ok(Next::Wait);
    }
    write_status(own, &clone, &old, &status).await?;
    if let Some((normal, reason, message)) = event {
        let about = reference(&clone);
        match normal {
            true => context.recorder.normal(&about, reason, message),
            false => context.recorder.warning(&about, reason, message),
        }
    }
    Ok(Next::Wait)
}

/// What `clone` is about, as it is now.
async fn look(context: &Context, clone: &VirtualMachineClone) -> Result<World, Error> {
    let namespace = clone.namespace().unwrap_or_default();
    let key = |name: &str| Key::new(namespace.as_str(), name);
    let status = clone.status.as_deref().cloned().unwrap_or_default();
    let mut world = World { target: context.stores.vms.contains(&key(&plan::target_name(clone))), ..World::default() };
    if clone.spec.source.kind == plan::MACHINE {
        world.machine = context.stores.vms.get(&key(&clone.spec.source.name));
    }
    world.snapshot = plan::snapshot_name(clone).and_then(|name| context.stores.snapshots.get(&key(name)));
    if let Some(name) = &status.restore_name {
        world.restore = context.stores.restores.get(&key(name));
    } else if let Some(found) = &world.snapshot {
        world.content = snapshot::find_content(context, found).await?;
    }
    let made = world.restore.iter().flat_map(|restore| &restore.status).flat_map(|status| &status.restores);
    world.bound = made.into_iter().all(|volume| {
        let claim = context.stores.claims.get(&key(&volume.persistent_volume_claim));
        claim.and_then(|claim| claim.status?.phase).as_deref() == Some("Bound")
    });
    Ok(world)
}

/// Makes `wanted`, or finds what an earlier look has made whose result was not written.
async fn create<K>(context: &Context, kind: &'static str, wanted: &K) -> Result<K, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
        + Clone
        + std::fmt::Debug
        + Serialize
        + DeserializeOwned,
{
    let (namespace, name) = (wanted.namespace().unwrap_or_default(), wanted.name_any());
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    let made = match api.create(&PostParams::default(), wanted).await {
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => api.get(&name).await,
        made => made,
    };
    let mut made = made.map_err(Error::api("create", kind, &namespace, &name))?;
    made.meta_mut().managed_fields = None;
    Ok(made)
}

async fn tidy_up(context: &Context, clone: &VirtualMachineClone) -> Result<(), Error> {
    let namespace = clone.namespace().unwrap_or_default();
    let Some(status) = clone.status.as_deref() else { return Ok(()) };
    if let Some(name) = &status.restore_name {
        delete::<VirtualMachineRestore>(context, "virtualmachinerestore", &namespace, name).await?;
    }
    // One that was there before is somebody's.
    if let Some(name) = &status.snapshot_name {
        delete::<VirtualMachineSnapshot>(context, "virtualmachinesnapshot", &namespace, name).await?;
    }
    Ok(())
}

async fn delete<K>(context: &Context, kind: &'static str, namespace: &str, name: &str) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", kind, namespace, name)(error)),
        Ok(_) => Ok(()),
    }
}

async fn write_status(
    own: &Clones,
    clone: &VirtualMachineClone,
    old: &VirtualMachineCloneStatus,
    wanted: &VirtualMachineCloneStatus,
) -> Result<(), Error> {
    let Some(changed) = patch::changed(old, wanted) else { return Ok(()) };
    let (namespace, name) = (clone.namespace().unwrap_or_default(), clone.name_any());
    let api: Api<VirtualMachineClone> = Api::namespaced(own.context.client.clone(), &namespace);
    let patch = patch::status(clone.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &own.clones, indexes, ("virtualmachineclone", clone)).map(drop)
}
