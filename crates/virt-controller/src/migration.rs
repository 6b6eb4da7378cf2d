//! VirtualMachineInstanceMigration -> target pod -> hand-over to the virt-handlers of both nodes -> its end, and what is
//! left to clear up then.
//!
//! Who may start is decided under one lock, on stores that hold what was created under it: limits hold exactly. What is
//! written to a VMI is written against the version it was computed from, so that this controller and two virt-handlers
//! never overrule each other.

pub mod configuration;
mod handover;
pub mod metrics;
pub mod plan;
pub mod policy;
pub mod queue;
mod same_images;
pub mod status;
mod steps;
pub mod target_pod;
pub mod waiting;

use std::cmp::Reverse;
use std::sync::Arc;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use api::migrations::v1alpha1::MigrationPolicy;
use k8s_openapi::api::core::v1::Pod;
use kit::clock;
use kit::queue::{Next, Queue};
use kit::store::{self, Key, Store, Watch};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use metrics::{Ages, Figures};
use plan::{Plan, Remark, Step, View};
use queue::{Turn, Waiting};
use tokio::sync::Mutex;

use crate::context::{Context, reference};
use crate::error::{self, Error};
use crate::facts::index::{UNFINISHED, migration_index, migration_indexes, owner_index};
use crate::facts::migrations::{self, moved};
use crate::facts::{launcher, migration_state, stand_ins, volumes_change};
use crate::migration_cleanup::Subject;
use crate::setup::Setup;
use crate::stores::{Changes, Stores, index_values};
use crate::{patch, stand_in, vmi, write};

/// What it works with.
#[derive(Clone)]
struct Migrations {
    context: Context,
    /// Held while it is decided whether a migration starts.
    starting: Arc<Mutex<()>>,
    /// What administrators say about migrations of some guests.
    policies: Store<MigrationPolicy>,
    /// How long they took to enter their phases.
    ages: Ages,
}

/// Finished migrations that are kept for each guest.
const KEPT: usize = 5;

/// Workers at its queue.
const WORKERS: usize = 8;

/// Has migrations looked after, and their ages noted in `figures`.
pub(crate) fn register(setup: &mut Setup, figures: &Figures) {
    let context = setup.context.clone();
    let own =
        Migrations { context, starting: Arc::default(), policies: Store::default(), ages: figures.ages().clone() };
    let queue = Queue::default();
    wakes(&mut setup.changes, &queue);
    let policies: Api<MigrationPolicy> = Api::all(own.context.client.clone());
    let how = Watch { trim: |policy: &mut MigrationPolicy| policy.status = None, ..Watch::default() };
    setup.keep(store::watch(policies, how, own.policies.clone(), |_| {}));
    let (stores, policies) = (own.context.stores.clone(), own.policies.clone());
    let known = async move {
        tokio::join!(
            stores.vmis.synced(),
            stores.pods.synced(),
            stores.attachments.synced(),
            stores.claims.synced(),
            stores.nodes.synced(),
            stores.kubevirts.synced(),
            stores.migrations.synced(),
            policies.synced()
        );
    };
    setup.work(queue, WORKERS, known, move |key| reconcile(own.clone(), key));
}

fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.migrations.wake(queue, |stores, change| {
        // Where one ends, another begins.
        let others = if change.new.is_none_or(migrations::is_final) { waiting(stores) } else { Vec::new() };
        others.into_iter().chain([change.key.clone()])
    });
    changes.vmis.wake(queue, |stores, change| of_guest(stores, change.key));
    changes.pods.wake(queue, |stores, change| {
        if stores.migrations.is_empty() {
            return Vec::new();
        }
        // A pod that ended may be what a migration of its guest waits for.
        let guests = index_values(change).flat_map(|word| stores.vmis.keys_by_index(word));
        guests.flat_map(|guest| of_guest(stores, &guest)).collect()
    });
    // Its limits may have grown.
    changes.kubevirts.wake(queue, |stores, _| waiting(stores));
    changes.stranded.wake(queue, of_guest);
}

fn of_guest(stores: &Stores, guest: &Key) -> Vec<Key> {
    stores.migrations.keys_by_index(&migration_index(guest))
}

/// Every migration that waits for its turn.
fn waiting(stores: &Stores) -> Vec<Key> {
    let unfinished = stores.migrations.by_index(UNFINISHED).into_iter();
    unfinished.filter(|migration| !migrations::is_running(migration)).map(|migration| Key::of(&migration)).collect()
}

/// Brings one migration a step further.
async fn reconcile(own: Migrations, key: Key) -> Next {
    error::settled("migration", &key, Box::pin(sync(&own, &key)).await)
}

async fn sync(own: &Migrations, key: &Key) -> Result<Next, Error> {
    let context = &own.context;
    let Some(migration) = context.stores.migrations.get(key) else { return Ok(Next::Wait) };
    let waits = matches!(migrations::phase_of(&migration), "" | "Pending");
    // Held until the target pod is in the store, where the next one to ask counts it.
    let starting = if waits { Some(own.starting.lock().await) } else { None };
    let guest_key = moved(&migration);
    let guest = context.stores.vmis.get(&guest_key);
    let pods = guest.as_ref().map(|guest| pods_of(context, guest)).unwrap_or_default();
    let siblings = context.stores.migrations.by_index(&migration_index(&guest_key));
    let now = clock::now();
    let lost = |node: Option<String>| node.is_some_and(|node| context.stores.lost.get(&node).is_some());
    let target = target_node(&migration, guest.as_ref(), &pods);
    let target_hold = match (&guest, &target) {
        (Some(guest), Some(node)) => vmi::lost::held_at_target(context, guest, &migration, node).await?,
        _ => None,
    };
    let turn = if waits { turn(context, key) } else { Turn::Now };
    let back_off = if waits { queue::back_off(&migration, &siblings, now) } else { None };
    let has_pod = pods.iter().any(|pod| launcher::job(pod) == migration.metadata.uid.as_deref());
    let starts = waits && !has_pod && turn == Turn::Now && back_off.is_none();
    let immovable = match guest.as_ref().filter(|guest| starts && plan::movable(guest, &pods)) {
        Some(guest) => stand_in::obstacle::find(context, guest).await?,
        None => None,
    };
    let view = View {
        migration: &migration,
        vmi: guest.as_ref(),
        pods: &pods,
        source_lost: lost(guest.as_ref().map(|guest| source_node(&migration, guest))),
        target_lost: lost(target),
        target_hold,
        outdated: guest.as_ref().is_some_and(|guest| is_outdated(context, &migration, guest, &pods)),
        rival: siblings.iter().any(|other| is_rival(&migration, other)),
        turn,
        immovable,
        patience: configuration::utility_volumes_timeout(&configuration::current(context)),
        back_off,
        now,
    };
    let plan = plan::plan(&view);
    if migrations::is_final(&migration) || plan.steps.contains(&Step::Release) {
        vmi::state::settle(context, &migration, guest.as_ref()).await?;
    }
    let subject = Subject { migration: &migration, guest: guest.clone(), pods: &pods };
    let done = Box::pin(steps::execute(context, &own.policies, subject, &plan.steps)).await;
    drop(starting);
    if plan.steps.iter().any(|step| matches!(step, Step::Adopt | Step::Release | Step::Delete)) {
        return done.map(|_| Next::Wait);
    }
    let over_quota = done.as_ref().err().and_then(over_quota);
    // Steps write the VMI; the status must speak of it as it is now.
    let guest = context.stores.vmis.get(&guest_key);
    write_status(own, &migration, guest.as_ref(), &plan, over_quota.as_deref()).await?;
    remark(context, &migration, guest.as_ref(), &plan);
    done?;
    if migrations::is_final(&migration) {
        collect(context, &siblings).await?;
    }
    Ok(plan.again.map_or(Next::Wait, Next::After))
}

/// The launcher pods of `guest`.
fn pods_of(context: &Context, guest: &VirtualMachineInstance) -> Vec<Pod> {
    context.stores.pods.by_index(&owner_index(&guest.uid().unwrap_or_default()))
}

/// The target pod of `migration` has other claims than the guest is to have there.
fn is_outdated(context: &Context, migration: &Migration, guest: &VirtualMachineInstance, pods: &[Pod]) -> bool {
    let uid = migration.metadata.uid.as_deref().unwrap_or_default();
    let Some(target) = pods.iter().find(|pod| launcher::job(pod) == Some(uid)) else { return false };
    if migration_state::ours(guest, uid).is_some() || migrations::is_final(migration) {
        return false;
    }
    let known = stand_in::prepare::claims(context, guest, uid);
    !volumes_change::fits(&stand_ins::there(guest, &known, uid), target)
}

/// True when `other` was there before `migration` and is not over: a guest is moved by one at a time.
fn is_rival(migration: &Migration, other: &Migration) -> bool {
    let age = |migration: &Migration| {
        (!migrations::is_running(migration), migration.creation_timestamp().map(|at| at.0), migration.uid())
    };
    !migrations::is_final(other) && other.uid() != migration.uid() && age(other) < age(migration)
}

/// Whether it is the turn of the migration under `key`.
fn turn(context: &Context, key: &Key) -> Turn {
    let limits = configuration::limits(&configuration::current(context));
    let (mut waiting, mut running) = (Vec::new(), Vec::new());
    let now = clock::now();
    for migration in context.stores.migrations.by_index(UNFINISHED) {
        let guest_key = moved(&migration);
        let Some(guest) = context.stores.vmis.get(&guest_key) else { continue };
        let pods = pods_of(context, &guest);
        let source = source_node(&migration, &guest);
        let started = pods.iter().any(|pod| launcher::job(pod) == migration.metadata.uid.as_deref());
        if migrations::is_running(&migration) || started {
            running.push(source);
            continue;
        }
        let held = migration.metadata.deletion_timestamp.is_some()
            || !plan::movable(&guest, &pods)
            || queue::back_off(&migration, &context.stores.migrations.by_index(&migration_index(&guest_key)), now)
                .is_some();
        if !held {
            let (own, created) = (Key::of(&migration), migration.creation_timestamp().map(|at| at.0));
            waiting.push(Waiting { key: own, priority: queue::priority(&migration), created, source });
        }
    }
    queue::turn(key, waiting, &running, limits)
}

/// The node that `migration` leaves.
fn source_node(migration: &Migration, guest: &VirtualMachineInstance) -> String {
    let handed_over = migration_state::ours(guest, migration.metadata.uid.as_deref().unwrap_or_default());
    let node = handed_over.and_then(|state| state.source_node.clone());
    node.or_else(|| guest.status.as_ref()?.node_name.clone()).unwrap_or_default()
}

/// The node that `migration` goes to, once that is known.
fn target_node(migration: &Migration, guest: Option<&VirtualMachineInstance>, pods: &[Pod]) -> Option<String> {
    let uid = migration.metadata.uid.as_deref().unwrap_or_default();
    let handed_over = guest.and_then(|guest| migration_state::ours(guest, uid)?.target_node.clone());
    let bound = || pods.iter().find(|pod| launcher::job(pod) == Some(uid))?.spec.as_ref()?.node_name.clone();
    handed_over.or_else(bound)
}

fn over_quota(error: &Error) -> Option<String> {
    match error {
        Error::Api { source, verb: "create", .. } => match &**source {
            kube::Error::Api(status) if status.message.contains("exceeded quota") => Some(status.message.clone()),
            _ => None,
        },
        _ => None,
    }
}

async fn write_status(
    own: &Migrations,
    migration: &Migration,
    guest: Option<&VirtualMachineInstance>,
    plan: &Plan,
    over_quota: Option<&str>,
) -> Result<(), Error> {
    let context = &own.context;
    let old = migration.status.clone().unwrap_or_default();
    let wanted = status::status(migration, guest, plan, over_quota, clock::seconds(clock::now()));
    let Some(changed) = patch::changed(&old, &wanted) else { return Ok(()) };
    let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
    let api: Api<Migration> = Api::namespaced(context.client.clone(), &namespace);
    let patch = patch::status(migration.metadata.resource_version.as_deref(), &changed);
    let answer = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    if write::accept(
        answer,
        &context.stores.migrations,
        migration_indexes,
        ("virtualmachineinstancemigration", migration),
    )? {
        metrics::observe(&own.ages, migration, &plan.phases, clock::now());
    }
    Ok(())
}

fn remark(context: &Context, migration: &Migration, guest: Option<&VirtualMachineInstance>, plan: &Plan) {
    let about = reference(migration);
    for remark in &plan.remarks {
        match remark {
            Remark::Normal(reason, message) => context.recorder.normal(&about, reason, message.clone()),
            Remark::Warning(reason, message) => context.recorder.warning(&about, reason, message.clone()),
            Remark::BackOff(message) => {
                if let Some(guest) = guest {
                    context.recorder.warning(&reference(guest), "MigrationBackoff", message.clone());
                }
            }
        }
    }
}

/// Deletes the eldest of the guest's finished migrations, all but [`KEPT`].
async fn collect(context: &Context, siblings: &[Migration]) -> Result<(), Error> {
    let mut over: Vec<&Migration> = siblings
        .iter()
        .filter(|migration| migrations::is_final(migration) && migration.metadata.deletion_timestamp.is_none())
        .collect();
    over.sort_by_key(|migration| Reverse((migration.creation_timestamp().map(|at| at.0), migration.name_any())));
    for old in over.into_iter().skip(KEPT) {
        delete(context, old).await?;
    }
    Ok(())
}

async fn delete(context: &Context, migration: &Migration) -> Result<(), Error> {
    let (namespace, name) = (migration.namespace().unwrap_or_default(), migration.name_any());
    let api: Api<Migration> = Api::namespaced(context.client.clone(), &namespace);
    let own = kube::api::Preconditions { uid: migration.uid(), resource_version: None };
    match api.delete(&name, &DeleteParams { preconditions: Some(own), ..Default::default() }).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", "virtualmachineinstancemigration", &namespace, &name)(error)),
    }
}
