//! Deploying the virtualization components on a cluster, ours or any other, from the manifests that users apply too.

use std::time::Duration;

use anyhow::Context;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, TypeMeta};
use kube::core::GroupVersionKind;
use kube::{Api, Client, ResourceExt};

/// Namespaces, CRD, RBAC and Deployment of virt-operator.
pub(crate) const OPERATOR: &str = include_str!("../../../deploy/kubevirt-operator.yaml");
/// The KubeVirt object.
pub(crate) const KUBEVIRT: &str = include_str!("../../../deploy/kubevirt-cr.yaml");
/// Namespace, CRD, RBAC and Deployment of cdi-operator.
pub(crate) const CDI_OPERATOR: &str = include_str!("../../../deploy/cdi-operator.yaml");
/// The CDI object.
pub(crate) const CDI: &str = include_str!("../../../deploy/cdi-cr.yaml");
const MANAGER: &str = "ferrovirt";
/// The components' pods by label; virtual machines have others.
pub(crate) const COMPONENTS: &str =
    "kubevirt.io in (virt-operator,virt-api,virt-controller,virt-handler,virt-exportproxy)";
/// The same of CDI's components.
const CDI_COMPONENTS: &str = "prometheus.cdi.kubevirt.io=true";
const PATIENCE: Duration = Duration::from_secs(180);

/// Applies the operator and the KubeVirt object.
pub(crate) async fn apply(client: &Client) -> anyhow::Result<()> {
    apply_manifest(client, OPERATOR).await?;
    apply_manifest(client, KUBEVIRT).await
}

/// Applies the operator of CDI and the CDI object. Disks can be imported a few seconds later.
pub(crate) async fn apply_cdi(client: &Client) -> anyhow::Result<()> {
    apply_manifest(client, CDI_OPERATOR).await?;
    apply_manifest(client, CDI).await
}

/// Applies every document of a manifest with server-side apply.
pub(crate) async fn apply_manifest(client: &Client, text: &str) -> anyhow::Result<()> {
    for document in documents(text)? {
        let types = document.types.clone().context("a document of the manifest has no kind")?;
        let what = format!("{} {}", types.kind, document.name_any());
        apply_one(client, &document, &types).await.with_context(|| format!("cannot apply {what}"))?;
    }
    Ok(())
}

fn documents(text: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let values: Vec<serde_json::Value> = serde_saphyr::from_multiple(text).context("cannot read the manifest")?;
    let objects = values.into_iter().filter(|value| !value.is_null());
    objects.map(|value| serde_json::from_value(value).context("a document is not a Kubernetes object")).collect()
}

async fn apply_one(client: &Client, object: &DynamicObject, types: &TypeMeta) -> anyhow::Result<()> {
    let kind = GroupVersionKind::try_from(types)?;
    // A kind whose CRD was applied a moment ago is served a moment later.
    let deadline = tokio::time::Instant::now() + Duration::from_secs(20);
    let (resource, capabilities) = loop {
        match kube::discovery::pinned_kind(client, &kind).await {
            Ok(found) => break found,
            Err(error) if tokio::time::Instant::now() > deadline => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    };
    let namespaced = capabilities.scope == kube::discovery::Scope::Namespaced;
    let api: Api<DynamicObject> = match object.namespace() {
        Some(namespace) if namespaced => Api::namespaced_with(client.clone(), &namespace, &resource),
        _ if namespaced => Api::default_namespaced_with(client.clone(), &resource),
        _ => Api::all_with(client.clone(), &resource),
    };
    let how = PatchParams::apply(MANAGER).force();
    loop {
        match api.patch(&object.name_any(), &how, &Patch::Apply(object)).await {
            Ok(_) => return Ok(()),
            // Admission webhooks of components that are just starting, or an API that is just being served.
            Err(kube::Error::Api(status))
                if (status.code >= 500 || status.code == 404) && tokio::time::Instant::now() < deadline =>
            {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// Replaces the pods of the components, whose image's name means another image now. Machines run on.
pub(crate) async fn restart(client: &Client) -> anyhow::Result<()> {
    replace(client, api::cdi::constants::DEFAULT_NAMESPACE, CDI_COMPONENTS).await?;
    replace(client, api::kubevirt::constants::DEFAULT_NAMESPACE, COMPONENTS).await
}

/// Deletes the pods that the labels select and waits until they are gone.
pub(crate) async fn replace(client: &Client, namespace: &str, labels: &str) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let selection = ListParams::default().labels(labels);
    let old = pods.list(&selection).await.context("cannot list the components' pods")?;
    for pod in &old {
        match pods.delete(&pod.name_any(), &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error).with_context(|| format!("cannot delete the pod {}", pod.name_any())),
        }
    }
    for pod in &old {
        let (name, uid) = (pod.name_any(), pod.uid().unwrap_or_default());
        let gone = kube::runtime::wait::conditions::is_deleted(&uid);
        let wait = kube::runtime::wait::await_condition(pods.clone(), &name, gone);
        let ended = tokio::time::timeout(PATIENCE, wait).await;
        let ended = ended.with_context(|| format!("the pod {name} does not end"))?;
        ended.with_context(|| format!("cannot watch the pod {name}"))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifests_are_objects() {
        let operator = documents(OPERATOR).unwrap();
        assert!(operator.iter().any(|d| d.types.as_ref().is_some_and(|t| t.kind == "Deployment")));
        let kubevirt = documents(KUBEVIRT).unwrap();
        assert!(kubevirt.iter().any(|d| d.types.as_ref().is_some_and(|t| t.kind == "KubeVirt")));
    }
}
