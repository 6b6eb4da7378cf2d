//! Every field of the definition acts, or is named: each is set alone, and must change an object that follows, or be warned of.

use serde_json::{Map, Value, json};

use super::*;
use crate::tree::put;

const DEFINITION: &str = include_str!("../../../../../deploy/crds/hyperconvergeds.hco.kubevirt.io.yaml");

/// What is set beside a field, where it means something only then.
fn beside(path: &str) -> Value {
    match path {
        "networking.kubeSecondaryDNSNameServerIP" => json!({ "featureGates": [{ "name": "deployKubeSecondaryDNS" }] }),
        _ => json!({}),
    }
}

/// Fields of which a value that the schema alone suggests is none.
fn special(path: &str) -> Option<Value> {
    Some(match path {
        "featureGates" => json!([{ "name": "alignCPUs", "state": "Enabled" }]),
        "security.tlsSecurityProfile" => json!({ "type": "Modern" }),
        "virtualization.tuningPolicy" => json!("highBurst"),
        // On one node none is what is done anyway.
        "virtualization.evictionStrategy" => json!("External"),
        "networking.kubeMacPoolConfiguration" => {
            json!({ "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:00:00:ff" })
        }
        "security.certConfig.ca.duration" => json!("100h"),
        "security.certConfig.ca.renewBefore" | "security.certConfig.server.renewBefore" => json!("11m"),
        "security.certConfig.server.duration" => json!("25h"),
        _ => return None,
    })
}

/// The fields of `schema` below `path`, each with a value that is not its default. Where a field is handed on as it stands, what is
/// inside of it is too.
fn leaves(schema: &Value, path: &str, depth: u32, out: &mut Vec<(String, Value)>) {
    if let Some(value) = special(path) {
        out.push((path.to_owned(), value));
        return;
    }
    let fields = schema["properties"].as_object();
    match fields {
        Some(fields) if depth > 0 => {
            for (name, inner) in fields {
                let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
                leaves(inner, &path, depth - 1, out);
            }
        }
        _ => out.push((path.to_owned(), sample(schema))),
    }
}

/// A value of `schema` that is not the default.
fn sample(schema: &Value) -> Value {
    if let Some(values) = schema["enum"].as_array() {
        return values.iter().find(|value| **value != schema["default"]).cloned().unwrap_or_default();
    }
    match schema["type"].as_str().unwrap_or("string") {
        "boolean" => json!(schema["default"] != true),
        "integer" => json!(77),
        "array" => json!([sample(&schema["items"])]),
        "object" => {
            let fields = schema["properties"].as_object().cloned().unwrap_or_default();
            let mut object: Map<String, Value> =
                fields.iter().map(|(name, inner)| (name.clone(), sample(inner))).collect();
            if schema["additionalProperties"].is_object() {
                object.insert("key".to_owned(), sample(&schema["additionalProperties"]));
            }
            Value::Object(object)
        }
        _ => json!("0.5"),
    }
}

fn children(spec: &Value) -> Vec<Value> {
    let hco = serde_json::from_value(json!({ "metadata": { "name": render::NAME }, "spec": spec })).unwrap();
    Child::ALL.into_iter().map(|child| render::render(child, &hco, &Input::default()).unwrap()).collect()
}

#[test]
fn every_field_acts_or_is_named() {
    let definition: Value = serde_saphyr::from_str(DEFINITION).unwrap();
    let versions = definition["spec"]["versions"].as_array().unwrap();
    let version = versions.iter().find(|version| version["name"] == "v1").unwrap();
    let mut all = Vec::new();
    leaves(&version["schema"]["openAPIV3Schema"]["properties"]["spec"], "", 4, &mut all);
    assert!(all.len() > 60, "{}", all.len());
    let mut silent = Vec::new();
    for (path, value) in all {
        // Acts in the operator itself: tests/it/injector.rs.
        if path == "deployment.deployNetworkResourcesInjector" {
            continue;
        }
        let without = beside(&path);
        let mut with = without.clone();
        put(&mut with, &path, value);
        if children(&with) != children(&without) {
            continue;
        }
        let found = judge(&tests::request(json!({}), with.clone()), &Input::default());
        let named =
            matches!(&found, Verdict::Allow { warnings } if warnings.iter().any(|warning| warning.contains(&path)));
        if !named {
            silent.push(format!("{path}: {with} {found:?}"));
        }
    }
    assert!(silent.is_empty(), "{silent:#?}");
}
