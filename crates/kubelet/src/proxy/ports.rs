//! From Services and EndpointSlices to plain ports: who listens where, and who answers.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;
use k8s_openapi::api::core::v1::{Service, ServicePort};
use k8s_openapi::api::discovery::v1::{Endpoint, EndpointSlice};

use super::Settings;
use crate::service_view::View;

/// Transport protocol of a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Protocol {
    /// TCP
    Tcp,
    /// UDP
    Udp,
    /// SCTP
    Sctp,
}

impl Protocol {
    /// The word nftables knows it by.
    pub fn word(self) -> &'static str {
        match self {
            Self::Tcp => "tcp",
            Self::Udp => "udp",
            Self::Sctp => "sctp",
        }
    }

    pub(crate) fn parse(name: Option<&str>) -> Option<Self> {
        match name.unwrap_or("TCP") {
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            "SCTP" => Some(Self::Sctp),
            _ => None,
        }
    }
}

/// One port of one Service in one address family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Port {
    /// `<namespace>/<name>`
    pub service: String,
    /// Transport protocol.
    pub protocol: Protocol,
    /// The port clients dial.
    pub port: u16,
    /// Cluster IPs of this family; each port has at most one, but nothing depends on that.
    pub cluster_ips: Vec<IpAddr>,
    /// Addresses from outside the cluster.
    pub external_ips: Vec<IpAddr>,
    /// Addresses of a load balancer that hands packets on as they came.
    pub balancer_ips: Vec<IpAddr>,
    /// Who may come by the load balancer; everybody when there is none.
    pub sources: Vec<IpNet>,
    /// The port on every address of the node.
    pub node_port: Option<u16>,
    /// IPv6.
    pub is_v6: bool,
    /// Seconds for which a client stays with its endpoint.
    pub affinity: Option<u32>,
    /// Who answers.
    pub endpoints: BTreeSet<SocketAddr>,
    /// Who answers on the cluster IP, when that is not everybody (`internalTrafficPolicy: Local`).
    pub inside: Option<BTreeSet<SocketAddr>>,
    /// Who answers from outside, when that is not everybody (`externalTrafficPolicy: Local`).
    pub local_endpoints: Option<BTreeSet<SocketAddr>>,
}

/// Every port that needs rules, in a stable order. Headless Services and those that are names only need none, nor do
/// Services on an address that the node itself answers on.
pub fn collect(view: &View, settings: &Settings) -> Vec<Port> {
    let mut ports: Vec<Port> = view.services.iter().flat_map(|service| of_service(service, view, settings)).collect();
    ports.sort_by(|a, b| (&a.service, a.protocol, a.port, a.is_v6).cmp(&(&b.service, b.protocol, b.port, b.is_v6)));
    ports
}

fn of_service(service: &Service, view: &View, settings: &Settings) -> Vec<Port> {
    let (Some(spec), Some(namespace), Some(name)) =
        (&service.spec, service.metadata.namespace.as_deref(), service.metadata.name.as_deref())
    else {
        return Vec::new();
    };
    if spec.type_.as_deref() == Some("ExternalName") {
        return Vec::new();
    }
    let cluster_ips: Vec<IpAddr> = match &spec.cluster_ips {
        Some(list) => list.iter().filter_map(|ip| ip.parse().ok()).collect(),
        None => spec.cluster_ip.iter().filter_map(|ip| ip.parse().ok()).collect(),
    };
    // `None` is no address: a headless Service ends here.
    if cluster_ips.is_empty() || cluster_ips.iter().any(|ip| settings.own_addresses.contains(ip)) {
        return Vec::new();
    }
    let external_ips: Vec<IpAddr> = spec.external_ips.iter().flatten().filter_map(|ip| ip.parse().ok()).collect();
    let balancer = service.status.as_ref().and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref());
    // One that answers itself is reached as any other host outside.
    let handed_on = ingress.into_iter().flatten().filter(|entry| entry.ip_mode.as_deref() != Some("Proxy"));
    let balancer_ips: Vec<IpAddr> = handed_on.filter_map(|entry| entry.ip.as_ref()?.parse().ok()).collect();
    let sources = spec.load_balancer_source_ranges.iter().flatten();
    let sources: Vec<IpNet> = sources.filter_map(|range| range.trim().parse::<IpNet>().ok()).collect();
    let affinity = (spec.session_affinity.as_deref() == Some("ClientIP")).then(|| {
        let config = spec.session_affinity_config.as_ref().and_then(|config| config.client_ip.as_ref());
        config.and_then(|client| client.timeout_seconds).and_then(|s| u32::try_from(s).ok()).unwrap_or(10_800)
    });
    let internal_local = spec.internal_traffic_policy.as_deref() == Some("Local");
    let external_local = spec.external_traffic_policy.as_deref() == Some("Local");

    let mut ports = Vec::new();
    for port in spec.ports.iter().flatten() {
        let (Some(protocol), Ok(number)) = (Protocol::parse(port.protocol.as_deref()), u16::try_from(port.port)) else {
            continue;
        };
        for is_v6 in [false, true] {
            let of_family = |ips: &[IpAddr]| ips.iter().copied().filter(|ip| ip.is_ipv6() == is_v6).collect::<Vec<_>>();
            if of_family(&cluster_ips).is_empty() {
                continue;
            }
            let slices: Vec<_> = view.slices_of(namespace, name).filter(|s| is_of_family(s, is_v6)).collect();
            let near = nearby(&slices, view.zone.as_deref());
            let here = |endpoint: &Endpoint| is_here(endpoint, settings);
            ports.push(Port {
                service: format!("{namespace}/{name}"),
                protocol,
                port: number,
                cluster_ips: of_family(&cluster_ips),
                external_ips: of_family(&external_ips),
                balancer_ips: of_family(&balancer_ips),
                sources: sources.clone(),
                node_port: port.node_port.and_then(|p| u16::try_from(p).ok()).filter(|p| *p != 0),
                is_v6,
                affinity,
                endpoints: endpoints(&slices, port, near),
                inside: internal_local.then(|| endpoints(&slices, port, here)),
                local_endpoints: external_local.then(|| endpoints(&slices, port, here)),
            });
        }
    }
    ports
}

fn is_here(endpoint: &Endpoint, settings: &Settings) -> bool {
    endpoint.node_name.as_deref() == Some(settings.node.as_str())
}

/// Which endpoints a node of `zone` prefers: those hinted to be for it. Hints count only when every ready endpoint has
/// some and one of them is for this zone: a zone whose endpoints are gone is served by the others.
fn nearby(slices: &[&EndpointSlice], zone: Option<&str>) -> impl Fn(&Endpoint) -> bool {
    let zones = |endpoint: &Endpoint| -> Option<Vec<String>> {
        let hints = endpoint.hints.as_ref()?.for_zones.as_ref()?;
        Some(hints.iter().map(|zone| zone.name.clone()).collect())
    };
    let ready = slices.iter().flat_map(|slice| &slice.endpoints).filter(|endpoint| conditions(endpoint).0);
    let hinted: Option<Vec<Vec<String>>> = ready.map(zones).collect();
    let zone = zone.filter(|zone| hinted.iter().flatten().flatten().any(|hinted| hinted == zone)).map(str::to_owned);
    move |endpoint| match &zone {
        None => true,
        // One without hints is not ready; it may be needed when nobody is.
        Some(zone) => zones(endpoint).is_none_or(|zones| zones.contains(zone)),
    }
}

/// How many endpoints of a Service on this node are ready; one with two addresses counts once.
pub(super) fn ready_here(view: &View, namespace: &str, name: &str, settings: &Settings) -> usize {
    let of = |is_v6| {
        let slices = view.slices_of(namespace, name).filter(|slice| is_of_family(slice, is_v6));
        let endpoints = slices.flat_map(|slice| &slice.endpoints);
        let ready = endpoints.filter(|endpoint| conditions(endpoint).0 && is_here(endpoint, settings));
        ready.flat_map(|endpoint| &endpoint.addresses).collect::<BTreeSet<_>>().len()
    };
    of(false).max(of(true))
}

fn is_of_family(slice: &EndpointSlice, is_v6: bool) -> bool {
    slice.address_type == if is_v6 { "IPv6" } else { "IPv4" }
}

/// Every endpoint that answers by TCP and whose pod is still there, be it ready, not ready or on its way out: what is
/// connected to it may stay so.
pub fn existing(view: &View) -> BTreeSet<SocketAddr> {
    let mut found = BTreeSet::new();
    for slice in &view.slices {
        let tcp = slice
            .ports
            .iter()
            .flatten()
            .filter(|port| Protocol::parse(port.protocol.as_deref()) == Some(Protocol::Tcp));
        let numbers: Vec<u16> = tcp.filter_map(|port| u16::try_from(port.port?).ok()).collect();
        let addresses = slice.endpoints.iter().flat_map(|endpoint| &endpoint.addresses);
        for ip in addresses.filter_map(|address| address.parse::<IpAddr>().ok()) {
            found.extend(numbers.iter().map(|number| SocketAddr::new(ip, *number)));
        }
    }
    found
}

/// The ready endpoints; when there is none, those that still answer while they terminate.
fn endpoints(
    slices: &[&EndpointSlice],
    port: &ServicePort,
    wanted: impl Fn(&Endpoint) -> bool,
) -> BTreeSet<SocketAddr> {
    let gather = |usable: fn(&Endpoint) -> bool| {
        let mut found = BTreeSet::new();
        for slice in slices {
            let Some(number) = target_port(slice, port) else { continue };
            for endpoint in slice.endpoints.iter().filter(|endpoint| usable(endpoint) && wanted(endpoint)) {
                let ips = endpoint.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok());
                found.extend(ips.map(|ip| SocketAddr::new(ip, number)));
            }
        }
        found
    };
    let ready = gather(|endpoint| conditions(endpoint).0);
    if ready.is_empty() { gather(|endpoint| conditions(endpoint).1) } else { ready }
}

/// Ready; serving although terminating.
fn conditions(endpoint: &Endpoint) -> (bool, bool) {
    let Some(conditions) = &endpoint.conditions else { return (true, true) };
    (conditions.ready.unwrap_or(true), conditions.serving.unwrap_or(true) && conditions.terminating.unwrap_or(false))
}

/// The slice's port of the same name and protocol.
fn target_port(slice: &EndpointSlice, port: &ServicePort) -> Option<u16> {
    let same =
        |text: Option<&str>, other: Option<&str>, default: &str| text.unwrap_or(default) == other.unwrap_or(default);
    let found = slice.ports.iter().flatten().find(|candidate| {
        same(candidate.name.as_deref(), port.name.as_deref(), "")
            && same(candidate.protocol.as_deref(), port.protocol.as_deref(), "TCP")
    })?;
    u16::try_from(found.port?).ok()
}
