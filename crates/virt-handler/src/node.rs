//! What this node says about itself: labels that VMIs select by, and a heartbeat by which virt-controller knows that
//! virt-handler lives.

mod labels;

use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::Path;
use std::time::Duration;

use api::kubevirt::constants::{annotation, label};
use domain::NodeCapabilities;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kit::events::Recorder;
use kit::shutdown::CancellationToken;
use kit::store::{self, Store, Watch};
use kit::{Chain, Task, clock};
use kube::api::{Patch, PatchParams};
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};
use tokio::sync::Notify;
use tokio::time::Instant;

use labels::Labels;
pub(crate) use labels::Machine;

use crate::settings::Watched;

/// Half of what virt-controller waits before it gives a node up would do; this leaves room for several lost beats.
const HEARTBEAT: Duration = Duration::from_secs(60);
/// Between beats at the least when virt-controller does not count on this node, and each time twice that: it may be the kubelet
/// that it does not hear.
const TAKEN_BACK: Duration = Duration::from_secs(5);
/// After a beat that was not written.
const AGAIN: Duration = Duration::from_secs(1);
/// Bytes of what libvirt told of the node (rule R7).
const LARGEST: u64 = 1 << 20;

/// What libvirt told of this node; nothing when it was not asked.
pub(crate) fn capabilities(path: &Path) -> NodeCapabilities {
    let read = || -> std::io::Result<NodeCapabilities> {
        let mut text = Vec::new();
        std::fs::File::open(path)?.take(LARGEST).read_to_end(&mut text)?;
        Ok(serde_json::from_slice(&text)?)
    };
    match read() {
        Ok(found) if found.trouble.is_empty() => found,
        Ok(found) => {
            tracing::warn!(error = found.trouble, "libvirt does not say what this node can do");
            found
        }
        Err(error) => {
            tracing::warn!(path = %path.display(), error = %Chain(&error), "what this node can do is not known");
            NodeCapabilities::default()
        }
    }
}

/// Real-time scheduling may take all of a processor here.
pub(crate) fn is_realtime() -> bool {
    std::fs::read_to_string("/proc/sys/kernel/sched_rt_runtime_us").is_ok_and(|text| text.trim() == "-1")
}

/// Labels the node and beats until `stop`. Labels follow the administrator's choice of obsolete processors in
/// `settings` at once.
pub(crate) async fn keep(
    client: &Client,
    node: &str,
    machine: &Machine,
    settings: &Watched,
    recorder: &Recorder,
    stop: &CancellationToken,
) {
    let api: Api<Node> = Api::all(client.clone());
    let mut changed = settings.subscribe().await;
    let lost = std::sync::Arc::new(Notify::new());
    let _own = watch_own(api.clone(), node, lost.clone());
    let mut said: Option<Labels> = None;
    let (mut due, mut beaten, mut patience) = (Instant::now(), Instant::now(), TAKEN_BACK);
    loop {
        let wanted = machine.labels(&changed.borrow_and_update().obsolete_cpu_models);
        let new = said.as_ref() != Some(&wanted);
        // Most changes of the settings are none of the labels' business, and there may be many nodes.
        if new || Instant::now() >= due {
            if beaten.elapsed() >= HEARTBEAT {
                patience = TAKEN_BACK;
            }
            beaten = Instant::now();
            due = beaten + HEARTBEAT;
            match beat(&api, node, &wanted, new).await {
                Ok(()) => {
                    if let Some(model) = wanted.obsolete.as_ref().filter(|_| new) {
                        let message =
                            format!("This node has {model} host-model cpu that is included in ObsoleteCPUModels");
                        recorder.warning(&reference(node), "HostModelIsObsolete", message);
                    }
                    said = Some(wanted);
                }
                Err(error) => {
                    tracing::info!(node, error = %Chain(&error), "the heartbeat was not written");
                    due = Instant::now() + AGAIN;
                }
            }
        }
        tokio::select! {
            () = stop.cancelled() => return,
            Ok(()) = changed.changed() => {}
            () = lost.notified() => {
                due = due.min(beaten + patience);
                patience = (patience * 2).min(HEARTBEAT);
            }
            () = tokio::time::sleep_until(due) => {}
        }
    }
}

/// Tells when this node is not to get guests any more. Who took it for lost, while it was cut off, leaves the way back to it.
fn watch_own(api: Api<Node>, node: &str, lost: std::sync::Arc<Notify>) -> Task<()> {
    let how = Watch {
        config: watcher::Config::default().fields(&format!("metadata.name={node}")),
        trim: |node: &mut Node| (node.spec, node.status) = (None, None),
        index: |node| node.labels().get(label::SCHEDULABLE).cloned().into_iter().collect(),
    };
    store::watch(api, how, Store::default(), move |change| {
        if change.was != change.is && change.is.iter().any(|value| value != "true") {
            lost.notify_one();
        }
    })
}

/// Writes the heartbeat, and the labels when they are `new`. Later beats repeat the one label that virt-controller takes
/// away from a silent node.
async fn beat(api: &Api<Node>, node: &str, wanted: &Labels, new: bool) -> Result<(), kube::Error> {
    let mut changes = BTreeMap::from([(label::SCHEDULABLE.to_owned(), json!("true"))]);
    if new {
        let held = api.get_metadata(node).await?;
        if !held.annotations().contains_key(annotation::LABELLER_SKIP_NODE) {
            changes.extend(wanted.changes(held.labels()));
        }
    }
    let changes: BTreeMap<String, Value> = changes;
    let patch = json!({ "metadata": {
        "labels": changes, "annotations": { annotation::HEARTBEAT: clock::now().to_string() },
    } });
    api.patch_metadata(node, &PatchParams::default(), &Patch::Merge(&patch)).await.map(drop)
}

fn reference(node: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Node".to_owned()),
        name: Some(node.to_owned()),
        uid: Some(node.to_owned()),
        ..Default::default()
    }
}
