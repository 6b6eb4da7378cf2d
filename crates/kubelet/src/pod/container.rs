//! Pure: a container in the runtime's words, from its spec and what was resolved for it.

use std::collections::HashMap;
use std::path::Path;

use k8s_openapi::api::core::v1::{Container, EphemeralContainer, Pod, PodSecurityContext, PodSpec, SecurityContext};
use rpc::cri;

use crate::pod::env::expand;
use crate::runtime::label;
use crate::sandbox;

const MASKED: &[&str] = &[
    "/proc/asound",
    "/proc/acpi",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/sys/firmware",
    "/sys/devices/virtual/powercap",
];
const READ_ONLY: &[&str] = &["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// Everything about one start of a container that its spec does not say.
pub(crate) struct Resolved {
    pub(crate) attempt: u32,
    /// What the runtime calls the image.
    pub(crate) image: String,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) mounts: Vec<cri::Mount>,
    pub(crate) devices: Vec<cri::Device>,
    pub(crate) annotations: HashMap<String, String>,
    pub(crate) resources: cri::LinuxContainerResources,
}

/// An ephemeral container has the fields of any other, and the name of the one it looks at.
pub(crate) fn ephemeral(container: &EphemeralContainer) -> Option<Container> {
    serde_json::from_value(serde_json::to_value(container).ok()?).ok()
}

/// The container's configuration. `root` is the kubelet's directory, where local seccomp profiles lie.
pub(crate) fn config(pod: &Pod, container: &Container, resolved: Resolved, root: &Path) -> cri::ContainerConfig {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let lookup = |name: &str| resolved.env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let words = |list: &Option<Vec<String>>| list.iter().flatten().map(|word| expand(word, &lookup)).collect();
    let mut labels = HashMap::from(sandbox::pod_labels(pod));
    labels.insert(label::CONTAINER_NAME.to_owned(), container.name.clone());
    cri::ContainerConfig {
        metadata: Some(cri::ContainerMetadata { name: container.name.clone(), attempt: resolved.attempt }),
        image: Some(cri::ImageSpec { image: resolved.image, ..Default::default() }),
        command: words(&container.command),
        args: words(&container.args),
        working_dir: container.working_dir.clone().unwrap_or_default(),
        mounts: resolved.mounts,
        devices: resolved.devices,
        labels,
        annotations: resolved.annotations,
        log_path: sandbox::log_path(&container.name, resolved.attempt),
        stdin: container.stdin == Some(true),
        stdin_once: container.stdin_once == Some(true),
        tty: container.tty == Some(true),
        linux: Some(cri::LinuxContainerConfig {
            resources: Some(resolved.resources),
            security_context: Some(security(spec, container, root)),
        }),
        envs: resolved.env.into_iter().map(|(key, value)| cri::KeyValue { key, value }).collect(),
    }
}

fn security(spec: &PodSpec, container: &Container, root: &Path) -> cri::LinuxContainerSecurityContext {
    let no_pod = PodSecurityContext::default();
    let no_own = SecurityContext::default();
    let pod = spec.security_context.as_ref().unwrap_or(&no_pod);
    let own = container.security_context.as_ref().unwrap_or(&no_own);
    let privileged = own.privileged == Some(true);
    let id = |value: Option<i64>| value.map(|value| cri::Int64Value { value });
    let user = id(own.run_as_user.or(pod.run_as_user));
    let profile = own.seccomp_profile.as_ref().or(pod.seccomp_profile.as_ref());
    let unmasked = own.proc_mount.as_deref() == Some("Unmasked") || privileged;
    let paths = |list: &[&str]| {
        if unmasked { Vec::new() } else { list.iter().map(|path| (*path).to_owned()).collect() }
    };
    // The runtime puts the kernel's prefix before every name, also before one that has it.
    let names = |list: &Option<Vec<String>>| {
        let all = list.iter().flatten().map(|name| name.strip_prefix("CAP_").unwrap_or(name).to_owned());
        all.collect::<Vec<_>>()
    };
    let capabilities = own.capabilities.as_ref().map(|wanted| cri::Capability {
        add_capabilities: names(&wanted.add),
        drop_capabilities: names(&wanted.drop),
        add_ambient_capabilities: Vec::new(),
    });
    cri::LinuxContainerSecurityContext {
        capabilities,
        privileged,
        namespace_options: Some(sandbox::namespaces(spec)),
        run_as_group: user.and(id(own.run_as_group.or(pod.run_as_group))),
        run_as_user: user,
        readonly_rootfs: own.read_only_root_filesystem == Some(true),
        supplemental_groups: sandbox::groups(spec),
        no_new_privs: own.allow_privilege_escalation == Some(false),
        masked_paths: paths(MASKED),
        readonly_paths: paths(READ_ONLY),
        seccomp: Some(if privileged { sandbox::seccomp(None, root) } else { sandbox::seccomp(profile, root) }),
        ..Default::default()
    }
}

/// Why the container may not run as the user it would run as, when it must not run as root.
pub(crate) fn root_refusal(
    spec: &PodSpec,
    container: &Container,
    image_uid: Option<i64>,
    image_user: &str,
) -> Option<String> {
    let own = container.security_context.as_ref();
    let pod = spec.security_context.as_ref();
    let must = own.and_then(|c| c.run_as_non_root).or(pod.and_then(|c| c.run_as_non_root)) == Some(true);
    if !must {
        return None;
    }
    let reason = match own.and_then(|c| c.run_as_user).or(pod.and_then(|c| c.run_as_user)) {
        Some(0) => "container's runAsUser breaks non-root policy".to_owned(),
        Some(_) => return None,
        None => match image_uid {
            Some(0) => "container has runAsNonRoot and image will run as root".to_owned(),
            Some(_) => return None,
            None if image_user.is_empty() => "container has runAsNonRoot and image will run as root".to_owned(),
            None => format!(
                "container has runAsNonRoot and image has non-numeric user ({image_user}), cannot verify user is non-root"
            ),
        },
    };
    Some(reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn parse(spec: serde_json::Value) -> PodSpec {
        serde_json::from_value(spec).unwrap()
    }

    #[test]
    fn a_restricted_container() {
        let spec = parse(
            json!({"securityContext": {"runAsUser": 107, "runAsGroup": 107, "fsGroup": 107, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}),
        );
        let got = security(&spec, &spec.containers[0], Path::new("/k"));
        assert_eq!(got.run_as_user.map(|v| v.value), Some(107));
        assert_eq!(got.supplemental_groups, [107]);
        assert!(got.no_new_privs && !got.privileged);
        assert_eq!(got.seccomp.map(|s| s.profile_type), Some(0));
        assert_eq!(got.capabilities.map(|c| c.drop_capabilities), Some(vec!["ALL".to_owned()]));
        assert_eq!(got.masked_paths.len(), MASKED.len());
    }

    #[test]
    fn capabilities_have_either_name() {
        let spec = parse(json!({"containers": [{"name": "c", "securityContext": {"capabilities":
            {"add": ["CAP_NET_ADMIN", "SYS_TIME"], "drop": ["CAP_CHOWN"]}}}]}));
        let got = security(&spec, &spec.containers[0], Path::new("/k")).capabilities.unwrap();
        assert_eq!(
            (got.add_capabilities.join(" "), got.drop_capabilities.join(" ")),
            ("NET_ADMIN SYS_TIME".into(), "CHOWN".into())
        );
    }

    #[test]
    fn non_root() {
        let spec = parse(json!({"securityContext": {"runAsNonRoot": true}, "containers": [{"name": "c"}]}));
        let refusal = |uid, user| root_refusal(&spec, &spec.containers[0], uid, user);
        assert_eq!(refusal(Some(107), ""), None);
        assert_eq!(refusal(Some(0), "").as_deref(), Some("container has runAsNonRoot and image will run as root"));
        assert!(refusal(None, "qemu").is_some_and(|text| text.contains("non-numeric user (qemu)")));
    }
}
