//! Conditions of CDI's kinds: they keep the moment of their last change. Pure.

use api::cdi::v1beta1::CDICondition;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

/// Says `kind` of `conditions`. Times move only when something said differs.
pub fn set(conditions: &mut Vec<CDICondition>, kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) {
    let now = Some(Time(kit::clock::seconds(now)));
    let text = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    let (reason, message) = (text(reason), text(message));
    let Some(found) = conditions.iter_mut().find(|one| one.type_ == kind) else {
        let status = status.to_owned();
        let type_ = kind.to_owned();
        conditions.push(CDICondition {
            type_,
            status,
            reason,
            message,
            last_heartbeat_time: now.clone(),
            last_transition_time: now,
        });
        return;
    };
    if found.status == status && found.reason == reason && found.message == message {
        return;
    }
    if found.status != status {
        status.clone_into(&mut found.status);
        found.last_transition_time.clone_from(&now);
    }
    found.last_heartbeat_time = now;
    (found.reason, found.message) = (reason, message);
}

/// The condition of this kind.
pub fn get<'a>(conditions: &'a [CDICondition], kind: &str) -> Option<&'a CDICondition> {
    conditions.iter().find(|one| one.type_ == kind)
}
