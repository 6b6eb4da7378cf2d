//! When a claim is let go. Pure.
//!
//! The addresses of a claim may be given to others once it is gone. Until then nobody may run with them: neither the machine, which
//! starts again while it is there, nor an instance of it, whose pods have them.

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use kube::ResourceExt;

use super::claim::{IPAMClaim, Kind, Owner};
use super::{names, plan};

/// The machine whose claim has this name.
pub fn machine(claim: &str) -> &str {
    claim.rsplit_once('.').map_or(claim, |(machine, _)| machine)
}

/// Whether `claim` is held by this controller.
pub fn is_held(claim: &IPAMClaim) -> bool {
    claim.finalizers().iter().any(|one| one == names::FINALIZER)
}

/// Whether nobody needs `claim` any more. `vm` and `vmi` are the objects of its machine's name, as the API server has them.
pub fn is_due(claim: &IPAMClaim, vm: Option<&VirtualMachine>, vmi: Option<&VirtualMachineInstance>) -> bool {
    let owner = Owner::read(claim.owner_references());
    let leaving = claim.metadata.deletion_timestamp.is_some();
    // What has no owner is kept until somebody deletes it, and nothing of its name runs.
    let Some(owner) = owner else { return leaving && vmi.is_none() };
    let runs = vmi.is_some_and(|vmi| plan::owner(vmi) == owner && !(leaving && waits(vmi)));
    if runs {
        return false;
    }
    let starts_again = owner.kind == Kind::VirtualMachine
        && vm.is_some_and(|vm| vm.uid().as_ref() == Some(&owner.uid) && vm.metadata.deletion_timestamp.is_none());
    // A user may delete the claim of a machine that is not running: it gets another one with other addresses.
    leaving || !starts_again
}

/// Whether an instance has no pod yet. Its pods are not made while its claim is being deleted.
fn waits(vmi: &VirtualMachineInstance) -> bool {
    let phase = vmi.status.as_ref().and_then(|status| status.phase.as_deref());
    let active = vmi.status.as_ref().is_some_and(|status| !status.active_pods.is_empty());
    !active && matches!(phase.unwrap_or_default(), "" | "Pending")
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

    #[test]
    fn a_claim_is_kept_while_its_machine_or_an_instance_of_it_is_there() {
        let held = claim(Some(("VirtualMachine", "m")), false);
        let instance = vmi("i", Some("m"), "Running");
        assert!(!is_due(&held, Some(&vm("m", false)), Some(&instance)));
        assert!(!is_due(&held, Some(&vm("m", false)), None));
        assert!(!is_due(&held, Some(&vm("m", true)), Some(&instance)));
        assert!(!is_due(&held, None, Some(&instance)));
        assert!(is_due(&held, Some(&vm("m", true)), None));
        assert!(is_due(&held, None, None));
        // Another machine of the name is not the owner, and neither is an instance that somebody else made.
        assert!(is_due(&held, Some(&vm("other", false)), Some(&vmi("i", Some("other"), "Running"))));
        assert!(!is_due(&held, Some(&vm("m", false)), Some(&vmi("i", None, "Running"))));
    }

    #[test]
    fn a_claim_that_is_deleted_goes_when_nothing_runs_with_it() {
        let leaving = claim(Some(("VirtualMachine", "m")), true);
        let machine = vm("m", false);
        assert!(!is_due(&leaving, Some(&machine), Some(&vmi("i", Some("m"), "Running"))));
        assert!(is_due(&leaving, Some(&machine), None));
        // An instance that waits for the claim does not hold it.
        assert!(is_due(&leaving, Some(&machine), Some(&vmi("i", Some("m"), "Pending"))));
        let orphan = claim(None, true);
        assert!(is_due(&orphan, None, None) && !is_due(&orphan, None, Some(&vmi("i", None, "Running"))));
        assert!(!is_due(&claim(None, false), None, None));
    }

    #[test]
    fn an_instance_alone_holds_its_own() {
        let held = claim(Some(("VirtualMachineInstance", "i")), false);
        assert!(!is_due(&held, None, Some(&vmi("i", None, "Running"))));
        assert!(is_due(&held, None, Some(&vmi("later", None, "Running"))));
        assert!(is_due(&held, Some(&vm("m", false)), None));
    }

    #[test]
    fn a_claim_says_whose_it_is() {
        assert_eq!((machine("vm.blue"), machine("a.b.blue"), machine("odd")), ("vm", "a.b", "odd"));
    }
}
