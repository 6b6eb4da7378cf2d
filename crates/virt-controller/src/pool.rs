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
mod troubles;

use std::collections::{BTreeMap, BTreeSet};
use std::hash::RandomState;
use std::time::Duration;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use api::pool::v1beta1::{VirtualMachinePool, VirtualMachinePoolSpec, VirtualMachinePoolStatus};
use jiff::Timestamp;
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
use steps::Trouble;
use troubles::Troubles;

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
pub const REVISION: &str = api::kubevirt::constants::label::POOL_REVISION;

const KIND: &str = "virtualmachinepool";
const MACHINE: &str = "virtualmachine";

/// Until a pool looks for another name when one was taken: no watch tells it of other machines than its own.
const NAME_TAKEN: Duration = Duration::from_secs(1);

/// What it works with.
#[derive(Clone)]
struct Pools {
    context: Context,
    pools: Store<VirtualMachinePool>,
    revisions: Revisions,
    going: Going,
    paces: Paces,
    troubles: Troubles,
}

/// Has pools looked after, and lets machines go whose pool is gone.
pub(crate) fn register(setup: &mut Setup) {
    let own = Pools {
        context: setup.context.clone(),
        pools: Store::default(),
        revisions: Revisions::default(),
        going: Going::default(),
        paces: Paces::default(),
        troubles: Troubles::default(),
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
        own.troubles.forget(key);
        return Ok(Next::Wait);
    };
    let (context, now) = (&own.context, clock::now());
    let machines = machines(own, &pool);
    let instances = instances(context, &machines);
    let going = going(own, key, &machines, &instances);
    let deleted = pool.metadata.deletion_timestamp.is_some();
    // Whoever deletes a machine waits for nothing else that the pool may lack.
    let kept_back = steps::let_go(context, &pool, &machines).await;
    let revision = match deleted {
        // What is on its way out is made from nothing any more.
        true => Ok((String::new(), BTreeMap::new())),
        false => revisions(own, &pool, &machines, &instances).await,
    };
    let (revision, revisions) = match revision {
        Ok(found) => found,
        Err(error) => return failed(own, &pool, ("FailedUpdate", error)).await,
    };
    let (dice, troubles) = (RandomState::new(), troubles(own, &pool, &machines, now));
    let seen = Seen {
        pool: &pool,
        machines: &machines,
        instances: &instances,
        going: &going,
        revision: &revision,
        revisions: &revisions,
        troubles: &troubles,
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
    let mut fault = (!deleted).then(|| plan::fault(&pool, &revision)).flatten();
    let mut unasked = None;
    if !plan.create.is_empty() || !plan.renew.is_empty() {
        let machine = pool.spec.virtual_machine_template.spec.as_ref();
        let guest = machine.and_then(|machine| machine.template.spec.as_deref());
        match replicas::bar(&context.client, (KIND, &pool), guest).await {
            Ok(bar) => fault = fault.or(bar),
            Err(error) => unasked = Some(("FailedScaleOut", error)),
        }
        if fault.is_some() || unasked.is_some() {
            plan.create.clear();
            plan.renew.clear();
        }
    }
    let outcome = steps::carry_out(own, &pool, &plan, &revision, &revisions).await;
    let untaken = if deleted { None } else { disks::take_in(context, &self::machines(own, &pool)).await };
    let trouble = kept_back.map(|error| ("FailedScaleIn", error)).or(outcome.trouble);
    let trouble = trouble.or(unasked).or(untaken.map(|error| ("FailedScaleOut", error)));
    if let Some(trouble) = trouble {
        return failed(own, &pool, trouble).await;
    }
    if plan.is_settled() && held.is_none() && !deleted {
        let labels = machines.iter().map(ResourceExt::labels).chain(instances.values().map(ResourceExt::labels));
        let used = labels.filter_map(|labels| labels.get(REVISION).cloned()).collect();
        if let Err(error) = own.revisions.prune(&context.client, &pool, used).await {
            return failed(own, &pool, ("FailedRevisionPruning", error)).await;
        }
    }
    let failure = fault.map(Failure::made_impossible).or(held.map(Failure::held));
    tell(own, &pool, failure.as_ref()).await?;
    let wait = held.map(|at| Duration::try_from(at.duration_since(now)).unwrap_or_default());
    let name_taken = outcome.name_taken.then_some(NAME_TAKEN);
    // What one pass can make is made; the rest follows at once.
    let rest = (plan.create.len() >= replicas::BURST).then_some(Duration::ZERO);
    let again = plan.again.into_iter().chain(wait).chain(name_taken).chain(rest);
    Ok(again.min().map_or(Next::Wait, Next::After))
}

/// The revision that `pool` is at, and what those were that some of its machines and instances are of.
async fn revisions(
    own: &Pools,
    pool: &VirtualMachinePool,
    machines: &[VirtualMachine],
    instances: &BTreeMap<String, VirtualMachineInstance>,
) -> Result<(String, BTreeMap<String, VirtualMachinePoolSpec>), Error> {
    let client = &own.context.client;
    let current = own.revisions.current(client, pool).await?;
    let needed = plan::needed(pool, machines, instances, &current);
    let specs = own.revisions.specs(client, pool, &needed).await?;
    Ok((current, specs))
}

/// Since when machines that the pool heals are in trouble, by UID.
fn troubles(
    own: &Pools,
    pool: &VirtualMachinePool,
    machines: &[VirtualMachine],
    now: Timestamp,
) -> BTreeMap<String, Timestamp> {
    let healed = pool.spec.autohealing.is_some();
    let troubled = machines.iter().filter(|vm| healed && plan::is_in_trouble(vm)).filter_map(ResourceExt::uid);
    own.troubles.seen(&Key::of(pool), troubled.collect(), now)
}

async fn failed(own: &Pools, pool: &VirtualMachinePool, trouble: Trouble) -> Result<Next, Error> {
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

/// UIDs of those of `machines` and `instances` that were told to go.
fn going(
    own: &Pools,
    key: &Key,
    machines: &[VirtualMachine],
    instances: &BTreeMap<String, VirtualMachineInstance>,
) -> BTreeSet<String> {
    let all = machines.iter().map(|vm| &vm.metadata).chain(instances.values().map(|vmi| &vmi.metadata));
    let there = all.filter(|metadata| metadata.deletion_timestamp.is_none());
    own.going.among(key, there.filter_map(|metadata| metadata.uid.as_deref()))
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
    let going = going(own, &key, &machines, &instances(&own.context, &machines));
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
