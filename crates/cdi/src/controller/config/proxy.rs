//! OpenShift's proxy for the whole cluster: imports go through it unless the configuration names another.

use api::cdi::v1beta1::ImportProxy;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;
use serde_json::{Value, json};

use super::of_openshift;
use crate::Error;
use crate::controller::context::Context;
use crate::controller::labels::labels;
use crate::controller::write;

/// Where OpenShift keeps the certificates of its proxy, under this key.
const NAMESPACE: &str = "openshift-config";
const KEY: &str = "ca-bundle.crt";
/// The key that importers look under.
const OURS: &str = "ca.pem";

/// The cluster's proxy; none where there is none. Its certificates are brought beside the controller, from where importers get them.
pub(super) async fn of_cluster(context: &Context) -> Result<Option<ImportProxy>, Error> {
    let found = of_openshift(context, "config.openshift.io", "Proxy", None).await?;
    let Some(proxy) = found.iter().find(|proxy| proxy["metadata"]["name"] == "cluster").map(read) else {
        return Ok(None);
    };
    if let Some(name) = proxy.trusted_ca_proxy.as_deref().filter(|name| !name.is_empty()) {
        bring(context, name).await?;
    }
    Ok(Some(proxy))
}

fn read(proxy: &Value) -> ImportProxy {
    let text = |pointer: &str| Some(proxy.pointer(pointer).and_then(Value::as_str).unwrap_or_default().to_owned());
    ImportProxy {
        http_proxy: text("/status/httpProxy"),
        https_proxy: text("/status/httpsProxy"),
        no_proxy: text("/status/noProxy"),
        trusted_ca_proxy: text("/spec/trustedCA/name"),
    }
}

async fn bring(context: &Context, name: &str) -> Result<(), Error> {
    let theirs: Api<ConfigMap> = Api::namespaced(context.client.clone(), NAMESPACE);
    let found = theirs.get_opt(name).await.map_err(Error::api("read", "ConfigMap", name))?;
    let Some(bundle) = found.and_then(|map| map.data?.remove(KEY)) else {
        tracing::warn!(configmap = name, key = KEY, "the certificates of the cluster's proxy are not there");
        return Ok(());
    };
    let copy: ConfigMap = serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": context.namespace, "labels": labels("") }, "data": { (OURS): bundle },
    }))
    .map_err(Error::setup("render the proxy's certificates"))?;
    if write::create(context, &copy).await? {
        return Ok(());
    }
    let ours: Api<ConfigMap> = Api::namespaced(context.client.clone(), &context.namespace);
    let held = ours.get(name).await.map_err(Error::api("read", "ConfigMap", name))?;
    if held.data != copy.data {
        write::patch(context, &held, &json!({ "data": { (OURS): bundle } })).await?;
    }
    Ok(())
}
