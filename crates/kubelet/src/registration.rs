//! The Node object: made when the agent starts, kept true while it runs; and the Lease that says it is alive.

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::{
    ContainerImage, DaemonEndpoint, Node, NodeAddress, NodeCondition, NodeDaemonEndpoints, NodeSpec, NodeStatus,
    NodeSystemInfo,
};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{ObjectMeta, Patch, PatchParams, PostParams};
use rpc::cri;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::context::Context;
use crate::csi;
use crate::devices::Devices;
use crate::disk_space::Space;
use crate::error::{Error, Result};
use crate::fields::NodeAmounts;
use crate::owner::owner;

const LEASE_NAMESPACE: &str = "kube-node-lease";
const LEASE_SECONDS: i32 = 40;
const BEAT: Duration = Duration::from_secs(10);
/// A status that did not change is still written this often.
const STATUS_WRITE: Duration = Duration::from_secs(300);
const RETRY: Duration = Duration::from_millis(500);
/// Free memory or disk below these is pressure.
const MEMORY_PRESSURE: i64 = 100 << 20;
const DISK_PRESSURE_PERCENT: u64 = 5;
const IMAGES: usize = 50;

/// Keeps the Node object and its Lease until `shutdown`.
pub(crate) async fn run(context: Arc<Context>, shutdown: CancellationToken) -> Result<()> {
    let work = async {
        let registered = loop {
            match register(&context).await {
                Ok(written) => break written,
                Err(error) => tracing::debug!(error = %kit::Chain(&error), "the node is not registered yet"),
            }
            tokio::time::sleep(RETRY).await;
        };
        kit::spawn("csinode", announce_storage(context.clone())).detach();
        futures::future::join(keep_status(&context, registered), keep_lease(&context)).await;
    };
    tokio::select! {
        () = work => {}
        () = shutdown.cancelled() => {}
    }
    Ok(())
}

/// Makes the node's CSINode; without it the cluster does not know which volumes may be used here.
async fn announce_storage(context: Arc<Context>) {
    while let Err(error) = csi::node_object::ensure(&context).await {
        tracing::debug!(error = %kit::Chain(&error), "the node's CSINode is not written yet");
        tokio::time::sleep(RETRY).await;
    }
}

/// Makes the Node, with its status if it is new: one write, and ready at once.
async fn register(context: &Context) -> Result<Option<NodeStatus>> {
    let api: Api<Node> = Api::all(context.client.clone());
    let name = &context.config.node_name;
    let labels = labels(context);
    let status = status(context, None, kit::clock::now()).await;
    let node = Node {
        metadata: ObjectMeta { name: Some(name.clone()), labels: Some(labels.clone()), ..Default::default() },
        spec: Some(NodeSpec {
            pod_cidr: context.config.pod_cidrs.first().cloned(),
            pod_cidrs: Some(context.config.pod_cidrs.clone()).filter(|list| !list.is_empty()),
            ..Default::default()
        }),
        status: Some(status.clone()),
    };
    match api.create(&PostParams::default(), &node).await {
        Ok(node) => Ok(node.status.filter(|kept| kept.conditions.is_some()).map(|_| status)),
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let patch = json!({"metadata": {"labels": labels}});
            let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await;
            patched.map(|_| None).map_err(Error::api("label node"))
        }
        Err(error) => Err(Error::api("create node")(error)),
    }
}

fn labels(context: &Context) -> BTreeMap<String, String> {
    let arch = go_arch();
    let mut labels = context.config.labels.clone();
    for (key, value) in [
        ("kubernetes.io/hostname", context.config.node_name.as_str()),
        ("kubernetes.io/os", "linux"),
        ("kubernetes.io/arch", arch),
        ("beta.kubernetes.io/os", "linux"),
        ("beta.kubernetes.io/arch", arch),
    ] {
        labels.entry(key.to_owned()).or_insert_with(|| value.to_owned());
    }
    labels
}

fn go_arch() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

async fn keep_status(context: &Arc<Context>, registered: Option<NodeStatus>) {
    let (mut changes, mut volumes) = (context.devices.changes(), context.csi.in_use.changes());
    let mut written = registered.map(|status| (status, tokio::time::Instant::now()));
    loop {
        let now = kit::clock::now();
        let mut status = status(context, written.as_ref().map(|(status, _)| status), now).await;
        let theirs = theirs(context).await;
        if let Some(Some(node)) = &theirs {
            offer_advertised(node, &mut status, &context.devices);
        }
        let changed = written.as_ref().is_none_or(|(old, at)| !same(old, &status) || at.elapsed() >= STATUS_WRITE);
        // Who cannot be asked cannot be told either. Of a node that the cluster did not hear of for a while, because it or
        // the cluster slept or was cut off, it says otherwise, and pods would be moved away.
        let stands = theirs.is_none_or(|node| node.is_some_and(|node| agrees(&node, &status)));
        let due = changed || !stands;
        let ready = status.conditions.iter().flatten().any(|c| c.type_ == "Ready" && c.status == "True");
        let mut pause = if ready { BEAT } else { RETRY };
        if due {
            match write(context, &status).await {
                Ok(()) => {
                    context.csi.in_use.wrote(status.volumes_in_use.as_deref().unwrap_or_default());
                    written = Some((status, tokio::time::Instant::now()));
                }
                Err(error) => {
                    tracing::warn!(error = %kit::Chain(&error), "the node's status was not written");
                    pause = RETRY;
                    if error.is_not_found() {
                        written = None;
                        match register(context).await {
                            // What belonged to the old Node went with it.
                            Ok(_) => kit::spawn("csinode", announce_storage(context.clone())).detach(),
                            Err(error) => {
                                tracing::warn!(error = %kit::Chain(&error), "the node was not registered again");
                            }
                        }
                    }
                }
            }
        }
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            Ok(()) = volumes.changed() => {}
            () = context.config.power_off.cancelled(), if ready => {}
            changed = changes.changed() => {
                if changed.is_err() {
                    return;
                }
                // Plugins report several resources at once.
                tokio::time::sleep(Duration::from_millis(50)).await;
                changes.mark_unchanged();
            }
        }
    }
}

/// What the cluster has of this node; the outer `None` when it cannot be asked.
async fn theirs(context: &Context) -> Option<Option<Node>> {
    let api: Api<Node> = Api::all(context.client.clone());
    match api.get_opt(&context.config.node_name).await {
        Ok(node) => Some(node),
        Err(error) => {
            tracing::debug!(%error, "what the cluster says of this node is not known");
            None
        }
    }
}

/// Extended resources that somebody wrote into the node's capacity, and that are no plugin's, are offered as well.
fn offer_advertised(node: &Node, status: &mut NodeStatus, devices: &Devices) {
    let Some(capacity) = node.status.as_ref().and_then(|status| status.capacity.as_ref()) else { return };
    for name in devices.advertise(capacity.keys()) {
        if let Some(amount) = capacity.get(&name) {
            status.capacity.get_or_insert_default().insert(name.clone(), amount.clone());
            status.allocatable.get_or_insert_default().insert(name, amount.clone());
        }
    }
}

/// Whether the cluster still says of the node's conditions, and of the volumes that it uses, what this agent said: who looks after volumes
/// detaches none that is named here.
fn agrees(node: &Node, status: &NodeStatus) -> bool {
    let volumes =
        |status: Option<&NodeStatus>| status.and_then(|status| status.volumes_in_use.clone()).unwrap_or_default();
    if volumes(node.status.as_ref()) != volumes(Some(status)) {
        return false;
    }
    let theirs: Vec<_> = node.status.iter().flat_map(|status| status.conditions.iter().flatten()).collect();
    status.conditions.iter().flatten().all(|own| {
        theirs.iter().any(|known| known.type_ == own.type_ && known.status == own.status && known.reason == own.reason)
    })
}

/// Heartbeat times and image lists alone are no reason to write.
fn same(old: &NodeStatus, new: &NodeStatus) -> bool {
    let plain = |status: &NodeStatus| {
        let mut status = status.clone();
        for condition in status.conditions.iter_mut().flatten() {
            condition.last_heartbeat_time = None;
        }
        status
    };
    plain(old) == plain(new)
}

async fn write(context: &Context, status: &NodeStatus) -> Result<()> {
    let api: Api<Node> = Api::all(context.client.clone());
    let mut patch = json!({ "status": status });
    if status.volumes_in_use.is_none() {
        patch["status"]["volumesInUse"] = serde_json::Value::Null;
    }
    // Addresses are merged by type, and a node with two families has two of one type.
    if let Some(addresses) = patch.pointer_mut("/status/addresses").and_then(serde_json::Value::as_array_mut) {
        addresses.insert(0, json!({"$patch": "replace"}));
    }
    let name = &context.config.node_name;
    api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch))
        .await
        .map(drop)
        .map_err(Error::api("write node status"))
}

async fn status(context: &Context, before: Option<&NodeStatus>, now: Timestamp) -> NodeStatus {
    let mut capacity = BTreeMap::from([
        ("cpu".to_owned(), Quantity((context.amounts.cpu_milli / 1000).to_string())),
        ("memory".to_owned(), Quantity(format!("{}Ki", context.amounts.memory / 1024))),
        ("ephemeral-storage".to_owned(), Quantity(format!("{}Ki", context.amounts.storage / 1024))),
        ("pods".to_owned(), Quantity(context.config.max_pods.to_string())),
        ("hugepages-2Mi".to_owned(), Quantity(hugepages("2048kB"))),
        ("hugepages-1Gi".to_owned(), Quantity(hugepages("1048576kB"))),
    ]);
    let mut allocatable = capacity.clone();
    for (resource, amount) in context.devices.amounts() {
        capacity.insert(resource.clone(), Quantity(amount.capacity.to_string()));
        allocatable.insert(resource, Quantity(amount.allocatable.to_string()));
    }
    let mut addresses: Vec<NodeAddress> = context
        .config
        .node_ips
        .iter()
        .map(|ip| NodeAddress { type_: "InternalIP".into(), address: ip.to_string() })
        .collect();
    addresses.push(NodeAddress { type_: "Hostname".into(), address: context.config.node_name.clone() });
    let port = context.config.server.as_ref().map(|server| i32::from(server.address.port()));
    let endpoint = port.map(|port| NodeDaemonEndpoints { kubelet_endpoint: Some(DaemonEndpoint { port }) });
    NodeStatus {
        capacity: Some(capacity),
        allocatable: Some(allocatable),
        volumes_in_use: Some(context.csi.in_use.names().into_iter().collect())
            .filter(|names: &Vec<_>| !names.is_empty()),
        addresses: Some(addresses),
        daemon_endpoints: endpoint,
        conditions: Some(conditions(context, before, now).await),
        node_info: Some(info(context).await),
        images: images(context).await,
        ..Default::default()
    }
}

async fn conditions(context: &Context, before: Option<&NodeStatus>, now: Timestamp) -> Vec<NodeCondition> {
    let runtime = context.runtime.cri().status(cri::StatusRequest { verbose: false }).await;
    let broken = match runtime {
        Ok(reply) => {
            let list = reply.into_inner().status.map(|status| status.conditions).unwrap_or_default();
            list.into_iter().find(|condition| !condition.status).map(|bad| {
                if bad.r#type == "NetworkReady" {
                    format!(
                        "container runtime network not ready: NetworkReady=false reason:{} message:{}",
                        bad.reason, bad.message
                    )
                } else {
                    format!("container runtime is down: {}", bad.message)
                }
            })
        }
        Err(status) => Some(format!("container runtime is down: {}", status.message())),
    };
    let memory = meminfo("MemAvailable").unwrap_or(i64::MAX) < MEMORY_PRESSURE;
    let root = &context.config.root;
    let disk = Space::of(root).is_some_and(|space| space.is_below(DISK_PRESSURE_PERCENT));
    let full = format!(
        "kubelet has disk pressure: less than {DISK_PRESSURE_PERCENT} % of the disk of {} is free: make room on it",
        root.display()
    );
    let state = |bad: bool, when_bad: (&str, &str), when_good: (&str, &str)| {
        let (reason, message) = if bad { when_bad } else { when_good };
        (reason.to_owned(), message.to_owned())
    };
    let broken = broken.or_else(|| context.config.power_off.is_cancelled().then(|| "node is shutting down".to_owned()));
    let ready = match broken {
        None => ("True", ("KubeletReady".to_owned(), "kubelet is posting ready status".to_owned())),
        Some(why) => ("False", ("KubeletNotReady".to_owned(), why)),
    };
    let truth = |bad| if bad { "True" } else { "False" };
    let wanted = [
        (
            "MemoryPressure",
            truth(memory),
            state(
                memory,
                ("KubeletHasInsufficientMemory", "kubelet has insufficient memory available"),
                ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
            ),
        ),
        (
            "DiskPressure",
            truth(disk),
            state(
                disk,
                ("KubeletHasDiskPressure", &full),
                ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
            ),
        ),
        (
            "PIDPressure",
            "False",
            ("KubeletHasSufficientPID".to_owned(), "kubelet has sufficient PID available".to_owned()),
        ),
        ("Ready", ready.0, ready.1),
    ];
    let known = before.and_then(|before| before.conditions.clone()).unwrap_or_default();
    wanted
        .into_iter()
        .map(|(kind, status, (reason, message))| {
            let old = known.iter().find(|condition| condition.type_ == kind && condition.status == status);
            NodeCondition {
                type_: kind.to_owned(),
                status: status.to_owned(),
                reason: Some(reason),
                message: Some(message),
                last_heartbeat_time: Some(Time(kit::clock::seconds(now))),
                last_transition_time: old
                    .and_then(|old| old.last_transition_time.clone())
                    .or(Some(Time(kit::clock::seconds(now)))),
            }
        })
        .collect()
}

async fn info(context: &Context) -> NodeSystemInfo {
    let text = |path: &str| std::fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default();
    let version = context.runtime.cri().version(cri::VersionRequest { version: "v1".into() }).await;
    let version = version.map(tonic::Response::into_inner).unwrap_or_default();
    let os = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
    let os =
        os.lines().find_map(|line| line.strip_prefix("PRETTY_NAME=")).unwrap_or("Linux").trim_matches('"').to_owned();
    NodeSystemInfo {
        machine_id: text("/etc/machine-id"),
        system_uuid: text("/sys/class/dmi/id/product_uuid"),
        boot_id: text("/proc/sys/kernel/random/boot_id"),
        kernel_version: text("/proc/sys/kernel/osrelease"),
        os_image: os,
        container_runtime_version: format!("{}://{}", version.runtime_name, version.runtime_version),
        kubelet_version: concat!("v1.33.0+ferrovirt-", env!("CARGO_PKG_VERSION")).to_owned(),
        operating_system: "linux".to_owned(),
        architecture: go_arch().to_owned(),
        ..Default::default()
    }
}

async fn images(context: &Context) -> Option<Vec<ContainerImage>> {
    let reply = context.runtime.images().list_images(cri::ListImagesRequest { filter: None }).await.ok()?;
    let mut images = reply.into_inner().images;
    images.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.id.cmp(&b.id)));
    images.truncate(IMAGES);
    let list = images.into_iter().map(|image| ContainerImage {
        names: Some(image.repo_digests.into_iter().chain(image.repo_tags).collect()),
        size_bytes: i64::try_from(image.size).ok(),
    });
    Some(list.collect())
}

async fn keep_lease(context: &Context) {
    let api: Api<Lease> = Api::namespaced(context.client.clone(), LEASE_NAMESPACE);
    let name = &context.config.node_name;
    let mut exists = false;
    loop {
        let written = if exists {
            let patch = json!({"spec": {"renewTime": kit::clock::micro_time()}});
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(Error::api("renew lease"))
        } else {
            make_lease(context, &api).await
        };
        let pause = match written {
            Ok(_) => {
                exists = true;
                BEAT
            }
            Err(error) => {
                exists = exists && !error.is_not_found();
                tracing::debug!(error = %kit::Chain(&error), "the node's lease was not renewed");
                RETRY
            }
        };
        tokio::time::sleep(pause).await;
    }
}

/// Makes the lease, which goes with the node, or takes over the one that is there.
async fn make_lease(context: &Context, api: &Api<Lease>) -> Result<Lease> {
    let name = &context.config.node_name;
    let owner = owner(context).await?;
    let spec = LeaseSpec {
        holder_identity: Some(name.clone()),
        lease_duration_seconds: Some(LEASE_SECONDS),
        renew_time: Some(kit::clock::micro_time()),
        ..Default::default()
    };
    let metadata = ObjectMeta { name: Some(name.clone()), owner_references: Some(vec![owner]), ..Default::default() };
    let lease = Lease { metadata, spec: Some(spec) };
    match api.create(&PostParams::default(), &lease).await {
        Err(kube::Error::Api(status)) if status.code == 409 => {
            let patch = json!({"metadata": {"ownerReferences": lease.metadata.owner_references}, "spec": lease.spec});
            api.patch(name, &PatchParams::default(), &Patch::Merge(patch)).await.map_err(Error::api("take over lease"))
        }
        other => other.map_err(Error::api("create lease")),
    }
}

/// What this machine has.
pub(crate) fn machine(root: &Path) -> NodeAmounts {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let stat = existing(root).and_then(|path| rustix::fs::statvfs(path).ok());
    let storage = stat.map_or(0, |stat| stat.f_blocks.saturating_mul(stat.f_frsize));
    NodeAmounts {
        cpu_milli: i64::try_from(cpus).unwrap_or(1) * 1000,
        memory: meminfo("MemTotal").unwrap_or(0),
        storage: i64::try_from(storage).unwrap_or(i64::MAX),
    }
}

fn existing(path: &Path) -> Option<&Path> {
    path.ancestors().find(|path| path.exists())
}

/// A line of /proc/meminfo in bytes.
fn meminfo(key: &str) -> Option<i64> {
    let text = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(':'))?;
    line.split_ascii_whitespace().next()?.parse::<i64>().ok().map(|kib| kib * 1024)
}

fn hugepages(size: &str) -> String {
    let path = format!("/sys/kernel/mm/hugepages/hugepages-{size}/nr_hugepages");
    let pages: i64 = std::fs::read_to_string(path).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0);
    let kib: i64 = size.trim_end_matches("kB").parse().unwrap_or(0);
    if pages == 0 { "0".to_owned() } else { format!("{}Ki", pages * kib) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resources_advertised_by_hand_are_offered() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("registered-resources.json"), r#"["example.com/plugged"]"#).unwrap();
        let capacity = json!({ "cpu": "2", "example.com/dongle": "4", "example.com/plugged": "1" });
        let node = serde_json::from_value(json!({ "metadata": {}, "status": { "capacity": capacity } })).unwrap();
        let mut own = NodeStatus::default();
        offer_advertised(&node, &mut own, &Devices::new(dir.path().to_owned()));
        let offered: Vec<_> = own.allocatable.unwrap().into_iter().map(|(name, amount)| (name, amount.0)).collect();
        assert_eq!(offered, [("example.com/dongle".to_owned(), "4".to_owned())]);
    }

    #[test]
    fn a_differing_node_status_is_written_again() {
        let check = |theirs: serde_json::Value, expect: bool| {
            let node = serde_json::from_value(json!({ "metadata": {}, "status": { "conditions": theirs } })).unwrap();
            let own = json!({ "conditions": [{ "type": "Ready", "status": "True", "reason": "KubeletReady" }] });
            assert_eq!(agrees(&node, &serde_json::from_value(own).unwrap()), expect);
        };
        let other = json!({ "type": "NetworkUnavailable", "status": "False", "reason": "RouteCreated" });
        check(json!([{ "type": "Ready", "status": "True", "reason": "KubeletReady" }, other]), true);
        check(json!([{ "type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown" }]), false);
        check(json!([other]), false);
        check(json!([]), false);
        let status = |volumes: &[&str]| json!({ "conditions": [], "volumesInUse": volumes });
        let node = serde_json::from_value(json!({ "metadata": {}, "status": status(&["left"]) })).unwrap();
        assert!(!agrees(&node, &serde_json::from_value(status(&[])).unwrap()));
        assert!(agrees(&node, &serde_json::from_value(status(&["left"])).unwrap()));
    }
}
