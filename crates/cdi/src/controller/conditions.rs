//! Conditions of CDI's kinds: they keep the moment of their last change. Pure.

use api::cdi::v1beta1::CDICondition;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::text::{STATUS, brief};

/// Says `kind` of `conditions`. Times move only when something said differs. What is said often quotes servers and images,
/// and is read on terminals.
pub fn set(conditions: &mut Vec<CDICondition>, kind: &str, status: &str, reason: &str, message: &str, now: Timestamp) {
    let now = Some(Time(kit::clock::seconds(now)));
    let text = |text: &str| (!text.is_empty()).then(|| brief(text, STATUS).into_owned());
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_server_says_moves_no_cursor_and_is_not_endless() {
        let (now, mut all) = (Timestamp::UNIX_EPOCH, Vec::new());
        let evil = "404 \x1b[2J\u{202e}not found";
        set(&mut all, "Running", "False", evil, evil, now);
        let found = get(&all, "Running").unwrap();
        let shown = Some("404 \\u001b[2J\\u202enot found");
        assert_eq!((found.reason.as_deref(), found.message.as_deref()), (shown, shown));
        // The same is no news.
        let before = all.clone();
        set(&mut all, "Running", "False", evil, evil, Timestamp::MAX);
        assert_eq!(all, before);
        set(&mut all, "Running", "False", "Error", &"x".repeat(1 << 20), now);
        assert_eq!(get(&all, "Running").and_then(|one| one.message.as_ref()).map(String::len), Some(STATUS));
    }
}
