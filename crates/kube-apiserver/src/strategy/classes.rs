//! Classes of pods: how much they matter, and what runs them.

use std::collections::HashSet;

use serde_json::Value;

use super::field::{Causes, Field, LABEL, Rule, labels};
use super::pod;

const SYSTEM: &str = "system-";
const SYSTEM_CLASSES: [(&str, i64); 2] =
    [("system-node-critical", 2_000_001_000), ("system-cluster-critical", 2_000_000_000)];
/// What is above is the system's.
const HIGHEST: i64 = 1_000_000_000;

/// Checks a PriorityClass.
pub(super) fn priority(class: &Value, causes: &mut Causes) {
    let class = Field::new("", class);
    let (name, value, policy) = (class.get("metadata").get("name"), class.get("value"), class.get("preemptionPolicy"));
    if name.text().starts_with(SYSTEM) {
        let text = name.text();
        let why = match SYSTEM_CLASSES.iter().find(|(known, _)| *known == text) {
            None => format!("{text} is not a known system priority class"),
            Some((_, wanted)) if *wanted != value.number() => {
                format!("value of {text} PriorityClass must be {wanted}")
            }
            Some(_) if class.get("globalDefault").value == true => {
                format!("globalDefault of {text} PriorityClass must be false")
            }
            Some(_) => String::new(),
        };
        if !why.is_empty() {
            let reserved = format!("priority class names with '{SYSTEM}' prefix are reserved for system use only");
            name.forbidden(&format!("{reserved}. error: {why}"), causes);
        }
    } else if value.number() > HIGHEST {
        value.forbidden(&format!("maximum allowed value of a user defined priority is {HIGHEST}"), causes);
    }
    policy.check(&Rule::Chosen(&["PreemptLowerPriority", "Never"]), causes);
}

/// Checks a RuntimeClass.
pub(super) fn runtime(class: &Value, causes: &mut Causes) {
    let class = Field::new("", class);
    let (handler, scheduling) = (class.get("handler"), class.get("scheduling"));
    handler.check(&Rule::Needed, causes);
    handler.check(&LABEL, causes);
    pod::overhead(&class.get("overhead").get("podFixed").told_as("overhead"), causes);
    labels(&scheduling.get("nodeSelector"), causes);
    let mut seen = HashSet::new();
    for toleration in scheduling.each("tolerations") {
        pod::toleration(&toleration, causes);
        if !seen.insert(toleration.value.to_string()) {
            toleration.duplicate(causes);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn high_priorities_are_the_systems() {
        let check = |name: &str, value: i64, expect: usize| {
            let class = json!({"metadata": {"name": name}, "value": value, "preemptionPolicy": "Never"});
            let mut causes = Vec::new();
            priority(&class, &mut causes);
            assert_eq!(causes.len(), expect, "{causes:?}");
        };
        check("mine", 1_000_000_000, 0);
        check("mine", 1_000_000_001, 1);
        check("system-mine", 5, 1);
        check("system-node-critical", 2_000_001_000, 0);
    }
}
