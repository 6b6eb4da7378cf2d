//! Which templates somebody else has changed, so that they were restored.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::{Mutex, PoisonError};

use kit::apply;
use serde_json::Value;

/// What was applied of templates, by address.
#[derive(Debug, Default)]
pub(super) struct Memory {
    sent: Mutex<BTreeMap<String, u64>>,
    /// What the cluster was tidied for.
    tidied: Mutex<Option<String>>,
}

impl Memory {
    /// How many of `templates` are as they were rendered before, and are not known any more to be so in the cluster: somebody
    /// changed them. What is rendered otherwise than before, nobody else has changed.
    pub(super) fn restored(&self, templates: &[Value], known: &[String]) -> u64 {
        let now: BTreeMap<String, u64> =
            templates.iter().map(|template| (apply::address(template), hash(template))).collect();
        let mut sent = self.sent.lock().unwrap_or_else(PoisonError::into_inner);
        let changed = now
            .iter()
            .filter(|(address, hash)| sent.get(*address) == Some(*hash) && known.binary_search(address).is_err());
        let changed = changed.count();
        *sent = now;
        u64::try_from(changed).unwrap_or_default()
    }

    /// Whether the cluster was tidied for this.
    pub(super) fn is_tidied_for(&self, state: &str) -> bool {
        self.tidied.lock().unwrap_or_else(PoisonError::into_inner).as_deref() == Some(state)
    }

    /// The cluster was tidied for this.
    pub(super) fn tidied_for(&self, state: String) {
        *self.tidied.lock().unwrap_or_else(PoisonError::into_inner) = Some(state);
    }

    /// Nothing is there any more.
    pub(super) fn forget(&self) {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner).clear();
        *self.tidied.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

fn hash(template: &Value) -> u64 {
    let mut hasher = DefaultHasher::new();
    template.to_string().hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_what_somebody_else_changed_is_counted() {
        let template = |text: &str| {
            json!({
                "apiVersion": "template.kubevirt.io/v1alpha1", "kind": "VirtualMachineTemplate",
                "metadata": { "name": "t", "namespace": "ns" }, "spec": text,
            })
        };
        let memory = Memory::default();
        let known = [apply::address(&template(""))];
        assert_eq!(memory.restored(&[template("a")], &[]), 0, "the first time, all are new");
        assert_eq!(memory.restored(&[template("a")], &known), 0);
        assert_eq!(memory.restored(&[template("a")], &[]), 1);
        assert_eq!(memory.restored(&[template("b")], &known), 0, "what is wanted has changed");
        memory.forget();
        assert_eq!(memory.restored(&[template("b")], &[]), 0);
    }
}
