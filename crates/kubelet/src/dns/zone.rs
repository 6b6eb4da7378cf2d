//! The names of the cluster, by the Kubernetes DNS specification. Built as a whole from the Services; pure.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::net::IpAddr;

use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::Endpoint;

use crate::service_view::View;

/// A service record: port and the name that listens there.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Srv {
    /// Port.
    pub port: u16,
    /// Name with an address.
    pub target: String,
}

/// What a name leads to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Entry {
    /// Addresses of both families.
    pub addresses: BTreeSet<IpAddr>,
    /// Service records.
    pub services: BTreeSet<Srv>,
    /// Another name to look up instead.
    pub alias: Option<String>,
    /// Text.
    pub text: Option<String>,
}

/// All names below the cluster's domain, lower case, without the final dot.
#[derive(Clone, Debug, Default)]
pub struct Zone {
    domain: String,
    entries: HashMap<String, Entry>,
    /// Names that exist only because something lies below them.
    parents: HashSet<String>,
    reverse: HashMap<IpAddr, BTreeSet<String>>,
}

impl Zone {
    /// The zone of these Services.
    pub fn build(view: &View, domain: &str) -> Self {
        let domain = domain.trim_matches('.').to_ascii_lowercase();
        let mut zone = Self { domain: domain.clone(), ..Self::default() };
        zone.entry(format!("dns-version.{domain}")).text = Some("1.1.0".into());
        zone.parents.insert(domain.clone());
        for kind in ["svc", "pod"] {
            zone.parents.insert(format!("{kind}.{domain}"));
        }
        for service in &view.services {
            zone.add(service, view);
        }
        zone
    }

    /// The cluster's domain.
    pub fn domain(&self) -> &str {
        &self.domain
    }

    /// What lies at a name, which must be lower case and without a final dot. None: there is no such name.
    pub fn find(&self, name: &str) -> Option<Entry> {
        if let Some(entry) = self.entries.get(name) {
            return Some(entry.clone());
        }
        if self.parents.contains(name) {
            return Some(Entry::default());
        }
        self.pod(name)
    }

    /// The names of an address of a Service or of a named endpoint.
    pub fn reverse(&self, address: IpAddr) -> Option<&BTreeSet<String>> {
        self.reverse.get(&address)
    }

    /// `10-244-0-5.shop.pod.cluster.local`: the address is in the name, and every namespace is taken to exist.
    fn pod(&self, name: &str) -> Option<Entry> {
        let labels = name.strip_suffix(self.domain.as_str())?.strip_suffix(".pod.")?;
        let (dashed, namespace) = labels.split_once('.').unwrap_or(("", labels));
        if namespace.is_empty() || namespace.contains('.') {
            return None;
        }
        if dashed.is_empty() {
            return Some(Entry::default());
        }
        let v4 = dashed.replace('-', ".").parse::<IpAddr>();
        let address = v4.or_else(|_| dashed.replace('-', ":").parse::<IpAddr>()).ok()?;
        Some(Entry { addresses: BTreeSet::from([address]), ..Entry::default() })
    }

    fn entry(&mut self, name: String) -> &mut Entry {
        let mut parent = name.as_str();
        while let Some((_, rest)) = parent.split_once('.') {
            if !rest.ends_with(&self.domain) || !self.parents.insert(rest.to_owned()) {
                break;
            }
            parent = rest;
        }
        self.entries.entry(name).or_default()
    }

    fn add(&mut self, service: &Service, view: &View) {
        let (Some(spec), Some(namespace), Some(name)) =
            (&service.spec, service.metadata.namespace.as_deref(), service.metadata.name.as_deref())
        else {
            return;
        };
        let base = format!("{name}.{namespace}.svc.{}", self.domain);
        if spec.type_.as_deref() == Some("ExternalName") {
            let target = spec.external_name.as_deref().unwrap_or_default().trim_end_matches('.').to_ascii_lowercase();
            if !target.is_empty() {
                self.entry(base).alias = Some(target);
            }
            return;
        }
        let ips: Vec<IpAddr> = match &spec.cluster_ips {
            Some(list) => list.iter().filter_map(|ip| ip.parse().ok()).collect(),
            None => spec.cluster_ip.iter().filter_map(|ip| ip.parse().ok()).collect(),
        };
        if ips.is_empty() {
            let headless = spec.cluster_ip.as_deref() == Some("None")
                || spec.cluster_ips.as_ref().is_some_and(|ips| ips.iter().any(|ip| ip == "None"));
            if headless {
                self.headless(&base, namespace, name, view);
            }
            return;
        }
        for ip in ips {
            self.entry(base.clone()).addresses.insert(ip);
            self.reverse.entry(ip).or_default().insert(base.clone());
        }
        for port in spec.ports.iter().flatten() {
            let Ok(number) = u16::try_from(port.port) else { continue };
            self.srv(&base, port.name.as_deref(), port.protocol.as_deref(), Srv { port: number, target: base.clone() });
        }
    }

    fn srv(&mut self, base: &str, port: Option<&str>, protocol: Option<&str>, srv: Srv) {
        if let Some(port) = port.filter(|name| !name.is_empty()) {
            let protocol = protocol.unwrap_or("TCP").to_ascii_lowercase();
            self.entry(format!("_{port}._{protocol}.{base}")).services.insert(srv);
        }
    }

    /// Each endpoint has a name of its own: its host name, or its address with dashes.
    fn headless(&mut self, base: &str, namespace: &str, name: &str, view: &View) {
        // The name exists even while nobody is ready.
        self.entry(base.to_owned());
        for slice in view.slices_of(namespace, name) {
            for endpoint in slice.endpoints.iter().filter(|endpoint| is_ready(endpoint)) {
                for ip in endpoint.addresses.iter().filter_map(|address| address.parse::<IpAddr>().ok()) {
                    let label = endpoint.hostname.clone().unwrap_or_else(|| dashed(ip));
                    let own = format!("{}.{base}", label.to_ascii_lowercase());
                    self.entry(base.to_owned()).addresses.insert(ip);
                    self.entry(own.clone()).addresses.insert(ip);
                    self.reverse.entry(ip).or_default().insert(own.clone());
                    for port in slice.ports.iter().flatten() {
                        let Some(number) = port.port.and_then(|port| u16::try_from(port).ok()) else { continue };
                        let srv = Srv { port: number, target: own.clone() };
                        self.srv(base, port.name.as_deref(), port.protocol.as_deref(), srv);
                    }
                }
            }
        }
    }
}

fn is_ready(endpoint: &Endpoint) -> bool {
    endpoint.conditions.as_ref().and_then(|conditions| conditions.ready).unwrap_or(true)
}

fn dashed(ip: IpAddr) -> String {
    ip.to_string().replace(['.', ':'], "-")
}
