//! Limits of a control group: made in every hierarchy that controls cpu or memory, in the words of its version.

use std::fs;
use std::path::{Path, PathBuf};

use crate::cgroup::{Hierarchy, delegate};
use crate::{Result, at};

/// What a group may use. Version 1 words; version 2 gets the same meaning.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Relative weight, 2 to 262144; 1024 is one cpu.
    pub cpu_shares: i64,
    /// Microseconds of cpu time in each period of so many microseconds.
    pub cpu_quota: Option<(i64, i64)>,
    /// Bytes.
    pub memory: Option<i64>,
}

impl Limits {
    /// The wider of each: what holds both. Where one sets no limit there is none.
    pub fn most(self, other: Self) -> Self {
        let time = |(quota, period): (i64, i64)| i128::from(quota) * 1_000_000 / i128::from(period.max(1));
        Self {
            cpu_shares: self.cpu_shares.max(other.cpu_shares),
            cpu_quota: self.cpu_quota.zip(other.cpu_quota).map(|(a, b)| if time(a) >= time(b) { a } else { b }),
            memory: self.memory.zip(other.memory).map(|(a, b)| a.max(b)),
        }
    }
}

/// Makes `group` (relative) where cpu or memory are controlled and writes the limits. Idempotent.
pub fn apply(hierarchies: &[Hierarchy], group: &Path, limits: &Limits) -> Result<()> {
    for hierarchy in hierarchies {
        let files = match hierarchy.options.as_deref() {
            None => v2(limits),
            Some(options) => v1(options, limits),
        };
        if files.is_empty() {
            continue;
        }
        let dir = hierarchy.mount.join(group);
        fs::create_dir_all(&dir).map_err(at("make cgroup", &dir))?;
        if hierarchy.options.is_none() {
            // A hybrid layout has a version 2 hierarchy without controllers: nothing to write there.
            delegate(&hierarchy.mount, &group.join("leaf"));
        }
        for (file, value) in files {
            let path: PathBuf = dir.join(file);
            if path.exists() {
                fs::write(&path, value).map_err(at("write", &path))?;
            }
        }
    }
    Ok(())
}

fn v1(options: &str, limits: &Limits) -> Vec<(&'static str, String)> {
    let controls = |name: &str| options.split(',').any(|option| option == name);
    let mut files = Vec::new();
    if controls("cpu") {
        files.push(("cpu.shares", limits.cpu_shares.to_string()));
        if let Some((quota, period)) = limits.cpu_quota {
            files.push(("cpu.cfs_period_us", period.to_string()));
            files.push(("cpu.cfs_quota_us", quota.to_string()));
        }
    }
    if controls("memory")
        && let Some(memory) = limits.memory
    {
        files.push(("memory.limit_in_bytes", memory.to_string()));
    }
    files
}

fn v2(limits: &Limits) -> Vec<(&'static str, String)> {
    // The conversion runc uses, so that pods and containers are weighed on one scale.
    let weight = 1 + ((limits.cpu_shares.clamp(2, 262_144) - 2) * 9999) / 262_142;
    let mut files = vec![("cpu.weight", weight.to_string())];
    if let Some((quota, period)) = limits.cpu_quota {
        files.push(("cpu.max", format!("{quota} {period}")));
    }
    if let Some(memory) = limits.memory {
        files.push(("memory.max", memory.to_string()));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_wider_of_two_has_room_for_both() {
        let limits = |quota, memory| Limits { cpu_shares: 2, cpu_quota: quota, memory };
        let (small, large) = (limits(Some((1, 10)), Some(1)), limits(Some((9, 100)), Some(2)));
        assert_eq!(small.most(large), limits(Some((1, 10)), Some(2)));
        assert_eq!(small.most(limits(None, None)), limits(None, None));
    }

    #[test]
    fn the_same_limits_in_both_versions() {
        let limits = Limits { cpu_shares: 1024, cpu_quota: Some((200_000, 100_000)), memory: Some(1 << 30) };
        let own = |list: &[(&'static str, &str)]| -> Vec<(&'static str, String)> {
            list.iter().map(|(file, value)| (*file, (*value).to_owned())).collect()
        };
        let cpu = own(&[("cpu.shares", "1024"), ("cpu.cfs_period_us", "100000"), ("cpu.cfs_quota_us", "200000")]);
        assert_eq!(v1("cpu,cpuacct", &limits), cpu);
        assert_eq!(v1("memory", &limits), own(&[("memory.limit_in_bytes", "1073741824")]));
        assert_eq!(v1("name=systemd", &limits), []);
        let unified = own(&[("cpu.weight", "39"), ("cpu.max", "200000 100000"), ("memory.max", "1073741824")]);
        assert_eq!(v2(&limits), unified);
    }
}
