//! VirtualMachineClone: another machine that is like one that is there, or like a snapshot of one.
//!
//! It is a snapshot and a restore of that to a new machine, which both go once the copy has its own volumes.

pub mod patches;
pub mod plan;

use api::clone::v1beta1::{VirtualMachineClone, VirtualMachineCloneStatus};
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot};
use kit::{clock, queue::Next, store::Key};
use kube::core::NamespaceResourceScope;
use kube::{
    Api, Resource, ResourceExt,
    api::{DeleteParams, Patch, PatchParams, PostParams},
};
use plan::{Plan, Step, World};
use serde::{Serialize, de::DeserializeOwned};

use crate::{
    context::{Context, reference},
    error::{self, Error},
    facts::copies::{machine_index, restore_indexes, snapshot_index, snapshot_indexes},
    patch, snapshot, write,
};

/// The index value under which a clone is found by its restore.
pub(crate) fn restore_index(restore: &Key) -> String {
    format!("restore:{restore}")
}

/// Index values of a clone.
pub(crate) fn indexes(clone: &VirtualMachineClone) -> Vec<String> {
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

/// Has every clone that this word leads to looked at.
pub(crate) fn wake(context: &Context, word: &str) {
    context.clone_queue.add_all(context.clones.keys_by_index(word));
}

/// Brings one clone a step further.
pub async fn reconcile(context: Context, key: Key) -> Next {
    error::settled("vmclone", &key, Box::pin(sync(&context, &key)).await)
}

async fn sync(context: &Context, key: &Key) -> Result<Next, Error> {
    let Some(clone) = context.clones.get(key) else { return Ok(Next::Wait) };
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
    write_status(context, &clone, &old, &status).await?;
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
    context: &Context,
    clone: &VirtualMachineClone,
    old: &VirtualMachineCloneStatus,
    wanted: &VirtualMachineCloneStatus,
) -> Result<(), Error> {
    let Some(changed) = patch::changed(old, wanted) else { return Ok(()) };
    let (namespace, name) = (clone.namespace().unwrap_or_default(), clone.name_any());
    let api: Api<VirtualMachineClone> = Api::namespaced(context.client.clone(), &namespace);
    let patch = patch::status(clone.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    write::accept(answer, &context.clones, indexes, ("virtualmachineclone", clone)).map(drop)
}
