//! Probes of the guest, as probes of the compute container.
//!
//! TCP and HTTP reach the guest through the pod's own address. A command, or a ping of the guest agent, goes through
//! `virt-probe`, which asks the launcher in the same container.

use api::kubevirt::v1::{Probe, VirtualMachineInstance};
use serde_json::{Value, json};

pub(super) fn translate(vmi: &VirtualMachineInstance, probe: Option<&Probe>) -> Value {
    let Some(probe) = probe else { return Value::Null };
    let mut out = json!({
        "initialDelaySeconds": probe.initial_delay_seconds,
        "timeoutSeconds": probe.timeout_seconds,
        "periodSeconds": probe.period_seconds,
        "successThreshold": probe.success_threshold,
        "failureThreshold": probe.failure_threshold,
    });
    let domain = format!(
        "{}_{}",
        vmi.metadata.namespace.as_deref().unwrap_or_default(),
        vmi.metadata.name.as_deref().unwrap_or_default()
    );
    let timeout = probe.timeout_seconds.unwrap_or(1).to_string();
    let mut command: Vec<String> =
        ["virt-probe", "--domainName", &domain, "--timeoutSeconds", &timeout].map(str::to_owned).to_vec();
    if let Some(exec) = &probe.exec {
        let words = exec.command.clone().unwrap_or_default();
        let (program, arguments) = words.split_first().map_or(("", &[][..]), |(first, rest)| (first.as_str(), rest));
        command.extend(["--command".to_owned(), program.to_owned(), "--".to_owned()]);
        command.extend(arguments.iter().cloned());
        out["exec"] = json!({ "command": command });
    } else if probe.guest_agent_ping.is_some() {
        command.push("--guestAgentPing".to_owned());
        out["exec"] = json!({ "command": command });
    } else if let Some(get) = &probe.http_get {
        out["httpGet"] = json!(get);
    } else if let Some(socket) = &probe.tcp_socket {
        out["tcpSocket"] = json!(socket);
    }
    if let Value::Object(fields) = &mut out {
        fields.retain(|_, value| !value.is_null());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(probe: Value, expect: Value) {
        let vmi = serde_json::from_value(json!({ "metadata": { "name": "vm", "namespace": "ns" } })).unwrap();
        assert_eq!(translate(&vmi, Some(&serde_json::from_value(probe).unwrap())), expect);
    }

    #[test]
    fn each_kind_of_probe() {
        check(
            json!({ "tcpSocket": { "port": 22 }, "periodSeconds": 5 }),
            json!({ "tcpSocket": { "port": 22 }, "periodSeconds": 5 }),
        );
        check(
            json!({ "exec": { "command": ["cat", "/tmp/ok"] }, "timeoutSeconds": 3 }),
            json!({ "exec": { "command": [
                "virt-probe", "--domainName", "ns_vm", "--timeoutSeconds", "3", "--command", "cat", "--", "/tmp/ok",
            ] }, "timeoutSeconds": 3 }),
        );
        check(
            json!({ "guestAgentPing": {} }),
            json!({ "exec": { "command": [
                "virt-probe", "--domainName", "ns_vm", "--timeoutSeconds", "1", "--guestAgentPing",
            ] } }),
        );
    }
}
