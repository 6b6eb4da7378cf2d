//! Who is writing, for `metadata.managedFields`, and the apply patch.

use http::header;
use serde_json::{Value, json};

use super::{Call, decode};
use crate::error::ApiError;
use crate::patch::{apply, managed};

pub(super) const APPLY: &str = "application/apply-patch+yaml";

/// Longest name a writer may have.
const NAME: usize = 128;

/// Whether the request is a server-side apply; its managed fields come from the apply itself.
pub(super) fn applies(call: &Call) -> bool {
    call.info.verb == "patch" && decode::content_type(call) == APPLY
}

/// The writer's name: said in the query, else the product in the user agent.
pub(super) fn name(call: &Call) -> String {
    let said = call.query.get("fieldManager");
    let agent = || call.headers.get(header::USER_AGENT).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let name = if said.is_empty() { agent().split('/').next().unwrap_or_default() } else { said };
    let name: String = name.chars().filter(|c| !c.is_control()).take(NAME).collect();
    if name.is_empty() { "unknown".to_owned() } else { name }
}

/// `new` with the ownership of what this request changed. Who sends a Binding writes no field of the pod: that it has a node
/// is the server's doing.
pub(super) fn record(call: &Call, old: Option<&Value>, new: Value, subresource: &str) -> Value {
    if applies(call) || subresource == "binding" {
        return new;
    }
    let resource = &call.resource;
    let (name, version) = (name(call), resource.api_version());
    managed::update(&resource.schema, old, new, &name, "Update", &version, subresource, jiff::Timestamp::now())
}

/// The object after the apply; `live` is None when it does not exist yet.
pub(super) fn merge(call: &Call, live: Option<&Value>, wanted: &Value, subresource: &str) -> Result<Value, ApiError> {
    let resource = &call.resource;
    let wanted = written(call, wanted, subresource);
    let force = call.query.flag("force")?;
    apply::apply(
        &resource.schema,
        live,
        &wanted,
        &name(call),
        force,
        &resource.api_version(),
        subresource,
        jiff::Timestamp::now(),
    )
}

/// The part of an applied object which this endpoint writes; the rest is nobody's wish.
fn written(call: &Call, wanted: &Value, subresource: &str) -> Value {
    let mut wanted = wanted.clone();
    let Some(map) = wanted.as_object_mut() else { return wanted };
    match subresource {
        "status" => {
            map.retain(|key, _| matches!(key.as_str(), "apiVersion" | "kind" | "metadata" | "status"));
            let metadata = &map["metadata"];
            let mut identity = json!({});
            for key in ["name", "namespace", "uid", "resourceVersion", "managedFields"] {
                if let Some(value) = metadata.get(key) {
                    identity[key] = value.clone();
                }
            }
            map.insert("metadata".to_owned(), identity);
        }
        "" if call.resource.status_subresource => {
            map.remove("status");
        }
        _ => {}
    }
    wanted
}
