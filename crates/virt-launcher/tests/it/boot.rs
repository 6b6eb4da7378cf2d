//! A real guest: a kernel and an initrd made here, booted by the launcher as a process of its own.

use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use libvirt::Connection;
use rpc::launcher::{Empty, ScreenshotRequest, SyncRequest};
use serde_json::json;

use crate::support::{PATIENCE, connect, until, watch};

/// What the guest prints; it is the boot sector below.
pub(crate) const GREETING: &str = "ferrovirt guest is up";

/// The launcher and everything it wrote, gone with the test.
pub(crate) struct Launcher {
    pub(crate) child: Child,
    lenders: Vec<Child>,
    run: tempfile::TempDir,
}

impl Launcher {
    pub(crate) fn start() -> Self {
        Self::start_at(None)
    }

    /// In a pod of its own as far as paths go: its directory is seen at `at` as well.
    pub(crate) fn start_in_pod(at: &Path) -> Self {
        Self::start_at(Some(at))
    }

    fn start_at(at: Option<&Path>) -> Self {
        let libvirtd = Path::new("/usr/sbin/libvirtd");
        let emulator = Path::new("/usr/bin/qemu-system-x86_64");
        assert!(
            libvirtd.exists() && emulator.exists(),
            "this test boots a guest: install libvirt-daemon and qemu-system-x86 (`make deps` does)"
        );
        let run = tempfile::tempdir().unwrap();
        std::os::unix::fs::chown(run.path(), Some(uid()), Some(uid())).unwrap();
        let mut command = match at {
            None => Command::new(example("launcher")),
            Some(at) => elsewhere(run.path(), at),
        };
        command.args(["--name", "boot", "--namespace", "test", "--uid", "u1", "--grace-period-seconds", "20"]);
        command.arg("--run-dir").arg(at.unwrap_or(run.path())).stdin(Stdio::null());
        if at.is_none() {
            as_user(&mut command);
        }
        Self { child: command.spawn().unwrap(), lenders: Vec::new(), run }
    }

    /// The domain's XML, as libvirt has it.
    pub(crate) fn domain_xml(&self) -> String {
        let libvirt = Connection::open(&self.path("libvirt/libvirt-sock"), "qemu:///session").unwrap();
        libvirt.lookup("test_boot").unwrap().xml().unwrap()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.run.path().join(name)
    }
}

impl Drop for Launcher {
    fn drop(&mut self) {
        // SIGTERM first: it takes libvirtd and QEMU along.
        let pid = rustix::process::Pid::from_child(&self.child);
        let _ = rustix::process::kill_process(pid, rustix::process::Signal::TERM);
        let _ = self.child.wait();
        for lender in &mut self.lenders {
            let _ = lender.kill();
            let _ = lender.wait();
        }
    }
}

/// Whom libvirtd runs as: it needs a user that exists, and no privilege.
fn uid() -> u32 {
    if rustix::process::geteuid().is_root() { 65534 } else { rustix::process::geteuid().as_raw() }
}

fn as_user(command: &mut Command) {
    if rustix::process::geteuid().is_root() {
        command.uid(uid()).gid(uid());
    }
}

/// The launcher in a mount namespace in which `run` is also `at`.
fn elsewhere(run: &Path, at: &Path) -> Command {
    let script = "mount --bind \"$1\" \"$2\" && shift 2 && exec setpriv \"$@\"";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation=private", "sh", "-c", script, "sh"]).arg(run).arg(at);
    command.arg(format!("--reuid={}", uid())).arg(format!("--regid={}", uid())).arg("--clear-groups");
    command.arg(example("launcher"));
    command
}

/// An example, which cargo builds beside this test's own program.
fn example(name: &str) -> PathBuf {
    let own = std::env::current_exe().unwrap();
    own.parent().and_then(Path::parent).unwrap().join("examples").join(name)
}

/// A disk whose boot sector prints the greeting on the serial port and waits.
pub(crate) fn greeting_disk() -> Vec<u8> {
    let mut code: Vec<u8> = vec![
        0x31, 0xc0, // xor ax, ax
        0x8e, 0xd8, // mov ds, ax
        0xbe, 0x1b, 0x7c, // mov si, text
        0xba, 0xf8, 0x03, // mov dx, 0x3f8
        0xac, // next: lodsb
        0x84, 0xc0, // test al, al
        0x74, 0x03, // jz wait
        0xee, // out dx, al
        0xeb, 0xf8, // jmp next
        0xfb, // wait: sti
        0xf4, // hlt
        0xeb, 0xfc, // jmp wait
        0x90, 0x90, 0x90, 0x90, 0x90,
    ];
    assert_eq!(code.len(), 0x1b);
    code.extend_from_slice(GREETING.as_bytes());
    code.extend_from_slice(b"\r\n\0");
    code.resize(510, 0);
    code.extend_from_slice(&[0x55, 0xaa]);
    code.resize(1 << 20, 0);
    code
}

pub(crate) fn vmi() -> String {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance",
        "metadata": {"name": "boot", "namespace": "test", "uid": "u1"},
        "spec": {
            "domain": {
                "memory": {"guest": "64Mi"},
                "devices": {"disks": [
                    {"name": "root", "disk": {"bus": "virtio"}},
                    {"name": "scratch", "disk": {"bus": "scsi"}},
                    {"name": "seed", "cdrom": {"bus": "sata"}},
                ], "rng": {}},
            },
            "terminationGracePeriodSeconds": 0,
            "volumes": [
                {"name": "root", "containerDisk": {"image": "example/guest"}},
                {"name": "scratch", "emptyDisk": {"capacity": "1Gi"}},
                {"name": "seed", "cloudInitNoCloud": {"userData": "#cloud-config\n"}},
            ],
        },
    })
    .to_string()
}

/// Lends one file as the container of a containerDisk does, in a process of the launcher's user.
pub(crate) fn lend(launcher: &mut Launcher, name: &str, content: &[u8]) {
    let file = launcher.path(name);
    std::fs::write(&file, content).unwrap();
    let socket = launcher.path("kubevirt/container-disks").join(format!("{name}.sock"));
    let mut command = Command::new(example("lender"));
    command.arg(socket).arg(file);
    as_user(&mut command);
    launcher.lenders.push(command.spawn().unwrap());
}

#[tokio::test]
async fn a_guest_boots_from_a_container_disk_and_ends() {
    let mut launcher = Launcher::start();
    let mut client = connect(&launcher.path("kubevirt/sockets/launcher-sock")).await;
    let mut states = watch(&mut client).await;
    lend(&mut launcher, "root", &greeting_disk());
    let environment = json!({"emulation": true, "logSerialConsole": true}).to_string();
    client.sync(SyncRequest { vmi: vmi(), environment }).await.unwrap();
    until(&mut states, "status Running", |state| state.status == "Running").await;
    assert!(launcher.domain_xml().contains("test_boot"));

    let log = launcher.path("kubevirt-private/u1/virt-serial0-log");
    let printed = async {
        while !std::fs::read_to_string(&log).unwrap_or_default().contains(GREETING) {
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(PATIENCE, printed).await.expect("the guest prints its greeting");

    let picture = client.screenshot(ScreenshotRequest::default()).await.unwrap().into_inner().data;
    assert!(picture.starts_with(b"\x89PNG"));
    client.pause(Empty {}).await.unwrap();
    until(&mut states, "PausedUser", |state| state.reason == "PausedUser").await;
    client.unpause(Empty {}).await.unwrap();
    until(&mut states, "status Running", |state| state.status == "Running").await;

    client.shutdown(Empty {}).await.unwrap();
    let last = until(&mut states, "status Shutoff", |state| state.status == "Shutoff").await;
    assert_eq!(last.reason, "Destroyed");
    drop(states);
    assert!(launcher.child.wait().unwrap().success());
}

#[tokio::test]
async fn a_file_that_is_no_disk_image_is_refused_permanently() {
    let mut launcher = Launcher::start();
    let mut client = connect(&launcher.path("kubevirt/sockets/launcher-sock")).await;
    lend(&mut launcher, "root", b"<html>not here</html>");
    let environment = json!({"emulation": true}).to_string();
    let refusal = client.sync(SyncRequest { vmi: vmi(), environment }).await.unwrap_err();
    let sentence = "volume root: the file is an HTML page, not a disk image: put a qcow2 or raw image in its place";
    assert_eq!(refusal.message(), sentence);
    let mut states = watch(&mut client).await;
    let state = until(&mut states, "an error", |state| !state.sync_error.is_empty()).await;
    assert!(state.terminal && state.sync_error == sentence);
}
