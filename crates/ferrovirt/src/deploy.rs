//! Deploying the virtualization components on a cluster, ours or any other, from the manifests that users apply too.

use std::time::Duration;

use anyhow::Context;
use hco::child::Child;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, TypeMeta, ValidationDirective};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::failure::advise;

/// The operators in their namespace, with definitions and rights.
pub(crate) const OPERATORS: &str = include_str!("../../../deploy/ferrovirt-operators.yaml");
/// The HyperConverged object, from which everything else follows.
pub(crate) const OBJECT: &str = include_str!("../../../deploy/hco-cr.yaml");
/// Where they are, and what they deploy.
pub(crate) const NAMESPACE: &str = hco::release::NAMESPACE;
const MANAGER: &str = "ferrovirt";
const PATIENCE: Duration = Duration::from_secs(180);

/// Applies the operators, and the HyperConverged object with this spec unless there is one: what its administrator made of it stays.
///
/// # Errors
/// When the cluster refuses one, or holds a KubeVirt object already that is not HyperConverged's.
pub(crate) async fn apply(client: &Client, operators: &[DynamicObject], spec: Value) -> anyhow::Result<()> {
    refuse_another(client).await?;
    for document in operators {
        apply_document(client, document).await?;
    }
    let known = GroupVersionKind::gvk("hco.kubevirt.io", "v1", "HyperConverged");
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&known));
    let found = objects.get_metadata_opt(hco::render::NAME).await;
    if found.context("cannot ask for the HyperConverged object")?.is_some() {
        return Ok(());
    }
    for mut object in documents(OBJECT)? {
        object.data["spec"] = spec.clone();
        apply_document(client, &object).await?;
    }
    Ok(())
}

/// Merges `spec` into that of the HyperConverged object; a field that there is not is refused by its name.
pub(crate) async fn merge(client: &Client, spec: &Value) -> anyhow::Result<()> {
    if spec.as_object().is_none_or(serde_json::Map::is_empty) {
        return Ok(());
    }
    let known = GroupVersionKind::gvk("hco.kubevirt.io", "v1", "HyperConverged");
    let objects: Api<DynamicObject> = Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&known));
    let strict = PatchParams { field_validation: Some(ValidationDirective::Strict), ..PatchParams::default() };
    let change = Patch::Merge(serde_json::json!({ "spec": spec }));
    let merged = objects.patch(hco::render::NAME, &strict, &change).await.map(drop).map_err(|error| match error {
        // Before it stands the whole object.
        kube::Error::Api(status) => {
            let said = status.message.rsplit_once("strict decoding error: ").map(|(_, said)| said.to_owned());
            anyhow::anyhow!(said.unwrap_or(status.message))
        }
        other => other.into(),
    });
    merged.context("the HyperConverged object cannot be changed")
}

/// Two KubeVirt objects would give every node two agents.
async fn refuse_another(client: &Client) -> anyhow::Result<()> {
    let known = GroupVersionKind::gvk("kubevirt.io", "v1", "KubeVirt");
    let objects: Api<DynamicObject> = Api::all_with(client.clone(), &ApiResource::from_gvk(&known));
    let objects = match objects.list(&ListParams::default()).await {
        Ok(objects) => objects,
        Err(kube::Error::Api(status)) if status.code == 404 => return Ok(()),
        Err(error) => return Err(error).context("cannot list the KubeVirt objects"),
    };
    let ours = Child::KubeVirt.kind().name;
    let other =
        objects.iter().find(|object| object.name_any() != ours || object.namespace().as_deref() != Some(NAMESPACE));
    let Some(other) = other else { return Ok(()) };
    let (namespace, name) = (other.namespace().unwrap_or_default(), other.name_any());
    let error =
        anyhow::anyhow!("the cluster has the KubeVirt object {namespace}/{name}, which HyperConverged did not make");
    let remedy =
        format!("stop the VMs, then delete it: kubectl -n {namespace} delete kubevirt {name}; definitions of VMs stay");
    Err(advise(error, remedy))
}

/// What the operators run: pods of Deployments and DaemonSets in their namespace. Machines' pods are of neither.
pub(crate) async fn components(client: &Client) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), NAMESPACE);
    let pods = pods.list(&ListParams::default()).await.context("the components' pods cannot be listed")?;
    let is_component = |pod: &Pod| {
        let owners = pod.metadata.owner_references.iter().flatten();
        owners.into_iter().any(|owner| matches!(owner.kind.as_str(), "ReplicaSet" | "DaemonSet"))
    };
    Ok(pods.items.into_iter().filter(is_component).collect())
}

/// Applies every document of a manifest with server-side apply.
pub(crate) async fn apply_manifest(client: &Client, text: &str) -> anyhow::Result<()> {
    for document in documents(text)? {
        apply_document(client, &document).await?;
    }
    Ok(())
}

pub(crate) async fn apply_document(client: &Client, document: &DynamicObject) -> anyhow::Result<()> {
    let types = document.types.clone().context("a document of the manifest has no kind")?;
    let what = format!("{} {}", types.kind, document.name_any());
    apply_one(client, document, &types).await.with_context(|| format!("cannot apply {what}"))
}

/// Deletes every document of a manifest that `goes`, the last one first; what is not there is as good.
pub(crate) async fn delete_manifest(
    client: &Client,
    text: &str,
    goes: impl Fn(&DynamicObject) -> bool,
) -> anyhow::Result<()> {
    let all: Vec<DynamicObject> = documents(text)?.into_iter().filter(goes).collect();
    delete(client, &all).await
}

/// Deletes every document, the last one first; what is not there is as good.
pub(crate) async fn delete(client: &Client, documents: &[DynamicObject]) -> anyhow::Result<()> {
    for document in documents.iter().rev() {
        let types = document.types.clone().context("a document of the manifest has no kind")?;
        let (what, name) = (format!("{} {}", types.kind, document.name_any()), document.name_any());
        let Ok((resource, capabilities)) =
            kube::discovery::pinned_kind(client, &GroupVersionKind::try_from(&types)?).await
        else {
            continue;
        };
        let namespaced = capabilities.scope == kube::discovery::Scope::Namespaced;
        let api: Api<DynamicObject> = match document.namespace() {
            Some(namespace) if namespaced => Api::namespaced_with(client.clone(), &namespace, &resource),
            _ => Api::all_with(client.clone(), &resource),
        };
        let deadline = tokio::time::Instant::now() + Duration::from_secs(30);
        loop {
            match api.delete(&name, &DeleteParams::background()).await {
                Ok(_) => break,
                Err(kube::Error::Api(status)) if status.code == 404 => break,
                // A webhook that guarded it is itself about to go.
                Err(kube::Error::Api(status)) if status.code >= 500 && tokio::time::Instant::now() < deadline => {
                    tokio::time::sleep(Duration::from_millis(200)).await;
                }
                Err(error) => return Err(error).with_context(|| format!("cannot delete {what}")),
            }
        }
    }
    Ok(())
}

pub(crate) fn documents(text: &str) -> anyhow::Result<Vec<DynamicObject>> {
    let values: Vec<Value> = serde_saphyr::from_multiple(text).context("cannot read the manifest")?;
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
    replace(client, NAMESPACE, &components(client).await?).await
}

/// Deletes these pods and waits until they are gone.
pub(crate) async fn replace(client: &Client, namespace: &str, old: &[Pod]) -> anyhow::Result<()> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    for pod in old {
        match pods.delete(&pod.name_any(), &DeleteParams::default()).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error).with_context(|| format!("cannot delete the pod {}", pod.name_any())),
        }
    }
    for pod in old {
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
        let has = |text: &str, kind: &str| {
            let all = documents(text).unwrap();
            all.iter().any(|document| document.types.as_ref().is_some_and(|types| types.kind == kind))
        };
        assert!(has(OPERATORS, "Deployment") && has(OPERATORS, "CustomResourceDefinition"));
        assert!(has(OBJECT, "HyperConverged"));
    }
}
