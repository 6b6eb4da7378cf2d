//! Waiting until virtual machines can be created, and saying meanwhile what hinders.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::Context;
use api::kubevirt::v1::KubeVirt;
use futures::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::ListParams;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};

use crate::deploy::COMPONENTS;
use crate::failure::advise;
use crate::terminal;

/// Enough where the images are on the nodes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// Who waits this long wants to know what for.
const SILENCE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(100);

/// When nodes were started, by their names: what the cluster says from before of what runs on them does not count.
pub(crate) type Starts = BTreeMap<String, Timestamp>;

/// Waits until the KubeVirt object says Available and the components run. Says what it waits for.
pub(crate) async fn wait_until_available(client: &Client, starts: &Starts, patience: Duration) -> anyhow::Result<()> {
    let deadline = tokio::time::Instant::now() + patience;
    let mut available = std::pin::pin!(available(client, starts));
    let mut said = String::new();
    loop {
        let now = tokio::time::Instant::now();
        if tokio::time::timeout_at((now + SILENCE).min(deadline), &mut available).await.is_ok() {
            return Ok(());
        }
        let not_ready = match components(client).await {
            Ok(pods) => not_ready(&pods),
            Err(error) => format!("{error:#}"),
        };
        if tokio::time::Instant::now() >= deadline {
            let seconds = patience.as_secs();
            let error = anyhow::anyhow!("the KubeVirt object was not Available after {seconds} s: {not_ready}");
            return Err(advise(error, "`kubectl -n kubevirt get kubevirt,pods,events` says more"));
        }
        if not_ready != said {
            terminal::say(&format!("           waiting: {not_ready}"));
            said = not_ready;
        }
    }
}

async fn available(client: &Client, starts: &Starts) {
    let api: Api<KubeVirt> = Api::namespaced(client.clone(), api::kubevirt::constants::DEFAULT_NAMESPACE);
    let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff().applied_objects());
    while let Some(event) = stream.next().await {
        let Ok(kubevirt) = event else { continue };
        let status = kubevirt.status.unwrap_or_default();
        if status.conditions.iter().any(|c| c.type_ == "Available" && c.status == "True") {
            break;
        }
    }
    while !components(client).await.is_ok_and(|pods| pods.iter().all(|pod| runs(pod, starts))) {
        tokio::time::sleep(INTERVAL).await;
    }
}

/// Whether the pod is Ready, and its containers were started with its node or later. A pod that ends needs neither.
pub(crate) fn runs(pod: &Pod, starts: &Starts) -> bool {
    let Some(status) = &pod.status else { return false };
    let since = pod.spec.as_ref().and_then(|spec| starts.get(spec.node_name.as_deref()?));
    // Another one runs in the place of one that has ended.
    if matches!(status.phase.as_deref(), Some("Failed" | "Succeeded")) || pod.metadata.deletion_timestamp.is_some() {
        return true;
    }
    let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
    let started = |container: &ContainerStatus| {
        let running = container.state.as_ref().and_then(|state| state.running.as_ref());
        let at = running.and_then(|running| running.started_at.as_ref()).map(|at| at.0.as_second());
        // The API keeps whole seconds.
        at.is_some_and(|at| since.is_none_or(|since| at >= since.as_second()))
    };
    ready && status.container_statuses.iter().flatten().all(started)
}

async fn components(client: &Client) -> anyhow::Result<Vec<Pod>> {
    let pods: Api<Pod> = Api::namespaced(client.clone(), api::kubevirt::constants::DEFAULT_NAMESPACE);
    let pods = pods.list(&ListParams::default().labels(COMPONENTS)).await;
    Ok(pods.context("the components' pods cannot be listed")?.items)
}

/// The first thing that is wrong with these pods, in a sentence.
fn not_ready(pods: &[Pod]) -> String {
    for pod in pods {
        let status = pod.status.clone().unwrap_or_default();
        let condition = |kind: &str| status.conditions.iter().flatten().find(|c| c.type_ == kind);
        if condition("Ready").is_some_and(|ready| ready.status == "True") {
            continue;
        }
        let unscheduled = condition("PodScheduled").filter(|scheduled| scheduled.status == "False");
        let waiting = status.container_statuses.iter().flatten().find_map(|c| c.state.as_ref()?.waiting.as_ref());
        let why = match (unscheduled, waiting) {
            (Some(scheduled), _) => scheduled.message.clone().unwrap_or_default(),
            (None, Some(waiting)) => {
                let words = [waiting.reason.as_deref(), waiting.message.as_deref()];
                words.into_iter().flatten().collect::<Vec<_>>().join(": ")
            }
            (None, None) => "it runs but is not ready".to_owned(),
        };
        return format!("pod {}: {why}", pod.name_any());
    }
    if pods.is_empty() { "virt-operator has no pod" } else { "virt-operator is at work" }.to_owned()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(statuses: &[Value], expect: &str) {
        let pod = |status: &Value| json!({ "metadata": { "name": "p" }, "status": status });
        let pods: Vec<Pod> = statuses.iter().map(|status| serde_json::from_value(pod(status)).unwrap()).collect();
        assert_eq!(not_ready(&pods), expect);
    }

    #[test]
    fn pods_older_than_the_node_agent_do_not_count_as_running() {
        let check = |ready: &str, started: &str, since: Option<&str>, expect| {
            let pod = json!({"metadata": {"name": "p"}, "spec": {"nodeName": "node2", "containers": []}, "status": {"conditions": [{"type": "Ready", "status": ready}],
                "containerStatuses": [{"name": "c", "ready": true, "image": "", "imageID": "", "restartCount": 0,
                    "state": {"running": {"startedAt": started}}}]}});
            let starts = since.into_iter().map(|since: &str| ("node2".to_owned(), since.parse().unwrap())).collect();
            assert_eq!(runs(&serde_json::from_value(pod).unwrap(), &starts), expect, "{ready} {started} {since:?}");
        };
        check("True", "2026-01-01T00:00:10Z", None, true);
        check("True", "2026-01-01T00:00:10Z", Some("2026-01-01T00:00:10.5Z"), true);
        check("True", "2026-01-01T00:00:10Z", Some("2026-01-01T00:00:11Z"), false);
        check("False", "2026-01-01T00:00:10Z", None, false);
        let evicted = json!({"metadata": {"name": "p"}, "status": {"phase": "Failed"}});
        assert!(runs(&serde_json::from_value(evicted).unwrap(), &Starts::new()), "another one runs in its place");
    }

    #[test]
    fn obstacles_of_a_component_are_named() {
        let ready = json!({ "conditions": [{ "type": "Ready", "status": "True" }] });
        let full = "0/1 nodes are available: 1 node(s) had untolerated taint {node.kubernetes.io/disk-pressure: }.";
        let unscheduled = json!({ "conditions": [{ "type": "PodScheduled", "status": "False", "message": full }] });
        let waiting = json!({ "waiting": { "reason": "ErrImageNeverPull", "message": "it is not there" } });
        let lacking = json!({ "containerStatuses": [{ "name": "c", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": waiting }] });
        check(&[], "virt-operator has no pod");
        check(std::slice::from_ref(&ready), "virt-operator is at work");
        check(&[ready.clone(), unscheduled], &format!("pod p: {full}"));
        check(&[ready, lacking], "pod p: ErrImageNeverPull: it is not there");
        check(&[json!({})], "pod p: it runs but is not ready");
    }
}
