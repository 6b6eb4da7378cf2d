//! Which namespaces the pool serves: their labels say so, for virtual machines and for pods apart. Pure.
//!
//! The webhook's configuration selects namespaces by the same labels. It is looked at again here, because whoever changes the
//! configuration would otherwise decide for every namespace.

use std::collections::BTreeMap;

use serde_json::{Value, json};

/// The label for virtual machines, and the name of their webhook.
pub const VIRTUAL_MACHINES: &str = "mutatevirtualmachines.kubemacpool.io";
/// The label for pods, and the name of their webhook.
pub const PODS: &str = "mutatepods.kubemacpool.io";
/// Value of either label: not this namespace.
const IGNORE: &str = "ignore";
/// Value of either label: this namespace.
const ALLOCATE: &str = "allocate";
/// Labels of the namespaces that the cluster itself needs to begin.
const RUN_LEVELS: [&str; 2] = ["runlevel", "openshift.io/run-level"];
/// Their values.
const EARLY: [&str; 2] = ["0", "1"];

/// True for the labels that decide.
pub fn is_asked_for(label: &str) -> bool {
    [VIRTUAL_MACHINES, PODS].contains(&label) || RUN_LEVELS.contains(&label)
}

/// What is done with namespaces that do not say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Mode {
    /// They are served, but for those that say `ignore`.
    OptOut,
    /// They are not served, but for those that say `allocate`.
    OptIn,
}

impl Mode {
    /// As an argument of the program.
    pub fn name(self) -> &'static str {
        match self {
            Mode::OptOut => "opt-out",
            Mode::OptIn => "opt-in",
        }
    }

    /// True when a namespace with these labels is served, by `label`.
    pub fn serves(self, label: &str, labels: &BTreeMap<String, String>) -> bool {
        let value = |key: &str| labels.get(key).map(String::as_str);
        let early = RUN_LEVELS.iter().any(|key| value(key).is_some_and(|level| EARLY.contains(&level)));
        let says = value(label);
        !early
            && match self {
                Mode::OptOut => says != Some(IGNORE),
                Mode::OptIn => says == Some(ALLOCATE),
            }
    }

    /// The same as a selector of namespaces, of which `but` is none.
    pub fn selector(self, label: &str, but: Option<&str>) -> Value {
        let not_in = |key: &str, values: &[&str]| json!({ "key": key, "operator": "NotIn", "values": values });
        let mut all: Vec<Value> = RUN_LEVELS.iter().map(|key| not_in(key, &EARLY)).collect();
        all.push(match self {
            Mode::OptOut => not_in(label, &[IGNORE]),
            Mode::OptIn => json!({ "key": label, "operator": "In", "values": [ALLOCATE] }),
        });
        all.extend(but.map(|namespace| not_in("kubernetes.io/metadata.name", &[namespace])));
        json!({ "matchExpressions": all })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(labels: &[(&str, &str)], [out, opted]: [bool; 2]) {
        let labels = labels.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
        let found = [Mode::OptOut, Mode::OptIn].map(|mode| mode.serves(PODS, &labels));
        assert_eq!(found, [out, opted], "{labels:?}");
    }

    #[test]
    fn labels_decide_on_a_namespace() {
        check(&[], [true, false]);
        check(&[(PODS, "ignore")], [false, false]);
        check(&[(PODS, "allocate")], [true, true]);
        check(&[(PODS, "other"), (VIRTUAL_MACHINES, "ignore")], [true, false]);
        check(&[(PODS, "allocate"), ("runlevel", "0")], [false, false]);
        check(&[(PODS, "allocate"), ("openshift.io/run-level", "1")], [false, false]);
        check(&[(PODS, "allocate"), ("runlevel", "2")], [true, true]);
    }
}
