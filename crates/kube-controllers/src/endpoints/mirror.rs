//! Endpoints written by hand, for a Service without a selector, as EndpointSlices: those are what proxies and DNS read. Pure.

use std::collections::BTreeMap;
use std::net::IpAddr;

use k8s_openapi::api::core::v1::{EndpointAddress, EndpointSubset, Endpoints, Service};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointConditions, EndpointPort};

use super::plan::Content;

/// Who the slices say they are managed by.
pub(crate) const MANAGER: &str = "endpointslicemirroring-controller.k8s.io";
const SKIP: &str = "endpointslice.kubernetes.io/skip-mirror";
const LEADER: &str = "control-plane.alpha.kubernetes.io/leader";
/// Most addresses of one subset that are mirrored, which is as many as a slice may hold.
const MOST: usize = 1000;

/// The slices that show `classic`; none where nothing is to be mirrored.
pub(crate) fn contents(service: Option<&Service>, classic: Option<&Endpoints>) -> Vec<Content> {
    let (Some(service), Some(classic)) = (service, classic) else { return Vec::new() };
    let selects = service.spec.as_ref().and_then(|s| s.selector.as_ref()).is_some_and(|s| !s.is_empty());
    let label = |key: &str| classic.metadata.labels.as_ref().and_then(|labels| labels.get(key));
    let leader = classic.metadata.annotations.as_ref().is_some_and(|all| all.contains_key(LEADER));
    if selects || leader || classic.metadata.deletion_timestamp.is_some() || label(SKIP).is_some_and(|v| v == "true") {
        return Vec::new();
    }
    classic.subsets.iter().flatten().flat_map(of_subset).collect()
}

fn of_subset(subset: &EndpointSubset) -> Vec<Content> {
    let port = |port: &k8s_openapi::api::core::v1::EndpointPort| EndpointPort {
        name: Some(port.name.clone().unwrap_or_default()),
        port: Some(port.port),
        protocol: Some(port.protocol.clone().unwrap_or_else(|| "TCP".into())),
        app_protocol: port.app_protocol.clone(),
    };
    let ports: Vec<EndpointPort> = subset.ports.iter().flatten().map(port).collect();
    let ready = subset.addresses.iter().flatten().map(|address| (address, true));
    let waiting = subset.not_ready_addresses.iter().flatten().map(|address| (address, false));
    let mut families = BTreeMap::<&str, Vec<Endpoint>>::new();
    for (address, ready) in ready.chain(waiting).take(MOST) {
        if let Ok(ip) = address.ip.parse::<IpAddr>() {
            families.entry(if ip.is_ipv4() { "IPv4" } else { "IPv6" }).or_default().push(endpoint(address, ready));
        }
    }
    let content = |(family, endpoints): (&str, Vec<Endpoint>)| Content {
        address_type: family.to_owned(),
        ports: ports.clone(),
        endpoints,
    };
    families.into_iter().map(content).collect()
}

fn endpoint(address: &EndpointAddress, ready: bool) -> Endpoint {
    Endpoint {
        addresses: vec![address.ip.clone()],
        conditions: Some(EndpointConditions { ready: Some(ready), ..EndpointConditions::default() }),
        hostname: address.hostname.clone(),
        node_name: address.node_name.clone(),
        target_ref: address.target_ref.clone(),
        ..Endpoint::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(selector: Value, metadata: Value, subsets: Value, expect: &[&str]) {
        let service = serde_json::from_value(json!({"spec": {"selector": selector}})).unwrap();
        let classic = serde_json::from_value(json!({"metadata": metadata, "subsets": subsets})).unwrap();
        let shown: Vec<String> = contents(Some(&service), Some(&classic))
            .iter()
            .map(|content| {
                let ports: Vec<_> = content.ports.iter().filter_map(|p| p.port).collect();
                let ready = |e: &Endpoint| e.conditions.as_ref().and_then(|c| c.ready).unwrap();
                let endpoints: Vec<_> = content.endpoints.iter().map(|e| (e.addresses[0].as_str(), ready(e))).collect();
                format!("{} {ports:?} {endpoints:?}", content.address_type)
            })
            .collect();
        assert_eq!(shown, expect);
    }

    #[test]
    fn addresses_written_by_hand_are_mirrored() {
        let subsets = json!([{"addresses": [{"ip": "192.0.2.1"}, {"ip": "2001:db8::1"}],
            "notReadyAddresses": [{"ip": "192.0.2.2"}], "ports": [{"port": 5432}]}]);
        let both =
            [r#"IPv4 [5432] [("192.0.2.1", true), ("192.0.2.2", false)]"#, r#"IPv6 [5432] [("2001:db8::1", true)]"#];
        check(json!(null), json!({}), subsets.clone(), &both);
        check(json!({"app": "a"}), json!({}), subsets.clone(), &[]);
        check(json!(null), json!({"labels": {SKIP: "true"}}), subsets.clone(), &[]);
        check(json!(null), json!({"annotations": {LEADER: "{}"}}), subsets, &[]);
        check(json!(null), json!({}), json!([]), &[]);
        assert!(contents(None, Some(&Endpoints::default())).is_empty());
    }
}
