//! Control groups, versions 1, 2 and the two side by side: where they are, who is in them, making and removing them.
//!
//! A group is named by one relative path, `ferrovirt/node1`, and exists under that path in every hierarchy.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::{Result, at};

/// One line of `/proc/<pid>/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Version 1 controllers (`memory`, `cpu,cpuacct`, `name=systemd`); empty for version 2.
    pub controllers: Vec<String>,
    /// The group's path within its hierarchy.
    pub path: String,
}

/// Reads `/proc/<pid>/cgroup`; malformed lines are skipped.
pub fn parse_memberships(text: &str) -> Vec<Membership> {
    text.lines()
        .filter_map(|line| {
            let mut fields = line.splitn(3, ':').skip(1);
            let controllers = fields.next()?.split(',').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            Some(Membership { controllers, path: fields.next()?.to_owned() })
        })
        .collect()
}

/// A mounted hierarchy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hierarchy {
    /// Where it is mounted.
    pub mount: PathBuf,
    /// Its version 1 options; None for version 2.
    pub options: Option<String>,
}

const V1_CONTROLLERS: [&str; 13] = [
    "cpu",
    "cpuacct",
    "cpuset",
    "memory",
    "devices",
    "freezer",
    "blkio",
    "pids",
    "perf_event",
    "hugetlb",
    "net_cls",
    "net_prio",
    "rdma",
];

/// The hierarchies in a mountinfo table, each once.
pub fn parse_hierarchies(mountinfo: &str) -> Vec<Hierarchy> {
    let mut found: Vec<Hierarchy> = Vec::new();
    for line in mountinfo.lines() {
        let Some((mount, filesystem)) = line.split_once(" - ") else { continue };
        let Some(point) = mount.split(' ').nth(4) else { continue };
        let mut filesystem = filesystem.split(' ');
        let options = match filesystem.next() {
            Some("cgroup2") => None,
            Some("cgroup") => {
                let all = filesystem.nth(1).unwrap_or_default();
                let own = |option: &&str| option.starts_with("name=") || V1_CONTROLLERS.contains(option);
                Some(all.split(',').filter(own).collect::<Vec<_>>().join(","))
            }
            _ => continue,
        };
        if !found.iter().any(|known| known.options == options) {
            found.push(Hierarchy { mount: point.into(), options });
        }
    }
    found
}

/// The hierarchies mounted in this mount namespace.
pub fn hierarchies() -> Result<Vec<Hierarchy>> {
    read_hierarchies(Path::new("/proc/self/mountinfo"))
}

/// The hierarchies as the first process of this PID namespace has them mounted, each where it is reached from here.
/// Containers have their own group only.
pub fn hierarchies_of_first() -> Result<Vec<Hierarchy>> {
    let first = Path::new("/proc/1");
    let reached = |hierarchy: Hierarchy| {
        let mount = first.join("root").join(hierarchy.mount.strip_prefix("/").unwrap_or(&hierarchy.mount));
        Hierarchy { mount, ..hierarchy }
    };
    Ok(read_hierarchies(&first.join("mountinfo"))?.into_iter().map(reached).collect())
}

fn read_hierarchies(table: &Path) -> Result<Vec<Hierarchy>> {
    fs::read_to_string(table).map(|text| parse_hierarchies(&text)).map_err(at("read", table))
}

/// Makes the group in every hierarchy and moves this process into it. The memory and cpu of version 2 are delegated as
/// far as the kernel allows.
pub fn join(hierarchies: &[Hierarchy], group: &Path) -> Result<()> {
    for hierarchy in hierarchies {
        let dir = hierarchy.mount.join(group);
        fs::create_dir_all(&dir).map_err(at("make cgroup", &dir))?;
        if hierarchy.options.as_deref().is_some_and(|options| options.contains("cpuset")) {
            inherit_cpuset(&hierarchy.mount, group)?;
        }
        if hierarchy.options.is_none() {
            delegate(&hierarchy.mount, group);
        }
        let procs = dir.join("cgroup.procs");
        fs::write(&procs, "0").map_err(at("enter cgroup", &procs))?;
    }
    Ok(())
}

/// A version 1 cpuset is empty when made, and nothing can run in an empty one.
fn inherit_cpuset(mount: &Path, group: &Path) -> Result<()> {
    let mut parent = mount.to_owned();
    for part in group.components() {
        let child = parent.join(part);
        for file in ["cpuset.cpus", "cpuset.mems"] {
            let target = child.join(file);
            if fs::read_to_string(&target).is_ok_and(|text| text.trim().is_empty()) {
                let value = fs::read(parent.join(file)).map_err(at("read", &parent))?;
                fs::write(&target, value).map_err(at("write", &target))?;
            }
        }
        parent = child;
    }
    Ok(())
}

/// Turns on, from `mount` down to the parent of `group`, every controller that its parent offers. Best effort: a
/// group with processes of its own refuses, and then the children simply lack limits.
pub fn delegate(mount: &Path, group: &Path) {
    let mut dir = mount.to_owned();
    for part in group.components() {
        if let Ok(offered) = fs::read_to_string(dir.join("cgroup.controllers")) {
            for controller in offered.split_ascii_whitespace() {
                let _ = fs::write(dir.join("cgroup.subtree_control"), format!("+{controller}"));
            }
        }
        dir.push(part);
    }
}

/// The pids in the group and in all groups below it.
pub fn pids(dir: &Path) -> Vec<u32> {
    let mut all: Vec<u32> = fs::read_to_string(dir.join("cgroup.procs"))
        .map(|text| text.lines().filter_map(|line| line.parse().ok()).collect())
        .unwrap_or_default();
    for child in children(dir) {
        all.extend(pids(&child));
    }
    all
}

/// Removes the group and all below it, which must hold no process any more; not being there is not an error.
pub fn remove(dir: &Path) -> Result<()> {
    for child in children(dir) {
        remove(&child)?;
    }
    match fs::remove_dir(dir) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(at("remove cgroup", dir)(error)),
        _ => Ok(()),
    }
}

fn children(dir: &Path) -> Vec<PathBuf> {
    fs::read_dir(dir)
        .map(|entries| {
            entries.flatten().filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()).collect()
        })
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memberships_of_both_versions() {
        let text = "4:memory:/kubepods/pod1/c\n2:cpu,cpuacct:/x:y\n1:name=systemd:/\n0::/kubepods\nbroken\n";
        let expect = [
            (vec!["memory"], "/kubepods/pod1/c"),
            (vec!["cpu", "cpuacct"], "/x:y"),
            (vec!["name=systemd"], "/"),
            (vec![], "/kubepods"),
        ];
        let got = parse_memberships(text);
        let got: Vec<_> =
            got.iter().map(|m| (m.controllers.iter().map(String::as_str).collect(), m.path.as_str())).collect();
        assert_eq!(got, expect);
    }

    #[test]
    fn hierarchies_of_a_hybrid_layout() {
        let text = "30 22 0:26 / /sys/fs/cgroup rw - tmpfs tmpfs rw,mode=755
31 30 0:27 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu,cpuacct
32 30 0:28 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
33 30 0:29 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw,nsdelegate
34 30 0:27 / /elsewhere rw - cgroup cgroup rw,cpu,cpuacct
";
        let expect = [
            ("/sys/fs/cgroup/cpu", Some("cpu,cpuacct")),
            ("/sys/fs/cgroup/systemd", Some("name=systemd")),
            ("/sys/fs/cgroup/unified", None),
        ];
        let expect =
            expect.map(|(mount, options)| Hierarchy { mount: mount.into(), options: options.map(str::to_owned) });
        assert_eq!(parse_hierarchies(text), expect);
    }

    #[test]
    fn hierarchies_of_a_unified_layout() {
        let text = "30 22 0:26 / /sys/fs/cgroup rw shared:4 - cgroup2 cgroup2 rw,nsdelegate";
        assert_eq!(parse_hierarchies(text), [Hierarchy { mount: "/sys/fs/cgroup".into(), options: None }]);
    }
}
