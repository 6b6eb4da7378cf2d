//! Who is writing, for `metadata.managedFields`, and the apply patch.

use std::sync::Arc;

use http::header;
use serde_json::{Value, json};

use apimachinery::error::ApiError;
use apimachinery::patch::managed::Writer;
use apimachinery::patch::versions::{Elsewhere, Form, Versions};
use apimachinery::patch::{apply, managed};

use super::{Call, decode};
use crate::registry::Registry;

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

fn writer<'a>(name: &'a str, api_version: &'a str, subresource: &'a str) -> Writer<'a> {
    Writer { manager: name, api_version, subresource, now: kit::clock::now() }
}

/// `new` with the ownership of what this request changed. Who sends a Binding writes no field of the pod: that it has a node
/// is the server's doing.
pub(super) async fn record(call: &Call, old: Option<&Value>, new: Value, subresource: &str) -> Value {
    if applies(call) || subresource == "binding" {
        return new;
    }
    let (name, version) = (name(call), call.resource.api_version());
    let writer = writer(&name, &version, subresource);
    let others = managed::versions(old, &new, &writer);
    let elsewhere = if others.is_empty() {
        Elsewhere::default()
    } else {
        Elsewhere::look(&Siblings::of(call), others, old, &new).await
    };
    if let Some(error) = elsewhere.failure() {
        tracing::warn!(%error, resource = %call.resource.plural, name = %call.info.name, "owners of another version keep their fields");
    }
    managed::update(&call.resource.schema, old, new, &writer, &elsewhere)
}

/// Takes the times of `old` where nothing else differs: who applies again what an API server has left out or filled in, such as
/// a field with its default, writes nothing.
pub(super) fn keep_times(old: &Value, new: &mut Value) {
    let held = &old["metadata"]["managedFields"];
    let same = match (held.as_array(), new["metadata"]["managedFields"].as_array()) {
        (Some(before), Some(now)) => before.len() == now.len() && before.iter().zip(now).all(|(a, b)| but_time(a, b)),
        _ => false,
    };
    if !same {
        return;
    }
    let told = std::mem::replace(&mut new["metadata"]["managedFields"], held.clone());
    if new != old {
        new["metadata"]["managedFields"] = told;
    }
}

/// Whether two owners differ in their times at most.
fn but_time(one: &Value, other: &Value) -> bool {
    let (Some(one), Some(other)) = (one.as_object(), other.as_object()) else { return one == other };
    one.len() == other.len() && one.iter().all(|(key, value)| key == "time" || other.get(key) == Some(value))
}

/// The object after the apply; `live` is None when it does not exist yet.
pub(super) async fn merge(
    call: &Call,
    live: Option<&Value>,
    wanted: &Value,
    subresource: &str,
) -> Result<Value, ApiError> {
    let wanted = written(call, wanted, subresource);
    let force = call.query.flag("force");
    let (name, version) = (name(call), call.resource.api_version());
    let writer = writer(&name, &version, subresource);
    apply::across::apply(&call.resource.schema, live, &wanted, writer, force, &Siblings::of(call)).await
}

/// The versions of the resource of a request.
struct Siblings<'a> {
    call: &'a Call,
    registry: Arc<Registry>,
}

impl<'a> Siblings<'a> {
    fn of(call: &'a Call) -> Self {
        Self { call, registry: call.server.registry() }
    }
}

impl Versions for Siblings<'_> {
    fn form(&self, api_version: &str) -> Form {
        let resource = &self.call.resource;
        let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
        match self.registry.find_declared(group, version, &resource.plural) {
            None => Form::Gone,
            Some(sibling) if resource.conversion_webhook.is_some() => Form::Other(sibling.schema.clone()),
            Some(_) => Form::Alike,
        }
    }

    async fn convert(&self, objects: Vec<Value>, api_version: &str) -> Result<Vec<Value>, ApiError> {
        let server = &self.call.server;
        crate::crd::convert::convert(&**server.store(), &self.call.resource, objects, api_version).await
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// An object with a value, whose one owner wrote at a time.
    fn object(value: u8, manager: &str, time: &str) -> Value {
        json!({ "value": value, "metadata": { "name": "a", "managedFields": [{ "manager": manager, "time": time }] } })
    }

    #[track_caller]
    fn check(mut new: Value, expect: &str) {
        keep_times(&object(1, "m", "before"), &mut new);
        assert_eq!(new["metadata"]["managedFields"][0]["time"], expect);
    }

    #[test]
    fn a_time_alone_is_no_change() {
        check(object(1, "m", "now"), "before");
        check(object(2, "m", "now"), "now");
        check(object(1, "n", "now"), "now");
    }
}
