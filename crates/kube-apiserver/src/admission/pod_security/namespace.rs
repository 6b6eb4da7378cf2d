//! Labels of a namespace: they must name a level and a version, and a stricter level says which pods would not be let in.

use std::collections::BTreeMap;

use serde_json::Value;

use apimachinery::error::{ApiError, Cause};
use apimachinery::pointer::text;

use super::{Level, checks, level};
use crate::admission::{Attributes, Operation};
use crate::view::View;

/// More pods than this are not looked at for a warning.
const LOOKED_AT: usize = 3000;

/// Checks the labels of a namespace that is written.
///
/// # Errors
/// 422 naming each label with a value that means nothing.
pub(super) fn check(view: &dyn View, attributes: &Attributes, warnings: &mut Vec<String>) -> Result<(), ApiError> {
    let Some(object) = attributes.object.as_ref().filter(|_| attributes.info.subresource.is_empty()) else {
        return Ok(());
    };
    let wrong = problems(object);
    // A namespace that has them already can still be changed, and repaired.
    let before = attributes.old.as_deref().map(problems).unwrap_or_default();
    if !wrong.is_empty() && before.is_empty() {
        return Err(ApiError::invalid("", "Namespace", &attributes.name, wrong));
    }
    let (new, version) = level(object, "enforce");
    let old = attributes.old.as_ref().map_or(new, |old| level(old, "enforce").0);
    if attributes.operation == Operation::Update && new > old {
        warnings.extend(violating(view, &attributes.name, new, &version));
    }
    Ok(())
}

fn problems(namespace: &Value) -> Vec<Cause> {
    let labels = namespace.pointer("/metadata/labels").and_then(Value::as_object).into_iter().flatten();
    let problem = |(key, value): (&String, &Value)| {
        let mode = key.strip_prefix("pod-security.kubernetes.io/")?;
        let (mode, is_version) = mode.strip_suffix("-version").map_or((mode, false), |mode| (mode, true));
        let text = value.as_str().unwrap_or_default();
        let known = matches!(mode, "enforce" | "audit" | "warn");
        let good = if is_version { is_a_version(text) } else { Level::parse(text).is_some() };
        let wanted = if is_version {
            "must be \"latest\" or \"v1.x\""
        } else {
            "must be one of privileged, baseline, restricted"
        };
        let message = format!("Invalid value: {text:?}: {wanted}");
        (known && !good).then(|| Cause {
            reason: "FieldValueInvalid".into(),
            message,
            field: format!("metadata.labels[{key}]"),
        })
    };
    labels.filter_map(problem).collect()
}

fn is_a_version(text: &str) -> bool {
    let minor = text.strip_prefix("v1.").filter(|minor| !minor.starts_with('0') || *minor == "0");
    text == "latest" || minor.is_some_and(|minor| !minor.is_empty() && minor.bytes().all(|b| b.is_ascii_digit()))
}

/// Which pods of a namespace a level would refuse, those with the same reasons together.
fn violating(view: &dyn View, namespace: &str, wanted: Level, version: &str) -> Vec<String> {
    let mut groups: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for pod in view.list("", "pods", namespace).iter().take(LOOKED_AT) {
        let found = checks::violations(pod, wanted);
        if found.is_empty() {
            continue;
        }
        let reasons: Vec<&str> = found.iter().map(|why| why.split(" (").next().unwrap_or(why)).collect();
        groups.entry(reasons.join(", ")).or_default().push(text(pod, "/metadata/name").to_owned());
    }
    if groups.is_empty() {
        return Vec::new();
    }
    let line = |(reasons, mut names): (String, Vec<String>)| {
        names.sort();
        let first = names.first().cloned().unwrap_or_default();
        match names.len() - 1 {
            0 => format!("{first}: {reasons}"),
            1 => format!("{first} (and 1 other pod): {reasons}"),
            others => format!("{first} (and {others} other pods): {reasons}"),
        }
    };
    let mut lines: Vec<String> = groups.into_iter().map(line).collect();
    lines.sort();
    let level = wanted.word();
    let head = format!(
        "existing pods in namespace {namespace:?} violate the new PodSecurity enforce level \"{level}:{version}\""
    );
    lines.insert(0, head);
    lines
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::view::Fixed;

    #[test]
    fn labels_name_levels_and_versions() {
        let check = |key: &str, value: &str, expect: usize| {
            let key = format!("pod-security.kubernetes.io/{key}");
            assert_eq!(problems(&json!({"metadata": {"labels": {key: value}}})).len(), expect, "{value}");
        };
        for (key, value) in
            [("enforce", "baseline"), ("warn-version", "latest"), ("audit-version", "v1.25"), ("other", "x")]
        {
            check(key, value, 0);
        }
        for (key, value) in [("enforce", "strict"), ("warn", ""), ("enforce-version", "1.25"), ("warn-version", "v1.")]
        {
            check(key, value, 1);
        }
    }

    #[test]
    fn pods_with_the_same_reasons_are_told_together() {
        let pod = |name: &str, network: bool| {
            json!({"metadata": {"name": name, "namespace": "n"},
            "spec": {"hostNetwork": network, "hostPID": name == "c", "containers": []}})
        };
        let view = ["b", "a", "c"].iter().fold(Fixed::default(), |view, name| view.with("", "pods", pod(name, true)));
        let view = view.with("", "pods", pod("fine", false));
        let said = violating(&view, "n", Level::Baseline, "latest");
        let head = "existing pods in namespace \"n\" violate the new PodSecurity enforce level \"baseline:latest\"";
        assert_eq!(said, [head, "a (and 2 other pods): host namespaces"]);
    }
}
