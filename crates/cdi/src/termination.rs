//! The last words of a pod that fills a volume, which the controller reads from its status.

use std::collections::BTreeMap;
use std::path::Path;

use serde::Serialize;

/// What the kubelet keeps of a termination message.
const LIMIT: usize = 4096;

/// What is said; fields that are not set are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Termination {
    /// Whether the space of the whole disk was claimed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) preallocation_applied: Option<bool>,
    /// Nobody came in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) deadline_passed: Option<bool>,
    /// Labels for the claim.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub(crate) labels: BTreeMap<String, String>,
    /// For people.
    pub(crate) message: String,
}

impl Termination {
    pub(crate) fn message(message: impl Into<String>) -> Self {
        Self { message: message.into(), ..Self::default() }
    }

    /// As JSON that the kubelet keeps whole: it is the message, or else a label, that is shortened.
    fn text(&self) -> String {
        let mut said = self.clone();
        loop {
            let text = serde_json::to_string(&said).unwrap_or_default();
            let excess = match text.len().checked_sub(LIMIT) {
                None | Some(0) => return text,
                Some(excess) => excess,
            };
            if said.message.is_empty() && said.labels.pop_last().is_none() {
                return String::new();
            }
            let mut keep = said.message.len().saturating_sub(excess);
            while !said.message.is_char_boundary(keep) {
                keep -= 1;
            }
            said.message.truncate(keep);
        }
    }

    /// Leaves the words at `path`. A pod without such a file is one that somebody runs by hand: they read the log.
    pub(crate) fn write(&self, path: &Path) {
        tracing::info!(message = self.message, "done");
        if let Err(error) = std::fs::write(path, self.text()) {
            tracing::warn!(path = %path.display(), %error, "the termination message was not written");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_known_is_said() {
        let check = |said: &Termination, expect: &str| assert_eq!(said.text(), expect);
        let mut said = Termination::message("Import Complete");
        check(&said, r#"{"message":"Import Complete"}"#);
        said.preallocation_applied = Some(true);
        said.labels.insert("a".into(), "b".into());
        check(&said, r#"{"preallocationApplied":true,"labels":{"a":"b"},"message":"Import Complete"}"#);
    }

    #[test]
    fn words_are_cut_to_what_is_kept() {
        let mut said = Termination::message("\u{e9}\"".repeat(4096));
        assert!(said.text().len() <= LIMIT && said.text().ends_with("\"}"));
        said.labels = (0..200).map(|i| (format!("label-{i}"), "x".repeat(60))).collect();
        let value: serde_json::Value = serde_json::from_str(&said.text()).unwrap();
        assert!(value["labels"].is_object());
    }
}
