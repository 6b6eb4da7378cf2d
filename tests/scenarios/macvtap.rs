//! Links of a node as interfaces of pods: a device for each, which the CNI plugin is told of.

use anyhow::{Result, ensure};
use e2e::Namespace;
use e2e::machine::phase;
use e2e::product::{self, Operator};
use e2e::wait::{BOOT, until};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a_pod_has_an_interface_at_a_link_of_its_node", a_pod_has_an_interface)]
}

const CONFIG: &str = "links";
const RESOURCE: &str = "macvtap.network.kubevirt.io/uplink";
const MAC: &str = "02:00:00:00:0a:01";

/// The network addons are asked for it, until this ends.
struct Asked;

impl Asked {
    fn for_links() -> Result<Self> {
        let links = json!([{ "name": "uplink", "lowerDevice": "eth0", "mode": "bridge", "capacity": 3 }]).to_string();
        let config = json!({
            "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": CONFIG }, "data": { "DP_MACVTAP_CONF": links },
        });
        Namespace::apply_in(product::NAMESPACE, &config)?;
        let asked = Asked;
        let add = json!([{ "op": "add", "path": "/spec/macvtap", "value": { "devicePluginConfig": CONFIG } }]);
        product::patch_others(&[(Operator::NetworkAddons, add)])?;
        Ok(asked)
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        let _ = product::patch_others(&[(Operator::NetworkAddons, Value::Null)]);
        let _ = product::kubectl(&["delete", "configmap", CONFIG, "--ignore-not-found"]);
    }
}

fn sh(space: &Namespace, script: &str) -> Result<String> {
    space.kubectl(&["exec", "p", "--", "busybox", "sh", "-c", script])
}

fn a_pod_has_an_interface() -> Result<()> {
    let space = Namespace::new("macvtap")?;
    let _asked = Asked::for_links()?;
    until("the node to have devices of its link", BOOT, || {
        let nodes = product::get(&["nodes"])?;
        Ok((nodes["items"][0]["status"]["allocatable"][RESOURCE] == "3").then_some(()))
    })?;
    let config = json!({ "cniVersion": "0.3.1", "name": "uplink", "type": "macvtap", "mtu": 1400 });
    space.apply(&json!({
        "apiVersion": "k8s.cni.cncf.io/v1", "kind": "NetworkAttachmentDefinition",
        "metadata": { "name": "uplink", "annotations": { "k8s.v1.cni.cncf.io/resourceName": RESOURCE } },
        "spec": { "config": config.to_string() },
    }))?;
    let networks = json!([{ "name": "uplink", "interface": "tap1", "mac": MAC }]).to_string();
    space.apply(&json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": { "name": "p", "annotations": { "k8s.v1.cni.cncf.io/networks": networks } },
        "spec": {
            "terminationGracePeriodSeconds": 0,
            "containers": [{
                "name": "c", "image": "ferrovirt.local/component:v0.1.0", "command": ["busybox", "sleep", "3600"],
                "resources": { "limits": { RESOURCE: "1" } },
            }],
        },
    }))?;
    space.wait("pod", "p", "ran", |pod| phase(pod) == "Running")?;
    let seen = sh(&space, "cat /sys/class/net/tap1/address /sys/class/net/tap1/mtu /sys/class/net/tap1/ifindex")?;
    let seen: Vec<&str> = seen.split_whitespace().collect();
    ensure!(seen[..2] == [MAC, "1400"], "{seen:?}");
    let device = sh(&space, &format!("test -c /dev/tap{} && echo there", seen[2]))?;
    ensure!(device.trim() == "there", "the device of the interface is not in the container: {device:?}");
    space.kubectl(&["delete", "pod", "p"])?;
    Ok(())
}
