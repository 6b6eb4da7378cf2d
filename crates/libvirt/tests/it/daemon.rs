//! A libvirtd of a test's own, as an ordinary user and with everything it writes below a directory of the test's.

use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use libvirt::Connection;

/// `nobody`: root would get the system's daemon, with its directories.
const USER: u32 = 65534;
const LIMIT: Duration = Duration::from_secs(60);

pub(crate) struct Daemon {
    process: Child,
    dir: tempfile::TempDir,
}

impl Daemon {
    /// Returns when it listens.
    #[expect(clippy::disallowed_methods, reason = "nothing tells of a socket that is listened to")]
    pub(crate) fn start() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let below = |name: &str| {
            let path = dir.path().join(name);
            std::fs::create_dir(&path).unwrap();
            path
        };
        let mut command = Command::new("libvirtd");
        // No system bus: nothing of this machine is asked.
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").stdin(Stdio::null()).stderr(Stdio::null());
        // Two daemons of one machine are two hosts to each other: else neither would move a domain to the other.
        let config = dir.path().join("libvirtd.conf");
        std::fs::write(&config, format!("host_uuid = \"{}\"\n", uuid(&dir))).unwrap();
        command.arg("-f").arg(config);
        let dirs = ["HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_DATA_HOME", "XDG_RUNTIME_DIR"]
            .map(|variable| (variable, below(variable)));
        for (variable, path) in &dirs {
            command.env(variable, path);
        }
        if rustix::process::geteuid().is_root() {
            command.uid(USER).gid(USER);
            for path in dirs.iter().map(|(_, path)| path.as_path()).chain([dir.path()]) {
                chown(path, Some(USER), Some(USER)).unwrap();
            }
        }
        let process = command.spawn().expect("these tests need libvirtd (package libvirt-daemon)");
        let daemon = Self { process, dir };
        let deadline = Instant::now() + LIMIT;
        while std::os::unix::net::UnixStream::connect(daemon.socket()).is_err() {
            assert!(Instant::now() < deadline, "libvirtd does not listen");
            std::thread::sleep(Duration::from_millis(10));
        }
        daemon
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.dir.path().join("XDG_RUNTIME_DIR/libvirt/libvirt-sock")
    }

    pub(crate) fn open(&self, uri: &str) -> Connection {
        Connection::open(&self.socket(), uri).unwrap()
    }

    /// As if it had crashed.
    pub(crate) fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// One of this daemon's own, out of its directory's name.
fn uuid(dir: &tempfile::TempDir) -> String {
    let digits: String =
        dir.path().as_os_str().as_encoded_bytes().iter().rev().take(6).map(|b| format!("{b:02x}")).collect();
    format!("6a0b5f6e-0d0a-4c6b-9f64-{digits}")
}

impl Drop for Daemon {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
        // A test that failed may have left its machine running: that outlives the daemon.
        let runs = std::fs::read_dir(self.dir.path().join("XDG_RUNTIME_DIR/libvirt/qemu/run"));
        for file in runs.into_iter().flatten().flatten().filter(|file| file.path().extension() == Some("pid".as_ref()))
        {
            let pid = std::fs::read_to_string(file.path()).ok().and_then(|text| text.trim().parse().ok());
            if let Some(pid) = pid.and_then(rustix::process::Pid::from_raw) {
                let _ = rustix::process::kill_process(pid, rustix::process::Signal::KILL);
            }
        }
    }
}
