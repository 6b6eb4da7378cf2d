//! VirtualMachinePool: as many machines of one template as it says, each with a number; written anew and restarted when the template changes.
//!
//! ```text
//! machines that it owns, their instances, what they were made from -> plan (pure) -> steps -> status (pure)
//! ```
//!
//! It takes nobody in: a machine of another owner keeps its name, and the number is passed over. Its machines wait for it when they are
//! deleted, so that their disks can outlive them; once it is gone, nothing is waited for.

mod disks;
pub mod machine;
pub mod plan;
pub(crate) mod revision;
pub mod selection;
pub mod status;
mod steps;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::RandomState;
use std::time::Duration;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::pool::v1beta1::{VirtualMachinePool, VirtualMachinePoolStatus};
use kit::controller::owner;
use kit::queue::{Next, Queue};
use kit::store::{Key, Store, Watch};
use kit::{clock, served};
use kube::api::{Patch, PatchParams};
use kube::discovery::ApiResource;
use kube::{Api, ResourceExt};
use plan::Seen;
use revision::Revisions;
use status::Failure;

use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::index::{POOL, of_replica, replica_index};
use crate::replicas::{self, Going, Paces};
use crate::setup::Setup;
use crate::stores::{Changes, index_values};
use crate::{patch, write};

/// On a machine: its pool has yet to do something when it is deleted.
pub const FINALIZER: &str = "pool.kubevirt.io/finalizer";

/// On a machine and its instance: the revision that they are of.
pub const REVISION: &str = "kubevirt.io/vm-pool-revision-name";

const KIND: &str = "virtualmachinepool";
const MACHINE: &str = "virtualmachine";

/// What it works with.
#[derive(Clone)]
struct Pools {
    context: Context,
    pools: Store<VirtualMachinePool>,
    revisions: Revisions,
    going: Going,
    paces: Paces,
}

/// Has pools looked after, and lets machines go whose pool is gone.
pub(crate) fn register(setup: &mut Setup) {
    let own = Pools {
        context: setup.context.clone(),
        pools: Store::default(),
        revisions: Revisions::default(),
        going: Going::default(),
        paces: Paces::default(),
    };
    let (queue, strays, client) = (Queue::default(), Queue::default(), own.context.client.clone());
    wakes(&mut setup.changes, &own.pools, &queue, &strays);
    let (wake, left, stores) = (queue.clone(), strays.clone(), own.context.stores.clone());
    let resource = ApiResource::erase::<VirtualMachinePool>(&());
    let (api, how) = (Api::all(client.clone()), Watch::default());
    setup.keep(served::watch(&client, &resource, api, how, own.pools.clone(), move |change| {
        wake.add(change.key.clone());
        if change.new.is_none() {
            left.add_all(stores.vms.keys_by_index(&replica_index(POOL, change.key)));
        }
    }));
    for (queue, is_of_machines) in [(queue, false), (strays, true)] {
        let (stores, pools, own) = (own.context.stores.clone(), own.pools.clone(), own.clone());
        let known = async move {
            tokio::join!(
                stores.vms.synced(),
                stores.vmis.synced(),
                stores.claims.synced(),
                stores.data_volumes.synced(),
                pools.synced()
            );
        };
        setup.work(queue, 2, known, move |key| {
            let own = own.clone();
            async move { if is_of_machines { let_go(own, key).await } else { reconcile(own, key).await } }
        });
    }
}

fn wakes(changes: &mut Changes, pools: &Store<VirtualMachinePool>, queue: &Queue<Key>, strays: &Queue<Key>) {
    changes
        .vms
        .wake(queue, |_, change| index_values(change).filter_map(|word| of_replica(POOL, word)).collect::<Vec<_>>());
    // A VM and its instance share their name, and few are a pool's.
    changes.vmis.wake(queue, |stores, change| {
        let ours = change.new.is_none_or(|vmi| vmi.labels().contains_key(REVISION));
        let vm = ours.then(|| stores.vms.get(change.key)).flatten();
        vm.and_then(|vm| owner::controller_key::<VirtualMachinePool>(&vm.metadata))
    });
    let held = pools.clone();
    changes.vms.wake(strays, move |_, change| {
        change.new.filter(|vm| waits(vm) && !has_pool(&held, vm)).map(|_| change.key.clone())
    });
}

fn waits(vm: &VirtualMachine) -> bool {
    vm.finalizers().iter().any(|name| name == FINALIZER)
}

/// True while the pool is there that `vm` says is its own.
fn has_pool(pools: &Store<VirtualMachinePool>, vm: &VirtualMachine) -> bool {
    let pool = owner::controller_key::<VirtualMachinePool>(&vm.metadata).and_then(|key| pools.get(&key));
    pool.and_then(|pool| pool.metadata.uid).is_some_and(|uid| replicas::is_of(vm, &uid))
}

/// A machine without a pool waits for none.
async fn let_go(own: Pools, key: Key) -> Next {
    let vm = own.context.stores.vms.get(&key).filter(|vm| waits(vm) && !has_pool(&own.pools, vm));
    let Some(vm) = vm else { return Next::Wait };
    error::settled("vm", &key, steps::release(&own.context, &vm).await.map(|()| Next::Wait))
}

/// Brings one pool a step further.
async fn reconcile(own: Pools, key: Key) -> Next {
    error::settled(KIND, &key, Box::pin(sync(&own, &key)).await)
}

async fn sync(own: &Pools, key: &Key) -> Result<Next, Error> {
    let Some(pool) = own.pools.get(key) else {
        own.paces.forget(key);
        own.revisions.forget(key);
        return Ok(Next::Wait);
    };
    let (context, now) = (&own.context, clock::now());
    let machines = machines(own, &pool);
    let going = going(own, key, &machines);
    let instances = instances(context, &machines);
    let deleted = pool.metadata.deletion_timestamp.is_some();
    // What is on its way out is made from nothing any more.
    let revision = match deleted {
        true => Ok(String::new()),
        false => own.revisions.current(&context.client, &pool).await,
    };
    let revision = match revision {
        Ok(revision) => revision,
        Err(error) => return failed(own, &pool, ("FailedUpdate", error)).await,
    };
    let old = |vmi: &VirtualMachineInstance| vmi.labels().get(REVISION) != Some(&revision);
    let revisions = match !deleted && instances.values().any(old) {
        true => revision::specs(&context.client, &pool).await?,
        false => BTreeMap::new(),
    };
    let dice = RandomState::new();
    let seen = Seen {
        pool: &pool,
        machines: &machines,
        instances: &instances,
        going: &going,
        revision: &revision,
        revisions: &revisions,
        now,
        dice: &dice,
    };
    let taken = |name: &str| context.stores.vms.contains(&Key::new(key.namespace.as_str(), name));
    let mut plan = plan::plan(&seen, taken);
    let healed = plan.heal.iter().filter_map(|vm| vm.uid()).collect();
    let template = replicas::fingerprint(&pool.spec.virtual_machine_template);
    let held = own.paces.ended(key, template, healed, now);
    let held = held.filter(|_| !plan.create.is_empty());
    if held.is_some() {
        plan.create.clear();
    }
    if let Err(trouble) = steps::carry_out(own, &pool, &plan, &revision).await {
        return failed(own, &pool, trouble).await;
    }
    let settled = plan.is_settled() && held.is_none();
    if settled && !deleted && own.revisions.has_more(key) {
        let of = |labels: &BTreeMap<String, String>| labels.get(REVISION).cloned();
        let used: Vec<String> = machines.iter().filter_map(|vm| of(vm.labels())).collect();
        let used_by_guests = instances.values().filter_map(|vmi| of(vmi.labels()));
        let used: Vec<String> = used.into_iter().chain(used_by_guests).collect();
        let used: Vec<&str> = used.iter().map(String::as_str).collect();
        if let Err(error) = own.revisions.prune(&context.client, &pool, &used).await {
            return failed(own, &pool, ("FailedRevisionPruning", error)).await;
        }
    }
    let failure = held.map(Failure::held);
    tell(own, &pool, failure.as_ref()).await?;
    let wait = held.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    // What one pass can make is made; the rest follows at once.
    let rest = (plan.create.len() >= replicas::BURST).then_some(Duration::ZERO);
    Ok(plan.again.into_iter().chain(wait).chain(rest).min().map_or(Next::Wait, Next::After))
}

async fn failed(own: &Pools, pool: &VirtualMachinePool, trouble: (&'static str, Error)) -> Result<Next, Error> {
    let (reason, error) = trouble;
    if !error.is_conflict() {
        own.context.recorder.warning(&reference(pool), reason, kit::Chain(&error).to_string());
        tell(own, pool, Some(&Failure::of(reason, &error))).await?;
    }
    Err(error)
}

fn machines(own: &Pools, pool: &VirtualMachinePool) -> Vec<VirtualMachine> {
    let uid = pool.uid().unwrap_or_default();
    let mut all = own.context.stores.vms.by_index(&replica_index(POOL, &Key::of(pool)));
    all.retain(|vm| replicas::is_of(vm, &uid));
    all
}

/// UIDs of those of `machines` that were told to go.
fn going(own: &Pools, key: &Key, machines: &[VirtualMachine]) -> BTreeSet<String> {
    let there = machines.iter().filter(|vm| vm.metadata.deletion_timestamp.is_none());
    own.going.among(key, there.filter_map(|vm| vm.metadata.uid.as_deref()))
}

fn instances(context: &Context, machines: &[VirtualMachine]) -> BTreeMap<String, VirtualMachineInstance> {
    let found = machines.iter().filter_map(|vm| {
        let vmi = context.stores.vmis.get(&Key::of(vm))?;
        vm.metadata.uid.as_deref().is_some_and(|uid| replicas::is_of(&vmi, uid)).then(|| (vm.name_any(), vmi))
    });
    found.collect()
}

/// Writes the status of `pool` as it is now.
async fn tell(own: &Pools, pool: &VirtualMachinePool, failure: Option<&Failure>) -> Result<(), Error> {
    let key = Key::of(pool);
    let machines = machines(own, pool);
    let going = going(own, &key, &machines);
    let active = plan::active(&machines, &going);
    let wanted: VirtualMachinePoolStatus = status::status(pool, &active, failure, &clock::time());
    let old = pool.status.clone().unwrap_or_default();
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    let api: Api<VirtualMachinePool> = Api::namespaced(own.context.client.clone(), &key.namespace);
    let patch = patch::status(pool.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&key.name, &PatchParams::default(), &Patch::Merge(patch)).await;
    if write::accept(answer, &own.pools, |_| Vec::new(), (KIND, pool))?
        && let Some((reason, message)) = status::turned(&old, &wanted)
    {
        own.context.recorder.normal(&reference(pool), reason, message);
    }
    Ok(())
}
