//! Sending manifests to the API server: server-side apply, many at once, each only when it changed.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use futures::{StreamExt, TryStreamExt, stream};
use http::{Method, Request, header};
use kube::{Client, core::ObjectMeta};
use serde::Deserialize;
use serde_json::Value;

const AT_ONCE: usize = 16;

/// The API server refused.
#[derive(Debug, thiserror::Error)]
#[error("cannot {verb} {address}")]
pub struct Error {
    verb: &'static str,
    address: String,
    #[source]
    source: Box<kube::Error>,
}

fn failed(verb: &'static str, address: &str) -> impl FnOnce(kube::Error) -> Error {
    let address = address.to_owned();
    move |source| Error { verb, address, source: Box::new(source) }
}

/// What a field manager applied last, by address; cheap to clone. An unchanged manifest is not sent again until the object
/// is [`Applied::touched`] by somebody else, or [`Applied::forget`].
#[derive(Clone, Debug)]
pub struct Applied {
    manager: &'static str,
    sent: Arc<Mutex<HashMap<String, Sent>>>,
}

#[derive(Debug)]
struct Sent {
    hash: u64,
    version: Option<String>,
    generation: Option<i64>,
}

impl Applied {
    /// Nothing yet, by `manager`.
    pub fn by(manager: &'static str) -> Self {
        Applied { manager, sent: Arc::default() }
    }

    /// Sends everything again next time, so that what others changed is put right.
    pub fn forget(&self) {
        self.lock().clear();
    }

    /// Takes in that the object at `address` is `now` so, or gone. True when that is not how it was left: it is sent again
    /// next time. A kind that counts generations may have its status written by anybody.
    pub fn touched(&self, address: &str, now: Option<&ObjectMeta>) -> bool {
        let mut sent = self.lock();
        let Some(left) = sent.get(address) else { return false };
        let same = now.is_some_and(|now| match (left.generation, now.generation) {
            (Some(left), Some(now)) => left == now,
            _ => left.version == now.resource_version,
        });
        if !same {
            sent.remove(address);
        }
        !same
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Sent>> {
        self.sent.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Plural of the kinds that operators apply.
fn plural(kind: &str) -> String {
    let lower = kind.to_ascii_lowercase();
    match lower.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
        // Plural already.
        None if matches!(lower.as_str(), "endpoints" | "securitycontextconstraints") => lower,
        None if lower.ends_with('s') => format!("{lower}es"),
        None => format!("{lower}s"),
    }
}

/// The address of an object: its path below the API server.
pub fn address(manifest: &Value) -> String {
    let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    let version = text("/apiVersion");
    let root = if version.contains('/') { format!("/apis/{version}") } else { format!("/api/{version}") };
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
    let mut wanted = Vec::new();
    for manifest in manifests {
        let body = manifest.to_string();
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let (address, hash) = (address(manifest), hasher.finish());
        if applied.lock().get(&address).is_none_or(|sent| sent.hash != hash) {
            wanted.push((address, hash, manifest.clone()));
        }
    }
    let manager = applied.manager;
    let results: Vec<Result<(), Error>> = stream::iter(wanted)
        .map(|(address, hash, manifest)| async move {
            let mut now = one(client, manager, &address, WHOLE, manifest.to_string().into_bytes()).await?;
            if let Some(change) = surplus(&manifest, &now.object) {
                now = replace(client, manager, &address, &change).await?;
            }
            let now = now.metadata;
            let sent = Sent { hash, version: now.resource_version, generation: now.generation };
            applied.lock().insert(address, sent);
            Ok(())
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    results.into_iter().collect()
}

/// Applies YAML documents as they are, each named by its CRD.
///
/// # Errors
/// When the API server refuses one.
pub async fn crds(client: &Client, manager: &str, documents: &[(&'static str, &'static str)]) -> Result<(), Error> {
    let mut requests = Vec::new();
    for (name, yaml) in documents {
        let address = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        requests.push(async move { one(client, manager, &address, PARTIAL, yaml.as_bytes().to_vec()).await.map(drop) });
    }
    stream::iter(requests).buffer_unordered(4).try_collect::<Vec<()>>().await.map(drop)
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

/// Server-side apply leaves what others put into a list beside what it was sent. The lists that are sent are the whole of them,
/// so a merge patch takes the rest out.
async fn replace(client: &Client, manager: &str, address: &str, change: &Value) -> Result<Answer, Error> {
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("{address}?fieldManager={manager}"))
        .header(header::CONTENT_TYPE, "application/merge-patch+json")
        .body(change.to_string().into_bytes())
        .map_err(|error| failed("apply", address)(kube::Error::HttpError(error)))?;
    client.request(request).await.map_err(failed("apply", address))
}

/// The merge patch by which lists of `held` hold no more than those of `wanted`; none when they do not.
fn surplus(wanted: &Value, held: &Value) -> Option<Value> {
    match (wanted, held) {
        (Value::Object(wanted), Value::Object(held)) => {
            let lists = wanted.iter().filter(|(key, _)| *key != "metadata" && *key != "status");
            let changes: serde_json::Map<String, Value> =
                lists.filter_map(|(key, wanted)| Some((key.clone(), surplus(wanted, held.get(key)?)?))).collect();
            (!changes.is_empty()).then_some(Value::Object(changes))
        }
        (Value::Array(wanted), Value::Array(held)) => {
            let more =
                held.len() > wanted.len() || wanted.iter().zip(held).any(|(one, other)| surplus(one, other).is_some());
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
    fn what_others_change_is_sent_again() {
        let applied = Applied::by("m");
        let meta = |version: &str, generation: Option<i64>| ObjectMeta {
            resource_version: Some(version.to_owned()),
            generation,
            ..ObjectMeta::default()
        };
        let sent = |generation| Sent { hash: 1, version: Some("5".to_owned()), generation };
        let check = |generation, now: Option<ObjectMeta>, expect: bool| {
            applied.lock().insert("/a".to_owned(), sent(generation));
            assert_eq!(applied.touched("/a", now.as_ref()), expect, "{now:?}");
            assert_eq!(applied.lock().contains_key("/a"), !expect);
        };
        check(None, Some(meta("5", None)), false);
        check(None, Some(meta("6", None)), true);
        check(Some(2), Some(meta("6", Some(2))), false);
        check(Some(2), Some(meta("6", Some(3))), true);
        check(Some(2), None, true);
        assert!(!applied.touched("/other", None));
    }

    #[test]
    fn what_others_put_into_a_list_is_taken_out() {
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
        assert_eq!(surplus(&wanted, &held(json!([port(443)]))), None);
        let change = json!({ "spec": { "ports": [port(443)] } });
        assert_eq!(surplus(&wanted, &held(json!([port(443), port(444)]))), Some(change));
        let nested = |rules: Value| json!({ "webhooks": [{ "name": "a", "rules": rules }] });
        let change = nested(json!([1]));
        assert_eq!(surplus(&change, &nested(json!([1, 2]))), Some(change.clone()));
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
