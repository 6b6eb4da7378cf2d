//! Host names, words from fixed lists, probes and times.

use api::kubevirt::v1::{Probe, VirtualMachineInstanceSpec};
use kit::admission::Cause;

use super::{invalid, required};

/// An RFC 1123 label.
pub(super) fn is_label(text: &str) -> bool {
    let inner = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    !text.is_empty() && text.len() <= 63 && text.chars().all(inner) && !text.starts_with('-') && !text.ends_with('-')
}

pub(super) fn check(path: &str, spec: &VirtualMachineInstanceSpec, causes: &mut Vec<Cause>) {
    for (name, value) in [("hostname", &spec.hostname), ("subdomain", &spec.subdomain)] {
        if let Some(value) = value.as_deref().filter(|value| !value.is_empty() && !is_label(value)) {
            let field = format!("{path}.{name}");
            let message = format!(
                "{field} does not conform to the kubernetes DNS_LABEL rules : {value:?} must be at most 63 lower-case \
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
    probe(&format!("{path}.readinessProbe"), spec.readiness_probe.as_deref(), causes);
    probe(&format!("{path}.livenessProbe"), spec.liveness_probe.as_deref(), causes);
    let architecture = spec.architecture.as_deref().unwrap_or_default();
    if !architecture.is_empty() && architecture != "amd64" {
        let field = format!("{path}.architecture");
        causes.push(invalid(field, format!("unsupported architecture: {architecture}: use amd64")));
    }
}

fn probe(field: &str, probe: Option<&Probe>, causes: &mut Vec<Cause>) {
    let Some(probe) = probe else { return };
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
