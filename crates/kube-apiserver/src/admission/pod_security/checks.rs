//! The checks themselves, one function each, in the order in which upstream lists violations.

use serde_json::Value;

use apimachinery::pointer::{items, strings, text};

use super::Level;

type Check = fn(&Value) -> Option<String>;

const BASELINE: [Check; 12] = [
    host_namespaces,
    privileged,
    capabilities_baseline,
    host_path,
    host_ports,
    probe_hosts,
    app_armor,
    selinux,
    proc_mount,
    seccomp_baseline,
    sysctls,
    windows_host_process,
];
/// Baseline without the two checks that have a restricted form.
const SHARED: [Check; 10] = [
    host_namespaces,
    privileged,
    host_path,
    host_ports,
    probe_hosts,
    app_armor,
    selinux,
    proc_mount,
    sysctls,
    windows_host_process,
];
const RESTRICTED: [Check; 6] =
    [privilege_escalation, capabilities_restricted, volume_types, run_as_non_root, run_as_user, seccomp_restricted];

/// What is wrong with a pod (or template) at a level; empty when nothing is.
#[must_use]
pub fn violations(pod: &Value, level: Level) -> Vec<String> {
    let run = |checks: &[Check]| checks.iter().filter_map(|check| check(pod)).collect::<Vec<_>>();
    match level {
        Level::Privileged => Vec::new(),
        Level::Baseline => run(&BASELINE),
        Level::Restricted => {
            let mut all = run(&SHARED);
            all.extend(run(&RESTRICTED));
            all
        }
    }
}

fn containers(pod: &Value) -> impl Iterator<Item = &Value> {
    ["/spec/initContainers", "/spec/containers", "/spec/ephemeralContainers"].into_iter().flat_map(|p| items(pod, p))
}

fn windows(pod: &Value) -> bool {
    text(pod, "/spec/os/name") == "windows"
}

fn names<'a>(list: impl IntoIterator<Item = &'a Value>) -> Vec<String> {
    list.into_iter().map(|c| format!("{:?}", text(c, "/name"))).collect()
}

fn plural(word: &str, count: usize) -> String {
    if count == 1 { word.to_owned() } else { format!("{word}s") }
}

fn quoted(list: &[String]) -> String {
    list.iter().map(|x| format!("{x:?}")).collect::<Vec<_>>().join(", ")
}

fn offending(pod: &Value, bad: impl Fn(&Value) -> bool) -> Vec<String> {
    names(containers(pod).filter(|c| bad(c)))
}

fn host_namespaces(pod: &Value) -> Option<String> {
    let set: Vec<String> = ["hostNetwork", "hostPID", "hostIPC"]
        .into_iter()
        .filter(|f| pod.pointer(&format!("/spec/{f}")).and_then(Value::as_bool) == Some(true))
        .map(|f| format!("{f}=true"))
        .collect();
    (!set.is_empty()).then(|| format!("host namespaces ({})", set.join(", ")))
}

fn privileged(pod: &Value) -> Option<String> {
    let bad = offending(pod, |c| c.pointer("/securityContext/privileged").and_then(Value::as_bool) == Some(true));
    (!bad.is_empty()).then(|| {
        format!(
            "privileged ({} {} must not set securityContext.privileged=true)",
            plural("container", bad.len()),
            bad.join(", ")
        )
    })
}

const BASELINE_CAPABILITIES: [&str; 14] = [
    "AUDIT_WRITE",
    "CHOWN",
    "DAC_OVERRIDE",
    "FOWNER",
    "FSETID",
    "KILL",
    "MKNOD",
    "NET_BIND_SERVICE",
    "SETFCAP",
    "SETGID",
    "SETPCAP",
    "SETUID",
    "SYS_CHROOT",
    "",
];

fn added(container: &Value) -> Vec<String> {
    strings(container, "/securityContext/capabilities/add")
}

fn sorted_set(mut list: Vec<String>) -> Vec<String> {
    list.sort();
    list.dedup();
    list
}

fn capabilities_baseline(pod: &Value) -> Option<String> {
    let outside =
        |c: &Value| added(c).into_iter().filter(|a| !BASELINE_CAPABILITIES.contains(&a.as_str())).collect::<Vec<_>>();
    let bad = offending(pod, |c| !outside(c).is_empty());
    if bad.is_empty() {
        return None;
    }
    let wrong = sorted_set(containers(pod).flat_map(outside).collect());
    Some(format!(
        "non-default capabilities ({} {} must not include {} in securityContext.capabilities.add)",
        plural("container", bad.len()),
        bad.join(", "),
        quoted(&wrong)
    ))
}

fn host_path(pod: &Value) -> Option<String> {
    let bad = names(items(pod, "/spec/volumes").iter().filter(|v| v.get("hostPath").is_some_and(|h| !h.is_null())));
    (!bad.is_empty()).then(|| format!("hostPath volumes ({} {})", plural("volume", bad.len()), bad.join(", ")))
}

/// The kubelet asks from the node, so that a host named here is reached with the node's means.
fn probe_hosts(pod: &Value) -> Option<String> {
    const HANDLERS: [&str; 5] =
        ["livenessProbe", "readinessProbe", "startupProbe", "lifecycle/postStart", "lifecycle/preStop"];
    let of = |container: &Value| -> Vec<String> {
        let paths =
            HANDLERS.iter().flat_map(|handler| ["httpGet", "tcpSocket"].map(|how| format!("/{handler}/{how}/host")));
        paths.map(|path| text(container, &path).to_owned()).filter(|host| !host.is_empty()).collect()
    };
    let bad = sorted_set(offending(pod, |c| !of(c).is_empty()));
    let hosts = sorted_set(containers(pod).flat_map(of).collect());
    let verb = if bad.len() == 1 { "uses" } else { "use" };
    (!bad.is_empty()).then(|| {
        format!(
            "probe or lifecycle host ({} {} {verb} {} {})",
            plural("container", bad.len()),
            bad.join(", "),
            plural("probe or lifecycle host", hosts.len()),
            quoted(&hosts)
        )
    })
}

fn host_ports(pod: &Value) -> Option<String> {
    let of = |c: &Value| {
        items(c, "/ports")
            .iter()
            .filter_map(|p| p.get("hostPort").and_then(Value::as_i64))
            .filter(|p| *p != 0)
            .collect::<Vec<_>>()
    };
    let bad = offending(pod, |c| !of(c).is_empty());
    if bad.is_empty() {
        return None;
    }
    let ports: std::collections::BTreeSet<String> = containers(pod).flat_map(of).map(|p| p.to_string()).collect();
    let list = ports.iter().cloned().collect::<Vec<_>>().join(", ");
    let verb = if bad.len() == 1 { "uses" } else { "use" };
    Some(format!(
        "hostPort ({} {} {verb} {} {list})",
        plural("container", bad.len()),
        bad.join(", "),
        plural("hostPort", ports.len())
    ))
}

fn app_armor(pod: &Value) -> Option<String> {
    let mut wrong: Vec<String> = Vec::new();
    let annotations = pod.pointer("/metadata/annotations").and_then(Value::as_object);
    for (key, value) in annotations.into_iter().flatten() {
        let profile = value.as_str().unwrap_or_default();
        if key.starts_with("container.apparmor.security.beta.kubernetes.io/")
            && !(profile.is_empty() || profile == "runtime/default" || profile.starts_with("localhost/"))
        {
            wrong.push(format!("{key}={profile:?}"));
        }
    }
    wrong.sort();
    let unconfined = |v: &Value| text(v, "/securityContext/appArmorProfile/type") == "Unconfined";
    let bad = offending(pod, unconfined);
    if pod.get("spec").is_some_and(unconfined) {
        wrong.push("pod must not set AppArmor profile type to \"Unconfined\"".to_owned());
    }
    if !bad.is_empty() {
        wrong.push(format!(
            "{} {} must not set AppArmor profile type to \"Unconfined\"",
            plural("container", bad.len()),
            bad.join(", ")
        ));
    }
    (!wrong.is_empty()).then(|| format!("forbidden AppArmor {} ({})", plural("profile", wrong.len()), wrong.join(", ")))
}

fn selinux(pod: &Value) -> Option<String> {
    const TYPES: [&str; 5] = ["", "container_t", "container_init_t", "container_kvm_t", "container_engine_t"];
    let options = |v: &Value| v.pointer("/securityContext/seLinuxOptions").cloned().unwrap_or_default();
    let wrong = |v: &Value| {
        let o = options(v);
        !TYPES.contains(&text(&o, "/type")) || !text(&o, "/user").is_empty() || !text(&o, "/role").is_empty()
    };
    let mut who = Vec::new();
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    if wrong(spec) {
        who.push("pod".to_owned());
    }
    let bad = offending(pod, wrong);
    if !bad.is_empty() {
        who.push(format!("{} {}", plural("container", bad.len()), bad.join(", ")));
    }
    if who.is_empty() {
        return None;
    }
    let mut facts = Vec::new();
    let all: Vec<Value> = std::iter::once(options(spec)).chain(containers(pod).map(options)).collect();
    let types: Vec<String> =
        sorted_set(all.iter().map(|o| text(o, "/type").to_owned()).filter(|t| !TYPES.contains(&t.as_str())).collect());
    if !types.is_empty() {
        facts.push(format!("{} {}", plural("type", types.len()), quoted(&types)));
    }
    if all.iter().any(|o| !text(o, "/user").is_empty()) {
        facts.push("user may not be set".to_owned());
    }
    if all.iter().any(|o| !text(o, "/role").is_empty()) {
        facts.push("role may not be set".to_owned());
    }
    Some(format!(
        "seLinuxOptions ({} set forbidden securityContext.seLinuxOptions: {})",
        who.join(" and "),
        facts.join("; ")
    ))
}

fn proc_mount(pod: &Value) -> Option<String> {
    let kind = |c: &Value| text(c, "/securityContext/procMount").to_owned();
    let wrong = |c: &Value| !matches!(kind(c).as_str(), "" | "Default");
    let bad = offending(pod, wrong);
    if bad.is_empty() {
        return None;
    }
    let kinds = sorted_set(containers(pod).filter(|c| wrong(c)).map(kind).collect());
    Some(format!(
        "procMount ({} {} must not set securityContext.procMount to {})",
        plural("container", bad.len()),
        bad.join(", "),
        quoted(&kinds)
    ))
}

fn seccomp_type(value: &Value) -> &str {
    text(value, "/securityContext/seccompProfile/type")
}

fn seccomp_baseline(pod: &Value) -> Option<String> {
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let mut who = Vec::new();
    if seccomp_type(spec) == "Unconfined" {
        who.push("pod".to_owned());
    }
    let bad = offending(pod, |c| seccomp_type(c) == "Unconfined");
    if !bad.is_empty() {
        who.push(format!("{} {}", plural("container", bad.len()), bad.join(", ")));
    }
    (!who.is_empty()).then(|| {
        format!(
            "seccompProfile ({} must not set securityContext.seccompProfile.type to \"Unconfined\")",
            who.join(" and ")
        )
    })
}

fn sysctls(pod: &Value) -> Option<String> {
    const SAFE: [&str; 10] = [
        "kernel.shm_rmid_forced",
        "net.ipv4.ip_local_port_range",
        "net.ipv4.tcp_syncookies",
        "net.ipv4.ping_group_range",
        "net.ipv4.ip_unprivileged_port_start",
        "net.ipv4.ip_local_reserved_ports",
        "net.ipv4.tcp_keepalive_time",
        "net.ipv4.tcp_fin_timeout",
        "net.ipv4.tcp_keepalive_intvl",
        "net.ipv4.tcp_keepalive_probes",
    ];
    let listed = items(pod, "/spec/securityContext/sysctls").iter().map(|s| text(s, "/name"));
    let bad: Vec<&str> = listed.filter(|n| !SAFE.contains(n)).collect();
    (!bad.is_empty()).then(|| format!("forbidden sysctls ({})", bad.join(", ")))
}

fn windows_host_process(pod: &Value) -> Option<String> {
    let set =
        |v: &Value| v.pointer("/securityContext/windowsOptions/hostProcess").and_then(Value::as_bool) == Some(true);
    let mut who = Vec::new();
    if pod.get("spec").is_some_and(set) {
        who.push("pod".to_owned());
    }
    let bad = offending(pod, set);
    if !bad.is_empty() {
        who.push(format!("{} {}", plural("container", bad.len()), bad.join(", ")));
    }
    (!who.is_empty()).then(|| {
        format!("hostProcess ({} must not set securityContext.windowsOptions.hostProcess=true)", who.join(" and "))
    })
}

fn privilege_escalation(pod: &Value) -> Option<String> {
    if windows(pod) {
        return None;
    }
    let bad = offending(pod, |c| {
        c.pointer("/securityContext/allowPrivilegeEscalation").and_then(Value::as_bool) != Some(false)
    });
    (!bad.is_empty()).then(|| {
        format!(
            "allowPrivilegeEscalation != false ({} {} must set securityContext.allowPrivilegeEscalation=false)",
            plural("container", bad.len()),
            bad.join(", ")
        )
    })
}

fn capabilities_restricted(pod: &Value) -> Option<String> {
    if windows(pod) {
        return None;
    }
    let undropped = offending(pod, |c| !strings(c, "/securityContext/capabilities/drop").iter().any(|d| d == "ALL"));
    let wrong = |c: &Value| added(c).into_iter().filter(|a| a != "NET_BIND_SERVICE").collect::<Vec<_>>();
    let adding = offending(pod, |c| !wrong(c).is_empty());
    let mut parts = Vec::new();
    if !undropped.is_empty() {
        parts.push(format!(
            "{} {} must set securityContext.capabilities.drop=[\"ALL\"]",
            plural("container", undropped.len()),
            undropped.join(", ")
        ));
    }
    if !adding.is_empty() {
        let list = sorted_set(containers(pod).flat_map(wrong).collect());
        parts.push(format!(
            "{} {} must not include {} in securityContext.capabilities.add",
            plural("container", adding.len()),
            adding.join(", "),
            quoted(&list)
        ));
    }
    (!parts.is_empty()).then(|| format!("unrestricted capabilities ({})", parts.join("; ")))
}

fn volume_types(pod: &Value) -> Option<String> {
    const ALLOWED: [&str; 8] =
        ["configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "persistentVolumeClaim", "projected", "secret"];
    let kind = |v: &Value| {
        let fields = v.as_object().into_iter().flatten();
        fields.filter(|(k, x)| *k != "name" && !x.is_null()).map(|(k, _)| k.clone()).next()
    };
    let bad: Vec<&Value> = items(pod, "/spec/volumes")
        .iter()
        .filter(|v| kind(v).is_some_and(|k| !ALLOWED.contains(&k.as_str())))
        .collect();
    if bad.is_empty() {
        return None;
    }
    let kinds = sorted_set(bad.iter().filter_map(|v| kind(v)).collect());
    let verb = if bad.len() == 1 { "uses" } else { "use" };
    Some(format!(
        "restricted volume types ({} {} {verb} restricted volume {} {})",
        plural("volume", bad.len()),
        names(bad.iter().copied()).join(", "),
        plural("type", kinds.len()),
        quoted(&kinds)
    ))
}

fn run_as_non_root(pod: &Value) -> Option<String> {
    let set = |v: &Value| v.pointer("/securityContext/runAsNonRoot").and_then(Value::as_bool);
    let pod_level = pod.get("spec").and_then(set);
    let explicit = offending(pod, |c| set(c) == Some(false));
    let implicit = offending(pod, |c| set(c).is_none() && pod_level != Some(true));
    let mut who = Vec::new();
    if pod_level == Some(false) {
        who.push("pod".to_owned());
    }
    if !explicit.is_empty() {
        who.push(format!("{} {}", plural("container", explicit.len()), explicit.join(", ")));
    }
    if !who.is_empty() {
        return Some(format!(
            "runAsNonRoot != true ({} must not set securityContext.runAsNonRoot=false)",
            who.join(" and ")
        ));
    }
    (!implicit.is_empty()).then(|| {
        format!(
            "runAsNonRoot != true (pod or {} {} must set securityContext.runAsNonRoot=true)",
            plural("container", implicit.len()),
            implicit.join(", ")
        )
    })
}

fn run_as_user(pod: &Value) -> Option<String> {
    let root = |v: &Value| v.pointer("/securityContext/runAsUser").and_then(Value::as_i64) == Some(0);
    let mut who = Vec::new();
    if pod.get("spec").is_some_and(root) {
        who.push("pod".to_owned());
    }
    let bad = offending(pod, root);
    if !bad.is_empty() {
        who.push(format!("{} {}", plural("container", bad.len()), bad.join(", ")));
    }
    (!who.is_empty()).then(|| format!("runAsUser=0 ({} must not set runAsUser=0)", who.join(" and ")))
}

fn seccomp_restricted(pod: &Value) -> Option<String> {
    if windows(pod) {
        return None;
    }
    let good = |t: &str| matches!(t, "RuntimeDefault" | "Localhost");
    let spec = pod.get("spec").unwrap_or(&Value::Null);
    let pod_level = seccomp_type(spec);
    let explicit = offending(pod, |c| !seccomp_type(c).is_empty() && !good(seccomp_type(c)));
    let mut who = Vec::new();
    if !pod_level.is_empty() && !good(pod_level) {
        who.push("pod".to_owned());
    }
    if !explicit.is_empty() {
        who.push(format!("{} {}", plural("container", explicit.len()), explicit.join(", ")));
    }
    if !who.is_empty() {
        let kind = containers(pod)
            .map(seccomp_type)
            .chain([pod_level])
            .find(|t| !t.is_empty() && !good(t))
            .unwrap_or_default();
        return Some(format!(
            "seccompProfile ({} must not set securityContext.seccompProfile.type to {kind:?})",
            who.join(" and ")
        ));
    }
    let implicit = offending(pod, |c| seccomp_type(c).is_empty() && !good(pod_level));
    (!implicit.is_empty()).then(|| {
        format!(
            "seccompProfile (pod or {} {} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
            plural("container", implicit.len()),
            implicit.join(", ")
        )
    })
}
