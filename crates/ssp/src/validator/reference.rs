//! A machine that has every field, each empty: what a rule finds where a machine says nothing. Generated from the schema.

use serde_json::Value;

/// Its template.
pub fn template() -> Value {
    serde_json::from_str(include_str!("reference.json")).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::{Map, json};

    use super::*;

    /// What a field of this schema is without anything in it; a list has one entry, so that paths lead through it.
    fn empty(schema: &Value) -> Value {
        match schema["type"].as_str() {
            Some("object") => {
                let fields = schema["properties"].as_object().into_iter().flatten();
                Value::Object(fields.map(|(name, field)| (name.clone(), empty(field))).collect::<Map<_, _>>())
            }
            Some("array") => json!([empty(&schema["items"])]),
            Some("integer" | "number") => json!(0),
            Some("boolean") => json!(false),
            Some("string") => json!(""),
            _ if schema["x-kubernetes-int-or-string"] == true => json!("0"),
            _ => Value::Null,
        }
    }

    /// `UPDATE_EXPECT=1` writes it.
    #[test]
    fn the_committed_reference_is_that_of_the_schema() {
        let definition = include_str!("../../../../deploy/crds/virtualmachines.kubevirt.io.yaml");
        let definition: Value = serde_saphyr::from_str(definition).unwrap();
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/template";
        let text = format!("{}\n", empty(definition.pointer(schema).unwrap()));
        let path = Path::new("src/validator/reference.json");
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(path, &text).unwrap();
        }
        let held = std::fs::read_to_string(path).unwrap_or_default();
        assert!(held == text, "reference.json is out of date: run this test with UPDATE_EXPECT=1");
        assert_eq!(template()["spec"]["domain"]["memory"]["guest"], "0");
    }
}
