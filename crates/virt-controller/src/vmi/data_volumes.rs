//! What an instance says of the data volumes that its disks lie on, in KubeVirt's words. Pure.

use api::cdi::constants::condition as data_condition;
use api::cdi::v1beta1::DataVolume;
use api::kubevirt::constants::condition;
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceStatus};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions::set;

const READY: (&str, &str, &str) = ("True", "AllDVsReady", "All of the VMI's DVs are bound and not running");
const NOT_READY: (&str, &str) = ("NotAllDVsReady", "Not all of the VMI's DVs are ready");

/// Says in `status` whether the data volumes of `vmi` are ready; those that `found` does not know were cleaned up.
pub fn tell(
    status: &mut VirtualMachineInstanceStatus,
    vmi: &VirtualMachineInstance,
    found: impl Fn(&str) -> Option<DataVolume>,
    now: Timestamp,
) {
    let named = vmi.spec.volumes.iter().filter_map(|volume| found(&volume.data_volume.as_ref()?.name));
    let states: Vec<String> = named.map(|data| ready(&data)).collect();
    if states.is_empty() {
        return;
    }
    let worst = ["False", "Unknown", "True"].into_iter().find(|word| states.iter().any(|state| state == word));
    let (word, reason, message) = match worst {
        Some("False") => ("False", NOT_READY.0, NOT_READY.1),
        Some("True") => READY,
        _ => ("Unknown", NOT_READY.0, NOT_READY.1),
    };
    set(&mut status.conditions, condition::DATA_VOLUMES_READY, word, Some(reason), Some(message), &Time(now));
}

fn ready(data: &DataVolume) -> String {
    let conditions = data.status.as_ref().map(|status| status.conditions.as_slice()).unwrap_or_default();
    let held = conditions.iter().find(|held| held.type_ == data_condition::READY);
    held.map_or_else(|| "Unknown".to_owned(), |held| held.status.clone())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// `a` and `b` are ready as `states` says.
    #[track_caller]
    fn check(states: [Option<&str>; 2], expect: Option<(&str, &str)>) {
        let vmi = json!({ "spec": { "volumes": [
            { "name": "x", "dataVolume": { "name": "a" } }, { "name": "y", "dataVolume": { "name": "b" } },
        ] } });
        let vmi: VirtualMachineInstance = serde_json::from_value(vmi).unwrap();
        let found = |name: &str| {
            let state = states[usize::from(name == "b")]?;
            let conditions = json!([{ "type": "Ready", "status": state }]);
            serde_json::from_value(json!({ "spec": {}, "status": { "conditions": conditions } })).ok()
        };
        let mut status = VirtualMachineInstanceStatus::default();
        tell(&mut status, &vmi, found, Timestamp::UNIX_EPOCH);
        let said = status.conditions.first().map(|c| (c.status.as_str(), c.reason.as_deref().unwrap_or_default()));
        assert_eq!(said, expect);
    }

    #[test]
    fn the_worst_of_them_counts() {
        check([None, None], None);
        check([Some("True"), None], Some(("True", "AllDVsReady")));
        check([Some("True"), Some("Unknown")], Some(("Unknown", "NotAllDVsReady")));
        check([Some("False"), Some("Unknown")], Some(("False", "NotAllDVsReady")));
    }
}
