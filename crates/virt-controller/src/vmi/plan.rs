//! What to do about a virtual machine instance, given its pods. Pure.
//!
//! ```text
//! (unset)/Pending --pod created--> Scheduling --containers run--> Scheduled --virt-handler--> Running -> Succeeded/Failed
//!                                      `-- pod dies --> Failed        `------ pod gone -------> Failed
//! ```
//! This controller writes the phases up to Scheduled, and Failed where no node agent can; the rest is virt-handler's.

use std::time::Duration;

use api::kubevirt::constants::{condition, finalizer, phase};
use api::kubevirt::v1::VirtualMachineInstance;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use crate::facts::active::{active, arrived, successor};
use crate::facts::instance::{is_final, phase_of};
use crate::facts::launcher::{self, compute, compute_ended, containers, ended, stands};

/// Between two looks at the volumes of a machine on a lost node.
const LOOK_AGAIN: Duration = Duration::from_secs(5);
/// A pod that a guest is being moved out of may end this long before it is known whether the guest was moved.
const MOVING: SignedDuration = SignedDuration::from_secs(60);

/// One thing to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Create the launcher pod.
    CreatePod,
    /// Say whether the guest is paused, which the pod's readiness follows.
    Gate {
        /// The pod's name.
        name: String,
        /// Open: not paused.
        open: bool,
    },
    /// Delete this pod; the grace period replaces the pod's own.
    DeletePod {
        /// Its name.
        name: String,
        /// Seconds.
        grace: Option<i64>,
    },
    /// Nothing is left of the VMI: let it go.
    Release,
}

/// The phase this controller wants, with the reason when it is a failure.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Plan {
    /// What to do, in order.
    pub steps: Vec<Step>,
    /// The phase to write, if it changes.
    pub phase: Option<&'static str>,
    /// Why it failed, for `status.reason`.
    pub reason: Option<String>,
    /// It has no pod yet for want of a claim.
    pub waits_for_claim: bool,
    /// Look again after this long.
    pub again: Option<Duration>,
}

/// Everything a plan depends on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    /// The instance.
    pub vmi: &'a VirtualMachineInstance,
    /// Its launcher pods.
    pub pods: &'a [Pod],
    /// A claim that its disks lie on is not there, or has not its disk.
    pub lacks_claim: bool,
    /// Its claims are bound and their sizes known, which the node needs.
    pub has_sizes: bool,
    /// It alone knows where its disks are, and that has yet to be written down.
    pub owes_disks: bool,
    /// It waits for the volumes of a lost node, of which nobody tells.
    pub is_cut_off: bool,
    /// The time.
    pub now: Timestamp,
}

/// The plan.
pub fn plan(view: View<'_>) -> Plan {
    let mut plan = of(view);
    if view.is_cut_off {
        plan.again = Some(LOOK_AGAIN);
    }
    plan
}

fn of(view: View<'_>) -> Plan {
    let View { vmi, pods, now, .. } = view;
    if vmi.metadata.deletion_timestamp.is_some() {
        return deleting(view);
    }
    if is_final(vmi) {
        return finished(vmi, pods, now);
    }
    let pod = active(vmi, pods);
    match (phase_of(vmi), pod) {
        (before @ (phase::UNSET | phase::PENDING), None) if view.lacks_claim => {
            let phase = (before == phase::UNSET).then_some(phase::PENDING);
            Plan { phase, waits_for_claim: true, ..Default::default() }
        }
        (phase::UNSET | phase::PENDING, None) => Plan { steps: vec![Step::CreatePod], ..Default::default() },
        (phase::WAITING_FOR_SYNC, _) => Plan::default(),
        (phase::UNSET | phase::PENDING | phase::SCHEDULING, Some(pod)) => starting(view, pod),
        (phase::SCHEDULING, None) => failed("the launcher pod was deleted before the guest was started"),
        // The guest had left before the pod went.
        (_, None) if arrived(vmi, pods) => Plan::default(),
        (_, None) => failed("the launcher pod is gone"),
        (_, Some(pod)) => running(vmi, pod, pods, now),
    }
}

fn failed(reason: &str) -> Plan {
    Plan { phase: Some(phase::FAILED), reason: Some(reason.to_owned()), ..Default::default() }
}

fn deleting(View { vmi, pods, owes_disks, .. }: View<'_>) -> Plan {
    let grace = vmi.spec.termination_grace_period_seconds;
    let mut steps: Vec<Step> = pods
        .iter()
        .filter(|pod| {
            // A pod on its way out is hurried when the VMI's grace period was cut meanwhile.
            let left = pod.metadata.deletion_grace_period_seconds;
            let hurry = shorter(pod, grace).is_some_and(|asked| left.is_some_and(|left| asked < left));
            pod.metadata.deletion_timestamp.is_none() || hurry
        })
        .map(|pod| Step::DeletePod { name: pod.metadata.name.clone().unwrap_or_default(), grace: shorter(pod, grace) })
        .collect();
    let ours = vmi.metadata.finalizers.iter().flatten().any(|name| name == finalizer::VMI);
    if pods.is_empty() && ours && !owes_disks {
        steps.push(Step::Release);
    }
    Plan { steps, ..Default::default() }
}

/// The pod's grace period follows a grace period of the VMI that was cut after the pod was made (`stop --grace-period`).
/// It is never zero: a forced deletion forgets a pod whose guest may still run, and two copies would share a disk.
fn shorter(pod: &Pod, vmi_grace: Option<i64>) -> Option<i64> {
    let own = pod.spec.as_ref().and_then(|spec| spec.termination_grace_period_seconds)?;
    let asked = vmi_grace?;
    (asked < own).then(|| if asked == 0 { 1 } else { asked.saturating_add(super::pod_slack()).min(own) })
}

fn finished(vmi: &VirtualMachineInstance, pods: &[Pod], now: Timestamp) -> Plan {
    let mut plan = Plan::default();
    let active = active(vmi, pods).and_then(|pod| pod.metadata.name.as_deref());
    for pod in pods.iter().filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        // A pod that waits for a guest waits in vain.
        if pod.metadata.name.as_deref() != active {
            plan.steps.push(Step::DeletePod { name: pod.metadata.name.clone().unwrap_or_default(), grace: None });
        }
    }
    let held = pods.iter().filter(|pod| pod.metadata.name.as_deref() == active);
    for pod in held.filter(|pod| pod.metadata.deletion_timestamp.is_none()) {
        // The guest has ended but containers that served its disks may not have noticed.
        let Some(ended) = compute_ended(pod).filter(|_| !ended(pod)) else { continue };
        let wait = SignedDuration::from_secs(5) - now.duration_since(ended);
        if wait.is_positive() {
            plan.again = Duration::try_from(wait).ok();
        } else {
            let name = pod.metadata.name.clone().unwrap_or_default();
            plan.steps.push(Step::DeletePod { name, grace: Some(1) });
        }
    }
    plan
}

fn starting(View { vmi, has_sizes, .. }: View<'_>, pod: &Pod) -> Plan {
    if let Some(reason) = broken(pod) {
        return Plan { reason: Some(reason), phase: Some(phase::FAILED), ..Default::default() };
    }
    let mut plan = Plan { steps: gate(vmi, pod), ..Default::default() };
    let bound = pod.spec.as_ref().is_some_and(|spec| spec.node_name.as_ref().is_some_and(|node| !node.is_empty()));
    // The pod may be faster than the watch that brings the sizes of the claims.
    if bound && stands(pod) && has_sizes {
        plan.phase = Some(phase::SCHEDULED);
    } else if phase_of(vmi) != phase::SCHEDULING {
        plan.phase = Some(phase::SCHEDULING);
    }
    plan
}

fn running(vmi: &VirtualMachineInstance, pod: &Pod, pods: &[Pod], now: Timestamp) -> Plan {
    if phase_of(vmi) == phase::SCHEDULED
        && let Some(reason) = broken_disk(pod)
    {
        return Plan { reason: Some(reason), phase: Some(phase::FAILED), ..Default::default() };
    }
    let Some(at) = compute_ended(pod).or_else(|| ended(pod).then_some(Timestamp::UNIX_EPOCH)) else {
        return Plan { steps: gate(vmi, pod), ..Default::default() };
    };
    let waited = now.duration_since(at);
    let (patience, why) = match successor(vmi, pods) {
        // The launcher ends because its guest has left.
        Some(_) if arrived(vmi, pods) => return Plan::default(),
        Some(_) => (MOVING, "the launcher ended during a migration, and the guest did not appear on the target"),
        None => (launcher::REPORT, "the launcher ended without a word about the guest"),
    };
    if waited >= patience {
        return failed(why);
    }
    Plan { again: Duration::try_from(patience - waited).ok(), ..Default::default() }
}

/// The pod can no longer start the guest, and why.
fn broken(pod: &Pod) -> Option<String> {
    if let Some(reason) = broken_disk(pod) {
        return Some(reason);
    }
    if !ended(pod) && compute_ended(pod).is_none() {
        return None;
    }
    let status = pod.status.as_ref();
    let said = status.and_then(|s| s.message.clone().or_else(|| s.reason.clone()));
    let compute = compute(pod).and_then(|c| c.state.as_ref()?.terminated.as_ref());
    let compute = compute.and_then(|t| t.message.clone().or_else(|| t.reason.clone()));
    Some(said.or(compute).unwrap_or_else(|| "the launcher pod ended before the guest was started".to_owned()))
}

/// A container that should serve a disk has failed: the guest will never see that disk.
fn broken_disk(pod: &Pod) -> Option<String> {
    containers(pod).filter(|container| container.name != "compute").find_map(|container| {
        let ended = container.state.as_ref()?.terminated.as_ref()?;
        if ended.exit_code == 0 {
            return None;
        }
        let word =
            ended.message.as_deref().filter(|m| !m.is_empty()).or(ended.reason.as_deref()).unwrap_or("no message");
        Some(format!("container {} of the launcher pod failed: {}", container.name, word.trim()))
    })
}

/// Turns the pod's gate when it does not say what the guest is.
fn gate(vmi: &VirtualMachineInstance, pod: &Pod) -> Vec<Step> {
    if pod.metadata.deletion_timestamp.is_some() {
        return Vec::new();
    }
    let guest = vmi.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let paused = guest.iter().any(|c| c.type_ == condition::PAUSED && c.status == "True");
    let conditions = pod.status.as_ref().and_then(|status| status.conditions.as_ref());
    let held = conditions.into_iter().flatten().find(|c| c.type_ == super::UNPAUSED_GATE);
    let said = held.map(|c| c.status == "True");
    if said == Some(!paused) {
        return Vec::new();
    }
    vec![Step::Gate { name: pod.metadata.name.clone().unwrap_or_default(), open: !paused }]
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NOW: &str = "2026-01-01T00:01:00Z";

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(vmi: Value, pods: &[Value], expect: Plan) {
        let mut object = json!({ "metadata": { "name": "vm", "finalizers": [finalizer::VMI] } });
        json_merge(&mut object, vmi);
        let vmi = serde_json::from_value(object).unwrap();
        let pods: Vec<Pod> = pods.iter().map(|pod| serde_json::from_value(pod.clone()).unwrap()).collect();
        assert_eq!(plan(view(&vmi, &pods)), expect);
    }

    fn view<'a>(vmi: &'a VirtualMachineInstance, pods: &'a [Pod]) -> View<'a> {
        let now = NOW.parse().unwrap();
        View { vmi, pods, lacks_claim: false, has_sizes: true, owes_disks: false, is_cut_off: false, now }
    }

    fn json_merge(to: &mut Value, from: Value) {
        match (to, from) {
            (Value::Object(to), Value::Object(from)) => {
                for (key, value) in from {
                    json_merge(to.entry(key).or_insert(Value::Null), value);
                }
            }
            (to, from) => *to = from,
        }
    }

    fn pod(state: Value) -> Value {
        json!({
            "metadata": { "name": "p" },
            "spec": { "nodeName": "n", "containers": [], "terminationGracePeriodSeconds": 60 },
            "status": {
                "conditions": [{ "type": "kubevirt.io/virtual-machine-unpaused", "status": "True" }],
                "containerStatuses": [container("compute", state)],
            },
        })
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn container(name: &str, state: Value) -> Value {
        json!({ "name": name, "image": "", "imageID": "", "ready": true, "restartCount": 0, "state": state })
    }

    fn ended_at(at: &str, code: i32) -> Value {
        json!({ "terminated": { "exitCode": code, "finishedAt": at } })
    }

    fn in_phase(phase: &str) -> Value {
        json!({ "status": { "phase": phase } })
    }

    fn wants(phase: &'static str) -> Plan {
        Plan { phase: Some(phase), ..Default::default() }
    }

    #[test]
    fn a_new_vmi_gets_a_pod() {
        check(json!({}), &[], Plan { steps: vec![Step::CreatePod], ..Default::default() });
        check(in_phase(phase::PENDING), &[], Plan { steps: vec![Step::CreatePod], ..Default::default() });
    }

    #[test]
    fn the_pod_leads_to_scheduled() {
        check(in_phase(phase::PENDING), &[pod(json!({ "waiting": {} }))], wants(phase::SCHEDULING));
        check(in_phase(phase::SCHEDULING), &[pod(json!({ "waiting": {} }))], Plan::default());
        check(in_phase(phase::SCHEDULING), &[pod(json!({ "running": {} }))], wants(phase::SCHEDULED));
        check(in_phase(phase::RUNNING), &[pod(json!({ "running": {} }))], Plan::default());
        let mut unpulled = pod(json!({ "running": {} }));
        let lender = container("volumeroot", json!({ "waiting": { "reason": "ErrImagePull" } }));
        unpulled["status"]["containerStatuses"].as_array_mut().unwrap().push(lender);
        check(in_phase(phase::SCHEDULING), &[unpulled], Plan::default());
    }

    #[test]
    fn disks_come_first() {
        let vmi = |phase| serde_json::from_value::<VirtualMachineInstance>(in_phase(phase)).unwrap();
        let lacks = |phase| plan(View { lacks_claim: true, ..view(&vmi(phase), &[]) });
        assert_eq!(lacks(phase::UNSET), Plan { waits_for_claim: true, ..wants(phase::PENDING) });
        assert_eq!(lacks(phase::PENDING), Plan { waits_for_claim: true, ..Default::default() });
        let stands = [serde_json::from_value(pod(json!({ "running": {} }))).unwrap()];
        let unsized_ = |phase| plan(View { has_sizes: false, ..view(&vmi(phase), &stands) });
        assert_eq!(
            (unsized_(phase::PENDING), unsized_(phase::SCHEDULING)),
            (wants(phase::SCHEDULING), Plan::default())
        );
        let gone = json!({ "metadata": { "name": "vm", "deletionTimestamp": NOW, "finalizers": [finalizer::VMI] } });
        let gone = serde_json::from_value(gone).unwrap();
        assert_eq!(plan(View { owes_disks: true, ..view(&gone, &[]) }), Plan::default());
        let waits = plan(View { is_cut_off: true, ..view(&vmi(phase::PENDING), &stands) });
        assert_eq!(waits.again, Some(LOOK_AGAIN));
    }

    #[test]
    fn a_pod_that_dies_early_fails_the_vmi() {
        check(in_phase(phase::SCHEDULING), &[], failed("the launcher pod was deleted before the guest was started"));
        let mut dead = pod(ended_at(NOW, 1));
        dead["status"]["phase"] = json!("Failed");
        dead["status"]["message"] = json!("evicted");
        check(in_phase(phase::SCHEDULING), &[dead], failed("evicted"));
        let mut bad_disk = pod(json!({ "running": {} }));
        let served = container("volumeroot", ended_at(NOW, 1));
        bad_disk["status"]["containerStatuses"].as_array_mut().unwrap().push(served);
        let said = failed("container volumeroot of the launcher pod failed: no message");
        check(in_phase(phase::SCHEDULED), &[bad_disk], said);
    }

    #[test]
    fn a_paused_guest_is_not_ready() {
        let mut paused = in_phase(phase::RUNNING);
        paused["status"]["conditions"] = json!([{ "type": "Paused", "status": "True" }]);
        let close = Step::Gate { name: "p".into(), open: false };
        check(paused, &[pod(json!({ "running": {} }))], Plan { steps: vec![close], ..Default::default() });
        let mut closed = pod(json!({ "running": {} }));
        closed["status"]["conditions"][0]["status"] = json!("False");
        let open = Step::Gate { name: "p".into(), open: true };
        check(in_phase(phase::RUNNING), &[closed], Plan { steps: vec![open], ..Default::default() });
    }

    #[test]
    fn virt_handler_may_report_the_end_first() {
        let recent = pod(ended_at("2026-01-01T00:00:57Z", 0));
        check(in_phase(phase::RUNNING), &[recent], Plan { again: Some(Duration::from_secs(7)), ..Default::default() });
        let silent = pod(ended_at("2026-01-01T00:00:40Z", 0));
        check(in_phase(phase::RUNNING), &[silent], failed("the launcher ended without a word about the guest"));
        check(in_phase(phase::RUNNING), &[], failed("the launcher pod is gone"));
    }

    /// A guest on node n, in pod p, on its way to pod b on node m.
    fn moving(state: Value) -> Value {
        let mut whole = json!({ "startTimestamp": NOW, "sourcePod": "p", "targetNode": "m", "targetPod": "b" });
        json_merge(&mut whole, state);
        json!({ "status": { "phase": phase::RUNNING, "nodeName": "n", "migrationState": whole } })
    }

    fn target(state: Value) -> Value {
        let mut pod = pod(state);
        pod["metadata"] = json!({ "name": "b", "labels": { "kubevirt.io/migrationJobUID": "job" } });
        pod["spec"]["nodeName"] = json!("m");
        pod["status"]["conditions"] = json!([]);
        pod
    }

    #[test]
    fn a_guest_on_its_way_is_judged_by_the_pod_it_is_in() {
        let (here, there) = (pod(json!({ "running": {} })), target(json!({ "running": {} })));
        // The target's pod says nothing about the guest, not even whether it is ready.
        check(moving(json!({})), &[there.clone(), here.clone()], Plan::default());
        check(moving(json!({})), &[here, target(ended_at(NOW, 1))], Plan::default());
        let mut arrived = moving(json!({ "completed": true }));
        arrived["status"]["nodeName"] = json!("m");
        let open = Step::Gate { name: "b".into(), open: true };
        let left = pod(ended_at("2026-01-01T00:00:00Z", 0));
        let ready = Plan { steps: vec![open], ..Default::default() };
        check(arrived.clone(), &[left.clone(), there], ready);
        check(arrived, &[left], failed("the launcher pod is gone"));
    }

    #[test]
    fn a_guest_that_left_is_not_a_guest_that_died() {
        let left = |at: &str| pod(ended_at(at, 0));
        let (long_ago, just_now) = (left("2026-01-01T00:00:00Z"), left("2026-01-01T00:00:40Z"));
        let there = target(json!({ "running": {} }));
        let moved = || moving(json!({ "completed": true }));
        check(moved(), &[long_ago.clone(), there.clone()], Plan::default());
        check(moved(), std::slice::from_ref(&there), Plan::default());
        let ready = moving(json!({ "targetNodeDomainReadyTimestamp": NOW }));
        check(ready.clone(), &[long_ago.clone(), there.clone()], Plan::default());
        check(ready, std::slice::from_ref(&there), Plan::default());
        // As long as nobody has said that it moved, it may yet turn out to have.
        let again = Some(Duration::from_secs(40));
        check(moving(json!({})), &[just_now.clone(), there.clone()], Plan { again, ..Default::default() });
        let lost = "the launcher ended during a migration, and the guest did not appear on the target";
        check(moving(json!({})), &[long_ago.clone(), there.clone()], failed(lost));
        check(moving(json!({})), std::slice::from_ref(&there), failed("the launcher pod is gone"));
        // With no target, or a migration that failed, there is nothing to wait for.
        let silent = "the launcher ended without a word about the guest";
        check(moving(json!({})), &[just_now.clone(), target(ended_at(NOW, 1))], failed(silent));
        check(moving(json!({ "failed": true, "completed": true })), &[just_now, there], failed(silent));
        check(moved(), &[long_ago, target(ended_at(NOW, 1))], failed(silent));
    }

    #[test]
    fn a_pod_that_waits_for_a_guest_that_ended_is_deleted() {
        let mut ended = moving(json!({}));
        ended["status"]["phase"] = json!(phase::SUCCEEDED);
        let delete = Step::DeletePod { name: "b".into(), grace: None };
        let mut gone = pod(ended_at(NOW, 0));
        gone["status"]["phase"] = json!("Succeeded");
        let plan = Plan { steps: vec![delete], ..Default::default() };
        check(ended, &[gone, target(json!({ "running": {} }))], plan);
    }

    #[test]
    fn deletion_takes_the_pod_first_and_never_by_force() {
        let gone = json!({ "metadata": { "deletionTimestamp": NOW } });
        let delete = |grace| Plan { steps: vec![Step::DeletePod { name: "p".into(), grace }], ..Default::default() };
        check(gone.clone(), &[pod(json!({ "running": {} }))], delete(None));
        let mut forced = gone.clone();
        forced["spec"] = json!({ "terminationGracePeriodSeconds": 0 });
        check(forced, &[pod(json!({ "running": {} }))], delete(Some(1)));
        let mut terminating = pod(json!({ "running": {} }));
        terminating["metadata"]["deletionTimestamp"] = json!(NOW);
        check(gone.clone(), &[terminating.clone()], Plan::default());
        terminating["metadata"]["deletionGracePeriodSeconds"] = json!(60);
        let mut hurried = gone.clone();
        hurried["spec"] = json!({ "terminationGracePeriodSeconds": 0 });
        check(hurried, &[terminating], delete(Some(1)));
        check(gone, &[], Plan { steps: vec![Step::Release], ..Default::default() });
    }
}
