//! On the kernel that runs here: groups with programs like a container runtime's, and a container of one.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use rustix::mount::MountFlags;

use super::program::tests::{NULL, ZERO, runtime};
use super::{Device, Place, change_programs, instruction, kernel, places};
use crate::cgroup;
use crate::device::{self, Kind};
use crate::mount::{Propagation, mount, propagate};
use crate::namespace::{Namespace, unshare};

#[track_caller]
fn check(mountinfo: &str, member: &str, expect: &[Place]) {
    let is_theirs = |group: &str| group.contains("/pod1");
    let hierarchies = cgroup::parse_hierarchies(mountinfo);
    assert_eq!(places(&hierarchies, &cgroup::parse_memberships(member), &is_theirs), expect);
}

#[test]
fn the_mounted_cgroup_version_decides_on_the_place() {
    let list =
        "31 30 0:27 / /cg/devices rw - cgroup cgroup rw,devices\n32 30 0:28 / /cg/cpu rw - cgroup cgroup rw,cpu\n";
    let programs = "33 30 0:29 / /cg rw - cgroup2 cgroup2 rw,nsdelegate\n";
    let both = "4:devices:/all/pod1/c\n3:cpu:/x\n0::/all/pod1/c\n";
    let of_list = || Place::List("/cg/devices/all/pod1/c".into());
    let of_programs = |group: &str| Place::Programs(Path::new("/cg/all").join(group));
    check(list, both, &[of_list()]);
    check(programs, "0::/all/pod1/c\n", &[of_programs("pod1/c"), of_programs("pod1")]);
    check(&[list, programs].concat(), both, &[of_list(), of_programs("pod1/c"), of_programs("pod1")]);
    // A runtime with a group of its own within the container's.
    let within = ["pod1/c.scope/container", "pod1/c.scope", "pod1"].map(of_programs);
    check(programs, "0::/all/pod1/c.scope/container\n", &within);
    // Not what is nobody's or everybody's, and not what is not seen from here.
    check("", both, &[]);
    check(&[list, programs].concat(), "4:devices:/\n0::/\n", &[]);
    check(programs, "0::/all/other/c\n", &[]);
    check(programs, "0::/../pod1/c\n", &[]);
}

/// A group of its own below where version 2 is mounted.
struct Container {
    group: PathBuf,
    dir: PathBuf,
}

impl Container {
    /// None where there is nothing to try this on: without root, or without version 2.
    fn start(name: &str) -> Option<Self> {
        let hierarchies = cgroup::hierarchies().unwrap();
        let unified = hierarchies.iter().find(|hierarchy| hierarchy.options.is_none());
        let unified = unified.filter(|_| rustix::process::geteuid().is_root())?;
        let name = format!("device-access-{name}-{}", std::process::id());
        let (group, dir) = (unified.mount.join(&name), std::env::temp_dir().join(&name));
        fs::create_dir_all(&group).unwrap();
        fs::create_dir_all(&dir).unwrap();
        Some(Self { group, dir })
    }

    fn attach(&self, program: &[instruction::Instruction]) {
        let group = File::open(&self.group).unwrap();
        kernel::attach(&group, &kernel::load(program).unwrap()).unwrap();
    }

    /// As a process of the container finds it.
    fn may_open(&self, device: Device) -> bool {
        let node = self.dir.join("node");
        device::make(&node, device.kind, device.major, device.minor, 0o666).unwrap();
        let (group, node) = (self.group.display(), node.display());
        let script = format!("echo 0 > '{group}/cgroup.procs' && exec head -c 1 '{node}'");
        let tried = Command::new("sh").args(["-c", &script]).stdout(Stdio::null()).output().unwrap();
        let words = String::from_utf8_lossy(&tried.stderr);
        assert!(tried.status.success() || words.contains(&node.to_string()), "{words}");
        // A disk that is not there is looked for only by those who may open it.
        !words.contains("not permitted")
    }

    fn programs(&self) -> Vec<u32> {
        kernel::deciding(&File::open(&self.group).unwrap()).unwrap().programs
    }

    fn lend(&self, device: Device) {
        change_programs(&self.group, device, true).unwrap();
    }

    fn take(&self, device: Device) {
        change_programs(&self.group, device, false).unwrap();
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        let _ = cgroup::remove(&self.group);
        let _ = fs::remove_dir_all(&self.dir);
    }
}

const DISK: Device = Device { kind: Kind::Block, major: 4000, minor: 70_000 };
const OTHER: Device = Device { kind: Kind::Block, major: 4000, minor: 70_001 };

#[test]
fn a_device_is_lent_and_taken() {
    let Some(container) = Container::start("lent") else { return };
    let may = || [NULL, ZERO, DISK, OTHER].map(|device| container.may_open(device));
    container.attach(&runtime());
    assert_eq!(may(), [true, false, false, false]);
    container.lend(DISK);
    assert_eq!(may(), [true, false, true, false]);
    container.lend(ZERO);
    assert_eq!(may(), [true, true, true, false]);
    let lent = container.programs();
    assert_eq!(lent.len(), 1, "beside others, the runtime's program would still forbid it");
    container.lend(DISK);
    assert_eq!(container.programs(), lent, "nothing to do, nothing done");
    container.take(DISK);
    assert_eq!(may(), [true, true, false, false]);
    container.take(ZERO);
    assert_eq!(may(), [true, false, false, false]);
    let left = container.programs();
    container.take(ZERO);
    assert_eq!(container.programs(), left);
    let (_, program) = kernel::read(left[0]).unwrap();
    assert_eq!(program, runtime(), "what is left is what the runtime made");
}

#[test]
fn each_program_that_decides_is_told() {
    let Some(container) = Container::start("two") else { return };
    container.attach(&runtime());
    // As a service manager does beside a container runtime.
    container.attach(&runtime()[16..]);
    assert!(!container.may_open(DISK) && !container.may_open(NULL));
    container.lend(DISK);
    assert!(container.may_open(DISK) && !container.may_open(NULL));
    assert_eq!(container.programs().len(), 2);
    // The runtime changes its mind, and knows of nothing that was lent.
    container.attach(&runtime());
    assert!(!container.may_open(DISK));
    container.lend(DISK);
    assert!(container.may_open(DISK));
}

#[test]
fn a_container_without_a_program_may_open_everything() {
    let Some(container) = Container::start("free") else { return };
    container.lend(DISK);
    assert_eq!(container.programs(), []);
    assert!(container.may_open(DISK) && container.may_open(ZERO));
}

/// A container of runc's, which goes with this.
struct Runc {
    dir: PathBuf,
    name: String,
}

impl Runc {
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("runc");
        command.arg("--root").arg(self.dir.join("state")).args(arguments).stdin(Stdio::null());
        command
    }

    /// Where it is seen as the only version, runc takes version 2.
    fn start(dir: &Path, name: &str) -> (Self, PathBuf, u32) {
        let runc = Self { dir: dir.to_owned(), name: name.to_owned() };
        let bound = ["usr", "bin", "sbin", "lib", "lib64"].iter().filter(|name| Path::new("/").join(name).is_dir());
        let bound = bound.map(|name| {
            format!(r#"{{"destination": "/{name}", "source": "/{name}", "type": "bind", "options": ["rbind", "ro"]}}"#)
        });
        let bound: Vec<String> = bound.collect();
        let group = format!("/device-access-{name}");
        let config = format!(
            r#"{{
              "ociVersion": "1.0.2", "root": {{"path": "root"}},
              "process": {{"cwd": "/", "user": {{"uid": 0, "gid": 0}}, "args": ["sleep", "1000"], "env": ["PATH=/usr/bin:/bin"]}},
              "mounts": [{}, {{"destination": "/dev", "type": "tmpfs", "source": "dev", "options": ["mode=755"]}},
                         {{"destination": "/proc", "type": "proc", "source": "proc"}}],
              "linux": {{"cgroupsPath": "{group}", "namespaces": [{{"type": "pid"}}, {{"type": "mount"}}],
                         "resources": {{"devices": [{{"allow": false, "access": "rwm"}},
                                                    {{"allow": true, "type": "c", "major": 10, "minor": 200, "access": "rw"}}]}}}}
            }}"#,
            bound.join(", ")
        );
        fs::create_dir_all(dir.join("root")).unwrap();
        fs::write(dir.join("config.json"), config).unwrap();
        let (bundle, pid) = (dir.to_str().unwrap(), dir.join("pid"));
        // Without pivoting, which an initial file system of a kernel does not take part in.
        let started = ["run", "--detach", "--no-pivot", "--bundle", bundle, "--pid-file", pid.to_str().unwrap(), name];
        // Into a file: a pipe would stay open as long as the container runs.
        let words = File::create(dir.join("words")).unwrap();
        let status = runc.command(&started).stdout(Stdio::null()).stderr(words).status().unwrap();
        assert!(status.success(), "{}", fs::read_to_string(dir.join("words")).unwrap());
        let pid = fs::read_to_string(pid).unwrap().parse().unwrap();
        (runc, Path::new("/sys/fs/cgroup").join(&group[1..]), pid)
    }

    /// As a process of the container finds it, of a node that is made for it from outside.
    fn may_open(&self, pid: u32, device: Device) -> bool {
        let node = format!("/proc/{pid}/root/dev/lent");
        device::make(Path::new(&node), device.kind, device.major, device.minor, 0o666).unwrap();
        let tried = self.command(&["exec", &self.name, "head", "-c", "1", "/dev/lent"]).output().unwrap();
        let words = String::from_utf8_lossy(&tried.stderr);
        assert!(tried.status.success() || words.contains("/dev/lent"), "{words}");
        !words.contains("not permitted")
    }
}

impl Drop for Runc {
    fn drop(&mut self) {
        let _ = self.command(&["delete", "--force", &self.name]).output();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

/// Whether there is something to try it with: runc comes with containerd, without which nothing else runs either.
fn has_runc() -> bool {
    rustix::process::geteuid().is_root() && Command::new("runc").arg("--version").output().is_ok()
}

#[test]
fn a_container_that_runs_is_lent_a_device() {
    if !has_runc() {
        return;
    }
    let base = Path::new("/sys/fs/cgroup");
    let alone = cgroup::hierarchies().unwrap().iter().any(|known| known.options.is_none() && known.mount == base);
    let on_version_2 = std::thread::spawn(move || {
        unshare(&[Namespace::Mount]).unwrap();
        propagate(Path::new("/"), Propagation::Private, true).unwrap();
        if !alone {
            mount("cgroup2", "cgroup2", base, MountFlags::empty(), "").unwrap();
        }
        let name = format!("runc-{}", std::process::id());
        let (runc, group, pid) = Runc::start(&std::env::temp_dir().join(&name), &name);
        let tun = Device { kind: Kind::Char, major: 10, minor: 200 };
        let may = || [NULL, tun, DISK, OTHER].map(|device| runc.may_open(pid, device));
        assert_eq!(may(), [true, true, false, false]);
        change_programs(&group, DISK, true).unwrap();
        assert_eq!(may(), [true, true, true, false]);
        change_programs(&group, DISK, false).unwrap();
        assert_eq!(may(), [true, true, false, false]);
    });
    on_version_2.join().unwrap();
}
