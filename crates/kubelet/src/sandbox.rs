//! Pure: the sandbox a pod asks for, in the runtime's words.

use std::collections::{BTreeMap, HashMap};
use std::net::IpAddr;
use std::path::Path;

use cri::security_profile::ProfileType;
use k8s_openapi::api::core::v1::{Pod, PodSpec, SeccompProfile};
use rpc::cri;

use crate::fields::hostname;
use crate::resources::cgroup_parent;
use crate::runtime::label;

/// What the node adds to a pod's own wishes.
#[derive(Clone, Debug)]
pub(crate) struct Surroundings<'a> {
    pub(crate) node: &'a str,
    pub(crate) logs: &'a Path,
    pub(crate) cluster_dns: &'a [IpAddr],
    pub(crate) cluster_domain: &'a str,
    /// The node's own resolv.conf.
    pub(crate) node_dns: &'a cri::DnsConfig,
}

/// The sandbox's configuration.
pub(crate) fn config(pod: &Pod, attempt: u32, around: &Surroundings<'_>) -> cri::PodSandboxConfig {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let meta = &pod.metadata;
    let (name, namespace, uid) = names(pod);
    let mut labels: HashMap<String, String> = meta.labels.clone().unwrap_or_default().into_iter().collect();
    labels.extend(pod_labels(pod));
    let host_network = spec.host_network == Some(true);
    cri::PodSandboxConfig {
        metadata: Some(cri::PodSandboxMetadata { name, uid, namespace, attempt }),
        // On the host network the node's name is used, and runc refuses to be told one.
        hostname: if host_network { String::new() } else { full_hostname(pod, spec, around.cluster_domain) },
        log_directory: log_directory(pod, around.logs),
        dns_config: Some(dns(pod, around)),
        port_mappings: if host_network { Vec::new() } else { ports(spec) },
        labels,
        annotations: meta.annotations.clone().unwrap_or_default().into_iter().collect(),
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: cgroup_parent(around.node, pod),
            security_context: Some(security(spec)),
            sysctls: sysctls(spec),
            ..Default::default()
        }),
    }
}

/// The host name, with its domain when the pod wants that and has one.
fn full_hostname(pod: &Pod, spec: &PodSpec, domain: &str) -> String {
    let host = hostname(pod);
    let wanted = spec.set_hostname_as_fqdn == Some(true);
    match spec.subdomain.as_deref().filter(|subdomain| wanted && !subdomain.is_empty()) {
        Some(subdomain) => {
            let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
            format!("{host}.{subdomain}.{namespace}.svc.{domain}")
        }
        None => host,
    }
}

/// The labels by which sandboxes and containers of a pod are found again.
pub(crate) fn pod_labels(pod: &Pod) -> [(String, String); 3] {
    let (name, namespace, uid) = names(pod);
    [(label::POD_NAME.to_owned(), name), (label::POD_NAMESPACE.to_owned(), namespace), (label::POD_UID.to_owned(), uid)]
}

pub(crate) fn names(pod: &Pod) -> (String, String, String) {
    let meta = &pod.metadata;
    let text = |value: &Option<String>| value.clone().unwrap_or_default();
    (text(&meta.name), text(&meta.namespace), text(&meta.uid))
}

/// `<logs>/<namespace>_<name>_<uid>`.
pub(crate) fn log_directory(pod: &Pod, logs: &Path) -> String {
    let (name, namespace, uid) = names(pod);
    logs.join(format!("{namespace}_{name}_{uid}")).display().to_string()
}

/// The container's log below the pod's log directory.
pub(crate) fn log_path(name: &str, attempt: u32) -> String {
    format!("{name}/{attempt}.log")
}

/// The namespaces a pod's containers run in.
pub(crate) fn namespaces(spec: &PodSpec) -> cri::NamespaceOption {
    let node_if =
        |wanted: Option<bool>, otherwise| if wanted == Some(true) { cri::NamespaceMode::Node } else { otherwise };
    let shared = spec.share_process_namespace == Some(true);
    let pid = if shared { cri::NamespaceMode::Pod } else { cri::NamespaceMode::Container };
    cri::NamespaceOption {
        network: node_if(spec.host_network, cri::NamespaceMode::Pod) as i32,
        pid: node_if(spec.host_pid, pid) as i32,
        ipc: node_if(spec.host_ipc, cri::NamespaceMode::Pod) as i32,
        target_id: String::new(),
    }
}

fn security(spec: &PodSpec) -> cri::LinuxSandboxSecurityContext {
    let context = spec.security_context.as_ref();
    let privileged = spec
        .containers
        .iter()
        .chain(spec.init_containers.iter().flatten())
        .any(|c| c.security_context.as_ref().and_then(|s| s.privileged) == Some(true));
    let id = |value: Option<i64>| value.map(|value| cri::Int64Value { value });
    let user = id(context.and_then(|c| c.run_as_user));
    cri::LinuxSandboxSecurityContext {
        namespace_options: Some(namespaces(spec)),
        // The runtime refuses a group without a user.
        run_as_group: user.and(id(context.and_then(|c| c.run_as_group))),
        run_as_user: user,
        supplemental_groups: groups(spec),
        privileged,
        // Only the pause process runs under it.
        seccomp: Some(cri::SecurityProfile { profile_type: 0, localhost_ref: String::new() }),
        ..Default::default()
    }
}

/// The pod's supplemental groups: fsGroup and those named.
pub(crate) fn groups(spec: &PodSpec) -> Vec<i64> {
    let Some(context) = &spec.security_context else { return Vec::new() };
    context.fs_group.into_iter().chain(context.supplemental_groups.iter().flatten().copied()).collect()
}

/// A seccomp profile; none means unconfined, as the API defines.
pub(crate) fn seccomp(profile: Option<&SeccompProfile>, root: &Path) -> cri::SecurityProfile {
    let (kind, path) = match profile.map(|profile| (profile.type_.as_str(), &profile.localhost_profile)) {
        Some(("RuntimeDefault", _)) => (ProfileType::RuntimeDefault, String::new()),
        Some(("Localhost", Some(path))) => {
            (ProfileType::Localhost, root.join("seccomp").join(path).display().to_string())
        }
        _ => (ProfileType::Unconfined, String::new()),
    };
    cri::SecurityProfile { profile_type: kind as i32, localhost_ref: path }
}

fn sysctls(spec: &PodSpec) -> HashMap<String, String> {
    let context = spec.security_context.as_ref();
    let list = context.and_then(|context| context.sysctls.as_ref());
    list.into_iter().flatten().map(|sysctl| (sysctl.name.clone(), sysctl.value.clone())).collect()
}

fn ports(spec: &PodSpec) -> Vec<cri::PortMapping> {
    let all = spec.containers.iter().flat_map(|c| c.ports.iter().flatten());
    all.filter(|port| port.host_port.is_some_and(|p| p > 0))
        .map(|port| cri::PortMapping {
            protocol: match port.protocol.as_deref() {
                Some("UDP") => cri::Protocol::Udp,
                Some("SCTP") => cri::Protocol::Sctp,
                _ => cri::Protocol::Tcp,
            } as i32,
            container_port: port.container_port,
            host_port: port.host_port.unwrap_or_default(),
            host_ip: port.host_ip.clone().unwrap_or_default(),
        })
        .collect()
}

/// What goes into the pod's resolv.conf, by its dnsPolicy and dnsConfig.
pub(crate) fn dns(pod: &Pod, around: &Surroundings<'_>) -> cri::DnsConfig {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let cluster = !around.cluster_dns.is_empty()
        && match spec.dns_policy.as_deref() {
            Some("ClusterFirstWithHostNet") => true,
            Some("Default" | "None") => false,
            _ => spec.host_network != Some(true),
        };
    let mut config = if cluster {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let domain = around.cluster_domain;
        let mut searches = vec![format!("{namespace}.svc.{domain}"), format!("svc.{domain}"), domain.to_owned()];
        searches.extend(around.node_dns.searches.iter().filter(|s| *s != ".").cloned());
        cri::DnsConfig {
            servers: around.cluster_dns.iter().map(ToString::to_string).collect(),
            searches,
            options: vec!["ndots:5".to_owned()],
        }
    } else if spec.dns_policy.as_deref() == Some("None") {
        cri::DnsConfig::default()
    } else {
        around.node_dns.clone()
    };
    if let Some(extra) = &spec.dns_config {
        extend(&mut config.servers, extra.nameservers.iter().flatten());
        extend(&mut config.searches, extra.searches.iter().flatten());
        let mut options: BTreeMap<String, Option<String>> = BTreeMap::new();
        for option in &config.options {
            let (name, value) =
                option.split_once(':').map_or((option.as_str(), None), |(n, v)| (n, Some(v.to_owned())));
            options.insert(name.to_owned(), value);
        }
        for option in extra.options.iter().flatten() {
            options.insert(option.name.clone().unwrap_or_default(), option.value.clone());
        }
        config.options = options.into_iter().map(|(n, v)| v.map_or(n.clone(), |v| format!("{n}:{v}"))).collect();
    }
    config
}

fn extend<'a>(list: &mut Vec<String>, more: impl Iterator<Item = &'a String>) {
    for item in more {
        if !list.contains(item) {
            list.push(item.clone());
        }
    }
}

/// Reads a resolv.conf.
pub(crate) fn parse_resolv_conf(text: &str) -> cri::DnsConfig {
    let mut config = cri::DnsConfig::default();
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        match words.next() {
            Some("nameserver") => config.servers.extend(words.next().map(str::to_owned)),
            Some("search" | "domain") => config.searches = words.map(str::to_owned).collect(),
            Some("options") => config.options.extend(words.map(str::to_owned)),
            _ => {}
        }
    }
    config
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn check(spec: serde_json::Value, expect: (&[&str], &[&str], &[&str])) {
        let mut spec = spec;
        spec["containers"] = json!([]);
        let pod =
            serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec}))
                .unwrap();
        let node_dns = parse_resolv_conf("# x\nnameserver 192.0.2.1\nsearch corp.example\noptions edns0\n");
        let around = Surroundings {
            node: "node1",
            logs: Path::new("/logs"),
            cluster_dns: &[IpAddr::from([10, 96, 0, 10])],
            cluster_domain: "cluster.local",
            node_dns: &node_dns,
        };
        let got = dns(&pod, &around);
        assert_eq!((got.servers, got.searches, got.options), (own(expect.0), own(expect.1), own(expect.2)));
    }

    fn own(list: &[&str]) -> Vec<String> {
        list.iter().map(|item| (*item).to_owned()).collect()
    }

    #[test]
    fn dns_policies() {
        let cluster = ["ns.svc.cluster.local", "svc.cluster.local", "cluster.local", "corp.example"];
        check(json!({}), (&["10.96.0.10"], &cluster, &["ndots:5"]));
        check(json!({"hostNetwork": true}), (&["192.0.2.1"], &["corp.example"], &["edns0"]));
        check(
            json!({"hostNetwork": true, "dnsPolicy": "ClusterFirstWithHostNet"}),
            (&["10.96.0.10"], &cluster, &["ndots:5"]),
        );
        check(
            json!({"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"], "searches": ["a"], "options": [{"name": "ndots", "value": "2"}, {"name": "trust-ad"}]}}),
            (&["1.1.1.1"], &["a"], &["ndots:2", "trust-ad"]),
        );
    }
}
