//! Waiting until virtual machines can be created, and saying meanwhile what hinders.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Context;
use hco::child::Child;
use hco::render::NAME;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::deploy::NAMESPACE;
use crate::failure::advise;
use crate::{deploy, terminal};

/// Enough where the images are on the nodes.
pub(crate) const PATIENCE: Duration = Duration::from_secs(180);
/// Who waits this long wants to know what for.
const SILENCE: Duration = Duration::from_secs(10);
const INTERVAL: Duration = Duration::from_millis(100);

/// When nodes were started, by their names: what the cluster says from before of what runs on them does not count.
pub(crate) type Starts = BTreeMap<String, Timestamp>;

/// An object of an operator that tells in conditions how it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    /// Virtual machines can be created.
    KubeVirt,
    /// Everything is there.
    HyperConverged,
}

impl Told {
    fn kind(self) -> (&'static str, GroupVersionKind) {
        match self {
            Told::KubeVirt => (Child::KubeVirt.kind().name, GroupVersionKind::gvk("kubevirt.io", "v1", "KubeVirt")),
            Told::HyperConverged => (NAME, GroupVersionKind::gvk("hco.kubevirt.io", "v1", "HyperConverged")),
        }
    }

    async fn get(self, client: &Client) -> kube::Result<Value> {
        let (name, kind) = self.kind();
        let objects: Api<DynamicObject> =
            Api::namespaced_with(client.clone(), NAMESPACE, &ApiResource::from_gvk(&kind));
        Ok(objects.get(name).await?.data)
    }
}

/// Waits until the object says Available and the components run. Says what it waits for.
pub(crate) async fn wait_until_available(
    client: &Client,
    told: Told,
    starts: &Starts,
    patience: Duration,
) -> anyhow::Result<()> {
    let (begun, kind) = (Instant::now(), told.kind().1.kind);
    let (mut said, mut spoken) = (String::new(), begun);
    loop {
        let not_ready = match obstacle(client, told, starts).await {
            Ok(None) => return Ok(()),
            Ok(Some(obstacle)) => obstacle,
            Err(error) => format!("{error:#}"),
        };
        if begun.elapsed() >= patience {
            let seconds = patience.as_secs();
            let error = anyhow::anyhow!("the {kind} object was not Available after {seconds} s: {not_ready}");
            return Err(advise(
                error,
                format!("`kubectl -n {NAMESPACE} get hyperconverged,kubevirt,pods,events` says more"),
            ));
        }
        if not_ready != said && spoken.elapsed() >= SILENCE {
            terminal::say(&format!("           waiting: {not_ready}"));
            (said, spoken) = (not_ready, Instant::now());
        }
        tokio::time::sleep(INTERVAL).await;
    }
}

/// What keeps the object from being available, if anything does.
async fn obstacle(client: &Client, told: Told, starts: &Starts) -> anyhow::Result<Option<String>> {
    let said = match told.get(client).await {
        Ok(object) => not_available(&object["status"]),
        // Its operator has not made it yet.
        Err(kube::Error::Api(status)) if status.code == 404 => Some(format!("there is no {} yet", told.kind().1.kind)),
        Err(error) => return Err(error).context("cannot ask for the object"),
    };
    let pods = deploy::components(client).await?;
    match said {
        None if pods.iter().all(|pod| runs(pod, starts)) => Ok(None),
        said => Ok(Some(not_ready(&pods).or(said).unwrap_or_else(|| "a component starts again".to_owned()))),
    }
}

/// Why an object is not available, as its conditions tell it.
fn not_available(status: &Value) -> Option<String> {
    let conditions = status["conditions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is = |kind: &str, value: &str| conditions.iter().find(|one| one["type"] == kind && one["status"] == value);
    if is("Available", "True").is_some() && is("Degraded", "True").is_none() {
        return None;
    }
    let told = is("Degraded", "True").or_else(|| is("Available", "False")).or_else(|| is("Progressing", "True"));
    let message = told.and_then(|condition| condition["message"].as_str()).filter(|message| !message.is_empty());
    Some(message.unwrap_or("its operator is at work").to_owned())
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

/// The first thing that is wrong with these pods, in a sentence.
fn not_ready(pods: &[Pod]) -> Option<String> {
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
        return Some(format!("pod {}: {why}", pod.name_any()));
    }
    pods.is_empty().then(|| "the operators have no pods".to_owned())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(status: &Value) -> Pod {
        serde_json::from_value(json!({ "metadata": { "name": "p" }, "status": status })).unwrap()
    }

    #[track_caller]
    fn check(statuses: &[Value], expect: &str) {
        let pods: Vec<Pod> = statuses.iter().map(pod).collect();
        assert_eq!(not_ready(&pods).as_deref(), Some(expect));
    }

    #[test]
    fn the_condition_that_says_why_is_told() {
        let said =
            |kind: &str, status: &str, message: &str| json!({ "type": kind, "status": status, "message": message });
        let check = |conditions: Value, expect: Option<&str>| {
            assert_eq!(not_available(&json!({ "conditions": conditions })).as_deref(), expect);
        };
        check(json!([]), Some("its operator is at work"));
        check(json!([said("Available", "True", "")]), None);
        check(
            json!([said("Available", "False", "one is missing"), said("Degraded", "False", "")]),
            Some("one is missing"),
        );
        check(json!([said("Available", "True", ""), said("Degraded", "True", "broken")]), Some("broken"));
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
        check(&[], "the operators have no pods");
        assert_eq!(not_ready(&[pod(&ready)]), None);
        check(&[ready.clone(), unscheduled], &format!("pod p: {full}"));
        check(&[ready, lacking], "pod p: ErrImageNeverPull: it is not there");
        check(&[json!({})], "pod p: it runs but is not ready");
    }
}
