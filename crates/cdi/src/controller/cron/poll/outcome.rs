//! What has become of a poll, read off its pod. Pure.
//!
//! A pod is in reach of whoever may run one in its namespace. So its message is an answer or nothing, and of what else it says a word is
//! taken at the most.

use std::time::Duration;

use k8s_openapi::api::core::v1::{ContainerState, ContainerStatus, Pod};

use super::LIMIT;
use super::pod::POLLER;
use crate::answer::{self, Answer};

/// How it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// It goes on.
    Asking,
    /// The poller has said this.
    Answered(Answer),
    /// There will be no answer, and why.
    Lost(String),
}

/// The longest word that is taken over.
const WORD: usize = 40;

/// How a poll stands that began so long ago; its pod may be gone.
pub(crate) fn of(pod: Option<&Pod>, spent: Duration) -> Outcome {
    let Some(pod) = pod else { return Outcome::Lost("its pod was deleted before it had said anything".to_owned()) };
    let status = pod.status.as_ref();
    let mut all = status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten();
    let poller = all.find(|one| one.name == POLLER);
    if let Some(ended) = poller.and_then(|poller| poller.state.as_ref()?.terminated.as_ref())
        && let Some(answer) = ended.message.as_deref().and_then(answer::read)
    {
        return Outcome::Answered(answer);
    }
    let ended = poller.is_some_and(|poller| poller.state.as_ref().is_some_and(|state| state.terminated.is_some()));
    let phase = status.and_then(|status| status.phase.as_deref());
    if ended || matches!(phase, Some("Succeeded" | "Failed")) {
        let why = word(status.and_then(|status| status.reason.as_deref()));
        return Outcome::Lost(format!("its pod ended without an answer{why}"));
    }
    let waits = poller.and_then(waiting);
    // It waits for what its author named, and holds up the namespace's other crons.
    if waits == Some("CreateContainerConfigError") {
        let why = "its pod cannot start (CreateContainerConfigError); the Secret that secretRef names has to be there, with accessKeyId and secretKey";
        return Outcome::Lost(why.to_owned());
    }
    if spent >= LIMIT {
        let why = word(waits.or_else(|| unscheduled(pod)));
        let limit = LIMIT.as_secs();
        return Outcome::Lost(format!(
            "its pod did not end within {limit} s{why}; there has to be room for it on a node, and what secretRef and certConfigMap name"
        ));
    }
    Outcome::Asking
}

fn waiting(poller: &ContainerStatus) -> Option<&str> {
    match &poller.state {
        Some(ContainerState { waiting: Some(waiting), .. }) => waiting.reason.as_deref(),
        _ => None,
    }
}

fn unscheduled(pod: &Pod) -> Option<&str> {
    let all = pod.status.as_ref()?.conditions.as_ref()?;
    let found = all.iter().find(|one| one.type_ == "PodScheduled" && one.status == "False")?;
    found.reason.as_deref()
}

/// A reason of Kubernetes' in brackets; nothing when it is none.
fn word(reason: Option<&str>) -> String {
    let sound = |text: &&str| !text.is_empty() && text.len() <= WORD && text.bytes().all(|b| b.is_ascii_alphanumeric());
    reason.filter(sound).map(|reason| format!(" ({reason})")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;
    use crate::answer::{Digest, Reason};

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn outcome(phase: &str, state: Value, spent: Duration) -> Outcome {
        let one =
            json!({ "name": POLLER, "image": "i", "imageID": "", "ready": false, "restartCount": 0, "state": state });
        let pod = json!({ "status": { "phase": phase, "containerStatuses": [one] } });
        of(Some(&serde_json::from_value(pod).unwrap()), spent)
    }

    fn said(message: &str) -> Outcome {
        outcome("Succeeded", json!({ "terminated": { "exitCode": 0, "message": message } }), Duration::ZERO)
    }

    fn lost(outcome: Outcome) -> String {
        match outcome {
            Outcome::Lost(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_answer_is_the_message_of_the_poller_that_ended() {
        let digest = format!("sha256:{}", "a".repeat(64));
        assert_eq!(said(&digest), Outcome::Answered(Ok(Digest::of(&digest).unwrap())));
        assert_eq!(said("Connect"), Outcome::Answered(Err(Reason::Connect)));
        let waiting = json!({ "waiting": { "reason": "ContainerCreating", "message": digest } });
        assert_eq!(outcome("Pending", waiting, Duration::ZERO), Outcome::Asking);
        assert_eq!(outcome("Running", json!({ "running": {} }), Duration::ZERO), Outcome::Asking);
        assert_eq!(of(Some(&Pod::default()), Duration::ZERO), Outcome::Asking);
    }

    #[test]
    fn a_message_that_is_no_answer_is_not_repeated() {
        let digits = "a".repeat(64);
        for message in [
            "<html>the words of a neighbour</html>".to_owned(),
            format!("\u{1b}]0;owned\u{7}sha256:{digits}"),
            format!("sha256:{digits}@evil"),
            "x".repeat(1 << 20),
        ] {
            assert_eq!(lost(said(&message)), "its pod ended without an answer");
        }
    }

    #[test]
    fn a_poll_without_an_answer_ends_all_the_same() {
        assert_eq!(lost(of(None, Duration::ZERO)), "its pod was deleted before it had said anything");
        let evicted = json!({ "status": { "phase": "Failed", "reason": "Evicted", "message": "<html>" } });
        let evicted = of(Some(&serde_json::from_value(evicted).unwrap()), Duration::ZERO);
        assert_eq!(lost(evicted), "its pod ended without an answer (Evicted)");
        let config = json!({ "waiting": { "reason": "CreateContainerConfigError" } });
        assert!(lost(outcome("Pending", config, Duration::ZERO)).contains("secretRef"));
        let nowhere = json!({ "type": "PodScheduled", "status": "False", "reason": "Unschedulable" });
        let nowhere = json!({ "status": { "phase": "Pending", "conditions": [nowhere] } });
        let nowhere: Pod = serde_json::from_value(nowhere).unwrap();
        assert_eq!(of(Some(&nowhere), LIMIT - Duration::from_secs(1)), Outcome::Asking);
        assert!(lost(of(Some(&nowhere), LIMIT)).contains("(Unschedulable)"));
        let escape = json!({ "waiting": { "reason": "\u{1b}[2J" } });
        assert!(lost(outcome("Pending", escape, LIMIT)).starts_with("its pod did not end within 300 s;"));
    }
}
