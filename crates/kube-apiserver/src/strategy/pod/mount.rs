//! Volumes in containers: mounted as directories or shown as devices.

use std::collections::HashSet;

use super::super::field::{Causes, Field, Rule};
use super::Around;

const PROPAGATIONS: &[&str] = &["Bidirectional", "HostToContainer", "None"];
const RECURSIVE: &[&str] = &["Disabled", "Enabled", "IfPossible"];

/// Checks the mounts and devices of a container.
pub(super) fn check(container: &Field<'_>, around: &Around<'_>, causes: &mut Causes) {
    let texts = |list: &str, field: &str| -> HashSet<&str> {
        container.each(list).map(|item| item.get(field).text()).collect()
    };
    let (devices, device_paths) = (texts("volumeDevices", "name"), texts("volumeDevices", "devicePath"));
    let (mounts, mount_paths) = (texts("volumeMounts", "name"), texts("volumeMounts", "mountPath"));
    let mut paths = HashSet::new();
    for mount in container.each("volumeMounts") {
        let (name, path) = (mount.get("name"), mount.get("mountPath"));
        name.check(&Rule::Needed, causes);
        if !around.volumes.contains_key(name.text()) {
            name.not_found(causes);
        }
        path.check(&Rule::Needed, causes);
        if !paths.insert(path.text()) {
            path.invalid("must be unique", causes);
        }
        if !name.is_empty() && devices.contains(name.text()) {
            name.invalid("must not already exist in volumeDevices", causes);
        }
        if !path.is_empty() && device_paths.contains(path.text()) {
            path.invalid("must not already exist as a path in volumeDevices", causes);
        }
        options(&mount, &container.get("volumeMounts"), container, causes);
    }
    let (mut names, mut paths) = (HashSet::new(), HashSet::new());
    for device in container.each("volumeDevices") {
        let (name, path) = (device.get("name"), device.get("devicePath"));
        name.check(&Rule::Needed, causes);
        if !names.insert(name.text()) {
            name.invalid("must be unique", causes);
        }
        match around.volumes.get(name.text()) {
            None => name.not_found(causes),
            Some(volume) => {
                if ["persistentVolumeClaim", "ephemeral"].iter().all(|source| volume[*source].is_null()) {
                    let why = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                    name.invalid(why, causes);
                }
            }
        }
        path.check(&Rule::Needed, causes);
        if !path.is_empty() && !paths.insert(path.text()) {
            path.invalid("must be unique", causes);
        }
        if path.text().contains("..") {
            path.invalid("can not contain backsteps ('..')", causes);
        }
        if !name.is_empty() && mounts.contains(name.text()) {
            name.invalid("must not already exist in volumeMounts", causes);
        }
        if !path.is_empty() && mount_paths.contains(path.text()) {
            path.invalid("must not already exist as a path in volumeMounts", causes);
        }
    }
}

/// How a volume is mounted. The errors name the list.
fn options(mount: &Field<'_>, list: &Field<'_>, container: &Field<'_>, causes: &mut Causes) {
    let of_list = |name: &str| mount.get(name).told_as(format!("{}.{name}", list.path));
    for path in ["subPath", "subPathExpr"] {
        below(&of_list(path), causes);
    }
    if !mount.get("subPath").is_empty() && !mount.get("subPathExpr").is_empty() {
        mount.get("subPathExpr").invalid("subPathExpr and subPath are mutually exclusive", causes);
    }
    let propagation = of_list("mountPropagation");
    propagation.check(&Rule::OneOf(PROPAGATIONS), causes);
    let privileged = container.get("securityContext").get("privileged").value == true;
    if propagation.text() == "Bidirectional" && !privileged {
        let why = "Bidirectional mount propagation is available only to privileged containers";
        propagation.forbidden(why, causes);
    }
    let recursive = of_list("recursiveReadOnly");
    recursive.check(&Rule::OneOf(RECURSIVE), causes);
    if matches!(recursive.text(), "Enabled" | "IfPossible") {
        if mount.get("readOnly").value != true {
            recursive.forbidden("may only be specified when readOnly is true", causes);
        }
        if !matches!(propagation.text(), "" | "None") {
            recursive.forbidden("may only be specified when mountPropagation is None or not specified", causes);
        }
    }
}

/// A path that stays below where it begins.
pub(super) fn below(path: &Field<'_>, causes: &mut Causes) {
    if path.text().starts_with('/') {
        path.invalid("must be a relative path", causes);
    }
    no_backsteps(path, causes);
}

pub(super) fn no_backsteps(path: &Field<'_>, causes: &mut Causes) {
    if path.text().split('/').any(|part| part == "..") {
        path.invalid("must not contain '..'", causes);
    }
}

/// A path of a file within a volume; names that begin with two dots are the kubelet's own.
pub(super) fn in_volume(path: &Field<'_>, causes: &mut Causes) {
    below(path, causes);
    if path.text().starts_with("..") && !path.text().starts_with("../") {
        path.invalid("must not start with '..'", causes);
    }
}
