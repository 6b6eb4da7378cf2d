//! Sending manifests to the API server: server-side apply, many at once, each only when it changed.

mod applied;

use std::borrow::Cow;
use std::hash::{DefaultHasher, Hash, Hasher};

pub use applied::Applied;
use futures::{StreamExt, stream};
use http::{Method, Request, header};
use kube::Client;
use kube::core::ObjectMeta;
use serde::Deserialize;
use serde_json::Value;

const AT_ONCE: usize = 16;
/// Definitions are large, and each costs the API server a schema.
const DEFINITIONS_AT_ONCE: usize = 4;
/// How often a manifest is sent while somebody else writes the object all the time.
const TRIES: u32 = 5;

/// Why an object is not as it should be.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The API server refused.
    #[error("cannot {verb} {address}")]
    Refused {
        /// What was asked.
        verb: &'static str,
        /// The object's path below the API server.
        address: String,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// Somebody else writes it as often as we do.
    #[error("cannot apply {address}: somebody else changes it again and again")]
    Contested {
        /// The object's path below the API server.
        address: String,
    },
}

pub(crate) fn failed(verb: &'static str, address: &str) -> impl FnOnce(kube::Error) -> Error {
    let address = address.to_owned();
    move |source| Error::Refused { verb, address, source: Box::new(source) }
}

/// Plural of the kinds that operators apply.
pub(crate) fn plural(kind: &str) -> String {
    let lower = kind.to_ascii_lowercase();
    match lower.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        // Plural already.
        None if matches!(lower.as_str(), "endpoints" | "securitycontextconstraints") => lower,
        None if lower.ends_with('s') => format!("{lower}es"),
        None => format!("{lower}s"),
    }
}

/// Where the API server serves a version of a group.
pub(crate) fn root(api_version: &str) -> String {
    if api_version.contains('/') { format!("/apis/{api_version}") } else { format!("/api/{api_version}") }
}

/// The address of an object: its path below the API server.
pub fn address(manifest: &Value) -> String {
    let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let root = root(text("/apiVersion"));
    let kind = plural(text("/kind"));
    let name = text("/metadata/name");
    match text("/metadata/namespace") {
        "" => format!("{root}/{kind}/{name}"),
        namespace => format!("{root}/namespaces/{namespace}/{kind}/{name}"),
    }
}

/// Applies `manifests`, several at a time; fails with the first failure after trying all.
///
/// # Errors
/// When the API server refuses one.
pub async fn all(client: &Client, applied: &Applied, manifests: &[Value]) -> Result<(), Error> {
    send(client, applied, documents(manifests, Ours::Lists), AT_ONCE).await
}

/// The same for objects that nobody else has a part in: fields that others added are taken out, too.
///
/// # Errors
/// When the API server refuses one.
pub async fn whole(client: &Client, applied: &Applied, manifests: &[Value]) -> Result<(), Error> {
    send(client, applied, documents(manifests, Ours::Everything), AT_ONCE).await
}

/// Of an object that is applied, what the manifest says all of. Metadata and status are never.
#[derive(Clone, Copy, Debug)]
enum Ours {
    /// The items of its lists.
    Lists,
    /// The fields, too.
    Everything,
}

/// Address, body, and what is the whole of which parts.
type Document<'a> = (String, Cow<'a, str>, Option<(&'a Value, Ours)>);

fn documents(manifests: &[Value], ours: Ours) -> Vec<Document<'_>> {
    let document = |manifest| (address(manifest), Cow::Owned(Value::to_string(manifest)), Some((manifest, ours)));
    manifests.iter().map(document).collect()
}

/// Applies the definitions of kinds, YAML documents that are sent as they are, each named by its CRD; fails with the first
/// failure after trying all.
///
/// # Errors
/// When the API server refuses one.
pub async fn crds(client: &Client, applied: &Applied, documents: &[(&str, &str)]) -> Result<(), Error> {
    let documents = documents.iter().map(|(name, yaml)| (crd(name), Cow::Borrowed(*yaml), None));
    send(client, applied, documents.collect(), DEFINITIONS_AT_ONCE).await
}

/// The address of a definition.
pub fn crd(name: &str) -> String {
    format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}")
}

/// Sends what was not sent so yet.
async fn send(client: &Client, applied: &Applied, documents: Vec<Document<'_>>, at_once: usize) -> Result<(), Error> {
    let hashed = documents.into_iter().map(|(address, body, manifest)| {
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        (address, hasher.finish(), body, manifest)
    });
    let wanted = hashed.filter(|(address, hash, ..)| !applied.is_sent(address, *hash));
    // Made before the stream: a closure in it would have to take borrows of any life.
    let requests: Vec<_> = wanted
        .map(|(address, hash, body, manifest)| async move {
            for _ in 0..TRIES {
                let writing = applied.write(&address);
                let answer = write(client, applied.manager, &address, body.as_bytes(), manifest).await?;
                if writing.answered(hash, &answer) {
                    return Ok(());
                }
            }
            Err(Error::Contested { address })
        })
        .collect();
    let results: Vec<Result<(), Error>> = stream::iter(requests).buffer_unordered(at_once).collect().await;
    results.into_iter().collect()
}

async fn write(
    client: &Client,
    manager: &str,
    address: &str,
    body: &[u8],
    manifest: Option<(&Value, Ours)>,
) -> Result<ObjectMeta, Error> {
    let Some((manifest, ours)) = manifest else {
        return Ok(one(client, manager, address, PARTIAL, body.to_vec()).await?.metadata);
    };
    let now = one(client, manager, address, WHOLE, body.to_vec()).await?;
    match surplus(manifest, &now.object, ours) {
        Some(change) => Ok(replace(client, manager, address, &change).await?.metadata),
        None => Ok(now.metadata),
    }
}

const WHOLE: &str = "application/json";
/// Of definitions, which are large, the metadata are enough.
const PARTIAL: &str = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json";

/// What the API server holds now.
#[derive(Debug, Deserialize)]
struct Answer {
    metadata: ObjectMeta,
    #[serde(flatten)]
    object: Value,
}

async fn one(client: &Client, manager: &str, address: &str, answer: &str, body: Vec<u8>) -> Result<Answer, Error> {
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("{address}?fieldManager={manager}&force=true"))
        .header(header::ACCEPT, answer)
        .header(header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(body)
        .map_err(|error| failed("apply", address)(kube::Error::HttpError(error)))?;
    client.request(request).await.map_err(failed("apply", address))
}

/// Server-side apply leaves what others put beside what it was sent. Where what is sent is the whole, a merge patch takes the
/// rest out.
async fn replace(client: &Client, manager: &str, address: &str, change: &Value) -> Result<Answer, Error> {
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("{address}?fieldManager={manager}"))
        .header(header::CONTENT_TYPE, "application/merge-patch+json")
        .body(change.to_string().into_bytes())
        .map_err(|error| failed("apply", address)(kube::Error::HttpError(error)))?;
    client.request(request).await.map_err(failed("apply", address))
}

/// The merge patch by which `held` holds no more than `wanted` of what is `ours`; none when it does not.
fn surplus(wanted: &Value, held: &Value, ours: Ours) -> Option<Value> {
    match (wanted, held) {
        (Value::Object(wanted), Value::Object(held)) => {
            let others = |key: &&String| *key != "metadata" && *key != "status";
            let known = wanted.iter().filter(|(key, _)| others(key));
            let mut changes: serde_json::Map<String, Value> =
                known.filter_map(|(key, wanted)| Some((key.clone(), surplus(wanted, held.get(key)?, ours)?))).collect();
            if let Ours::Everything = ours {
                let added = held.keys().filter(others).filter(|key| !wanted.contains_key(*key));
                changes.extend(added.map(|key| (key.clone(), Value::Null)));
            }
            (!changes.is_empty()).then_some(Value::Object(changes))
        }
        (Value::Array(wanted), Value::Array(held)) => {
            let mut items = wanted.iter().zip(held);
            let more = held.len() > wanted.len() || items.any(|(one, other)| surplus(one, other, ours).is_some());
            more.then(|| Value::Array(wanted.clone()))
        }
        _ => None,
    }
}

/// Deletes what lies at `address`; gone already is as good.
///
/// # Errors
/// When the API server refuses.
pub async fn delete(client: &Client, address: &str) -> Result<(), Error> {
    let request = Request::builder()
        .method(Method::DELETE)
        .uri(address)
        .header(header::CONTENT_TYPE, "application/json")
        .body(br#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#.to_vec())
        .map_err(|error| failed("delete", address)(kube::Error::HttpError(error)))?;
    match client.request::<serde::de::IgnoredAny>(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(failed("delete", address)(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(version: &str, kind: &str, namespace: Option<&str>, expect: &str) {
        let manifest = json!({
            "apiVersion": version, "kind": kind, "metadata": { "name": "x", "namespace": namespace },
        });
        assert_eq!(address(&manifest), expect);
    }

    #[test]
    fn items_others_added_to_a_list_are_removed() {
        let port = |number: u16| json!({ "port": number });
        let service =
            |ports: Value| json!({ "metadata": { "finalizers": ["a"] }, "spec": { "ports": ports, "selector": {} } });
        let wanted = service(json!([port(443)]));
        let held = |ports: Value| {
            let mut held = service(ports);
            held["spec"]["clusterIPs"] = json!(["10.0.0.1"]);
            held["metadata"]["finalizers"] = json!(["a", "b"]);
            held
        };
        assert_eq!(surplus(&wanted, &held(json!([port(443)])), Ours::Lists), None);
        let change = json!({ "spec": { "ports": [port(443)] } });
        assert_eq!(surplus(&wanted, &held(json!([port(443), port(444)])), Ours::Lists), Some(change));
        let nested = |rules: Value| json!({ "webhooks": [{ "name": "a", "rules": rules }] });
        let change = nested(json!([1]));
        assert_eq!(surplus(&change, &nested(json!([1, 2])), Ours::Lists), Some(change.clone()));
    }

    #[test]
    fn fields_others_added_to_what_is_ours_alone_are_removed() {
        let spec = |spec: Value| json!({ "kind": "K", "metadata": { "name": "n" }, "spec": spec });
        let wanted = spec(json!({ "cpu": { "guest": 1 } }));
        let mut held = spec(json!({ "cpu": { "guest": 1, "model": "m" }, "nodeSelector": { "a": "b" } }));
        held["metadata"]["uid"] = json!("u");
        held["status"] = json!({ "ready": true });
        assert_eq!(surplus(&wanted, &held, Ours::Lists), None);
        let change = json!({ "spec": { "cpu": { "model": null }, "nodeSelector": null } });
        assert_eq!(surplus(&wanted, &held, Ours::Everything), Some(change));
        assert_eq!(surplus(&wanted, &wanted, Ours::Everything), None);
    }

    #[test]
    fn addresses() {
        let constraints = "/apis/security.openshift.io/v1/securitycontextconstraints/x";
        check("security.openshift.io/v1", "SecurityContextConstraints", None, constraints);
        check("v1", "Secret", Some("ns"), "/api/v1/namespaces/ns/secrets/x");
        check("apps/v1", "DaemonSet", Some("ns"), "/apis/apps/v1/namespaces/ns/daemonsets/x");
        check("scheduling.k8s.io/v1", "PriorityClass", None, "/apis/scheduling.k8s.io/v1/priorityclasses/x");
        let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/x";
        check("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", None, policies);
    }
}
