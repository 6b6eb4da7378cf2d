//! The NetworkAddonsConfig object.

use api::hco::HyperConverged;
use serde_json::{Value, json};

use super::placement;
use crate::feature_gates::{self, is_on};
use crate::tree::{put, put_some};

/// The annotation that asks for the CNI plugin of Open vSwitch.
pub(crate) const OVS: &str = "deployOVS";

pub(super) fn spec(hco: &HyperConverged) -> Value {
    let (networking, placements) = (&hco.spec.networking, &hco.spec.deployment.node_placements);
    let certificates = &hco.spec.security.cert_config;
    let mut spec = json!({ "multus": {}, "linuxBridge": {}, "kubeMacPool": {}, "kubevirtIpamController": {} });
    put_some(&mut spec, "kubeMacPool", Some(networking.kube_mac_pool_configuration.clone()));
    if is_on(&hco.spec.feature_gates, feature_gates::KUBE_SECONDARY_DNS) {
        put(&mut spec, "kubeSecondaryDNS", json!({}));
        let server = networking.kube_secondary_dns_name_server_ip.clone().filter(|address| !address.is_empty());
        put_some(&mut spec, "kubeSecondaryDNS.nameServerIP", server.map(Value::from));
    }
    if hco.metadata.annotations.as_ref().and_then(|all| all.get(OVS)).is_some_and(|wanted| wanted == "true") {
        put(&mut spec, "ovs", json!({}));
    }
    put_some(&mut spec, "placementConfiguration.infra", placement(placements.infra.as_ref()));
    put_some(&mut spec, "placementConfiguration.workloads", placement(placements.workload.as_ref()));
    let rotation = [
        ("caRotateInterval", &certificates.ca.duration),
        ("caOverlapInterval", &certificates.ca.renew_before),
        ("certRotateInterval", &certificates.server.duration),
        ("certOverlapInterval", &certificates.server.renew_before),
    ];
    // All four or none.
    if rotation.iter().all(|(_, span)| span.is_some()) {
        for (field, span) in rotation {
            put_some(&mut spec, &format!("selfSignConfiguration.{field}"), span.clone().map(Value::from));
        }
    }
    put_some(&mut spec, "tlsSecurityProfile", Some(hco.spec.security.tls_security_profile.clone()));
    spec
}
