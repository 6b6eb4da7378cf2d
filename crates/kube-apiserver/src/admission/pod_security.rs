//! Pod Security: the baseline and restricted levels, enforced, warned about or audited by labels of the namespace.
//!
//! Checks are worded as upstream words them, since users search for these sentences.

use serde_json::Value;

use apimachinery::error::ApiError;

use super::{Attributes, Operation};
use crate::view::View;

pub mod checks;
mod namespace;

/// A level.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Level {
    /// Anything goes.
    Privileged,
    /// Known privilege escalations are not possible.
    Baseline,
    /// Hardened.
    Restricted,
}

impl Level {
    fn parse(word: &str) -> Option<Self> {
        match word {
            "privileged" => Some(Self::Privileged),
            "baseline" => Some(Self::Baseline),
            "restricted" => Some(Self::Restricted),
            _ => None,
        }
    }
    fn word(self) -> &'static str {
        match self {
            Self::Privileged => "privileged",
            Self::Baseline => "baseline",
            Self::Restricted => "restricted",
        }
    }
}

fn level(namespace: &Value, mode: &str) -> (Level, String) {
    let label = |key: String| {
        let labels = namespace.pointer("/metadata/labels");
        labels.and_then(|l| l.get(key)).and_then(Value::as_str).map(ToOwned::to_owned)
    };
    let Some(word) = label(format!("pod-security.kubernetes.io/{mode}")) else {
        return (Level::Privileged, "latest".to_owned());
    };
    let version = label(format!("pod-security.kubernetes.io/{mode}-version")).unwrap_or_else(|| "latest".to_owned());
    // An unknown word means the strictest level, as upstream does.
    (Level::parse(&word).unwrap_or(Level::Restricted), version)
}

/// The pod template of a workload.
fn template<'a>(attributes: &Attributes, object: &'a Value) -> Option<(&'a Value, bool)> {
    match (attributes.resource.group.as_str(), attributes.resource.plural.as_str()) {
        ("", "pods") => Some((object, true)),
        ("apps", "deployments" | "daemonsets" | "statefulsets" | "replicasets") | ("batch", "jobs") => {
            object.pointer("/spec/template").map(|t| (t, false))
        }
        ("batch", "cronjobs") => object.pointer("/spec/jobTemplate/spec/template").map(|t| (t, false)),
        ("", "replicationcontrollers") => object.pointer("/spec/template").map(|t| (t, false)),
        _ => None,
    }
}

/// Checks pods (enforce, warn, audit) and the templates of workloads (warn, audit).
///
/// # Errors
/// 403 listing every violation.
pub fn check(view: &dyn View, attributes: &Attributes, warnings: &mut Vec<String>) -> Result<(), ApiError> {
    if attributes.resource.group.is_empty() && attributes.resource.plural == "namespaces" {
        return namespace::check(view, attributes, warnings);
    }
    let ephemeral = attributes.info.subresource == "ephemeralcontainers";
    if !matches!(attributes.operation, Operation::Create | Operation::Update)
        || !(attributes.info.subresource.is_empty() || ephemeral)
    {
        return Ok(());
    }
    let Some(object) = &attributes.object else { return Ok(()) };
    let Some((pod, is_pod)) = template(attributes, object) else { return Ok(()) };
    // Updates that leave the specification alone (labels, finalizers, annotations) cannot make it worse.
    if attributes
        .old
        .as_ref()
        .is_some_and(|old| template(attributes, old).is_some_and(|(before, _)| before.get("spec") == pod.get("spec")))
    {
        return Ok(());
    }
    let Some(namespace) = view.get("", "namespaces", "", &attributes.namespace) else { return Ok(()) };
    if is_pod {
        let (wanted, version) = level(&namespace, "enforce");
        let violations = checks::violations(pod, wanted);
        if !violations.is_empty() {
            let why = format!("violates PodSecurity \"{}:{version}\": {}", wanted.word(), violations.join(", "));
            return Err(ApiError::forbidden("", "pods", &attributes.name, &why));
        }
    }
    let (audited, version) = level(&namespace, "audit");
    let violations = checks::violations(pod, audited);
    if !violations.is_empty() {
        tracing::info!(namespace = %attributes.namespace, name = %attributes.name, level = audited.word(), %version,
            violations = %violations.join(", "), "pod security audit");
    }
    let (warned, version) = level(&namespace, "warn");
    let violations = checks::violations(pod, warned);
    if !violations.is_empty() {
        warnings.push(format!("would violate PodSecurity \"{}:{version}\": {}", warned.word(), violations.join(", ")));
    }
    Ok(())
}

#[cfg(test)]
mod tests;
