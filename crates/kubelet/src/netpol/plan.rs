//! From policies and pods to who may send what to whom, in terms of addresses. Pure.
//!
//! A pod is isolated in a direction when a policy of that direction selects it; then exactly what some rule of some such
//! policy admits may pass. Only pods of this node appear as subjects; peers are pods of the whole cluster.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;
use k8s_openapi::api::networking::v1::{NetworkPolicy, NetworkPolicyPeer, NetworkPolicyPort};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::core::{Selector, SelectorExt};

use super::Settings;
use super::view::{Labels, Member, View};
use crate::proxy::ports::Protocol;

/// Which way traffic goes, as seen by the pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Direction {
    /// To the pod.
    Ingress,
    /// From the pod.
    Egress,
}

/// Everything the rules are made of.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// For each direction and policy (`<namespace>/<name>`) what it admits. Only policies that select a pod here.
    pub policies: BTreeMap<(Direction, String), Vec<Rule>>,
    /// The isolated addresses of this node, each with the policies that select it.
    pub isolated: BTreeMap<(Direction, IpAddr), BTreeSet<String>>,
    /// Addresses of the pods that a peer selects, by the selector's text.
    pub groups: BTreeMap<String, BTreeSet<IpAddr>>,
    /// Where a named port is, on which pod.
    pub named: BTreeMap<(String, Protocol), BTreeSet<(IpAddr, u16)>>,
}

/// One rule of a policy: any of the peers, on any of the ports. Empty lists mean everybody and every port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Who.
    pub peers: Vec<Peer>,
    /// Where.
    pub ports: Vec<Port>,
}

/// The other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Peer {
    /// The pods of a group, a key of [`Plan::groups`].
    Group(String),
    /// Addresses, but for some.
    Block {
        /// The range.
        net: IpNet,
        /// What of it is left out.
        except: Vec<IpNet>,
    },
}

/// Ports of one protocol at the receiving end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Port {
    /// All of them.
    All(Protocol),
    /// From, to and with.
    Range(Protocol, u16, u16),
    /// By the receiving pod's name for it, a key of [`Plan::named`].
    Named(Protocol, String),
}

/// The plan for the pods of this node. `newcomers` are pods of this node that may be ahead of the view; where two pods
/// claim an address the last one has it.
pub fn plan(view: &View, settings: &Settings, newcomers: Vec<&Member>) -> Plan {
    let mut plan = Plan::default();
    let pods = pods(view, settings, newcomers);
    for policy in &view.policies {
        add(&mut plan, policy, view, settings, &pods);
    }
    plan
}

/// All pods: those of the view with the addresses the node knows better, those the view does not show yet, and cluster DNS.
fn pods<'a>(view: &'a View, settings: &Settings, newcomers: Vec<&'a Member>) -> Vec<Member> {
    let known: BTreeMap<&str, &Member> = newcomers.iter().map(|pod| (pod.uid.as_str(), *pod)).collect();
    let taken: BTreeSet<IpAddr> = newcomers.iter().flat_map(|pod| pod.addresses.iter().copied()).collect();
    let shown: BTreeMap<&str, &Member> = view.pods.iter().map(|pod| (pod.uid.as_str(), pod)).collect();
    let elsewhere = view.pods.iter().filter(|pod| !known.contains_key(pod.uid.as_str())).cloned().map(|mut pod| {
        pod.addresses.retain(|address| !taken.contains(address));
        pod
    });
    let here = newcomers.into_iter().map(|pod| {
        let current = shown.get(pod.uid.as_str()).copied().unwrap_or(pod);
        Member { addresses: pod.addresses.clone(), node: settings.node.clone(), ..current.clone() }
    });
    let mut owners = BTreeMap::new();
    let mut all: Vec<Member> = elsewhere.chain(here).collect();
    for (index, pod) in all.iter().enumerate() {
        owners.extend(pod.addresses.iter().map(|address| (*address, index)));
    }
    for (index, pod) in all.iter_mut().enumerate() {
        pod.addresses.retain(|address| owners.get(address) == Some(&index));
    }
    all.push(cluster_dns(settings));
    all
}

/// The pod that answers for cluster DNS in other clusters, with the addresses each node has for it. It is on no node, so
/// that no policy isolates it.
fn cluster_dns(settings: &Settings) -> Member {
    let port = |name: &str, protocol| (name.to_owned(), protocol, 53);
    Member {
        uid: String::new(),
        namespace: "kube-system".into(),
        labels: Labels::from([("k8s-app".into(), "kube-dns".into())]),
        addresses: settings.dns.clone(),
        ports: vec![port("dns", Protocol::Udp), port("dns-tcp", Protocol::Tcp)],
        node: String::new(),
    }
}

fn add(plan: &mut Plan, policy: &NetworkPolicy, view: &View, settings: &Settings, pods: &[Member]) {
    let (Some(spec), Some(namespace), Some(name)) =
        (&policy.spec, policy.metadata.namespace.as_deref(), policy.metadata.name.as_deref())
    else {
        return;
    };
    let everybody = LabelSelector::default();
    let subject = Wanted::new(spec.pod_selector.as_ref().unwrap_or(&everybody));
    let here = |pod: &&Member| pod.node == settings.node && pod.namespace == namespace && subject.matches(&pod.labels);
    let selected: Vec<IpAddr> = pods.iter().filter(here).flat_map(|pod| pod.addresses.iter().copied()).collect();
    if selected.is_empty() {
        return;
    }
    let key = format!("{namespace}/{name}");
    let egress = spec.egress.as_deref().unwrap_or_default();
    let types = spec.policy_types.as_deref().unwrap_or_default();
    let is_of = |direction: &str, by_default: bool| {
        if types.is_empty() { by_default } else { types.iter().any(|kind| kind == direction) }
    };
    let mut around = Around { plan, view, pods, namespace };
    if is_of("Ingress", true) {
        let ingress = spec.ingress.iter().flatten().map(|rule| (rule.from.as_deref(), rule.ports.as_deref()));
        let rules = ingress.map(|(peers, ports)| around.rule(peers, ports)).collect();
        around.isolate(Direction::Ingress, &key, rules, &selected);
    }
    if is_of("Egress", !egress.is_empty()) {
        let rules = egress.iter().map(|rule| around.rule(rule.to.as_deref(), rule.ports.as_deref())).collect();
        around.isolate(Direction::Egress, &key, rules, &selected);
    }
}

/// A selector; one that cannot be understood selects nobody.
struct Wanted(Option<Selector>);

impl Wanted {
    fn new(selector: &LabelSelector) -> Self {
        Self(Selector::try_from(selector.clone()).ok())
    }

    fn matches(&self, labels: &Labels) -> bool {
        self.0.as_ref().is_some_and(|selector| selector.matches(labels))
    }
}

struct Around<'a> {
    plan: &'a mut Plan,
    view: &'a View,
    pods: &'a [Member],
    namespace: &'a str,
}

impl Around<'_> {
    fn isolate(&mut self, direction: Direction, policy: &str, rules: Vec<Rule>, selected: &[IpAddr]) {
        for address in selected {
            self.plan.isolated.entry((direction, *address)).or_default().insert(policy.to_owned());
        }
        self.plan.policies.insert((direction, policy.to_owned()), rules);
    }

    fn rule(&mut self, peers: Option<&[NetworkPolicyPeer]>, ports: Option<&[NetworkPolicyPort]>) -> Rule {
        let (peers, ports) = (peers.unwrap_or_default(), ports.unwrap_or_default());
        let mut rule = Rule::default();
        for peer in peers {
            rule.peers.push(self.peer(peer));
        }
        for port in ports {
            rule.ports.extend(self.port(port));
        }
        if !ports.is_empty() && rule.ports.is_empty() {
            // None of them can be understood: that must not read as "every port".
            rule.peers = vec![nobody()];
        }
        rule
    }

    fn peer(&mut self, peer: &NetworkPolicyPeer) -> Peer {
        if let Some(block) = &peer.ip_block {
            let Ok(net) = block.cidr.parse::<IpNet>() else { return nobody() };
            let except = block.except.iter().flatten().filter_map(|text| text.parse().ok()).collect();
            return Peer::Block { net: net.trunc(), except };
        }
        if peer.pod_selector.is_none() && peer.namespace_selector.is_none() {
            return nobody();
        }
        let group = group_name(self.namespace, peer);
        if !self.plan.groups.contains_key(&group) {
            let addresses = self.members(peer);
            self.plan.groups.insert(group.clone(), addresses);
        }
        Peer::Group(group)
    }

    fn members(&self, peer: &NetworkPolicyPeer) -> BTreeSet<IpAddr> {
        let pods = peer.pod_selector.as_ref().map(Wanted::new);
        let namespaces = peer.namespace_selector.as_ref().map(Wanted::new);
        let none = Labels::new();
        let is_member = |pod: &&Member| {
            let of_namespace = match &namespaces {
                None => pod.namespace == self.namespace,
                Some(wanted) => wanted.matches(self.view.namespaces.get(&pod.namespace).unwrap_or(&none)),
            };
            of_namespace && pods.as_ref().is_none_or(|wanted| wanted.matches(&pod.labels))
        };
        self.pods.iter().filter(is_member).flat_map(|pod| pod.addresses.iter().copied()).collect()
    }

    fn port(&mut self, port: &NetworkPolicyPort) -> Option<Port> {
        let protocol = Protocol::parse(port.protocol.as_deref())?;
        let number = |number: i32| u16::try_from(number).ok();
        Some(match (&port.port, port.end_port) {
            (None, _) => Port::All(protocol),
            (Some(IntOrString::Int(first)), None) => Port::Range(protocol, number(*first)?, number(*first)?),
            (Some(IntOrString::Int(first)), Some(last)) => Port::Range(protocol, number(*first)?, number(last)?),
            (Some(IntOrString::String(name)), _) => {
                let places = self.pods.iter().flat_map(|pod| {
                    let numbers = pod.ports.iter().filter(|(n, p, _)| n == name && *p == protocol).map(|port| port.2);
                    numbers.flat_map(|number| pod.addresses.iter().map(move |address| (*address, number)))
                });
                let places: BTreeSet<_> = places.collect();
                self.plan.named.insert((name.clone(), protocol), places);
                Port::Named(protocol, name.clone())
            }
        })
    }
}

/// A peer that is nobody.
fn nobody() -> Peer {
    Peer::Block { net: IpNet::V4(ipnet::Ipv4Net::default()), except: vec![IpNet::V4(ipnet::Ipv4Net::default())] }
}

/// The text that two peers share when they select the same pods for the same reason.
fn group_name(namespace: &str, peer: &NetworkPolicyPeer) -> String {
    let text = |selector: &Option<LabelSelector>| serde_json::to_string(selector).unwrap_or_default();
    match &peer.namespace_selector {
        // The policy's own namespace matters only where no namespace is selected.
        None => format!("{namespace} {}", text(&peer.pod_selector)),
        Some(_) => format!("{} {}", text(&peer.namespace_selector), text(&peer.pod_selector)),
    }
}
