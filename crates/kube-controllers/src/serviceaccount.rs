//! The `default` ServiceAccount and the CA bundle `kube-root-ca.crt` of every namespace.

use std::collections::BTreeMap;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{ConfigMap, Namespace, ServiceAccount};
use kit::controller::{self, Error, Result};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::ObjectMeta;
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::context::Context;

const DEFAULT: &str = "default";
const ROOT_CA: &str = "kube-root-ca.crt";
const ROOT_CA_KEY: &str = "ca.crt";

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (namespaces, accounts) = (ctx.store::<Namespace>(), ctx.store::<ServiceAccount>());
    let bundles = ctx.store::<ConfigMap>();
    namespaces.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(namespace) = new {
                queue.add(namespace.name_any());
            }
        }
    });
    accounts.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let (Some(old), None) = (old, new)
                && old.name_any() == DEFAULT
            {
                queue.add(old.namespace().unwrap_or_default());
            }
        }
    });
    bundles.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(bundle) = new.or(old) {
                queue.add(bundle.namespace().unwrap_or_default());
            }
        }
    });
    namespaces.synced().await;
    accounts.synced().await;
    bundles.synced().await;
    controller::work(&queue, "serviceaccount", 8, |namespace| reconcile(&ctx, namespace)).await;
}

async fn reconcile(ctx: &Context, namespace: String) -> Result<Next> {
    let Some(object) = ctx.store::<Namespace>().get(&Key::new("", &namespace)) else { return Ok(Next::Wait) };
    if object.meta().deletion_timestamp.is_some() {
        return Ok(Next::Wait);
    }
    if ctx.store::<ServiceAccount>().get(&Key::new(&namespace, DEFAULT)).is_none() {
        let account = ServiceAccount { metadata: named(&namespace, DEFAULT), ..ServiceAccount::default() };
        unless_there(ctx.create("create serviceaccount", &account).await)?;
    }
    let ca = &ctx.options.root_ca;
    if ca.is_empty() {
        return Ok(Next::Wait);
    }
    let wanted = BTreeMap::from([(ROOT_CA_KEY.to_owned(), ca.clone())]);
    match ctx.store::<ConfigMap>().get(&Key::new(&namespace, ROOT_CA)) {
        Some(bundle) if bundle.data.as_ref() == Some(&wanted) => {}
        Some(bundle) => {
            let stale = bundle.data.iter().flatten().filter(|(key, _)| *key != ROOT_CA_KEY);
            let mut data: serde_json::Map<_, _> = stale.map(|(key, _)| (key.clone(), json!(null))).collect();
            data.insert(ROOT_CA_KEY.into(), json!(ca));
            let key = Key::of(bundle.as_ref());
            ctx.merge::<ConfigMap>("write configmap", &key, &json!({"data": data})).await?;
        }
        None => {
            let mut metadata = named(&namespace, ROOT_CA);
            let why = "Contains a CA bundle that can be used to verify the kube-apiserver when using internal endpoints \
                       such as the internal service IP or kubernetes.default.svc. No other usage is guaranteed across \
                       distributions of Kubernetes clusters.";
            metadata.annotations = Some(BTreeMap::from([("kubernetes.io/description".to_owned(), why.to_owned())]));
            let bundle = ConfigMap { metadata, data: Some(wanted), ..ConfigMap::default() };
            unless_there(ctx.create("create configmap", &bundle).await)?;
        }
    }
    Ok(Next::Wait)
}

fn named(namespace: &str, name: &str) -> ObjectMeta {
    ObjectMeta { name: Some(name.into()), namespace: Some(namespace.into()), ..ObjectMeta::default() }
}

/// Somebody was faster, or the namespace is going away: both fine.
fn unless_there<T>(result: Result<T>) -> Result<(), Error> {
    match result {
        Err(error) if error.code() == 409 => Ok(()),
        Err(error) if error.code() == 403 && error.message().contains("being terminated") => Ok(()),
        Err(error) if error.code() == 404 => Ok(()),
        other => other.map(drop),
    }
}
