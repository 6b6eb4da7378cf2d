//! Processes of the node's pods, as the host sees them: to be looked at, and to be killed.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use rustix::process::{Pid, Signal, kill_process};

/// A process of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number on the host.
    pub pid: i32,
    /// When it started, in ticks: with the number, its identity.
    pub started: u64,
    /// Its command line.
    pub words: Vec<String>,
}

impl Process {
    fn read(pid: i32) -> Option<Self> {
        let words = fs::read(format!("/proc/{pid}/cmdline")).ok()?;
        let words = words.split(|byte| *byte == 0).map(|word| String::from_utf8_lossy(word).into_owned()).collect();
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
        // Behind the name, which may hold anything: state is the third field and the start the twenty-second.
        let started = stat.rsplit_once(')')?.1.split_whitespace().nth(19)?.parse().ok()?;
        Some(Self { pid, started, words })
    }

    /// Whether it still runs.
    pub fn lives(&self) -> bool {
        Self::read(self.pid).is_some_and(|now| now.started == self.started)
    }

    /// Ends it as a failure would: at once.
    pub fn kill(&self) -> Result<()> {
        self.signal(Signal::KILL)
    }
}

/// A process that stands still for as long as this is held.
#[derive(Debug)]
pub struct Frozen(Process);

impl Process {
    /// Stops it where it is, as a machine that is out of breath would.
    pub fn freeze(&self) -> Result<Frozen> {
        self.signal(Signal::STOP)?;
        Ok(Frozen(self.clone()))
    }

    /// Leaves the container it is in that much more memory than it has now.
    pub fn leave_memory(&self, more: u64) -> Result<()> {
        let groups =
            fs::read_to_string(format!("/proc/{}/cgroup", self.pid)).context("cannot read its control group")?;
        let of = |name: &str| groups.lines().find_map(|line| line.split_once(name).map(|(_, path)| path.to_owned()));
        let (dir, used, limit) = match of(":memory:") {
            Some(path) => (format!("/sys/fs/cgroup/memory{path}"), "memory.usage_in_bytes", "memory.limit_in_bytes"),
            None => {
                (format!("/sys/fs/cgroup{}", of("0::").context("no control group")?), "memory.current", "memory.max")
            }
        };
        let dir = Path::new(&dir);
        let number = |text: &str| text.trim().parse::<u64>().with_context(|| format!("{text:?} in {}", dir.display()));
        let used = number(&fs::read_to_string(dir.join(used)).context("cannot read how much it uses")?)?;
        // Files that were read can be given up for what it asks for, and do not count.
        let stat = fs::read_to_string(dir.join("memory.stat")).context("cannot read what it uses memory for")?;
        let files = |name: &str| {
            let line = stat.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
            line.map_or(Ok(0), number)
        };
        let needed = used.saturating_sub(files("active_file")? + files("inactive_file")?);
        fs::write(dir.join(limit), (needed + more).to_string()).context("cannot limit its memory")
    }

    fn signal(&self, signal: Signal) -> Result<()> {
        ensure!(self.lives(), "process {} {:?} has ended already", self.pid, self.words);
        let pid = Pid::from_raw(self.pid).context("a process id is positive")?;
        kill_process(pid, signal).with_context(|| format!("cannot signal {} {:?}", self.pid, self.words))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        // It may have been ended where it stood.
        let _ = self.0.signal(Signal::CONT);
    }
}

/// The process of the pod with this uid whose program has this name.
pub fn process(pod: &str, program: &str) -> Result<Process> {
    let all = processes(pod)?;
    let found = all.iter().find(|process| {
        let name = process.words.first().and_then(|word| Path::new(word).file_name());
        name.is_some_and(|name| name == program)
    });
    found.cloned().with_context(|| format!("pod {pod} has no process {program}: {all:?}"))
}

/// The end of what a launcher's guest printed on its serial console; nothing if the launcher is not there.
#[must_use]
pub fn serial(pod: &str) -> String {
    let Ok(launcher) = process(pod, "virt-launcher") else { return String::new() };
    // Not by /var/run: that is a link to /run, which would be the host's.
    let private = PathBuf::from(format!("/proc/{}/root/run/kubevirt-private", launcher.pid));
    let logs = fs::read_dir(private).into_iter().flatten().flatten().map(|entry| entry.path().join("virt-serial0-log"));
    let printed: Vec<u8> = logs.filter_map(|log| fs::read(log).ok()).flatten().collect();
    format!("serial console:\n{}", String::from_utf8_lossy(&printed[printed.len().saturating_sub(2000)..]))
}

/// Every process of the pod with this uid.
pub fn processes(pod: &str) -> Result<Vec<Process>> {
    ensure!(!pod.is_empty(), "no pod");
    let mut out = Vec::new();
    for entry in fs::read_dir("/proc").context("cannot list processes")? {
        let name = entry.context("cannot list processes")?.file_name();
        let Ok(pid) = name.to_string_lossy().parse() else { continue };
        let groups = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        if groups.contains(pod) {
            out.extend(Process::read(pid));
        }
    }
    Ok(out)
}

/// The socket of the containerd that runs the pod with this uid.
pub fn containerd(pod: &str) -> Result<PathBuf> {
    // A container's first process is a child of containerd's shim, which sees the node's own files.
    let any = processes(pod)?.into_iter().next().with_context(|| format!("pod {pod} has no process"))?;
    let mut pid = any.pid;
    while pid > 1 {
        let socket = Path::new(&format!("/proc/{pid}/root")).join("run/containerd/containerd.sock");
        if socket.exists() {
            return Ok(socket);
        }
        let status = fs::read_to_string(format!("/proc/{pid}/status")).context("cannot read a process's parent")?;
        let parent = status.lines().find_map(|line| line.strip_prefix("PPid:"));
        pid = parent.and_then(|parent| parent.trim().parse().ok()).context("a process without a parent")?;
    }
    anyhow::bail!("no containerd above pod {pod}")
}
