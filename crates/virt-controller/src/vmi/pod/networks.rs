//! Networks beside the pod's own, asked for in the words of the Network Plumbing Working Group, which Multus knows.

use api::kubevirt::identity::pod_interface;
use api::kubevirt::v1::VirtualMachineInstance;
use serde_json::json;

/// The annotation.
pub(super) const ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";

/// Its value; none when the VMI has no such network. The guest's hardware address is asked for, so that a network that
/// watches over addresses lets it pass.
pub(super) fn annotation(vmi: &VirtualMachineInstance) -> Option<String> {
    let own = vmi.metadata.namespace.as_deref().unwrap_or_default();
    let mut list = Vec::new();
    for network in &vmi.spec.networks {
        let Some(multus) = &network.multus else { continue };
        let interface = vmi.spec.domain.devices.interfaces.iter().find(|interface| interface.name == network.name);
        let Some(interface) = interface.filter(|interface| interface.state.as_deref() != Some("absent")) else {
            continue;
        };
        let (namespace, name) = multus.network_name.split_once('/').unwrap_or((own, &multus.network_name));
        let mut entry = json!({ "name": name, "namespace": namespace, "interface": pod_interface(&network.name) });
        if let Some(mac) = interface.mac_address.as_deref().filter(|mac| !mac.is_empty()) {
            entry["mac"] = json!(mac.replace('-', ":"));
        }
        list.push(entry);
    }
    (!list.is_empty()).then(|| json!(list).to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(interfaces: Value, networks: Value, expect: Value) {
        let vmi = json!({
            "metadata": { "name": "vm", "namespace": "ns" },
            "spec": { "domain": { "devices": { "interfaces": interfaces } }, "networks": networks },
        });
        let found = annotation(&serde_json::from_value(vmi).unwrap());
        assert_eq!(found.map_or(Value::Null, |text| serde_json::from_str(&text).unwrap()), expect);
    }

    #[test]
    fn each_network_beside_the_pods_own_is_asked_for() {
        let pod = json!({ "name": "default", "pod": {} });
        check(json!([{ "name": "default", "masquerade": {} }]), json!([pod]), Value::Null);
        let secondary = |name: &str, of: &str| json!({ "name": name, "multus": { "networkName": of } });
        check(
            json!([
                { "name": "default", "masquerade": {} },
                { "name": "blue", "bridge": {}, "macAddress": "02-00-00-00-00-01" },
                { "name": "red", "bridge": {} },
                { "name": "gone", "bridge": {}, "state": "absent" },
            ]),
            json!([pod, secondary("blue", "nad"), secondary("red", "other/nad"), secondary("gone", "nad")]),
            json!([
                { "name": "nad", "namespace": "ns", "interface": "pod16477688c0e", "mac": "02:00:00:00:00:01" },
                { "name": "nad", "namespace": "other", "interface": pod_interface("red") },
            ]),
        );
    }
}
