//! What to do about a migration, given its guest and the pods. Pure.
//!
//! ```text
//! (unset) -> Pending --a turn, a target pod--> Scheduling --it stands--> Scheduled --hand-over--> PreparingTarget
//!         --the target's node waits--> TargetReady --the source's node begins--> Running --taken over--> Succeeded
//! any of them -> Failed
//! ```
//! Which pod has the guest is decided by one field, `completed` without `failed` in the VMI's migration state, and by one
//! writer: the source's virt-handler, which alone knows. This controller writes it only where that handler cannot have
//! begun (no `startTimestamp` in the version this write is made against), or where the source's pod has ended.
//! The pod that lost is deleted only afterwards.

use std::time::Duration;

use api::kubevirt::constants::{
    annotation, finalizer, label, migration_condition as condition, migration_phase as phase,
};
use api::kubevirt::hotplug::utilities;
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;

use super::queue::Turn;
use super::waiting::{self, Waiting};
use crate::facts::launcher::{self, is_down, job};
use crate::facts::migrations::{is_final, phase_of};
use crate::facts::{active, instance, migration_state, stand_ins};
use crate::migration_cleanup::plan::{Step as Cleanup, settle};

/// A target pod may be unschedulable this long.
const UNSCHEDULABLE: i64 = 300;
/// A target pod may be pending this long for whatever reason.
const PENDING: i64 = 900;
/// A migration that waits for its turn looks again after this long, whatever it is told.
const TURN: Duration = Duration::from_secs(5);
/// Whether a disk that a lost target may write is free is asked again after this long.
const HELD: Duration = Duration::from_secs(15);

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Hold the migration with our finalizer, and let it be found by its guest's name.
    Adopt,
    /// Create the target pod.
    CreatePod,
    /// Hand the migration over to the nodes' virt-handlers.
    HandOver,
    /// Undo what is left of it.
    Cleanup(Cleanup),
    /// Say on the VMI that the guest is the target's: it runs there, and the source's pod has ended or its node is lost.
    Finish,
    /// Tell the source's virt-handler that the target, which does not answer, can do no harm.
    Fence,
    /// Delete the migration: its guest is gone.
    Delete,
    /// Let the migration go.
    Release,
}

/// What happened, for people.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Remark {
    /// As it should.
    Normal(&'static str, String),
    /// Somebody may have to look.
    Warning(&'static str, String),
    /// It waits because others of the same guest failed; said of the guest.
    BackOff(String),
}

/// What to do and what to say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In order.
    pub steps: Vec<Step>,
    /// Phases entered, in order.
    pub phases: Vec<&'static str>,
    /// Somebody asked for the end.
    pub abort_requested: bool,
    /// Events about the migration.
    pub remarks: Vec<Remark>,
    /// What it waits for, if it waits.
    pub waits: Option<Waiting>,
    /// Look again after this long.
    pub again: Option<Duration>,
}

/// Everything a plan depends on.
#[derive(Debug)]
pub struct View<'a> {
    /// The migration.
    pub migration: &'a Migration,
    /// Its guest.
    pub vmi: Option<&'a VirtualMachineInstance>,
    /// Every launcher pod of the guest.
    pub pods: &'a [Pod],
    /// The node the guest is on does not answer.
    pub source_lost: bool,
    /// The node of the target pod does not answer.
    pub target_lost: bool,
    /// Why the guest must not go on where it came from while the target does not answer, if it must not.
    pub target_hold: Option<String>,
    /// Another migration of the guest was there first and is not over.
    pub rival: bool,
    /// The target pod was made for other claims than the disks are to be copied into now.
    pub outdated: bool,
    /// Its turn, once it waits for one.
    pub turn: Turn,
    /// It is given up when claims that the launcher has for work of its own are in its way for longer.
    pub patience: SignedDuration,
    /// Why a disk of the guest cannot be copied, asked when it is about to start.
    pub immovable: Option<String>,
    /// Attempts before it failed; it waits this long.
    pub back_off: Option<Duration>,
    /// The time.
    pub now: Timestamp,
}

impl View<'_> {
    fn uid(&self) -> &str {
        self.migration.metadata.uid.as_deref().unwrap_or_default()
    }

    fn cancelled(&self) -> bool {
        self.migration.metadata.deletion_timestamp.is_some()
    }

    /// The target pod, one that is not on its way out if there is one.
    fn target(&self) -> Option<&Pod> {
        let mut own = self.pods.iter().filter(|pod| job(pod) == Some(self.uid()));
        own.clone().find(|pod| pod.metadata.deletion_timestamp.is_none()).or_else(|| own.next())
    }
}

/// The plan for the migration.
pub fn plan(view: &View<'_>) -> Plan {
    let held = view.migration.finalizers().iter().any(|name| name == finalizer::MIGRATION);
    let Some(guest) = view.vmi else { return forsaken(view, held) };
    if is_final(view.migration) {
        return finished(view, guest, held);
    }
    if !held && !view.cancelled() {
        return Plan { steps: vec![Step::Adopt], ..Default::default() };
    }
    let mut plan = match failure(view, guest) {
        Some(why) => fail(view, &why),
        None => go_on(view, guest),
    };
    plan.abort_requested = view.cancelled();
    plan
}

/// The guest is gone: so is the reason to move it.
fn forsaken(view: &View<'_>, held: bool) -> Plan {
    let mut steps: Vec<Step> = Vec::new();
    if held {
        steps.push(Step::Release);
    }
    if !view.cancelled() {
        steps.push(Step::Delete);
    }
    Plan { steps, ..Default::default() }
}

fn finished(view: &View<'_>, guest: &VirtualMachineInstance, held: bool) -> Plan {
    if !held {
        return Plan::default();
    }
    let settled = settle(view.uid(), guest, view.pods);
    let mut plan = Plan { steps: cleanup(settled.steps).collect(), ..Default::default() };
    if settled.done {
        plan.steps.push(Step::Release);
    }
    bereft_of_target(view, guest, &mut plan);
    plan
}

/// The source's guest may stand still because the target, which cannot be asked, may run it. Once the target can do no harm,
/// the source is told.
fn bereft_of_target(view: &View<'_>, guest: &VirtualMachineInstance, plan: &mut Plan) {
    let uid = view.uid();
    let asked = migration_state::ours(guest, uid)
        .is_some_and(|own| migration_state::unanswered(own) && own.abort_requested == Some(true));
    let told = guest.annotations().get(annotation::MIGRATION_TARGET_FENCED).is_some_and(|of| of == uid);
    let ended = view.target().is_none_or(|pod| launcher::ended(pod) || launcher::compute_ended(pod).is_some());
    if !asked || told || !(view.target_lost || ended) {
        return;
    }
    let left = failed_at(view.migration).map(|at| launcher::REPORT - view.now.duration_since(at));
    if let Some(left) = left.filter(|left| left.is_positive()) {
        plan.again = Duration::try_from(left).ok();
        return;
    }
    match view.target_hold.as_ref().filter(|_| view.target_lost) {
        None => plan.steps.push(Step::Fence),
        Some(why) => {
            plan.remarks.push(Remark::Warning("MigrationTargetUnresponsive", why.clone()));
            plan.again = Some(HELD);
        }
    }
}

/// When the migration's failure was reported.
fn failed_at(migration: &Migration) -> Option<Timestamp> {
    let phases = &migration.status.as_ref()?.phase_transition_timestamps;
    let entered = phases.iter().find(|entered| entered.phase.as_deref() == Some(phase::FAILED))?;
    Some(entered.phase_transition_timestamp.as_ref()?.0)
}

fn cleanup(steps: Vec<Cleanup>) -> impl Iterator<Item = Step> {
    steps.into_iter().map(Step::Cleanup)
}

fn fail(view: &View<'_>, why: &str) -> Plan {
    let remarks = vec![Remark::Warning("FailedMigration", why.to_owned())];
    let steps = view.vmi.into_iter().flat_map(|guest| cleanup(settle(view.uid(), guest, view.pods).steps)).collect();
    Plan { steps, phases: vec![phase::FAILED], remarks, ..Default::default() }
}

/// Why the migration cannot succeed, if it cannot.
fn failure(view: &View<'_>, guest: &VirtualMachineInstance) -> Option<String> {
    let own = migration_state::ours(guest, view.uid());
    let immovable = || view.immovable.as_ref().map(|why| format!("Migration failed because {why}"));
    let moved = own.is_some_and(migration_state::moved);
    let stopped = interrupted(view, guest).map(str::to_owned).or_else(|| held_up(view, guest));
    stopped.or_else(|| immovable().filter(|_| !moved))
}

/// What has been in the way of a migration that waits, for longer than one waits.
fn held_up(view: &View<'_>, guest: &VirtualMachineInstance) -> Option<String> {
    if !matches!(phase_of(view.migration), phase::UNSET | phase::PENDING) || view.target().is_some() {
        return None;
    }
    let volume = utilities(&guest.spec).next()?;
    let asked = view.migration.creation_timestamp()?;
    let late = view.now.duration_since(asked.0) >= view.patience;
    late.then(|| {
        format!(
            "Migration failed because utility volume {} (PVC {}) was not detached within {} seconds \
             (utilityVolumesTimeout)",
            volume.name,
            volume.claim,
            view.patience.as_secs()
        )
    })
}

/// What happened that ends the migration, if something did.
fn interrupted(view: &View<'_>, guest: &VirtualMachineInstance) -> Option<&'static str> {
    let now = phase_of(view.migration);
    let handed_over = matches!(now, phase::PREPARING_TARGET | phase::TARGET_READY | phase::RUNNING);
    let own = migration_state::ours(guest, view.uid());
    if own.is_some_and(migration_state::moved) {
        return None;
    }
    if instance::is_final(guest) || guest.metadata.deletion_timestamp.is_some() {
        return Some("Migration failed vmi shutdown during migration.");
    }
    if view.rival && matches!(now, phase::UNSET | phase::PENDING) {
        return Some("VMI is not eligible for migration because another migration job is in progress.");
    }
    if view.cancelled() && own.is_none_or(migration_state::over) {
        return Some("Migration failed due to being canceled");
    }
    if view.outdated && own.is_none() {
        return Some("Migration failed because the volumes of the guest were changed after its target pod was made");
    }
    if own.is_some_and(migration_state::failed) {
        return Some("source node reported migration failed");
    }
    let arrived = own.is_some_and(|own| own.target_node_domain_ready_timestamp.is_some());
    if view.target_lost && !arrived {
        return Some("Migration failed because the target node does not answer");
    }
    match view.target() {
        Some(pod) if is_down(pod) => return Some("Migration failed because target pod shutdown during migration"),
        None if !matches!(now, phase::UNSET | phase::PENDING) => {
            return Some("Migration target pod was removed during active migration.");
        }
        _ => {}
    }
    match (handed_over, own.is_some(), migration_state::of(guest).is_some()) {
        (true, false, false) => Some("VMI's migration state was cleared during the active migration."),
        (true, false, true) => {
            Some("VMI's migration state was taken over by another migration job during active migration.")
        }
        _ => None,
    }
}

fn go_on(view: &View<'_>, guest: &VirtualMachineInstance) -> Plan {
    let mut plan = Plan::default();
    if let Some(own) = migration_state::ours(guest, view.uid()) {
        if view.cancelled() && !migration_state::over(own) {
            if !migration_state::started(own) {
                plan.steps.push(Step::Cleanup(Cleanup::Conclude { reason: "the migration was canceled" }));
                return plan;
            }
            if own.abort_requested != Some(true) {
                plan.steps.push(Step::Cleanup(Cleanup::Abort));
                let message = "Migration is ready to be canceled by virt-handler.".to_owned();
                plan.remarks.push(Remark::Normal("SuccessfulAbortMigration", message));
            }
        }
        bereft(view, guest, &mut plan);
    }
    let mut now = phase_of(view.migration);
    while let Some(next) = advance(now, view, guest, &mut plan) {
        plan.phases.push(next);
        now = next;
    }
    if now == phase::SUCCEEDED {
        let message = "Source node reported migration succeeded".to_owned();
        plan.remarks.push(Remark::Normal("SuccessfulMigration", message));
        plan.steps.extend(cleanup(settle(view.uid(), guest, view.pods).steps));
    }
    plan
}

/// The source's pod ended, or its node went silent, before its virt-handler said how the migration did: where the guest runs on the target, it was
/// moved. Where it does not, the guest ended with its pod, and the VMI is failed by who looks after VMIs.
fn bereft(view: &View<'_>, guest: &VirtualMachineInstance, plan: &mut Plan) {
    let Some(own) = migration_state::ours(guest, view.uid()) else { return };
    if !migration_state::started(own) || migration_state::over(own) || own.target_node_domain_ready_timestamp.is_none()
    {
        return;
    }
    let source = own.source_pod.as_deref();
    let lost = view.source_lost.then_some(Timestamp::UNIX_EPOCH);
    let Some(ended) = lost.or_else(|| ended_at(source, view.pods)) else { return };
    let left = launcher::REPORT - view.now.duration_since(ended);
    if left.is_positive() {
        plan.again = Duration::try_from(left).ok();
    } else {
        plan.steps.push(Step::Finish);
    }
}

/// When the launcher in the pod of that name ended; long ago when the pod is gone.
fn ended_at(name: Option<&str>, pods: &[Pod]) -> Option<Timestamp> {
    match pods.iter().find(|pod| name.is_some() && pod.metadata.name.as_deref() == name) {
        Some(pod) => launcher::compute_ended(pod).or_else(|| launcher::ended(pod).then_some(Timestamp::UNIX_EPOCH)),
        None => Some(Timestamp::UNIX_EPOCH),
    }
}

/// The phase after `now`, if it is reached; what must happen first goes into `plan`.
fn advance(now: &str, view: &View<'_>, guest: &VirtualMachineInstance, plan: &mut Plan) -> Option<&'static str> {
    let own = migration_state::ours(guest, view.uid());
    match now {
        phase::UNSET => Some(phase::PENDING),
        phase::PENDING => match view.target() {
            Some(_) => Some(phase::SCHEDULING),
            None => {
                start(view, guest, plan);
                None
            }
        },
        phase::SCHEDULING => {
            let pod = view.target()?;
            if stands(pod) {
                return Some(phase::SCHEDULED);
            }
            pending(view, guest, pod, plan);
            None
        }
        phase::SCHEDULED if own.is_some() => Some(phase::PREPARING_TARGET),
        phase::SCHEDULED => {
            plan.steps.push(Step::HandOver);
            None
        }
        phase::PREPARING_TARGET => {
            let address = own?.target_node_address.as_deref();
            // A migration that is over has been through everything in between.
            let ready = address.is_some_and(|address| !address.is_empty()) || migration_state::over(own?);
            ready.then_some(phase::TARGET_READY)
        }
        phase::TARGET_READY => {
            (migration_state::started(own?) || migration_state::over(own?)).then_some(phase::RUNNING)
        }
        phase::RUNNING => {
            let own = own?;
            // A guest that ended right after it was moved was moved.
            (migration_state::taken_over(guest, own) || (migration_state::moved(own) && instance::is_final(guest)))
                .then_some(phase::SUCCEEDED)
        }
        _ => None,
    }
}

fn stands(pod: &Pod) -> bool {
    let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()));
    bound && launcher::stands(pod)
}

/// Nothing stands in the way of moving `guest`: it runs, and an earlier migration has left at most pods that are ending.
pub fn movable(guest: &VirtualMachineInstance, pods: &[Pod]) -> bool {
    instance::phase_of(guest) == api::kubevirt::constants::phase::RUNNING
        && migration_state::of(guest).is_none_or(migration_state::over)
        && !guest.labels().contains_key(label::MIGRATION_TARGET_NODE)
        && !stand_ins::is_switching(guest)
        && utilities(&guest.spec).next().is_none()
        && waiting::backup_of(guest).is_none()
        && pods.iter().filter(|pod| !is_down(pod)).count() == 1
        && active::active(guest, pods).is_some_and(|pod| !is_down(pod))
}

/// Creates the target pod when the guest can be moved and it is the migration's turn.
fn start(view: &View<'_>, guest: &VirtualMachineInstance, plan: &mut Plan) {
    if !movable(guest, view.pods) {
        let blocked = waiting::for_backup(guest);
        if let Some(blocked) = blocked.as_ref().filter(|_| !says_blocked(view.migration)) {
            plan.remarks.push(Remark::Warning("UtilityVolumeMigrationPending", blocked.message.clone()));
        }
        plan.waits = blocked.or_else(waiting::for_guest);
        plan.again = Some(TURN);
    } else if let Some(left) = view.back_off {
        let (namespace, name) = (guest.namespace().unwrap_or_default(), guest.name_any());
        plan.remarks.push(Remark::BackOff(format!("backoff migrating vmi {namespace}/{name}")));
        plan.waits = waiting::for_time();
        plan.again = Some(left);
    } else if view.turn != Turn::Now {
        plan.waits = waiting::for_turn(view.turn, guest);
        plan.again = Some(TURN);
    } else {
        plan.steps.push(Step::CreatePod);
    }
}

/// The migration says already that claims of the launcher's are in its way.
fn says_blocked(migration: &Migration) -> bool {
    let conditions = migration.status.iter().flat_map(|status| &status.conditions);
    conditions.into_iter().any(|known| known.type_ == condition::BLOCKED_BY_UTILITY_VOLUMES)
}

/// Gives up a target pod that does not start.
fn pending(view: &View<'_>, guest: &VirtualMachineInstance, pod: &Pod, plan: &mut Plan) {
    let status = pod.status.as_ref();
    if !matches!(status.and_then(|status| status.phase.as_deref()), None | Some("" | "Pending")) {
        return;
    }
    let Some(created) = pod.metadata.creation_timestamp.as_ref() else { return };
    let waited = view.now.duration_since(created.0);
    let limit = |key: &str, default: i64| {
        let said = view.migration.annotations().get(key).and_then(|text| text.parse::<i64>().ok());
        SignedDuration::from_secs(said.unwrap_or(default).max(0))
    };
    plan.waits = waiting::for_node(pod);
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let mut left = limit(annotation::MIGRATION_PENDING_TIMEOUT, PENDING) - waited;
    let mut word = "pending";
    if plan.waits.is_some() {
        let guest_name = guest.name_any();
        let message = format!("Migration target pod for VMI [{namespace}/{guest_name}] is currently unschedulable.");
        plan.remarks.push(Remark::Warning("migrationTargetPodUnschedulable", message));
        let sooner = limit(annotation::MIGRATION_UNSCHEDULABLE_TIMEOUT, UNSCHEDULABLE) - waited;
        if sooner <= left {
            (left, word) = (sooner, "unschedulable");
        }
    }
    if left.is_positive() {
        plan.again = Duration::try_from(left).ok();
    } else {
        let why = format!("{word} pod {namespace}/{name} timeout period exceeded");
        plan.steps.push(Step::Cleanup(Cleanup::DeletePod { name, why }));
    }
}

#[cfg(test)]
#[path = "plan/tests.rs"]
mod tests;
