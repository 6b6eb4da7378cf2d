//! Memory and processor time of processes, as the kernel accounts for them.

use std::collections::BTreeMap;
use std::fs;

/// Kernel ticks in a second; the same on every Linux that Rust's standard library supports.
const TICKS: f64 = 100.0;

/// One process.
#[derive(Clone, Debug)]
pub(crate) struct Process {
    pub(crate) pid: u32,
    /// The command line, its words apart.
    pub(crate) words: Vec<String>,
    /// The paths of its control groups.
    pub(crate) groups: String,
    /// The process that started it, or that took it over.
    pub(crate) parent: u32,
}

impl Process {
    /// The name it was called by, without its directory.
    pub(crate) fn name(&self) -> &str {
        self.words.first().and_then(|word| word.rsplit('/').next()).unwrap_or_default()
    }
}

/// Every process that can be seen. Kernel threads have no words and are left out.
pub(crate) fn all() -> Vec<Process> {
    let pids = fs::read_dir("/proc").into_iter().flatten().flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let seen = pids.filter_map(|pid| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).ok().filter(|line| !line.is_empty())?;
        let words = line.split(|byte| *byte == 0).filter(|word| !word.is_empty());
        let words = words.map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).ok()?;
        let parent = stat(pid).split_ascii_whitespace().nth(1)?.parse().ok()?;
        Some(Process { pid, words, groups, parent })
    });
    seen.collect()
}

/// The processes of a pod. What a group is called depends on the driver: with dashes, or with underscores.
pub(crate) fn of_pod(uid: &str) -> Vec<Process> {
    let other = uid.replace('-', "_");
    all().into_iter().filter(|process| process.groups.contains(uid) || process.groups.contains(&other)).collect()
}

/// Memory in MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Memory {
    /// Resident.
    pub(crate) rss: f64,
    /// Resident, each page shared by n processes counted as an nth.
    pub(crate) pss: f64,
}

impl std::ops::AddAssign for Memory {
    fn add_assign(&mut self, other: Self) {
        self.rss += other.rss;
        self.pss += other.pss;
    }
}

impl Memory {
    pub(crate) fn over(self, count: usize) -> Self {
        Self { rss: self.rss / count as f64, pss: self.pss / count as f64 }
    }
}

impl std::fmt::Display for Memory {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{:.1} / {:.1}", self.rss, self.pss)
    }
}

/// A process that is gone takes none.
pub(crate) fn memory(pid: u32) -> Memory {
    parse_memory(&fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default())
}

fn parse_memory(rollup: &str) -> Memory {
    let field = |name: &str| {
        let line = rollup.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<f64>().ok());
        kib.unwrap_or(0.0) / 1024.0
    };
    Memory { rss: field("Rss:"), pss: field("Pss:") }
}

/// The most bytes that were resident at once in a process, until now; none of one that has ended.
pub(crate) fn peak(pid: u32) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    parse_peak(&status)
}

fn parse_peak(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.trim().strip_suffix("kB"));
    line.and_then(|number| number.trim().parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Bytes that a process had storage take, less what it took back; also of one that has ended and was not reaped.
pub(crate) fn written(pid: u32) -> u64 {
    parse_written(&fs::read_to_string(format!("/proc/{pid}/io")).unwrap_or_default())
}

fn parse_written(counts: &str) -> u64 {
    let field = |name: &str| -> u64 {
        let line = counts.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|number| number.trim().parse().ok()).unwrap_or(0)
    };
    field("write_bytes:").saturating_sub(field("cancelled_write_bytes:"))
}

/// Memory of processes, summed by the name that `classify` gives to each.
pub(crate) fn by_name(processes: &[Process], classify: impl Fn(&Process) -> String) -> BTreeMap<String, Memory> {
    let mut sums: BTreeMap<String, Memory> = BTreeMap::new();
    for process in processes {
        *sums.entry(classify(process)).or_default() += memory(process.pid);
    }
    sums
}

/// Processor time that a process has used, in seconds.
pub(crate) fn processor_time(pid: u32) -> f64 {
    parse_time(&stat(pid))
}

/// What the kernel says of a process after its name, which is in parentheses and may hold anything.
fn stat(pid: u32) -> String {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    line.rsplit_once(')').map_or_else(String::new, |(_, after)| after.to_owned())
}

/// User and system time are the 12th and the 13th word.
fn parse_time(stat: &str) -> f64 {
    stat.split_ascii_whitespace().skip(11).take(2).filter_map(|word| word.parse::<f64>().ok()).sum::<f64>() / TICKS
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_kernel_are_parsed() {
        let rollup = "00400000-7fff r-xp [rollup]\nRss:                2048 kB\nPss:                1024 kB\n";
        assert_eq!(parse_memory(rollup), Memory { rss: 2.0, pss: 1.0 });
        assert_eq!(parse_memory(""), Memory::default());
        assert_eq!((parse_peak("VmPeak:\t 9 kB\nVmHWM:\t   12 kB\n"), parse_peak("")), (12 << 10, 0));
        let counts = "wchar: 9\nread_bytes: 4\nwrite_bytes: 8192\ncancelled_write_bytes: 4096\n";
        assert_eq!((parse_written(counts), parse_written("")), (4096, 0));
        let stat = " S 1 7 7 0 -1 4194560 1 0 0 0 150 50 0 0 20 0 1 0 5 0 0";
        assert!((parse_time(stat) - 2.0).abs() < f64::EPSILON, "{}", parse_time(stat));
        assert_eq!(parse_time(""), 0.0);
    }

    #[test]
    fn a_process_goes_by_its_last_name() {
        let words = vec!["/usr/bin/virt-launcher".to_owned(), "--name".to_owned()];
        assert_eq!(Process { pid: 1, words, groups: String::new(), parent: 0 }.name(), "virt-launcher");
        assert!(all().iter().any(|process| process.pid == std::process::id()));
    }
}
