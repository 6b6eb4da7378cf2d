//! From a Service and its pods to EndpointSlices and Endpoints. Pure.
//!
//! ```text
//!  Service.selector -> pods with an address -> one group for each address family and set of ports -> slices of <= 100
//! ```

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{
    EndpointAddress, EndpointPort as ClassicPort, EndpointSubset, Node, ObjectReference, Pod, Service, ServicePort,
};
use k8s_openapi::api::discovery::v1::{
    Endpoint, EndpointConditions, EndpointHints, EndpointPort, EndpointSlice, ForZone,
};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kit::controller::pod;

pub(crate) const MANAGED_BY: &str = "endpointslice.kubernetes.io/managed-by";
pub(crate) const MANAGER: &str = "endpointslice-controller.k8s.io";
pub(crate) const SERVICE_NAME: &str = "kubernetes.io/service-name";
/// Most endpoints in one slice.
const SLICE_SIZE: usize = 100;

/// A pod's port as a slice or subset shows it: name, number, protocol, application protocol.
type Port = (String, i32, String, Option<String>);

/// What a slice holds, without its name.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Content {
    pub(crate) address_type: String,
    pub(crate) ports: Vec<EndpointPort>,
    pub(crate) endpoints: Vec<Endpoint>,
}

fn is_headless(service: &Service) -> bool {
    service.spec.as_ref().and_then(|s| s.cluster_ip.as_deref()) == Some("None")
}

fn families(service: &Service) -> Vec<String> {
    let spec = service.spec.as_ref();
    let listed = spec.and_then(|s| s.ip_families.clone()).filter(|f| !f.is_empty());
    listed.unwrap_or_else(|| {
        let address = spec.and_then(|s| s.cluster_ip.as_deref()).and_then(|ip| ip.parse::<IpAddr>().ok());
        vec![if address.is_some_and(|ip| ip.is_ipv6()) { "IPv6".into() } else { "IPv4".into() }]
    })
}

/// The number a service port has in a pod.
fn target_port(port: &ServicePort, pod: &Pod) -> Option<i32> {
    match &port.target_port {
        None => Some(port.port),
        Some(IntOrString::Int(0)) => Some(port.port),
        Some(IntOrString::Int(number)) => Some(*number),
        Some(IntOrString::String(name)) => {
            let protocol = port.protocol.as_deref().unwrap_or("TCP");
            let spec = pod.spec.as_ref()?;
            let sidecars =
                spec.init_containers.iter().flatten().filter(|c| c.restart_policy.as_deref() == Some("Always"));
            let ports = spec.containers.iter().chain(sidecars).flat_map(|c| c.ports.iter().flatten());
            let named = |p: &&k8s_openapi::api::core::v1::ContainerPort| {
                p.name.as_deref() == Some(name) && p.protocol.as_deref().unwrap_or("TCP") == protocol
            };
            ports.into_iter().find(named).map(|p| p.container_port)
        }
    }
}

fn ports_in(service: &Service, pod: &Pod) -> Vec<Port> {
    let ports = service.spec.as_ref().and_then(|s| s.ports.as_deref()).unwrap_or_default();
    let one = |port: &ServicePort| {
        let protocol = port.protocol.clone().unwrap_or_else(|| "TCP".into());
        Some((port.name.clone().unwrap_or_default(), target_port(port, pod)?, protocol, port.app_protocol.clone()))
    };
    ports.iter().filter_map(one).collect()
}

fn addresses(pod: &Pod, family: &str) -> Vec<String> {
    let Some(status) = &pod.status else { return Vec::new() };
    let listed = status.pod_ips.iter().flatten().map(|ip| ip.ip.clone());
    let all: Vec<String> =
        if status.pod_ips.is_some() { listed.collect() } else { status.pod_ip.clone().into_iter().collect() };
    let fits = |text: &String| text.parse::<IpAddr>().is_ok_and(|ip| ip.is_ipv6() == (family == "IPv6"));
    all.into_iter().filter(fits).take(1).collect()
}

fn reference(pod: &Pod) -> ObjectReference {
    ObjectReference {
        kind: Some("Pod".into()),
        namespace: pod.metadata.namespace.clone(),
        name: pod.metadata.name.clone(),
        uid: pod.metadata.uid.clone(),
        ..ObjectReference::default()
    }
}

/// A pod's name under a headless service.
fn hostname(service: &Service, pod: &Pod) -> Option<String> {
    let spec = pod.spec.as_ref()?;
    let ours = spec.subdomain.as_deref()? == service.metadata.name.as_deref()?;
    spec.hostname
        .clone()
        .filter(|name| ours && !name.is_empty() && pod.metadata.namespace == service.metadata.namespace)
}

fn endpoint(service: &Service, pod: &Pod, address: String, node: Option<&Node>) -> Endpoint {
    let publish = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses).unwrap_or(false);
    let (serving, terminating) = (pod::is_ready(pod), pod::is_terminating(pod));
    let zone = node.and_then(|n| pod::labels(&n.metadata).get("topology.kubernetes.io/zone").cloned());
    let is_ready = publish || (serving && !terminating);
    let near = service.spec.as_ref().and_then(|s| s.traffic_distribution.as_deref()) == Some("PreferClose");
    let hints = zone
        .clone()
        .filter(|_| near && is_ready)
        .map(|name| EndpointHints { for_zones: Some(vec![ForZone { name }]), ..EndpointHints::default() });
    Endpoint {
        addresses: vec![address],
        conditions: Some(EndpointConditions {
            ready: Some(is_ready),
            serving: Some(serving),
            terminating: Some(terminating),
        }),
        hostname: hostname(service, pod),
        node_name: pod::node_name(pod).map(str::to_owned),
        target_ref: Some(reference(pod)),
        zone,
        hints,
        ..Endpoint::default()
    }
}

/// The slices a service should have, in a stable order.
pub(crate) fn slices(service: &Service, pods: &[Arc<Pod>], node: impl Fn(&str) -> Option<Arc<Node>>) -> Vec<Content> {
    let mut contents = Vec::new();
    for family in families(service) {
        let mut groups = BTreeMap::<Vec<Port>, Vec<Endpoint>>::new();
        for pod in pods.iter().filter(|pod| !pod::is_finished(pod)) {
            let ports = ports_in(service, pod);
            let has_ports = service.spec.as_ref().is_some_and(|s| s.ports.as_ref().is_some_and(|p| !p.is_empty()));
            if ports.is_empty() && (has_ports || !is_headless(service)) {
                continue;
            }
            let node = pod::node_name(pod).and_then(&node);
            for address in addresses(pod, &family) {
                groups.entry(ports.clone()).or_default().push(endpoint(service, pod, address, node.as_deref()));
            }
        }
        // A service always has a slice, so that "no endpoints" can be told from "not looked at yet".
        if groups.is_empty() {
            groups.insert(Vec::new(), Vec::new());
        }
        for (ports, mut endpoints) in groups {
            endpoints.sort_by(|a, b| a.addresses.cmp(&b.addresses));
            let ports: Vec<EndpointPort> = ports.into_iter().map(slice_port).collect();
            let mut chunks = endpoints.chunks(SLICE_SIZE);
            let first = chunks.next().unwrap_or_default();
            for chunk in std::iter::once(first).chain(chunks) {
                contents.push(Content {
                    address_type: family.clone(),
                    ports: ports.clone(),
                    endpoints: chunk.to_vec(),
                });
            }
        }
    }
    contents
}

fn slice_port((name, port, protocol, app_protocol): Port) -> EndpointPort {
    EndpointPort { name: Some(name), port: Some(port), protocol: Some(protocol), app_protocol }
}

/// How to get from the slices there are to those wanted, with the fewest writes.
#[derive(Debug, Default)]
pub(crate) struct Changes {
    pub(crate) create: Vec<Content>,
    pub(crate) update: Vec<(Arc<EndpointSlice>, Content)>,
    pub(crate) delete: Vec<Arc<EndpointSlice>>,
}

fn content_of(slice: &EndpointSlice) -> Content {
    Content {
        address_type: slice.address_type.clone(),
        ports: slice.ports.clone().unwrap_or_default(),
        endpoints: slice.endpoints.clone(),
    }
}

/// Matches wanted contents with existing slices: equal ones stay, others of the same family are rewritten.
pub(crate) fn changes(existing: Vec<Arc<EndpointSlice>>, wanted: Vec<Content>) -> Changes {
    let mut spare = existing;
    let mut changes = Changes::default();
    let mut unmatched = Vec::new();
    for content in wanted {
        match spare.iter().position(|slice| content_of(slice) == content) {
            Some(index) => drop(spare.swap_remove(index)),
            None => unmatched.push(content),
        }
    }
    for content in unmatched {
        let same_ports = |slice: &Arc<EndpointSlice>| {
            slice.address_type == content.address_type && slice.ports.as_deref().unwrap_or_default() == content.ports
        };
        let same_family = |slice: &Arc<EndpointSlice>| slice.address_type == content.address_type;
        match spare.iter().position(same_ports).or_else(|| spare.iter().position(same_family)) {
            Some(index) => changes.update.push((spare.swap_remove(index), content)),
            None => changes.create.push(content),
        }
    }
    changes.delete = spare;
    changes
}

/// The subsets of the service's Endpoints object, ready and not ready addresses of its first family.
pub(crate) fn subsets(service: &Service, pods: &[Arc<Pod>]) -> Vec<EndpointSubset> {
    const MOST: usize = 1000;
    let publish = service.spec.as_ref().and_then(|s| s.publish_not_ready_addresses).unwrap_or(false);
    let Some(family) = families(service).into_iter().next() else { return Vec::new() };
    let mut groups = BTreeMap::<Vec<Port>, (Vec<EndpointAddress>, Vec<EndpointAddress>)>::new();
    for pod in pods.iter().filter(|pod| !pod::is_finished(pod)) {
        if pod::is_terminating(pod) && !publish {
            continue;
        }
        let ports = ports_in(service, pod);
        if ports.is_empty() && !is_headless(service) {
            continue;
        }
        for ip in addresses(pod, &family).into_iter().take(MOST) {
            let address = EndpointAddress {
                ip,
                hostname: hostname(service, pod),
                node_name: pod::node_name(pod).map(str::to_owned),
                target_ref: Some(reference(pod)),
            };
            let (ready, not_ready) = groups.entry(ports.clone()).or_default();
            if publish || pod::is_ready(pod) { ready.push(address) } else { not_ready.push(address) }
        }
    }
    let list = |mut addresses: Vec<EndpointAddress>| {
        addresses.sort_by(|a, b| a.ip.cmp(&b.ip));
        (!addresses.is_empty()).then_some(addresses)
    };
    let subset = |(ports, (ready, not_ready)): (Vec<Port>, (Vec<_>, Vec<_>))| {
        let port = |(name, port, protocol, app_protocol): Port| ClassicPort {
            name: (!name.is_empty()).then_some(name),
            port,
            protocol: Some(protocol),
            app_protocol,
        };
        EndpointSubset {
            addresses: list(ready),
            not_ready_addresses: list(not_ready),
            ports: (!ports.is_empty()).then(|| ports.into_iter().map(port).collect()),
        }
    };
    groups.into_iter().map(subset).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pods(description: &str) -> Vec<Arc<Pod>> {
        let pod = |(index, word): (usize, &str)| {
            let ready = if word.contains("ready") { "True" } else { "False" };
            let mut value = json!({"metadata": {"name": format!("p{index}"), "namespace": "d"},
                "spec": {"nodeName": "n", "containers": [{"name": "c",
                    "ports": [{"name": "web", "containerPort": if word.contains("odd") { 9090 } else { 8080 }}]}]},
                "status": {"phase": "Running", "podIP": format!("10.0.0.{index}"),
                    "podIPs": [{"ip": format!("10.0.0.{index}")}, {"ip": format!("fd00::{index}")}],
                    "conditions": [{"type": "Ready", "status": ready}]}});
            if word.contains("leaving") {
                value["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
            }
            if word.contains("failed") {
                value["status"]["phase"] = json!("Failed");
            }
            Arc::new(serde_json::from_value(value).unwrap())
        };
        description.split_whitespace().enumerate().map(pod).collect()
    }

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn service(spec: Value) -> Service {
        serde_json::from_value(json!({"metadata": {"name": "s", "namespace": "d"}, "spec": spec})).unwrap()
    }

    fn text(contents: &[Content]) -> String {
        let one = |content: &Content| {
            let ports: Vec<_> = content.ports.iter().map(|p| p.port.unwrap().to_string()).collect();
            let endpoint = |e: &Endpoint| {
                let c = e.conditions.as_ref().unwrap();
                let flag =
                    |on: Option<bool>, letter: &str| if on == Some(true) { letter.to_owned() } else { String::new() };
                format!("{}{}{}{}", e.addresses[0], flag(c.ready, "R"), flag(c.serving, "S"), flag(c.terminating, "T"))
            };
            let endpoints: Vec<_> = content.endpoints.iter().map(endpoint).collect();
            format!("{}[{}]({})", content.address_type, ports.join(","), endpoints.join(" "))
        };
        contents.iter().map(one).collect::<Vec<_>>().join(" ")
    }

    #[track_caller]
    fn check(spec: Value, description: &str, expect: &str) {
        assert_eq!(text(&slices(&service(spec), &pods(description), |_| None)), expect);
    }

    #[test]
    fn slices_of_services() {
        let web = json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80, "targetPort": "web"}]});
        check(web.clone(), "", "IPv4[]()");
        check(web.clone(), "ready waiting ready-leaving failed", "IPv4[8080](10.0.0.0RS 10.0.0.1 10.0.0.2ST)");
        check(web, "ready ready-odd", "IPv4[8080](10.0.0.0RS) IPv4[9090](10.0.0.1RS)");
        let both = json!({"clusterIP": "10.96.0.9", "ipFamilies": ["IPv4", "IPv6"], "ports": [{"port": 80}]});
        check(both, "ready", "IPv4[80](10.0.0.0RS) IPv6[80](fd00::0RS)");
        let headless = json!({"clusterIP": "None", "publishNotReadyAddresses": true});
        check(headless, "waiting", "IPv4[](10.0.0.0R)");
    }

    #[test]
    fn endpoints_are_hinted_to_their_own_zone() {
        let zoned: Node =
            serde_json::from_value(json!({"metadata": {"labels": {"topology.kubernetes.io/zone": "z"}}})).unwrap();
        let hints = |spec: Value| {
            let contents = slices(&service(spec), &pods("ready waiting"), |_| Some(Arc::new(zoned.clone())));
            let zones =
                |endpoint: &Endpoint| endpoint.hints.as_ref()?.for_zones.as_ref()?.first().map(|z| z.name.clone());
            contents[0].endpoints.iter().map(zones).collect::<Vec<_>>()
        };
        let spec = json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80}]});
        assert_eq!(hints(spec.clone()), [None, None]);
        let mut near = spec;
        near["trafficDistribution"] = json!("PreferClose");
        assert_eq!(hints(near), [Some("z".to_owned()), None]);
    }

    #[test]
    fn subsets_part_ready_from_not_ready() {
        let service = service(json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80, "targetPort": "web"}]}));
        let subsets = subsets(&service, &pods("ready waiting ready-leaving"));
        let ips = |list: &Option<Vec<EndpointAddress>>| list.iter().flatten().map(|a| a.ip.clone()).collect::<Vec<_>>();
        assert_eq!(subsets.len(), 1);
        assert_eq!(ips(&subsets[0].addresses), ["10.0.0.0"]);
        assert_eq!(ips(&subsets[0].not_ready_addresses), ["10.0.0.1"]);
    }

    #[test]
    fn equal_slices_are_left_alone() {
        let service = service(json!({"clusterIP": "10.96.0.9", "ports": [{"port": 80}]}));
        let wanted = slices(&service, &pods("ready"), |_| None);
        let slice = EndpointSlice {
            address_type: "IPv4".into(),
            ports: Some(wanted[0].ports.clone()),
            endpoints: wanted[0].endpoints.clone(),
            ..EndpointSlice::default()
        };
        let same = changes(vec![Arc::new(slice.clone())], wanted);
        assert_eq!((same.create.len(), same.update.len(), same.delete.len()), (0, 0, 0));
        let grown = changes(vec![Arc::new(slice.clone())], slices(&service, &pods("ready ready"), |_| None));
        assert_eq!((grown.create.len(), grown.update.len(), grown.delete.len()), (0, 1, 0));
        let extra = changes(vec![Arc::new(slice.clone()), Arc::new(slice)], slices(&service, &pods("ready"), |_| None));
        assert_eq!((extra.create.len(), extra.update.len(), extra.delete.len()), (0, 0, 1));
    }
}
