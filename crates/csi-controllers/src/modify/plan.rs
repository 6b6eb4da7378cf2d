//! Which class's attributes a claim's volume is to get, and what the claim's status says meanwhile. Pure.
//!
//! ```text
//!  named != current --> Pending --class there--> InProgress --driver--> (done)
//!                                                    |  refused
//!                                                    v
//!                                                Infeasible --another class named--> InProgress
//! ```

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{ModifyVolumeStatus, PersistentVolumeClaim};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock::seconds_between;
use tonic::Code;

use crate::facts;
use crate::kinds::VolumeAttributesClass;

/// The class is not there, or cannot be used for the volume.
pub(crate) const PENDING: &str = "Pending";
/// The driver is at work, or may be.
pub(crate) const IN_PROGRESS: &str = "InProgress";
/// The driver says that it can never be done.
pub(crate) const INFEASIBLE: &str = "Infeasible";
/// The condition of a claim whose volume is being modified.
pub(crate) const MODIFYING: &str = "ModifyingVolume";
/// The condition of a claim whose volume could not be modified.
pub(crate) const FAILED: &str = "ModifyVolumeError";

/// What is to be done about a bound claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    /// Nothing.
    None,
    /// The volume is to get the attributes of this class.
    Modify(String),
    /// What was asked for was given up before the driver began: the status forgets it.
    Forget,
}

fn status(claim: &PersistentVolumeClaim) -> Option<&ModifyVolumeStatus> {
    claim.status.as_ref()?.modify_volume_status.as_ref()
}

/// How far a modification is, and to which class; empty when none is under way.
pub(crate) fn state(claim: &PersistentVolumeClaim) -> (&str, &str) {
    let found = status(claim);
    found
        .map_or(("", ""), |s| (s.status.as_str(), s.target_volume_attributes_class_name.as_deref().unwrap_or_default()))
}

/// What is to be done about a claim.
pub(crate) fn step(claim: &PersistentVolumeClaim) -> Step {
    if facts::phase(claim) != "Bound" || facts::is_leaving(claim) {
        return Step::None;
    }
    let (named, current) = (facts::attributes_class(claim), facts::current_attributes_class(claim));
    let (how_far, target) = state(claim);
    match (named, how_far) {
        ("", "") => Step::None,
        // What the driver may have begun has to come to an end, or nobody would know what the volume is.
        ("", IN_PROGRESS) => Step::Modify(target.to_owned()),
        ("", _) => Step::Forget,
        (named, "") if named == current => Step::None,
        // Back to what the volume has: the driver may have begun the other.
        (named, PENDING) if named == current => Step::Forget,
        (named, _) => Step::Modify(named.to_owned()),
    }
}

/// For how many seconds more a class that the driver refused is not tried again; `None` when it may be.
pub(crate) fn rests(claim: &PersistentVolumeClaim, target: &str, now: &Time, interval: i64) -> Option<i64> {
    let conditions = claim.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    let failure = conditions.iter().find(|c| c.type_ == FAILED)?;
    let left = interval - seconds_between(failure.last_transition_time.as_ref()?, now);
    Some(left).filter(|left| state(claim) == (INFEASIBLE, target) && *left > 0)
}

/// Whether a failure means that the driver did not and will not do it.
pub(crate) fn is_infeasible(code: Code) -> bool {
    matches!(code, Code::InvalidArgument | Code::OutOfRange | Code::NotFound | Code::Unimplemented)
}

/// What a driver is told of the class called `name`. The error says why the class is of no use for its volumes.
pub(crate) fn parameters(
    name: &str,
    class: Option<&VolumeAttributesClass>,
    driver: &str,
    can: bool,
) -> Result<BTreeMap<String, String>, String> {
    let Some(class) = class else { return Err(format!("VolumeAttributesClass {name:?} not found")) };
    if class.driver_name != driver {
        let of = &class.driver_name;
        return Err(format!(
            "VolumeAttributesClass {name:?} is for driver {of:?}, and the volume is of driver {driver:?}"
        ));
    }
    if !can {
        return Err(format!("CSI driver {driver:?} does not support attributes of volumes (MODIFY_VOLUME)"));
    }
    Ok(class.parameters.clone().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn claim(named: &str, current: &str, how_far: &str, target: &str) -> PersistentVolumeClaim {
        let set = |text: &str| if text.is_empty() { Value::Null } else { text.into() };
        let modify = if how_far.is_empty() {
            Value::Null
        } else {
            json!({"status": how_far, "targetVolumeAttributesClassName": target})
        };
        serde_json::from_value(json!({"spec": {"volumeAttributesClassName": set(named)}, "status": {"phase": "Bound",
            "currentVolumeAttributesClassName": set(current), "modifyVolumeStatus": modify,
            "conditions": [{"type": FAILED, "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}]}}))
        .unwrap()
    }

    #[test]
    fn a_volume_gets_the_class_that_its_claim_names() {
        let check = |named, current, (how_far, target), expect| {
            assert_eq!(step(&claim(named, current, how_far, target)), expect, "{named} {current} {how_far} {target}");
        };
        let modify = |class: &str| Step::Modify(class.to_owned());
        check("", "", ("", ""), Step::None);
        check("gold", "", ("", ""), modify("gold"));
        check("gold", "gold", ("", ""), Step::None);
        check("gold", "silver", (IN_PROGRESS, "gold"), modify("gold"));
        check("gold", "silver", (INFEASIBLE, "copper"), modify("gold"));
        check("", "", (IN_PROGRESS, "gold"), modify("gold"));
        check("", "", (INFEASIBLE, "gold"), Step::Forget);
        check("", "", (PENDING, "gold"), Step::Forget);
        check("silver", "silver", (PENDING, "gold"), Step::Forget);
        check("silver", "silver", (IN_PROGRESS, "gold"), modify("silver"));
    }

    #[test]
    fn refused_modifications_wait_before_a_retry() {
        let at = |text: &str| -> Time { serde_json::from_value(text.into()).unwrap() };
        let refused = claim("gold", "", INFEASIBLE, "gold");
        assert_eq!(rests(&refused, "gold", &at("2026-01-01T00:01:00Z"), 300), Some(240));
        assert_eq!(rests(&refused, "gold", &at("2026-01-01T00:06:00Z"), 300), None);
        assert_eq!(rests(&refused, "silver", &at("2026-01-01T00:01:00Z"), 300), None);
    }

    #[test]
    fn a_class_is_of_use_for_its_drivers_volumes_alone() {
        let class = VolumeAttributesClass {
            driver_name: "d".into(),
            parameters: Some(BTreeMap::from([("iops".to_owned(), "9".to_owned())])),
            ..VolumeAttributesClass::default()
        };
        assert_eq!(parameters("gold", Some(&class), "d", true).unwrap()["iops"], "9");
        let why = |class, driver, can| parameters("gold", class, driver, can).unwrap_err();
        assert_eq!(why(None, "d", true), "VolumeAttributesClass \"gold\" not found");
        assert_eq!(
            why(Some(&class), "e", true),
            "VolumeAttributesClass \"gold\" is for driver \"d\", and the volume is of driver \"e\""
        );
        assert_eq!(
            why(Some(&class), "d", false),
            "CSI driver \"d\" does not support attributes of volumes (MODIFY_VOLUME)"
        );
    }
}
