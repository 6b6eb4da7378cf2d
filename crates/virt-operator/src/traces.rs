//! What the components leave on objects that are not the product's: labels and annotations of nodes, leases, requests for
//! certificates. They go with the product, or a node would still say that guests can be scheduled to it.

use api::kubevirt::constants::{SIGNER, annotation, label};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::{Node, Pod};
use kit::apply;
use kube::api::{ListParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use serde_json::{Map, Value, json};

use crate::context::Context;
use crate::error::Error;

/// How long a pod that should have ended is waited for. On a node that is lost it never does, and writes nothing.
const PATIENCE: SignedDuration = SignedDuration::from_secs(60);
/// What ends the domain of labels that are found out on a node.
const FOUND: &str = ".node.kubevirt.io";
const LABELS: [&str; 5] = [label::SCHEDULABLE, label::REALTIME, label::SEV, label::SEV_ES, label::OBSOLETE_HOST_MODEL];

/// Whether a virt-handler still runs, which would write its node's labels again.
pub(crate) async fn are_being_left(context: &Context, namespace: &str, now: Timestamp) -> Result<bool, Error> {
    let pods: Api<Pod> = Api::namespaced(context.client.clone(), namespace);
    let selection = ListParams::default().labels(&format!("{}={}", label::APP, label::APP_VIRT_HANDLER));
    let pods = pods.list_metadata(&selection).await.map_err(Error::api("list", "pods", namespace))?;
    let ended = |end: &Timestamp| now.duration_since(*end) >= PATIENCE;
    Ok(pods.iter().any(|pod| pod.metadata.deletion_timestamp.as_ref().is_none_or(|end| !ended(&end.0))))
}

/// Takes everything away.
pub(crate) async fn remove(context: &Context, namespace: &str) -> Result<(), Error> {
    let nodes: Api<Node> = Api::all(context.client.clone());
    let all = nodes.list_metadata(&ListParams::default()).await.map_err(Error::api("list", "nodes", ""))?;
    for node in &all {
        let Some(change) = without(&json!(node.metadata)) else { continue };
        match nodes.patch_metadata(&node.name_any(), &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(_) => {}
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(Error::api("patch", "node", &node.name_any())(error)),
        }
    }
    let requests: Api<CertificateSigningRequest> = Api::all(context.client.clone());
    let ours = ListParams::default().fields(&format!("spec.signerName={SIGNER}"));
    let requests = requests.list_metadata(&ours).await.map_err(Error::api("list", "CSRs", SIGNER))?;
    let requests = requests
        .iter()
        .map(|request| format!("/apis/certificates.k8s.io/v1/certificatesigningrequests/{}", request.name_any()));
    let lease = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/virt-controller");
    for address in requests.chain([lease]) {
        apply::delete(&context.client, &address).await?;
    }
    Ok(())
}

/// The merge patch that takes what is ours out of a node's metadata; none when nothing of it is.
fn without(metadata: &Value) -> Option<Value> {
    let ours = |kind: &str, is_ours: fn(&str) -> bool| -> Map<String, Value> {
        let held = metadata[kind].as_object();
        held.into_iter().flatten().filter(|(key, _)| is_ours(key)).map(|(key, _)| (key.clone(), Value::Null)).collect()
    };
    let labels = ours("labels", |key| {
        LABELS.contains(&key) || key.split_once('/').is_some_and(|(domain, _)| domain.ends_with(FOUND))
    });
    let annotations = ours("annotations", |key| key == annotation::HEARTBEAT);
    let any = !labels.is_empty() || !annotations.is_empty();
    any.then(|| json!({ "metadata": { "labels": labels, "annotations": annotations } }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_keeps_what_others_said_of_it() {
        let metadata = json!({
            "labels": { "kubernetes.io/hostname": "n1", "kubevirt.io/schedulable": "true", "cpu-model.node.kubevirt.io/Penryn": "true" },
            "annotations": { "kubevirt.io/heartbeat": "2026-01-01T00:00:00Z", "node-labeller.kubevirt.io/skip-node": "true" },
        });
        let change = json!({ "metadata": {
            "labels": { "kubevirt.io/schedulable": null, "cpu-model.node.kubevirt.io/Penryn": null },
            "annotations": { "kubevirt.io/heartbeat": null },
        } });
        assert_eq!(without(&metadata), Some(change));
        assert_eq!(without(&json!({ "labels": { "kubernetes.io/hostname": "n1" } })), None);
    }
}
