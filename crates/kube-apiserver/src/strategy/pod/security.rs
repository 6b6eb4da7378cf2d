//! With which rights a pod and its containers run.

use std::collections::HashSet;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Value, json};

use super::super::field::{Causes, Field, ID, Rule, check};
use super::Around;
use apimachinery::tree::{child, set};

const OF_POD: &[(&str, Rule)] = &[
    ("runAsUser", ID),
    ("runAsGroup", ID),
    ("fsGroup", ID),
    ("fsGroupChangePolicy", Rule::OneOf(&["Always", "OnRootMismatch"])),
    ("supplementalGroupsPolicy", Rule::OneOf(&["Merge", "Strict"])),
    ("seLinuxChangePolicy", Rule::OneOf(&["MountOption", "Recursive"])),
];
const OF_CONTAINER: &[(&str, Rule)] =
    &[("runAsUser", ID), ("runAsGroup", ID), ("procMount", Rule::OneOf(&["Default", "Unmasked"]))];
const PROFILES: Rule = Rule::Exactly(&["Localhost", "RuntimeDefault", "Unconfined"]);
/// What a pod of Windows cannot have.
const POD_NOT_ON_WINDOWS: [&str; 10] = [
    "appArmorProfile",
    "fsGroup",
    "fsGroupChangePolicy",
    "runAsGroup",
    "runAsUser",
    "seccompProfile",
    "seLinuxOptions",
    "supplementalGroups",
    "supplementalGroupsPolicy",
    "sysctls",
];
const CONTAINER_NOT_ON_WINDOWS: [&str; 10] = [
    "allowPrivilegeEscalation",
    "appArmorProfile",
    "capabilities",
    "privileged",
    "procMount",
    "readOnlyRootFilesystem",
    "runAsGroup",
    "runAsUser",
    "seLinuxOptions",
    "seccompProfile",
];
const NOT_ON_WINDOWS: Rule = Rule::Absent("cannot be set for a windows pod");
const NOT_ON_LINUX: Rule = Rule::Absent("windows options cannot be set for a linux pod");

/// Sysctls whose names a pod in the node's network or IPC namespace may not set: they are the node's.
const OF_NETWORK: &str = "net.";
const OF_IPC: [&str; 3] = ["kernel.shm", "kernel.msg", "fs.mqueue."];
const OF_IPC_ALONE: [&str; 1] = ["kernel.sem"];

/// Checks the security context of a pod.
pub(super) fn pod(spec: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    let context = spec.get("securityContext");
    check(&context, OF_POD, causes);
    context.each("supplementalGroups").for_each(|group| group.check(&ID, causes));
    profiles(&context, causes);
    sysctls(&context, spec, causes);
    if spec.get("hostPID").value == true && spec.get("shareProcessNamespace").value == true {
        let both = spec.get("shareProcessNamespace").told_as(format!("{}.shareProcessNamespace", context.path));
        both.invalid("ShareProcessNamespace and HostPID cannot both be enabled", causes);
    }
    match around.os {
        "windows" => {
            for name in POD_NOT_ON_WINDOWS {
                let field = context.get(name);
                if field.is_set() {
                    field.check(&NOT_ON_WINDOWS, causes);
                }
            }
            for name in ["hostPID", "hostIPC", "shareProcessNamespace"] {
                if spec.get(name).value == true {
                    spec.get(name).told_as(format!("{}.{name}", context.path)).check(&NOT_ON_WINDOWS, causes);
                }
            }
        }
        "linux" => context.get("windowsOptions").check(&NOT_ON_LINUX, causes),
        _ => {}
    }
}

/// Checks the security context of a container.
pub(super) fn container(container: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    let context = container.get("securityContext");
    if !context.is_set() {
        return;
    }
    check(&context, OF_CONTAINER, causes);
    profiles(&context, causes);
    let mount = context.get("procMount");
    if mount.text() == "Unmasked" && !around.own_users {
        mount.invalid("`hostUsers` must be false to use `Unmasked`", causes);
    }
    if context.get("allowPrivilegeEscalation").value == false {
        if context.get("privileged").value == true {
            context.invalid("cannot set `allowPrivilegeEscalation` to false and `privileged` to true", causes);
        }
        if context.get("capabilities").each("add").any(|added| added.text() == "CAP_SYS_ADMIN") {
            let why = "cannot set `allowPrivilegeEscalation` to false and `capabilities.Add` CAP_SYS_ADMIN";
            context.invalid(why, causes);
        }
    }
    match around.os {
        "windows" => {
            for field in CONTAINER_NOT_ON_WINDOWS.map(|name| context.get(name)) {
                if field.is_set() {
                    field.forbidden("cannot be set for a windows pod", causes);
                }
            }
        }
        "linux" => context.get("windowsOptions").check(&NOT_ON_LINUX, causes),
        _ => {}
    }
}

fn profiles(context: &Field<'_>, causes: &mut Causes) {
    for (name, shown) in [("seccompProfile", "seccomp"), ("appArmorProfile", "AppArmor")] {
        let profile = context.get(name);
        if !profile.is_set() {
            continue;
        }
        let (kind, local) = (profile.get("type"), profile.get("localhostProfile"));
        if kind.is_empty() {
            kind.required(&format!("type is required when {name} is set"), causes);
        } else {
            kind.check(&PROFILES, causes);
        }
        if kind.text() != "Localhost" {
            if local.is_set() {
                local.invalid(&format!("can only be set when {shown} type is Localhost"), causes);
            }
        } else if local.text().trim().is_empty() {
            local.required(&format!("must be set when {shown} type is Localhost"), causes);
        } else if name == "seccompProfile" {
            super::mount::below(&local, causes);
        } else if local.text().trim() != local.text() {
            local.invalid("must not be padded with whitespace", causes);
        }
    }
}

static SYSCTL: LazyLock<Option<Regex>> =
    LazyLock::new(|| Regex::new(r"^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$").ok());

fn sysctls(context: &Field<'_>, spec: &Field<'_>, causes: &mut Causes) {
    let mut seen = HashSet::new();
    for name in context.each("sysctls").map(|sysctl| sysctl.get("name")) {
        if name.is_empty() {
            name.required("", causes);
        } else if name.text().len() > 253 || !SYSCTL.as_ref().is_some_and(|rule| rule.is_match(name.text())) {
            let why = r"must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\./])*[a-z0-9]([-_a-z0-9]*[a-z0-9])?$";
            name.invalid(why, causes);
        } else if !seen.insert(name.text()) {
            name.duplicate(causes);
        }
        let dotted = name.text().replace('/', ".");
        if dotted.starts_with(OF_NETWORK) && spec.get("hostNetwork").value == true {
            name.invalid("may not be specified when 'hostNetwork' is true", causes);
        }
        let of_ipc = OF_IPC.iter().any(|prefix| dotted.starts_with(prefix)) || OF_IPC_ALONE.contains(&dotted.as_str());
        if of_ipc && spec.get("hostIPC").value == true {
            name.invalid("may not be specified when 'hostIPC' is true", causes);
        }
    }
}

/// The prefix of annotations that name the AppArmor profile of a container.
pub(super) const APP_ARMOR: &str = "container.apparmor.security.beta.kubernetes.io/";

/// Gives each container without an AppArmor profile the one that an annotation of the pod names.
pub(super) fn take_annotations(pod: &mut Value) {
    let annotations = pod["metadata"].get("annotations").and_then(Value::as_object).cloned().unwrap_or_default();
    for (key, value) in &annotations {
        let (Some(name), Some(text)) = (key.strip_prefix(APP_ARMOR), value.as_str()) else { continue };
        let profile = match text {
            "unconfined" => json!({"type": "Unconfined"}),
            "runtime/default" => json!({"type": "RuntimeDefault"}),
            _ => match text.strip_prefix("localhost/") {
                Some(profile) => json!({"type": "Localhost", "localhostProfile": profile}),
                None => continue,
            },
        };
        for list in ["initContainers", "containers"] {
            let containers = pod["spec"].get_mut(list).and_then(Value::as_array_mut).into_iter().flatten();
            for container in containers.filter(|container| container["name"] == name) {
                set(child(container, "securityContext"), "appArmorProfile", profile.clone());
            }
        }
    }
}

/// Checks the annotations that name the AppArmor profiles of containers.
pub(super) fn annotations(metadata: &Field<'_>, spec: &Field<'_>, causes: &mut Causes) {
    for (key, value) in metadata.entries("annotations") {
        let Some(container) = key.strip_prefix(APP_ARMOR) else { continue };
        let lists = ["initContainers", "containers"];
        let mut names = lists.into_iter().flat_map(|list| spec.each(list)).map(|each| each.get("name").text());
        if !names.any(|name| name == container) {
            value.invalid_word(container, "container not found", causes);
        }
        let known = matches!(value.text(), "" | "runtime/default" | "unconfined");
        if !known && !value.text().starts_with("localhost/") {
            value.invalid(&format!("invalid AppArmor profile name: {:?}", value.text()), causes);
        }
    }
}
