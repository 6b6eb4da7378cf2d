//! The Node objects and leases of simulated nodes.

use std::net::Ipv4Addr;
use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use kit::queue::Next;
use kube::api::{Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use super::{Agents, BEAT};
use crate::error::{Error, Result};
use crate::labels::{LABEL, SIMULATED};
use crate::owner;

/// How many there can be: each has a range of its own.
pub const MOST: u16 = 5000;

/// One node: its number says everything about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    number: u16,
    /// Out of the range for benchmarks, which nobody routes.
    pub(super) address: Ipv4Addr,
}

impl Place {
    pub(super) fn new(number: u16) -> Self {
        let [high, low] = number.to_be_bytes();
        Self { number, address: Ipv4Addr::new(198, 18, high, low) }
    }

    pub(super) fn name(&self) -> String {
        format!("simulated{}", self.number)
    }

    /// 256 addresses of the shared range between providers and their customers.
    fn range(&self) -> Ipv4Addr {
        Ipv4Addr::from_bits(Ipv4Addr::new(100, 64, 0, 0).to_bits() + (u32::from(self.number) << 8))
    }

    pub(super) fn pod_addresses(&self) -> impl Iterator<Item = Ipv4Addr> + use<> {
        let first = self.range().to_bits();
        (first + 2..first + 255).map(Ipv4Addr::from_bits)
    }

    fn object(&self, now: &str) -> Value {
        let name = self.name();
        let cidr = format!("{}/24", self.range());
        let amounts = json!({"cpu": "32", "memory": "256Gi", "ephemeral-storage": "1Ti", "pods": "110"});
        json!({
            "apiVersion": "v1", "kind": "Node",
            "metadata": {"name": name, "labels": {
                "kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64",
                "beta.kubernetes.io/os": "linux", "beta.kubernetes.io/arch": "amd64", (LABEL): SIMULATED}},
            "spec": {"podCIDR": cidr, "podCIDRs": [cidr]},
            "status": {
                "capacity": amounts, "allocatable": amounts, "conditions": conditions(now),
                "addresses": [{"type": "InternalIP", "address": self.address}, {"type": "Hostname", "address": name}],
                "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
                "nodeInfo": {"machineID": name, "systemUUID": name, "bootID": name, "kernelVersion": SIMULATED,
                    "osImage": SIMULATED, "containerRuntimeVersion": "simulated://0", "operatingSystem": "linux",
                    "kubeletVersion": concat!("v1.33.0+ferrovirt-", env!("CARGO_PKG_VERSION")), "kubeProxyVersion": "",
                    "architecture": "amd64"},
            },
        })
    }
}

fn conditions(now: &str) -> Value {
    let condition = |type_: &str, status: &str, reason: &str, message: &str| {
        json!({"type": type_, "status": status, "reason": reason, "message": message,
            "lastHeartbeatTime": now, "lastTransitionTime": now})
    };
    json!([
        condition("MemoryPressure", "False", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
        condition("DiskPressure", "False", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
        condition("PIDPressure", "False", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
        condition("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    ])
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.iter().flat_map(|status| status.conditions.iter().flatten());
    conditions.into_iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

impl Agents {
    /// Registers a node that is not there, or says again of one that is thought lost that it is not.
    pub(super) async fn register(&self, name: &str) -> Next {
        match self.tell(name).await {
            Ok(()) => Next::Wait,
            Err(error) => {
                tracing::debug!(node = name, error = %kit::Chain(&error), "will be tried again");
                Next::Retry
            }
        }
    }

    async fn tell(&self, name: &str) -> Result<()> {
        let Some(place) = self.nodes.get(name) else { return Ok(()) };
        let api: Api<Node> = Api::all(self.client.clone());
        let now = kit::clock::seconds(kit::clock::now()).to_string();
        let node = serde_json::from_value(place.object(&now))
            .map_err(|error| Error::Invalid(format!("node {name}: {error}")))?;
        self.renew(name).await?;
        match api.create(&PostParams::default(), &node).await {
            Err(kube::Error::Api(status)) if status.code == 409 => {
                let patch = json!({"status": {"conditions": conditions(&now)}});
                let patched = api.patch_status(name, &PatchParams::default(), &Patch::Strategic(patch)).await;
                patched.map(drop).map_err(Error::api("write node status"))
            }
            other => {
                let node = other.map_err(Error::api("create node"))?;
                let owner = owner::owned_by(name, node.metadata.uid);
                let patch = json!({"metadata": {"ownerReferences": [owner]}});
                let patched = self.leases().patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await;
                patched.map(drop).map_err(Error::api("own lease"))
            }
        }
    }

    fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.client.clone(), "kube-node-lease")
    }

    pub(super) async fn follow_nodes(self: Arc<Self>) {
        let api: Api<Node> = Api::all(self.client.clone());
        let ours = watcher::Config::default().labels(&format!("{LABEL}={SIMULATED}"));
        let mut events = std::pin::pin!(watcher(api, ours).default_backoff());
        while let Some(event) = events.next().await {
            match event {
                Ok(watcher::Event::Apply(node) | watcher::Event::InitApply(node)) if !is_ready(&node) => {
                    self.lost.add(node.name_any());
                }
                Ok(watcher::Event::Delete(node)) => self.lost.add(node.name_any()),
                Ok(_) => {}
                Err(error) => tracing::warn!(error = %kit::Chain(&error), "the watch on nodes broke"),
            }
        }
    }

    /// Renews each lease once in a beat, one after the other, so that the writes come evenly.
    pub(super) async fn keep_leases(self: Arc<Self>) {
        let count = u32::try_from(self.nodes.len()).unwrap_or(u32::MAX).max(1);
        let mut beat = tokio::time::interval(BEAT / count);
        beat.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            for name in self.nodes.keys() {
                beat.tick().await;
                if let Err(error) = self.renew(name).await {
                    tracing::debug!(node = name, error = %kit::Chain(&error), "the lease was not renewed");
                }
            }
            if self.nodes.is_empty() {
                std::future::pending::<()>().await;
            }
        }
    }

    async fn renew(&self, name: &str) -> Result<()> {
        let api = self.leases();
        let now = kit::clock::micro_time();
        let patch = json!({"spec": {"renewTime": now}});
        match api.patch_metadata(name, &PatchParams::default(), &Patch::Merge(patch)).await {
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            other => return other.map(drop).map_err(Error::api("renew lease")),
        }
        let lease = json!({"metadata": {"name": name},
            "spec": {"holderIdentity": name, "leaseDurationSeconds": 40, "renewTime": now}});
        let lease = serde_json::from_value(lease).map_err(|error| Error::Invalid(format!("lease {name}: {error}")))?;
        match api.create(&PostParams::default(), &lease).await {
            Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
            other => other.map(drop).map_err(Error::api("create lease")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_do_not_overlap() {
        let (one, other, last) = (Place::new(1), Place::new(256), Place::new(MOST));
        assert_eq!((one.address.to_string(), one.range().to_string()), ("198.18.0.1".into(), "100.64.1.0".into()));
        assert_eq!((other.address.to_string(), other.range().to_string()), ("198.18.1.0".into(), "100.65.0.0".into()));
        assert!(last.range() < Ipv4Addr::new(100, 128, 0, 0));
        assert_eq!(one.pod_addresses().next().unwrap().to_string(), "100.64.1.2");
        let node: Node = serde_json::from_value(one.object("2026-01-01T00:00:00Z")).unwrap();
        assert!(is_ready(&node));
    }
}
