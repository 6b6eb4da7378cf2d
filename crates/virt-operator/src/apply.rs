//! Sending manifests to the API server: server-side apply, many at once, each only when it changed.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
};

use futures::{StreamExt, TryStreamExt, stream};
use http::{Method, Request, header};
use kube::Client;
use serde_json::Value;

use crate::error::Error;

/// Field manager of everything this operator applies.
pub const MANAGER: &str = "virt-operator";
const AT_ONCE: usize = 16;

/// What was applied last, by address: an unchanged manifest is not sent again until [`Applied::forget`].
#[derive(Debug, Default)]
pub struct Applied(HashMap<String, u64>);

impl Applied {
    /// Sends everything again next time, so that what others changed is put right.
    pub fn forget(&mut self) {
        self.0.clear();
    }
}

/// Plural of the kinds this operator applies.
fn plural(kind: &str) -> String {
    let lower = kind.to_ascii_lowercase();
    match lower.strip_suffix('y') {
        Some(stem) => format!("{stem}ies"),
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
pub async fn all(client: &Client, applied: &mut Applied, manifests: &[Value]) -> Result<(), Error> {
    let mut wanted = Vec::new();
    for manifest in manifests {
        let body = manifest.to_string();
        let mut hasher = DefaultHasher::new();
        body.hash(&mut hasher);
        let (address, hash) = (address(manifest), hasher.finish());
        if applied.0.get(&address) != Some(&hash) {
            wanted.push((address, hash, body));
        }
    }
    let results: Vec<Result<(String, u64), Error>> = stream::iter(wanted)
        .map(|(address, hash, body)| async move {
            one(client, &address, body.into_bytes()).await?;
            Ok((address, hash))
        })
        .buffer_unordered(AT_ONCE)
        .collect()
        .await;
    let mut failure = None;
    for result in results {
        match result {
            Ok((address, hash)) => {
                applied.0.insert(address, hash);
            }
            Err(error) => failure = failure.or(Some(error)),
        }
    }
    failure.map_or(Ok(()), Err)
}

/// Applies YAML documents as they are, each named by its CRD.
///
/// # Errors
/// When the API server refuses one.
pub async fn crds(client: &Client, documents: &[(&'static str, &'static str)]) -> Result<(), Error> {
    let mut requests = Vec::new();
    for (name, yaml) in documents {
        let address = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{name}");
        requests.push(async move { one(client, &address, yaml.as_bytes().to_vec()).await });
    }
    stream::iter(requests).buffer_unordered(4).try_collect::<Vec<()>>().await.map(drop)
}

async fn one(client: &Client, address: &str, body: Vec<u8>) -> Result<(), Error> {
    let failed = || Error::api("apply", "manifest", address);
    let request = Request::builder()
        .method(Method::PATCH)
        .uri(format!("{address}?fieldManager={MANAGER}&force=true"))
        .header(header::ACCEPT, "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1,application/json")
        .header(header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(body)
        .map_err(|error| failed()(kube::Error::HttpError(error)))?;
    // The answer repeats what was sent; only its success matters.
    client.request::<serde::de::IgnoredAny>(request).await.map(drop).map_err(failed())
}

/// Deletes what lies at `address`; gone already is as good.
///
/// # Errors
/// When the API server refuses.
pub async fn delete(client: &Client, address: &str) -> Result<(), Error> {
    let failed = || Error::api("delete", "object", address);
    let request = Request::builder()
        .method(Method::DELETE)
        .uri(address)
        .header(header::CONTENT_TYPE, "application/json")
        .body(br#"{"kind":"DeleteOptions","apiVersion":"v1","propagationPolicy":"Background"}"#.to_vec())
        .map_err(|error| failed()(kube::Error::HttpError(error)))?;
    match client.request::<serde::de::IgnoredAny>(request).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(failed()(error)),
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
    fn addresses() {
        check("v1", "Secret", Some("ns"), "/api/v1/namespaces/ns/secrets/x");
        check("apps/v1", "DaemonSet", Some("ns"), "/apis/apps/v1/namespaces/ns/daemonsets/x");
        check("scheduling.k8s.io/v1", "PriorityClass", None, "/apis/scheduling.k8s.io/v1/priorityclasses/x");
        let policies = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies/x";
        check("admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy", None, policies);
    }
}
