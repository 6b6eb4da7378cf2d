//! What the built-in types and their fields are for, in the words of the Kubernetes API. Read when a document is made and
//! dropped with it: it is half a megabyte of which nothing else needs more than a few lines.

use std::collections::BTreeMap;
use std::sync::LazyLock;

use serde::Deserialize;

static FILE: &str = include_str!("../generated/descriptions.json");

/// Descriptions by type and field.
#[derive(Debug, Default, Deserialize)]
pub(crate) struct Descriptions {
    /// Each text once.
    texts: Vec<String>,
    /// Type, field (empty: the type itself), index of the text.
    types: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Descriptions {
    /// All of them.
    pub(crate) fn load() -> Self {
        serde_json::from_str(FILE).unwrap_or_default()
    }

    /// What is said of a field, or of the type when the field is empty.
    pub(crate) fn of(&self, type_name: &str, field: &str) -> Option<&str> {
        self.texts.get(*self.types.get(type_name)?.get(field)?).map(String::as_str)
    }
}

/// What is said of a field that the metadata of every object has.
pub(crate) fn of_metadata(field: &str) -> &'static str {
    const OBJECT_META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1.ObjectMeta";
    static WORDS: LazyLock<BTreeMap<String, String>> = LazyLock::new(|| {
        let mut all = Descriptions::load();
        let fields = all.types.remove(OBJECT_META).unwrap_or_default();
        fields.into_iter().filter_map(|(field, at)| Some((field, all.texts.get(at)?.clone()))).collect()
    });
    WORDS.get(field).map_or("", String::as_str)
}

/// The file itself, which a document's hash depends on.
pub(super) fn source() -> &'static [u8] {
    FILE.as_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_and_fields_are_described() {
        let descriptions = Descriptions::load();
        let check = |name: &str, field: &str, words: &str| {
            let text = descriptions.of(name, field).unwrap();
            assert!(text.contains(words), "{text}");
        };
        check("io.k8s.api.core.v1.Pod", "", "Pod is a collection of containers");
        check("io.k8s.api.core.v1.PodSpec", "restartPolicy", "Restart policy for all containers");
        assert_eq!(descriptions.of("io.k8s.api.core.v1.Pod", "nothing"), None);
        assert!(of_metadata("name").starts_with("Name must be unique within a namespace."));
    }
}
