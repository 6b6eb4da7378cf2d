//! Every object that is answered with comes back from protobuf as it was.

use kube_apiserver::body;
use serde_json::Value;

use super::compare::{Difference, differ};
use super::entry::Entry;

/// Documents, and answers in other shapes.
const WITHOUT: [&str; 6] =
    ["APIGroup", "APIGroupList", "APIResourceList", "APIVersions", "APIGroupDiscoveryList", "Table"];

/// What of an answer is another after it was protobuf.
pub(super) fn unlike(entry: &Entry, answer: &Value) -> Option<Difference> {
    let mut parts = Vec::new();
    compare(answer, &mut parts);
    let brief = parts.first()?.clone();
    Some(Difference { id: entry.id.clone(), class: "protobuf", brief, text: parts.join("; ") })
}

fn compare(value: &Value, parts: &mut Vec<String>) {
    if let Value::Array(events) = value {
        return events.iter().filter_map(|event| event.get("object")).for_each(|object| compare(object, parts));
    }
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    let (api_version, kind) = (text("apiVersion"), text("kind"));
    let group = api_version.split_once('/').map_or("", |(group, _)| group);
    if kind.is_empty() || WITHOUT.contains(&kind) || group.contains("example") {
        return;
    }
    if let (Some(items), Some(kind)) = (value["items"].as_array(), kind.strip_suffix("List")) {
        for item in items {
            let mut item = item.clone();
            item["apiVersion"] = api_version.into();
            item["kind"] = kind.into();
            compare(&item, parts);
        }
    }
    let bytes = match body::to_protobuf(value) {
        Ok(bytes) => bytes,
        Err(unfit) => return parts.push(unfit.to_string()),
    };
    if value["items"].is_array() {
        return;
    }
    let (mut before, mut after) = (value.clone(), body::protobuf(&bytes).unwrap());
    if kind == "Status" && before["reason"] == "" {
        before["reason"] = Value::Null;
    }
    // What kind they are, the field says.
    let templates = before.pointer_mut("/spec/volumeClaimTemplates").and_then(Value::as_array_mut);
    for template in templates.into_iter().flatten() {
        template
            .as_object_mut()
            .into_iter()
            .for_each(|template| template.retain(|key, _| key != "apiVersion" && key != "kind"));
    }
    [&mut before, &mut after].into_iter().for_each(without_what_is_empty);
    differ(&after, &before, "", parts);
}

/// Takes out what no client can tell from what is not there: nulls and empty lists.
fn without_what_is_empty(value: &mut Value) {
    match value {
        Value::Object(map) => {
            map.values_mut().for_each(without_what_is_empty);
            map.retain(|_, value| !value.is_null() && *value != Value::Array(Vec::new()));
        }
        Value::Array(items) => items.iter_mut().for_each(without_what_is_empty),
        _ => {}
    }
}
