//! When a claim is let go. Pure.
//!
//! The addresses of a claim may be given to others once it is gone. Until then nobody may run with them: neither the machine, which
//! starts again while it is there, nor an instance of it, whose pods have them.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;
use kit::controller::pod::is_finished;
use kube::{Resource, ResourceExt};

use super::claim::{IPAMClaim, Kind, Owner};
use super::{names, plan};

/// How long after a claim's deletion no pod comes up any more that was let in before it: a webhook is answered in this time, or not at
/// all.
const SETTLED: SignedDuration = SignedDuration::from_secs(10);

/// The machine whose claim has this name.
pub fn machine(claim: &str) -> &str {
    claim.rsplit_once('.').map_or(claim, |(machine, _)| machine)
}

/// Whether `claim` is held by this controller.
pub fn is_held(claim: &IPAMClaim) -> bool {
    claim.finalizers().iter().any(|one| one == names::FINALIZER)
}

/// What becomes of a claim.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum Fate {
    /// Somebody needs it.
    Kept,
    /// It is being deleted, and a pod may have its addresses that its instance does not tell of yet: it is looked at again.
    Unsettled,
    /// Nobody needs it any more.
    Due,
}

/// The objects of a claim's machine, as the API server has them.
#[derive(Clone, Copy, Debug, Default)]
pub struct Users<'a> {
    /// The machine.
    pub vm: Option<&'a VirtualMachine>,
    /// The instance of its name.
    pub vmi: Option<&'a VirtualMachineInstance>,
    /// Launchers' pods of the namespace, whosoever they are.
    pub pods: &'a [Pod],
}

/// What becomes of `claim` at the time `now`.
pub fn fate(claim: &IPAMClaim, users: Users<'_>, now: Timestamp) -> Fate {
    let Users { vm, vmi, pods } = users;
    let owner = Owner::read(claim.owner_references());
    let deleted = claim.metadata.deletion_timestamp.as_ref();
    // What has no owner is kept until somebody deletes it, and nothing of its name runs.
    let Some(owner) = owner else { return if deleted.is_some() && vmi.is_none() { Fate::Due } else { Fate::Kept } };
    if let Some(vmi) = vmi.filter(|vmi| plan::owner(vmi) == owner) {
        return match deleted {
            Some(at) if waits(vmi) => {
                let settled = now.duration_since(at.0) >= SETTLED;
                if settled && !pods.iter().any(|pod| has_addresses(pod, vmi)) { Fate::Due } else { Fate::Unsettled }
            }
            _ => Fate::Kept,
        };
    }
    let starts_again = owner.kind == Kind::VirtualMachine
        && vm.is_some_and(|vm| vm.uid().as_ref() == Some(&owner.uid) && vm.metadata.deletion_timestamp.is_none());
    // A user may delete the claim of a machine that is not running: it gets another one with other addresses.
    if deleted.is_some() || !starts_again { Fate::Due } else { Fate::Kept }
}

/// Whether an instance tells of no pod yet. Its pods are not made while its claim is being deleted.
fn waits(vmi: &VirtualMachineInstance) -> bool {
    let phase = vmi.status.as_ref().and_then(|status| status.phase.as_deref());
    let active = vmi.status.as_ref().is_some_and(|status| !status.active_pods.is_empty());
    !active && matches!(phase.unwrap_or_default(), "" | "Pending")
}

/// Whether `pod` is one of `vmi` that has not ended. Only such pods got the claim's name from the webhook.
fn has_addresses(pod: &Pod, vmi: &VirtualMachineInstance) -> bool {
    let is_own = pod.owner_references().iter().any(|owner| {
        owner.controller == Some(true)
            && owner.kind == "VirtualMachineInstance"
            && Some(&owner.uid) == vmi.meta().uid.as_ref()
    });
    is_own && !is_finished(pod)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(owner: Option<(&str, &str)>, leaving: bool) -> IPAMClaim {
        let mut metadata = json!({ "name": "vm.blue", "namespace": "ns", "finalizers": [names::FINALIZER] });
        if let Some((kind, uid)) = owner {
            let reference =
                json!({ "apiVersion": "kubevirt.io/v1", "kind": kind, "name": "vm", "uid": uid, "controller": true });
            metadata["ownerReferences"] = json!([reference]);
        }
        if leaving {
            metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(json!({ "metadata": metadata })).unwrap()
    }

    fn vm(uid: &str, leaving: bool) -> VirtualMachine {
        let mut vm =
            json!({ "metadata": { "name": "vm", "uid": uid }, "spec": { "template": { "spec": { "domain": {} } } } });
        if leaving {
            vm["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(vm).unwrap()
    }

    fn vmi(uid: &str, of: Option<&str>, phase: &str) -> VirtualMachineInstance {
        let reference = |uid: &str| json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": uid, "controller": true }]);
        let owners = of.map_or(Value::Null, reference);
        let metadata = json!({ "name": "vm", "uid": uid, "ownerReferences": owners });
        serde_json::from_value(json!({ "metadata": metadata, "spec": { "domain": {} }, "status": { "phase": phase } }))
            .unwrap()
    }

    const DELETED: Timestamp = Timestamp::constant(1_767_225_600, 0);

    fn long_after(claim: &IPAMClaim, vm: Option<&VirtualMachine>, vmi: Option<&VirtualMachineInstance>) -> Fate {
        fate(claim, Users { vm, vmi, pods: &[] }, DELETED + SignedDuration::from_hours(1))
    }

    #[track_caller]
    fn kept(claim: &IPAMClaim, vm: Option<&VirtualMachine>, vmi: Option<&VirtualMachineInstance>) {
        assert_eq!(long_after(claim, vm, vmi), Fate::Kept);
    }

    #[track_caller]
    fn due(claim: &IPAMClaim, vm: Option<&VirtualMachine>, vmi: Option<&VirtualMachineInstance>) {
        assert_eq!(long_after(claim, vm, vmi), Fate::Due);
    }

    fn pod(of: &str, phase: &str) -> Pod {
        let owners = json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "uid": of, "controller": true }]);
        let metadata = json!({ "name": "p", "ownerReferences": owners });
        serde_json::from_value(json!({ "metadata": metadata, "status": { "phase": phase } })).unwrap()
    }

    #[test]
    fn a_claim_is_kept_while_its_machine_or_an_instance_of_it_is_there() {
        let held = claim(Some(("VirtualMachine", "m")), false);
        let instance = vmi("i", Some("m"), "Running");
        kept(&held, Some(&vm("m", false)), Some(&instance));
        kept(&held, Some(&vm("m", false)), None);
        kept(&held, Some(&vm("m", true)), Some(&instance));
        kept(&held, None, Some(&instance));
        due(&held, Some(&vm("m", true)), None);
        due(&held, None, None);
        // Another machine of the name is not the owner, and neither is an instance that somebody else made.
        due(&held, Some(&vm("other", false)), Some(&vmi("i", Some("other"), "Running")));
        kept(&held, Some(&vm("m", false)), Some(&vmi("i", None, "Running")));
    }

    #[test]
    fn a_claim_that_is_deleted_goes_when_nothing_runs_with_it() {
        let leaving = claim(Some(("VirtualMachine", "m")), true);
        let machine = vm("m", false);
        kept(&leaving, Some(&machine), Some(&vmi("i", Some("m"), "Running")));
        due(&leaving, Some(&machine), None);
        // An instance that waits for the claim does not hold it.
        due(&leaving, Some(&machine), Some(&vmi("i", Some("m"), "Pending")));
        let orphan = claim(None, true);
        due(&orphan, None, None);
        kept(&orphan, None, Some(&vmi("i", None, "Running")));
        kept(&claim(None, false), None, None);
    }

    #[test]
    fn a_claim_waits_for_what_its_instance_does_not_tell_yet() {
        let (leaving, held) = (claim(Some(("VirtualMachine", "m")), true), claim(Some(("VirtualMachine", "m")), false));
        let instance = vmi("i", Some("m"), "Pending");
        let check = |claim: &IPAMClaim, pods: &[Pod], after: i64, expect: Fate| {
            let users = Users { vm: None, vmi: Some(&instance), pods };
            assert_eq!(fate(claim, users, DELETED + SignedDuration::from_secs(after)), expect);
        };
        check(&leaving, &[], 3600, Fate::Due);
        // A pod that was let in just before may be stored just after.
        check(&leaving, &[], 1, Fate::Unsettled);
        check(&leaving, &[pod("i", "Pending")], 3600, Fate::Unsettled);
        check(&leaving, &[pod("other", "Running"), pod("i", "Failed")], 3600, Fate::Due);
        check(&held, &[], 3600, Fate::Kept);
    }

    #[test]
    fn an_instance_alone_holds_its_own() {
        let held = claim(Some(("VirtualMachineInstance", "i")), false);
        kept(&held, None, Some(&vmi("i", None, "Running")));
        due(&held, None, Some(&vmi("later", None, "Running")));
        due(&held, Some(&vm("m", false)), None);
    }

    #[test]
    fn a_claim_says_whose_it_is() {
        assert_eq!((machine("vm.blue"), machine("a.b.blue"), machine("odd")), ("vm", "a.b", "odd"));
    }
}
