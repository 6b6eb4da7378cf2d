//! Host names, words from fixed lists, probes and times.

use api::kubevirt::v1::{Probe, VirtualMachineInstanceSpec};
use kit::admission::Cause;

use super::{invalid, required, unserved};

/// An RFC 1123 label.
pub(super) fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.len() <= 63 && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// An RFC 1123 subdomain, as most names are.
pub(super) fn is_subdomain(text: &str) -> bool {
    // Parts may be as long as the whole.
    let part = |part: &str| {
        let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
        !part.is_empty() && part.chars().all(inner) && !part.starts_with('-') && !part.ends_with('-')
    };
    text.len() <= 253 && text.split('.').all(part)
}

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    for (name, value, rules) in
        [("hostname", &spec.hostname, "DNS_LABEL"), ("subdomain", &spec.subdomain, "DNS_SUBDOMAIN")]
    {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty() && !is_label(value)) {
            let field = format!("{path}.{name}");
            let message = format!(
                "{field} does not conform to the kubernetes {rules} rules : {value:?} must be at most 63 lower-case \
                 letters, digits and '-', and begin and end with a letter or digit"
            );
            causes.push(invalid(field, message));
        }
    }
    let words: [(&str, Option<&str>, &[&str]); 3] = [
        (
            "evictionStrategy",
            spec.eviction_strategy.as_deref(),
            &["None", "LiveMigrate", "LiveMigrateIfPossible", "External"],
        ),
        ("startStrategy", spec.start_strategy.as_deref(), &["Paused"]),
        ("dnsPolicy", spec.dns_policy.as_deref(), &["ClusterFirst", "ClusterFirstWithHostNet", "Default", "None"]),
    ];
    for (name, value, known) in words {
        if let Some(value) = value.filter(|value| !value.is_empty() && !known.contains(value)) {
            let field = format!("{path}.{name}");
            let message =
                format!("{field} is set with an unrecognized option: {value}: use one of {}", known.join(", "));
            causes.push(invalid(field, message));
        }
    }
    if spec.termination_grace_period_seconds.is_some_and(|seconds| seconds < 0) {
        let field = format!("{path}.terminationGracePeriodSeconds");
        causes.push(invalid(field.clone(), format!("{field} must be greater than or equal to 0")));
    }
    let reachable = spec.networks.is_empty() && spec.domain.devices.autoattach_pod_interface != Some(false)
        || spec.networks.iter().any(|network| network.pod.is_some());
    for (name, found) in [("readinessProbe", &spec.readiness_probe), ("livenessProbe", &spec.liveness_probe)] {
        probe(&format!("{path}.{name}"), found.as_deref(), reachable, causes);
    }
    if spec.start_strategy.as_deref() == Some("Paused") && spec.liveness_probe.is_some() {
        let field = format!("{path}.startStrategy");
        let message = format!(
            "either {field} or {path}.livenessProbe should be provided.Pausing VMI with LivenessProbe is not supported"
        );
        causes.push(invalid(field, message));
    }
    let servers = spec.dns_config.as_ref().and_then(|config| config.nameservers.as_ref()).map_or(0, Vec::len);
    if spec.dns_policy.as_deref() == Some("None") && servers == 0 {
        let field = format!("{path}.dnsConfig");
        let message = if spec.dns_config.is_none() {
            "must provide `dnsConfig` when `dnsPolicy` is None".to_owned()
        } else {
            "must provide at least one DNS nameserver when `dnsPolicy` is None".to_owned()
        };
        causes.push(required(field, message));
    }
    let architecture = spec.architecture.as_deref().unwrap_or_default();
    if !architecture.is_empty() && architecture != "amd64" {
        let field = format!("{path}.architecture");
        causes.push(invalid(field, format!("unsupported architecture: {architecture}: use amd64")));
    }
}

fn probe(field: &str, probe: Option<&Probe>, reachable: bool, causes: &mut Vec<Cause>) {
    let Some(probe) = probe else { return };
    for (name, set) in [("httpGet", probe.http_get.is_some()), ("tcpSocket", probe.tcp_socket.is_some())] {
        if set && !reachable {
            let place = format!("{field}.{name}");
            causes.push(invalid(place.clone(), format!("{place} is only allowed if the Pod Network is attached")));
        }
    }
    // The node's agent would be the one to connect, with what it reaches and the user does not.
    let hosts = [
        ("httpGet", probe.http_get.as_ref().and_then(|get| get.host.as_deref())),
        ("tcpSocket", probe.tcp_socket.as_ref().and_then(|socket| socket.host.as_deref())),
    ];
    for (name, _) in hosts.into_iter().filter(|(_, host)| host.is_some_and(|host| !host.is_empty())) {
        let why = "a probe is of the guest itself: leave the host out";
        causes.push(unserved(format!("{field}.{name}.host"), why));
    }
    let kinds =
        [probe.tcp_socket.is_some(), probe.exec.is_some(), probe.http_get.is_some(), probe.guest_agent_ping.is_some()];
    match kinds.iter().filter(|set| **set).count() {
        1 => {}
        0 => causes.push(required(
            field.to_owned(),
            format!("either {field}.tcpSocket, {field}.exec, {field}.httpGet or {field}.guestAgentPing must be set if a {field} is specified"),
        )),
        _ => causes.push(invalid(field.to_owned(), format!("{field} must have exactly one probe type set"))),
    }
}
