//! Where a guest is reached from outside its pod: at the address that its pod's kubelet reports, and at no other.
//!
//! The VMI's status also has addresses, but those are what the guest's agent says; labels and annotations of the pod are what its
//! users say. A pod's status is written by the node that runs it.

use std::net::IpAddr;

use api::kubevirt::constants::{condition, phase};
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::Pod;
use kit::address::is_special;

use crate::status::{Refusal, conflict};

/// The address of the pod among `pods` that the guest runs in.
///
/// # Errors
/// When the guest does not run, or cannot be reached at an address of its pod.
pub(super) fn address(vmi: &VirtualMachineInstance, pods: &[Pod]) -> Result<IpAddr, Refusal> {
    let name = vmi.metadata.name.as_deref().unwrap_or_default();
    let refused = |why: &str| conflict("virtualmachineinstance", name, why);
    let status = vmi.status.as_deref().cloned().unwrap_or_default();
    if status.phase.as_deref() != Some(phase::RUNNING) {
        return Err(refused("VMI is not running"));
    }
    if status.conditions.iter().any(|c| c.type_ == condition::PAUSED && c.status == "True") {
        return Err(refused("VMI is paused"));
    }
    if !vmi.spec.networks.iter().any(|network| network.pod.is_some()) {
        return Err(refused("VMI is not on the pod network: its other networks are not reached from here"));
    }
    let pod = pods.iter().find(|pod| is_launcher(pod, vmi));
    let pod = pod.ok_or_else(|| refused("VMI has no running pod: try again shortly"))?;
    if pod.spec.as_ref().is_some_and(|spec| spec.host_network == Some(true)) {
        return Err(refused("the VMI's pod has no network of its own"));
    }
    let status = pod.status.clone().unwrap_or_default();
    let parse = |text: &str| text.parse().ok();
    let mut nodes: Vec<IpAddr> = status.host_ips.iter().flatten().filter_map(|ip| parse(&ip.ip)).collect();
    nodes.extend(status.host_ip.as_deref().and_then(parse));
    let mut addresses: Vec<IpAddr> = status.pod_ip.as_deref().and_then(parse).into_iter().collect();
    addresses.extend(status.pod_ips.iter().flatten().filter_map(|ip| parse(&ip.ip)));
    let address = addresses.first().ok_or_else(|| refused("VMI has no address yet: try again shortly"))?.to_canonical();
    if is_special(address) || nodes.iter().any(|node| node.to_canonical() == address) {
        return Err(refused(&format!("{address} is not an address of a guest")));
    }
    Ok(address)
}

/// Whether a pod was made for this guest by virt-controller, and runs where the guest does.
fn is_launcher(pod: &Pod, vmi: &VirtualMachineInstance) -> bool {
    let meta = &pod.metadata;
    let owned = meta.owner_references.iter().flatten().any(|owner| {
        owner.controller == Some(true)
            && owner.kind == "VirtualMachineInstance"
            && Some(&owner.uid) == vmi.metadata.uid.as_ref()
    });
    let running = pod.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Running");
    let node = pod.spec.as_ref().and_then(|spec| spec.node_name.as_deref()).filter(|node| !node.is_empty());
    let here = node.is_some() && node == vmi.status.as_ref().and_then(|status| status.node_name.as_deref());
    let active = vmi.status.as_ref().map(|status| &status.active_pods);
    let known =
        active.is_none_or(|pods| pods.is_empty() || meta.uid.as_ref().is_some_and(|uid| pods.contains_key(uid)));
    owned && running && here && known && meta.deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn guest() -> Value {
        json!({
            "metadata": { "name": "a", "namespace": "n", "uid": "u" },
            "spec": { "domain": { "devices": {} }, "networks": [{ "name": "default", "pod": {} }] },
            "status": {
                "phase": "Running", "nodeName": "node1", "activePods": { "p": "node1" },
                "interfaces": [{ "name": "default", "ipAddress": "10.96.0.1" }],
            },
        })
    }

    fn pod() -> Value {
        json!({
            "metadata": { "name": "virt-launcher-a", "uid": "p", "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "a", "uid": "u", "controller": true,
            }] },
            "spec": { "nodeName": "node1", "containers": [] },
            "status": { "phase": "Running", "podIP": "10.244.0.9", "podIPs": [{ "ip": "10.244.0.9" }], "hostIP": "192.0.2.1" },
        })
    }

    #[track_caller]
    fn check(change: impl Fn(&mut Value, &mut Value), expect: Result<&str, &str>) {
        let (mut vmi, mut pod) = (guest(), pod());
        change(&mut vmi, &mut pod);
        let found = address(&serde_json::from_value(vmi).unwrap(), &[serde_json::from_value(pod).unwrap()]);
        match (found, expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found.to_string(), expect),
            (Err(refused), Err(why)) => assert!(refused.message.contains(why), "{}", refused.message),
            (found, expect) => panic!("{found:?}, expected {expect:?}"),
        }
    }

    #[test]
    fn a_guest_is_reached_at_its_pods_address_and_nowhere_else() {
        check(|_, _| {}, Ok("10.244.0.9"));
        // What a guest's agent, or a user, says is no address to dial.
        check(|vmi, _| vmi["status"]["interfaces"] = json!([{ "ipAddress": "127.0.0.1" }]), Ok("10.244.0.9"));
        check(
            |_, pod| pod["metadata"]["annotations"] = json!({ "k8s.v1.cni.cncf.io/network-status": "[]" }),
            Ok("10.244.0.9"),
        );
        for special in ["127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "fe80::1", "0.0.0.0", "192.0.2.1"] {
            check(|_, pod| pod["status"]["podIP"] = json!(special), Err("is not an address of a guest"));
        }
        check(|_, pod| pod["spec"]["hostNetwork"] = json!(true), Err("no network of its own"));
        check(|vmi, _| vmi["spec"]["networks"] = json!([]), Err("not on the pod network"));
    }

    #[test]
    fn only_the_guests_own_running_pod_counts() {
        let none = Err("no running pod");
        check(|_, pod| pod["metadata"]["ownerReferences"][0]["uid"] = json!("other"), none);
        check(|_, pod| pod["metadata"]["uid"] = json!("other"), none);
        check(|_, pod| pod["spec"]["nodeName"] = json!("node2"), none);
        check(|_, pod| pod["status"]["phase"] = json!("Succeeded"), none);
        check(|vmi, _| vmi["status"]["phase"] = json!("Scheduled"), Err("VMI is not running"));
    }
}
