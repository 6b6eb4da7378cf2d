//! What `kubectl explain` says: our sentences, put into the schemas of the CustomResourceDefinitions.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use serde_json::Value;

const INPUT: &str = "xtask/data/descriptions.yaml";
/// Holds for every kind.
const EVERY: &str = "every";
/// Holds below the spec of an instance, wherever that stands.
const INSTANCE: &str = "instance";

/// Sentences by anchor (a kind, or one of the two above), then by path below it.
pub(crate) struct Descriptions {
    texts: BTreeMap<String, BTreeMap<String, String>>,
    used: BTreeSet<(String, String)>,
}

impl Descriptions {
    pub(crate) fn read(root: &Path) -> Result<Self> {
        let text = std::fs::read_to_string(root.join(INPUT)).with_context(|| format!("reading {INPUT}"))?;
        let texts = serde_saphyr::from_str(&text).with_context(|| format!("parsing {INPUT}"))?;
        Ok(Self { texts, used: BTreeSet::new() })
    }

    /// Describes the fields of one CustomResourceDefinition.
    pub(crate) fn describe(&mut self, crd: &mut Value) {
        let kind = crd["spec"]["names"]["kind"].as_str().unwrap_or_default().to_owned();
        for version in crd["spec"]["versions"].as_array_mut().into_iter().flatten() {
            self.walk(&mut version["schema"]["openAPIV3Schema"], &[&kind, EVERY], "");
        }
    }

    /// Fails when a sentence describes nothing: its path is misspelt.
    pub(crate) fn all_used(&self) -> Result<()> {
        for (anchor, texts) in &self.texts {
            for path in texts.keys() {
                let used = self.used.contains(&(anchor.clone(), path.clone()));
                ensure!(used, "{INPUT}: {anchor} has no field {path:?}");
            }
        }
        Ok(())
    }

    fn walk(&mut self, schema: &mut Value, anchors: &[&str], path: &str) {
        let Some(object) = schema.as_object_mut() else { return };
        for anchor in anchors {
            if let Some(text) = self.texts.get(*anchor).and_then(|texts| texts.get(path)) {
                self.used.insert(((*anchor).to_owned(), path.to_owned()));
                object.entry("description").or_insert_with(|| text.clone().into());
            }
        }
        self.fields(schema, anchors, path);
    }

    fn fields(&mut self, schema: &mut Value, anchors: &[&str], path: &str) {
        if let Some(items) = schema.get_mut("items") {
            self.fields(items, anchors, path);
        }
        let Some(fields) = schema.get_mut("properties").and_then(Value::as_object_mut) else { return };
        let is_instance = fields.contains_key("domain") && fields.contains_key("terminationGracePeriodSeconds");
        let (anchors, path) = if is_instance { (&[INSTANCE][..], "") } else { (anchors, path) };
        for (name, field) in fields {
            let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            self.walk(field, anchors, &below);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn instances_are_described_wherever_they_stand() {
        let texts = json!({ "every": { "spec": "Wanted." }, "Pool": { "": "Many." }, "instance": { "volumes.name": "A name." } });
        let mut descriptions = Descriptions { texts: serde_json::from_value(texts).unwrap(), used: BTreeSet::new() };
        let names = json!({ "type": "array", "items": { "properties": { "name": { "type": "string" } } } });
        let instance = json!({ "properties": { "domain": {}, "terminationGracePeriodSeconds": {}, "volumes": names } });
        let schema = json!({ "properties": { "spec": { "properties": { "template": instance } } } });
        let mut crd = json!({ "spec": { "names": { "kind": "Pool" }, "versions": [{ "schema": { "openAPIV3Schema": schema } }] } });
        descriptions.describe(&mut crd);
        let schema = &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"];
        assert_eq!(schema["description"], "Many.");
        assert_eq!(schema["properties"]["spec"]["description"], "Wanted.");
        let volumes = &schema["properties"]["spec"]["properties"]["template"]["properties"]["volumes"];
        assert_eq!(volumes["items"]["properties"]["name"]["description"], "A name.");
        assert!(descriptions.all_used().is_ok());
        descriptions.texts.insert("Pool".to_owned(), [("spce".to_owned(), String::new())].into());
        assert!(descriptions.all_used().is_err());
    }
}
