//! The program on this machine: a cluster comes up, answers, survives a second `up`, and leaves nothing behind, also
//! when `up` is interrupted at any moment.
//!
//! It takes the addresses of an embedded cluster, so it runs by its name only, as root, and not beside a cluster.

mod backup;
mod deploy;
mod helm;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process_group};

/// There is one machine.
static MACHINE: Mutex<()> = Mutex::new(());

/// Runs the program on a state directory of its own.
fn ferrovirt(state: &Path, words: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_ferrovirt");
    Command::new(program).args(words).env("FERROVIRT_STATE", state).output().unwrap()
}

#[track_caller]
fn succeeds(state: &Path, words: &[&str]) -> String {
    let output = ferrovirt(state, words);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {errors}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn read(path: &str) -> String {
    std::fs::read_to_string(path).unwrap_or_default()
}

fn output(program: &str, words: &[&str]) -> String {
    let output = Command::new(program).args(words).output().unwrap();
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Everything a cluster could leave behind on a host.
fn traces() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    for entry in std::fs::read_dir("/sys/class/net").unwrap().flatten() {
        found.insert(format!("link {}", entry.file_name().to_string_lossy()));
    }
    for point in sys::mount::points().unwrap() {
        found.insert(format!("mount {}", point.display()));
    }
    for hierarchy in sys::cgroup::hierarchies().unwrap() {
        let group = hierarchy.mount.join(kubelet::node::config::CGROUP);
        if group.exists() {
            found.insert(format!("cgroup {}", group.display()));
        }
    }
    for line in output("nft", &["list", "tables"]).lines() {
        found.insert(format!("nft {line}"));
    }
    for family in ["-4", "-6"] {
        for line in output("ip", &[family, "route", "show"]).lines() {
            found.insert(format!("route {}", line.split(" expires ").next().unwrap_or(line)));
        }
    }
    for name in ["net/ipv4/ip_forward", "net/ipv6/conf/all/forwarding", "fs/inotify/max_user_instances"] {
        found.insert(format!("{name} = {}", read(&format!("/proc/sys/{name}")).trim()));
    }
    found
}

/// Processes that run the program under test, other than this test's own.
fn processes() -> Vec<u32> {
    processes_of(Path::new(env!("CARGO_BIN_EXE_ferrovirt")))
}

fn processes_of(program: &Path) -> Vec<u32> {
    let program = std::fs::canonicalize(program).unwrap();
    let pids = std::fs::read_dir("/proc").unwrap().flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|pid| std::fs::read_link(format!("/proc/{pid}/exe")).is_ok_and(|exe| exe == program))
        .collect()
}

/// Who has the file open.
fn holders(file: &Path) -> Vec<String> {
    let descriptors = |process: std::fs::DirEntry| std::fs::read_dir(process.path().join("fd")).into_iter().flatten();
    let all = std::fs::read_dir("/proc").unwrap().flatten().flat_map(descriptors).flatten();
    let open = all.filter(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == file));
    open.map(|fd| fd.path().display().to_string()).collect()
}

fn need_machine() {
    assert!(sys::process::is_root(), "this test makes interfaces, namespaces and mounts: run it as root");
    let bridge = Path::new("/sys/class/net/fv0");
    assert!(!bridge.exists(), "a cluster runs on this machine; `bin/ferrovirt down` stops it");
}

#[test]
fn a_cluster_comes_and_goes_without_a_trace() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    need_machine();
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path();
    let before = traces();

    // Started by a script that holds a lock, as scripts do: what stays does not hold it.
    let lock = dir.path().with_extension("lock");
    let script = format!("exec 9>{} && exec {} up --cluster-only", lock.display(), env!("CARGO_BIN_EXE_ferrovirt"));
    let up = Command::new("sh").args(["-c", &script]).env("FERROVIRT_STATE", state).output().unwrap();
    assert!(up.status.success(), "{up:?}");
    let text = String::from_utf8_lossy(&up.stdout).into_owned();
    assert!(text.contains("node node1 is Ready"), "{text}");
    assert_eq!(holders(&lock), Vec::<String>::new());
    std::fs::remove_file(&lock).unwrap();
    let again = succeeds(state, &["up", "--cluster-only"]);
    assert!(again.contains("already up"), "{again}");
    let status = succeeds(state, &["status"]);
    assert!(status.contains("node Ready"), "{status}");

    // A node that lost its power comes back by `up`, with the cluster's objects as they were.
    let lock = state.join("nodes/node1/lock");
    let pid = sys::lock::holder(&lock).unwrap().unwrap();
    let init = sys::process::Handle::open(pid).unwrap().unwrap();
    init.kill().unwrap();
    assert!(init.ended_within(Duration::from_secs(10)).unwrap());
    let repaired = succeeds(state, &["up", "--cluster-only"]);
    assert!(repaired.contains("node node1 started") && !repaired.contains("control plane started"), "{repaired}");

    // The control plane's end is no end of the node.
    let node = sys::lock::holder(&lock).unwrap();
    let control_plane = sys::lock::holder(&state.join("control-plane.lock")).unwrap().unwrap();
    let process = sys::process::Handle::open(control_plane).unwrap().unwrap();
    process.kill().unwrap();
    assert!(process.ended_within(Duration::from_secs(10)).unwrap());
    let repaired = succeeds(state, &["up", "--cluster-only"]);
    assert!(repaired.contains("control plane started") && !repaired.contains("node node1 started"), "{repaired}");
    assert_eq!(sys::lock::holder(&lock).unwrap(), node);

    succeeds(state, &["down"]);
    assert_eq!(processes(), Vec::<u32>::new());
    assert_eq!(traces(), before);
    assert!(state.join("kubeconfig").exists(), "the state is kept");
    let nothing = succeeds(state, &["down", "--purge"]);
    assert!(nothing.contains("nothing was running"), "{nothing}");
    assert!(!state.exists(), "the state is removed");
}

#[test]
fn nodes_come_and_go() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    need_machine();
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path();
    let before = traces();

    let text = succeeds(state, &["up", "--cluster-only", "--nodes", "2"]);
    assert!(text.contains("node node1 is Ready") && text.contains("node node2 is Ready"), "{text}");
    let refused = String::from_utf8(ferrovirt(state, &["node", "remove", "node1"]).stderr).unwrap();
    assert!(refused.contains("error: node1 stays: every cluster has it"), "{refused}");
    let refused = String::from_utf8(ferrovirt(state, &["node", "kill", "node7"]).stderr).unwrap();
    assert!(refused.contains("error: there is no node7"), "{refused}");
    assert!(succeeds(state, &["status"]).contains("2 of 2 nodes Ready"));

    let name = succeeds(state, &["node", "exec", "node2", "--", "cat", "/proc/sys/kernel/hostname"]);
    assert_eq!(name.trim(), "node2");
    let lock = state.join("nodes/node2/lock");
    let pid = sys::lock::holder(&lock).unwrap();
    assert!(succeeds(state, &["node", "cut", "node2"]).contains("node2 is cut off"));
    assert!(read("/sys/class/net/fv-node2/operstate").contains("down"));
    assert!(succeeds(state, &["node", "heal", "node2"]).contains("node2 is connected"));
    assert_eq!(sys::lock::holder(&lock).unwrap(), pid, "whatever runs on a node outlives the cut");

    assert!(succeeds(state, &["node", "kill", "node2"]).contains("node2 has no power"));
    assert_eq!(sys::lock::holder(&lock).unwrap(), None);
    assert!(succeeds(state, &["node", "list"]).lines().any(|line| line.starts_with("node2") && line.contains("off")));
    let again = succeeds(state, &["up", "--cluster-only"]);
    assert!(again.contains("node node2 started") && !again.contains("node node1 started"), "{again}");

    assert!(succeeds(state, &["node", "add"]).contains("node node3 is Ready"));
    assert!(succeeds(state, &["node", "remove", "node2"]).contains("node2 is removed"));
    let list = succeeds(state, &["node", "list"]);
    let names: Vec<_> = list.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(names, ["node1", "node3"]);
    succeeds(state, &["down", "--purge"]);
    assert_eq!(processes(), Vec::<u32>::new());
    assert_eq!(traces(), before);
}

/// `up` in a process group of its own, as a shell starts it, ended by a signal to all of it after a moment.
fn interrupted(state: &Path, after: Duration, signal: Signal) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ferrovirt"));
    command.args(["up", "--cluster-only"]).env("FERROVIRT_STATE", state).process_group(0);
    let mut up = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let process = sys::process::Handle::open(up.id()).unwrap();
    if process.is_some_and(|process| !process.ended_within(after).unwrap()) {
        // It may have ended in this very moment.
        let _ = kill_process_group(Pid::from_child(&up), signal);
    }
    up.wait().unwrap();
}

#[test]
fn an_interrupted_up_is_resumed_or_cleared_away() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    need_machine();
    let before = traces();
    for (turn, milliseconds) in [0, 3, 8, 15, 25, 40, 60, 90, 130, 180, 250, 400, 700, 1000].into_iter().enumerate() {
        let signal = if turn % 2 == 0 { Signal::INT } else { Signal::KILL };
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path();
        interrupted(state, Duration::from_millis(milliseconds), signal);
        if turn % 4 < 2 {
            succeeds(state, &["up", "--cluster-only"]);
            assert!(succeeds(state, &["status"]).contains("node Ready"), "{signal:?} after {milliseconds} ms");
        }
        succeeds(state, &["down"]);
        assert_eq!(processes(), Vec::<u32>::new(), "{signal:?} after {milliseconds} ms");
        assert_eq!(traces(), before, "{signal:?} after {milliseconds} ms");
    }
}

/// The program as it is installed, with the programs that go into images beside it.
fn installed() -> PathBuf {
    let program = std::path::absolute("../../bin/ferrovirt").unwrap();
    assert!(program.is_file(), "`make build` installs {}", program.display());
    program
}

fn output_installed(state: &Path, words: &[&str]) -> Output {
    Command::new(installed()).args(words).env("FERROVIRT_STATE", state).output().unwrap()
}

/// A cluster of the installed program without the product, which is gone at the end, whatever becomes of its test.
struct Bare {
    dir: tempfile::TempDir,
    before: BTreeSet<String>,
    _machine: MutexGuard<'static, ()>,
}

impl Bare {
    fn up() -> Self {
        let machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
        need_machine();
        let dir = tempfile::tempdir().unwrap();
        run_installed(dir.path(), &["images", "build"]);
        let bare = Self { dir, before: traces(), _machine: machine };
        run_installed(bare.state(), &["up", "--cluster-only"]);
        bare
    }

    fn state(&self) -> &Path {
        self.dir.path()
    }

    fn kubeconfig(&self) -> PathBuf {
        self.state().join("kubeconfig")
    }

    /// Ends it: of the cluster nothing is left on the machine.
    #[track_caller]
    fn down(self) {
        run_installed(self.state(), &["down", "--purge"]);
        assert_eq!(traces(), self.before);
    }
}

impl Drop for Bare {
    fn drop(&mut self) {
        let _ = output_installed(self.state(), &["down", "--purge"]);
    }
}

fn run_installed(state: &Path, words: &[&str]) -> String {
    let output = output_installed(state, words);
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// The last words of the stages of a whole `up` after the node is there.
const STAGES: [&str; 3] = ["guests run on", "images loaded", "virtual machines can be created"];

/// A whole `up`: how long it took from each of the stages to the next. With `stop` it is interrupted, in that share of
/// that time after that stage.
fn whole_up(state: &Path, stop: Option<(usize, Duration, Signal)>) -> Vec<Duration> {
    let mut command = Command::new(installed());
    command.arg("up").env("FERROVIRT_STATE", state).process_group(0).stdout(Stdio::piped()).stderr(Stdio::null());
    let mut up = command.spawn().unwrap();
    let mut ends: Vec<Instant> = Vec::new();
    for line in BufReader::new(up.stdout.take().unwrap()).lines() {
        if !STAGES.get(ends.len()).is_some_and(|stage| line.as_ref().unwrap().contains(stage)) {
            continue;
        }
        ends.push(Instant::now());
        if let Some((stage, after, signal)) = stop
            && stage + 1 == ends.len()
        {
            let process = sys::process::Handle::open(up.id()).unwrap();
            if process.is_some_and(|process| !process.ended_within(after).unwrap()) {
                // It may have ended in this very moment.
                let _ = kill_process_group(Pid::from_child(&up), signal);
            }
            break;
        }
    }
    let status = up.wait().unwrap();
    assert!(status.success() || stop.is_some(), "{status}");
    ends.windows(2).map(|pair| pair[1] - pair[0]).collect()
}

#[test]
fn an_up_interrupted_among_images_and_components_is_resumed_or_cleared_away() {
    let _machine = MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    need_machine();
    let dir = tempfile::tempdir().unwrap();
    let state = dir.path();
    run_installed(state, &["images", "build"]);
    let before = traces();
    let clear = |words: &[&str], what: &str| {
        run_installed(state, words);
        assert_eq!(processes_of(&installed()), Vec::<u32>::new(), "{what}");
        assert_eq!(traces(), before, "{what}");
    };
    let times = whole_up(state, None);
    assert_eq!(times.len(), STAGES.len() - 1, "a fresh cluster goes through every stage");
    clear(&["down", "--purge"], "a whole up");
    for (turn, (stage, percent)) in [(0, 60), (0, 90), (1, 5), (1, 60)].into_iter().enumerate() {
        let signal = if turn % 2 == 0 { Signal::INT } else { Signal::KILL };
        let what = format!("{signal:?} at {percent} % of the way from {:?} to {:?}", STAGES[stage], STAGES[stage + 1]);
        whole_up(state, Some((stage, times[stage] * percent / 100, signal)));
        if turn % 2 == 0 {
            clear(&["down"], &what);
        }
        let text = run_installed(state, &["up"]);
        assert!(text.contains("virtual machines can be created"), "{what}: {text}");
        clear(&["down", "--purge"], &what);
    }
}
