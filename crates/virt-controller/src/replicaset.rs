//! VirtualMachineInstanceReplicaSet: as many instances of one template as it says.
//!
//! ```text
//! instances that it owns, or that its selector selects and nobody owns -> plan (pure) -> adopt, release, create, delete -> status
//! ```
//!
//! Nothing of another owner, and nothing of another namespace, is ever touched.

pub mod plan;
pub mod status;

use std::collections::BTreeSet;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceReplicaSet as ReplicaSet};
use kit::clock;
use kit::controller::owner;
use kit::queue::{Next, Queue};
use kit::served;
use kit::store::{Key, Store, Watch};
use kube::api::{Patch, PatchParams, PostParams};
use kube::discovery::ApiResource;
use kube::{Api, ResourceExt};
use plan::{Plan, Seen};
use status::Failure;

use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::index::{SET, of_orphan, of_replica, orphan_index, replica_index, vmi_indexes};
use crate::replicas::{self, Going, Paces};
use crate::setup::Setup;
use crate::stores::{Changes, index_values};
use crate::{patch, write};

const KIND: &str = "virtualmachineinstancereplicaset";
const INSTANCE: &str = "virtualmachineinstance";

/// What it works with.
#[derive(Clone)]
struct Sets {
    context: Context,
    sets: Store<ReplicaSet>,
    going: Going,
    paces: Paces,
}

/// The index value of the sets in a namespace.
fn in_namespace(namespace: &str) -> String {
    format!("in:{namespace}")
}

fn indexes(set: &ReplicaSet) -> Vec<String> {
    vec![in_namespace(&set.namespace().unwrap_or_default())]
}

/// Has sets looked after.
pub(crate) fn register(setup: &mut Setup) {
    let own = Sets {
        context: setup.context.clone(),
        sets: Store::default(),
        going: Going::default(),
        paces: Paces::default(),
    };
    let (queue, client) = (Queue::default(), own.context.client.clone());
    wakes(&mut setup.changes, &own.sets, &queue);
    let wake = queue.clone();
    let how = Watch { index: indexes, ..Watch::default() };
    let resource = ApiResource::erase::<ReplicaSet>(&());
    setup.keep(served::watch(&client, &resource, Api::all(client.clone()), how, own.sets.clone(), move |change| {
        wake.add(change.key.clone());
    }));
    let (stores, sets) = (own.context.stores.clone(), own.sets.clone());
    let known = async move {
        tokio::join!(stores.vmis.synced(), sets.synced());
    };
    setup.work(queue, 2, known, move |key| reconcile(own.clone(), key));
}

fn wakes(changes: &mut Changes, sets: &Store<ReplicaSet>, queue: &Queue<Key>) {
    let held = sets.clone();
    changes.vmis.wake(queue, move |_, change| {
        let own = index_values(change).filter_map(|word| of_replica(SET, word));
        let orphan = index_values(change).filter_map(|word| of_orphan(word));
        own.chain(orphan.flat_map(|namespace| held.keys_by_index(&in_namespace(namespace)))).collect::<Vec<_>>()
    });
}

/// Brings one set a step further.
async fn reconcile(own: Sets, key: Key) -> Next {
    error::settled(KIND, &key, Box::pin(sync(&own, &key)).await)
}

async fn sync(own: &Sets, key: &Key) -> Result<Next, Error> {
    let Some(set) = own.sets.get(key) else {
        own.paces.forget(key);
        return Ok(Next::Wait);
    };
    // Its instances go with it, or stay where whoever deleted it wants that.
    if set.metadata.deletion_timestamp.is_some() {
        return Ok(Next::Wait);
    }
    let now = clock::now();
    let paused = set.spec.paused == Some(true);
    if !paused {
        claim(own, &set).await?;
    }
    let owned = owned(own, &set);
    let going = going(own, key, &owned);
    let ended = owned.iter().filter(|vmi| plan::has_ended(vmi)).filter_map(ResourceExt::uid).collect();
    let held_until = own.paces.ended(key, replicas::fingerprint(&set.spec.template), ended, now);
    let plan = plan::plan(&Seen { set: &set, owned: &owned, going: &going, held: held_until.is_some() });
    let mut failed = None;
    if !paused {
        failed = carry_out(own, &set, plan).await;
    }
    let failure = match &failed {
        Some((reason, error)) => Some(Failure::of(reason, error)),
        None => held_until.filter(|_| !paused).map(Failure::held),
    };
    // What was made and who was told to go is known by now.
    let known = self::owned(own, &set);
    let going = self::going(own, key, &known);
    write_status(own, &set, &status::status(&set, &known, &going, failure.as_ref(), &clock::time())).await?;
    match (failed, held_until) {
        (Some((_, error)), _) => Err(error),
        (None, Some(at)) if !paused => Ok(Next::After(at.duration_since(now).try_into().unwrap_or_default())),
        // More than one pass can make are wanted.
        (None, _) if !paused && plan::lacks(&set, &known, &going) => Ok(Next::After(std::time::Duration::ZERO)),
        (None, _) => Ok(Next::Wait),
    }
}

/// UIDs of those of `owned` that were told to go.
fn going(own: &Sets, key: &Key, owned: &[VirtualMachineInstance]) -> BTreeSet<String> {
    let there = owned.iter().filter(|vmi| vmi.metadata.deletion_timestamp.is_none());
    own.going.among(key, there.filter_map(|vmi| vmi.metadata.uid.as_deref()))
}

fn owned(own: &Sets, set: &ReplicaSet) -> Vec<VirtualMachineInstance> {
    let (uid, key) = (set.uid().unwrap_or_default(), Key::of(set));
    let mut all = own.context.stores.vmis.by_index(&replica_index(SET, &key));
    all.retain(|vmi| replicas::is_of(vmi, &uid));
    all
}

/// Takes in whoever nobody owns and the selector selects, and lets go whom it does not select any more.
async fn claim(own: &Sets, set: &ReplicaSet) -> Result<(), Error> {
    let (uid, namespace) = (set.uid().unwrap_or_default(), set.namespace().unwrap_or_default());
    let orphans = own.context.stores.vmis.by_index(&orphan_index(&namespace));
    let held = owned(own, set);
    let Plan { adopt, release, .. } = plan::claims(set, &orphans, &held);
    if !adopt.is_empty() && !is_live(own, set).await? {
        return Ok(());
    }
    for vmi in adopt {
        let mut owners = vmi.owner_references().to_vec();
        owners.retain(|owner| owner.uid != uid);
        owners.push(owner::controlled_by(set));
        keep(own, replicas::set_owners(&own.context.client, (INSTANCE, vmi), owners).await?);
    }
    for vmi in release {
        let owners = vmi.owner_references().iter().filter(|owner| owner.uid != uid).cloned().collect();
        keep(own, replicas::set_owners(&own.context.client, (INSTANCE, vmi), owners).await?);
    }
    Ok(())
}

/// Whether the set is still there, asked of the API server: one that was deleted just now takes nobody in.
async fn is_live(own: &Sets, set: &ReplicaSet) -> Result<bool, Error> {
    let Key { namespace, name } = Key::of(set);
    let api: Api<ReplicaSet> = Api::namespaced(own.context.client.clone(), &namespace);
    let found = api.get_opt(&name).await.map_err(Error::api("read", KIND, &namespace, &name))?;
    Ok(found.is_some_and(|found| found.metadata.uid == set.metadata.uid && found.metadata.deletion_timestamp.is_none()))
}

fn keep(own: &Sets, written: Option<VirtualMachineInstance>) {
    if let Some(vmi) = written {
        own.context.stores.vmis.put(&vmi, vmi_indexes(&vmi));
    }
}

/// Creates and deletes what `plan` says; with the reason of the first failure.
async fn carry_out(own: &Sets, set: &ReplicaSet, plan: Plan<'_>) -> Option<(&'static str, Error)> {
    let (context, key) = (&own.context, Key::of(set));
    let api: Api<VirtualMachineInstance> = Api::namespaced(context.client.clone(), &key.namespace);
    let (made, failure) = replicas::in_batches(vec![(); plan.create], |()| async {
        let made = api.create(&PostParams::default(), &plan::instance(set)).await;
        made.map_err(Error::api("create", INSTANCE, &key.namespace, &key.name))
    })
    .await;
    for mut vmi in made {
        vmi.metadata.managed_fields = None;
        let name = vmi.name_any();
        context.recorder.normal(
            &reference(set),
            "SuccessfulCreate",
            format!("Started the virtual machine by creating the new virtual machine instance {name}"),
        );
        keep(own, Some(vmi));
    }
    if let Some(error) = failure {
        let message = format!("Error creating virtual machine instance: {}", kit::Chain(&error));
        context.recorder.warning(&reference(set), "FailedCreate", message);
        return Some(("FailedCreate", error));
    }
    for (victims, said) in [
        (plan.delete, "Stopped the virtual machine by deleting the virtual machine instance"),
        (plan.tidy, "Deleted finished virtual machine:"),
    ] {
        let (_, failure) = replicas::in_batches(victims, |vmi| {
            let key = &key;
            async move {
                replicas::delete(&context.client, (INSTANCE, vmi), None).await?;
                own.going.told(key, vmi.uid().unwrap_or_default());
                let uid = vmi.uid().unwrap_or_default();
                context.recorder.normal(&reference(set), "SuccessfulDelete", format!("{said} {uid}"));
                Ok(())
            }
        })
        .await;
        if let Some(error) = failure {
            let message = format!("Error deleting virtual machine instance: {}", kit::Chain(&error));
            context.recorder.warning(&reference(set), "FailedDelete", message);
            return Some(("FailedDelete", error));
        }
    }
    None
}

async fn write_status(
    own: &Sets,
    set: &ReplicaSet,
    wanted: &api::kubevirt::v1::VirtualMachineInstanceReplicaSetStatus,
) -> Result<(), Error> {
    let old = set.status.clone().unwrap_or_default();
    let Some(changed) = patch::changed(&old, wanted) else { return Ok(()) };
    let Key { namespace, name } = Key::of(set);
    let api: Api<ReplicaSet> = Api::namespaced(own.context.client.clone(), &namespace);
    let patch = patch::status(set.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    if write::accept(answer, &own.sets, indexes, (KIND, set))?
        && let Some((reason, message)) = status::turned(&old, wanted)
    {
        own.context.recorder.normal(&reference(set), reason, message);
    }
    Ok(())
}
