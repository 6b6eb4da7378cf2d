//! Disk space that a pod takes beyond its limits: of emptyDir volumes and of containers, for which it is evicted.

use std::collections::BTreeMap;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, PodSpec};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, openat, statat};

use crate::resources::{limit, value};

const RESOURCE: &str = "ephemeral-storage";
/// A tree deeper than this is counted to here only: its depth is the container's choice, the stack is ours.
const DEPTH: usize = 200;

/// Bytes by name.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    /// emptyDir volumes on disk.
    pub(crate) volumes: BTreeMap<String, i64>,
    /// Writable layers and logs.
    pub(crate) containers: BTreeMap<String, i64>,
}

/// True when there is a limit to watch.
pub(crate) fn is_limited(spec: &PodSpec) -> bool {
    disk_volumes(spec).any(|(_, source)| source.size_limit.is_some()) || has_container_limits(spec)
}

pub(crate) fn has_container_limits(spec: &PodSpec) -> bool {
    spec.containers.iter().any(|container| limit(container, RESOURCE).is_some())
}

/// The emptyDir volumes that lie on the disk.
pub(crate) fn disk_volumes(spec: &PodSpec) -> impl Iterator<Item = (&str, &EmptyDirVolumeSource)> {
    let all = spec.volumes.iter().flatten();
    let empty = all.filter_map(|volume| Some((volume.name.as_str(), volume.empty_dir.as_ref()?)));
    empty.filter(|(_, source)| source.medium.as_deref().unwrap_or_default().is_empty())
}

/// Why the pod must go, if it must.
pub(crate) fn excess(spec: &PodSpec, usage: &Usage) -> Option<String> {
    let over = |used: i64, limit: &Quantity| value(limit).is_some_and(|limit| limit > 0 && used > limit);
    for (name, source) in disk_volumes(spec) {
        let used = usage.volumes.get(name).copied().unwrap_or(0);
        if let Some(limit) = source.size_limit.as_ref().filter(|limit| over(used, limit)) {
            return Some(format!("Usage of EmptyDir volume {name:?} exceeds the limit {:?}. ", limit.0));
        }
    }
    let limits = spec.containers.iter().filter_map(|container| Some((container, limit(container, RESOURCE)?)));
    let total: i64 = limits.clone().filter_map(|(_, limit)| value(limit)).sum();
    let used: i64 = usage.volumes.values().chain(usage.containers.values()).sum();
    if total > 0 && used > total {
        let mut texts = limits.clone().map(|(_, limit)| limit.0.clone());
        let total = texts.next().filter(|_| texts.next().is_none()).unwrap_or_else(|| total.to_string());
        return Some(format!("Pod ephemeral local storage usage exceeds the total limit of containers {total}. "));
    }
    for (container, limit) in limits {
        let used = usage.containers.get(&container.name).copied().unwrap_or(0);
        if over(used, limit) {
            let name = &container.name;
            return Some(format!("Container {name} exceeded its local ephemeral storage limit {:?}. ", limit.0));
        }
    }
    None
}

/// What lies in a directory, in bytes of the disk. Links are not followed, other file systems not entered; what
/// vanishes meanwhile counts nothing.
pub(crate) fn size(dir: &Path) -> i64 {
    let opened =
        openat(CWD, dir, OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty());
    opened.map_or(0, |dir| below(&dir, DEPTH))
}

fn below(dir: &OwnedFd, depth: usize) -> i64 {
    let Ok(own) = rustix::fs::fstat(dir) else { return 0 };
    let Ok(entries) = Dir::read_from(dir) else { return 0 };
    let mut total = 0;
    for entry in entries.flatten() {
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let Ok(stat) = statat(dir.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) else { continue };
        if stat.st_dev != own.st_dev {
            continue;
        }
        total += stat.st_blocks * 512;
        if FileType::from_raw_mode(stat.st_mode) == FileType::Directory && depth > 0 {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            total += openat(dir.as_fd(), name, flags, Mode::empty()).map_or(0, |child| below(&child, depth - 1));
        }
    }
    total
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(volumes: &[(&str, i64)], containers: &[(&str, i64)], expect: Option<&str>) {
        let limits = |amount: &str| json!({"limits": {"ephemeral-storage": amount}});
        let spec: PodSpec = serde_json::from_value(json!({
            "containers": [{"name": "a", "resources": limits("10")}, {"name": "b", "resources": limits("20")}, {"name": "c"}],
            "volumes": [{"name": "v", "emptyDir": {"sizeLimit": "5"}}, {"name": "free", "emptyDir": {}},
                {"name": "m", "emptyDir": {"medium": "Memory", "sizeLimit": "1"}}]}))
        .unwrap();
        assert!(is_limited(&spec));
        let own = |list: &[(&str, i64)]| list.iter().map(|(name, used)| ((*name).to_owned(), *used)).collect();
        let usage = Usage { volumes: own(volumes), containers: own(containers) };
        assert_eq!(excess(&spec, &usage).as_deref(), expect);
    }

    #[test]
    fn limits() {
        check(&[("v", 5), ("free", 10)], &[("a", 10)], None);
        check(&[("v", 6)], &[], Some("Usage of EmptyDir volume \"v\" exceeds the limit \"5\". "));
        check(&[], &[("a", 11)], Some("Container a exceeded its local ephemeral storage limit \"10\". "));
        let all = "Pod ephemeral local storage usage exceeds the total limit of containers 30. ";
        check(&[("free", 21)], &[("a", 10)], Some(all));
        assert!(!is_limited(&serde_json::from_value(json!({"containers": []})).unwrap()));
    }

    #[test]
    fn sizes_count_what_is_inside_only() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(size(&dir.path().join("none")), 0);
        let empty = size(dir.path());
        std::fs::create_dir(dir.path().join("sub")).unwrap();
        std::fs::write(dir.path().join("sub/file"), vec![1; 100_000]).unwrap();
        std::os::unix::fs::symlink("/usr", dir.path().join("out")).unwrap();
        let full = size(dir.path()) - empty;
        assert!((100_000..200_000).contains(&full), "{full}");
        assert_eq!(size(&dir.path().join("out")), 0, "a link is not a directory");
    }
}
