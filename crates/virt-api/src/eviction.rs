//! `/pod-eviction-validate`: whoever wants a launcher's pod evicted sets its guest moving instead.
//!
//! | strategy | guest can move | answer |
//! |---|---|---|
//! | None | | yes |
//! | LiveMigrate | yes | no (429), and the VMI is marked for evacuation |
//! | LiveMigrate | no | no (429) |
//! | LiveMigrateIfPossible | yes | no (429), and the VMI is marked |
//! | LiveMigrateIfPossible | no | yes |
//! | External | | no (429), and the VMI is marked |
//!
//! A pod that holds volumes for a guest (`hp-volume-*`) goes with the guest's own, and is not evicted before.
//!
//! `kubectl drain` asks again every few seconds until the pod is gone. The sentences are what drain and descheduler match on.

use std::sync::Arc;

use api::kubevirt::constants::{annotation, eviction_strategy, label};
use api::kubevirt::eviction::{can_move, is_marked, strategy};
use api::kubevirt::hotplug;
use api::kubevirt::v1::VirtualMachineInstance;
use axum::Json;
use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kit::Chain;
use kit::admission::{self, Request, Verdict};
use kit::store::Store;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

/// What the webhook needs.
pub(crate) struct Guard {
    /// The API server.
    pub(crate) client: Client,
    /// Holds the cluster's eviction strategy.
    pub(crate) kubevirts: Store<api::kubevirt::v1::KubeVirt>,
}

/// What to do about one eviction.
#[derive(Debug, PartialEq, Eq)]
enum Decision {
    Allow,
    Deny(String),
    /// Mark the VMI with this node, then deny.
    Mark(String),
}

/// The webhook.
pub(crate) async fn review(State(guard): State<Arc<Guard>>, body: Bytes) -> Response {
    match admission::review(&body) {
        Ok(request) => {
            let verdict = judge(&guard, &request).await;
            Json(admission::response(&request.uid, verdict)).into_response()
        }
        Err(message) => (StatusCode::BAD_REQUEST, message).into_response(),
    }
}

fn deny(message: String) -> Verdict {
    Verdict::Deny { code: 429, reason: "TooManyRequests", message }
}

async fn judge(guard: &Guard, request: &Request) -> Verdict {
    let pods: Api<Pod> = Api::namespaced(guard.client.clone(), &request.namespace);
    // The eviction of a pod that cannot be read is the API server's to refuse.
    let Ok(pod) = pods.get(&request.name).await else { return Verdict::allow() };
    if let Some(launcher) = held_for(&pod) {
        return match pods.get_opt(&launcher.name).await {
            Ok(found) => attachment(launcher, found.as_ref()),
            Err(error) => deny(format!("kubevirt failed getting the pod {}: {}", launcher.name, Chain(&error))),
        };
    }
    let Some(name) = guest_of(&pod) else { return Verdict::allow() };
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(guard.client.clone(), &request.namespace);
    let vmi = match vmis.get(&name).await {
        Ok(vmi) => vmi,
        Err(error) => return deny(format!("kubevirt failed getting the vmi: {}", Chain(&error))),
    };
    let cluster = crate::configuration(&guard.kubevirts).eviction_strategy;
    match decide(&vmi, &pod, cluster.as_deref().unwrap_or(eviction_strategy::NONE)) {
        Decision::Allow => Verdict::allow(),
        Decision::Deny(message) => deny(message),
        Decision::Mark(node) => {
            let patch = json!({ "metadata": { "uid": vmi.uid() }, "status": { "evacuationNodeName": node } });
            let params = PatchParams { dry_run: is_dry_run(request), ..Default::default() };
            match vmis.patch(&name, &params, &Patch::Merge(patch)).await {
                Ok(_) => deny(triggered(&vmi)),
                Err(error) => deny(format!("kubevirt failed marking the vmi for eviction: {}", Chain(&error))),
            }
        }
    }
}

/// The name of the guest a pod runs, if it is a launcher's that has not ended.
fn guest_of(pod: &Pod) -> Option<String> {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref());
    let launcher = pod.labels().get(label::APP).is_some_and(|app| app == label::APP_VIRT_LAUNCHER);
    let ended = matches!(phase, Some("Succeeded" | "Failed"));
    pod.annotations().get(annotation::DOMAIN).filter(|_| launcher && !ended).cloned()
}

/// The launcher that an attachment pod holds volumes for.
fn held_for(pod: &Pod) -> Option<&OwnerReference> {
    let holds = pod.labels().get(label::APP).is_some_and(|app| app == hotplug::APP);
    pod.owner_references().iter().find(|owner| owner.kind == "Pod" && owner.controller == Some(true)).filter(|_| holds)
}

/// What becomes of the eviction of an attachment pod: without it, a guest would go on with disks that are taken away. It goes with the
/// launcher, which is evicted for itself.
fn attachment(launcher: &OwnerReference, found: Option<&Pod>) -> Verdict {
    let Some(found) = found.filter(|found| found.uid().as_ref() == Some(&launcher.uid)) else {
        return Verdict::allow();
    };
    let Some(guest) = guest_of(found) else { return Verdict::allow() };
    let place = format!("{}/{guest}", found.namespace().unwrap_or_default());
    deny(format!(
        "Eviction request for a pod that holds volumes of VMI \"{place}\": it ends with pod {}",
        launcher.name
    ))
}

/// An eviction says in its own options that it is none.
fn is_dry_run(request: &Request) -> bool {
    let options = request.object.pointer("/deleteOptions/dryRun").and_then(Value::as_array);
    request.dry_run || options.into_iter().flatten().any(|word| word == "All")
}

fn triggered(vmi: &VirtualMachineInstance) -> String {
    format!("Eviction triggered evacuation of VMI \"{}/{}\"", vmi.namespace().unwrap_or_default(), vmi.name_any())
}

/// What becomes of the eviction of `pod`, which is `vmi`'s.
fn decide(vmi: &VirtualMachineInstance, pod: &Pod, cluster: &str) -> Decision {
    let moved = match strategy(vmi, cluster) {
        eviction_strategy::LIVE_MIGRATE if !can_move(vmi) => {
            let name = vmi.name_any();
            return Decision::Deny(format!(
                "VMI {name} is configured with an eviction strategy but is not live-migratable"
            ));
        }
        eviction_strategy::LIVE_MIGRATE | eviction_strategy::EXTERNAL => true,
        eviction_strategy::LIVE_MIGRATE_IF_POSSIBLE => can_move(vmi),
        _ => false,
    };
    if !moved {
        return Decision::Allow;
    }
    if is_marked(vmi) {
        return Decision::Deny(format!("Evacuation in progress: {}", triggered(vmi)));
    }
    let of = |vmi: &VirtualMachineInstance| vmi.status.as_ref().and_then(|status| status.node_name.clone());
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.clone()).filter(|node| !node.is_empty());
    match node {
        Some(node) if of(vmi).as_deref() == Some(node.as_str()) => Decision::Mark(node),
        _ => Decision::Deny("Eviction request for target Pod".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(strategy: &str, movable: bool, marked: Option<&str>, pod_on: &str, expect: Decision) {
        let movable = if movable { "True" } else { "False" };
        let vmi = json!({
            "metadata": { "name": "vm", "namespace": "ns" }, "spec": { "evictionStrategy": strategy },
            "status": {
                "nodeName": "node1", "evacuationNodeName": marked,
                "conditions": [{ "type": "LiveMigratable", "status": movable }],
            },
        });
        let pod = json!({ "spec": { "nodeName": pod_on, "containers": [] } });
        let (vmi, pod) = (serde_json::from_value(vmi).unwrap(), serde_json::from_value(pod).unwrap());
        assert_eq!(decide(&vmi, &pod, "None"), expect, "{strategy} {movable} {marked:?} {pod_on}");
    }

    #[test]
    fn the_eviction_strategy_decides_on_an_eviction() {
        let (mark, deny) = (|| Decision::Mark("node1".into()), |text: &str| Decision::Deny(text.into()));
        check("None", true, None, "node1", Decision::Allow);
        check("LiveMigrate", true, None, "node1", mark());
        let stuck = "VMI vm is configured with an eviction strategy but is not live-migratable";
        check("LiveMigrate", false, None, "node1", deny(stuck));
        check("LiveMigrateIfPossible", true, None, "node1", mark());
        check("LiveMigrateIfPossible", false, None, "node1", Decision::Allow);
        check("External", false, None, "node1", mark());
        let busy = "Evacuation in progress: Eviction triggered evacuation of VMI \"ns/vm\"";
        check("LiveMigrate", true, Some("node1"), "node1", deny(busy));
        // It has left the node whose mark it carries, and is to leave this one too.
        check("LiveMigrate", true, Some("node0"), "node1", mark());
        check("LiveMigrate", true, None, "node2", deny("Eviction request for target Pod"));
    }
}
