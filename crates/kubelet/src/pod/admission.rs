//! Pure: pods that this node refuses to run, and the words for it.

use k8s_openapi::api::core::v1::PodSpec;

/// Kernel settings that are a pod's own and harm nobody else.
const SAFE_SYSCTLS: [&str; 12] = [
    "kernel.shm_rmid_forced",
    "net.ipv4.ip_local_port_range",
    "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start",
    "net.ipv4.ping_group_range",
    "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl",
    "net.ipv4.tcp_keepalive_probes",
    "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem",
    "net.ipv4.tcp_syncookies",
    "net.ipv4.tcp_wmem",
];

/// The status' reason and message for a pod that is refused.
pub(crate) fn refusal(spec: &PodSpec) -> Option<(String, String)> {
    let sysctls = spec.security_context.as_ref().and_then(|context| context.sysctls.as_ref());
    let why = sysctls.into_iter().flatten().find_map(|sysctl| forbidden(spec, &sysctl.name))?;
    Some(("SysctlForbidden".to_owned(), format!("forbidden sysctl: {why}")))
}

fn forbidden(spec: &PodSpec, written: &str) -> Option<String> {
    // Both `net.ipv4.x` and `net/ipv4/x` are names of one setting.
    let name = written.replace('/', ".");
    if !SAFE_SYSCTLS.contains(&name.as_str()) {
        return Some(format!("{written:?} not allowlisted"));
    }
    match (name.starts_with("net."), spec.host_network, spec.host_ipc) {
        (true, Some(true), _) => Some(format!("{written:?} not allowed with host net enabled")),
        (false, _, Some(true)) => Some(format!("{written:?} not allowed with host ipc enabled")),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(sysctl: &str, host: bool, expect: Option<&str>) {
        let spec = json!({"containers": [], "hostNetwork": host, "hostIPC": host,
            "securityContext": {"sysctls": [{"name": sysctl, "value": "1"}]}});
        let found = refusal(&serde_json::from_value(spec).unwrap());
        assert_eq!(found.map(|(_, message)| message).as_deref(), expect);
    }

    #[test]
    fn sysctls() {
        check("net.ipv4.tcp_syncookies", false, None);
        check("net/ipv4/tcp_syncookies", false, None);
        check("kernel.msgmax", false, Some("forbidden sysctl: \"kernel.msgmax\" not allowlisted"));
        let net = "forbidden sysctl: \"net.ipv4.tcp_syncookies\" not allowed with host net enabled";
        check("net.ipv4.tcp_syncookies", true, Some(net));
        let ipc = "forbidden sysctl: \"kernel.shm_rmid_forced\" not allowed with host ipc enabled";
        check("kernel.shm_rmid_forced", true, Some(ipc));
    }
}
