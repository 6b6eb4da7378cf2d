//! libvirtd in session mode: one daemon for one domain, with everything a pod has no use for switched off.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use libvirt::Connection;
use rustix::process::{Pid, Signal, kill_process};
use tokio::sync::broadcast;
use tokio::sync::broadcast::error::RecvError;
use tokio::time::{Instant, sleep, timeout};

use crate::Dirs;
use crate::reaper::Children;

const START_LIMIT: Duration = Duration::from_secs(60);
const STOP_LIMIT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("libvirtd is not installed")]
    Missing,
    #[error("writing {path}")]
    Configure {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("running {path}")]
    Spawn {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("libvirtd ended before it answered; its log says why")]
    Ended,
    #[error("libvirtd did not answer within {0:?}")]
    Silent(Duration),
    #[error("connecting")]
    Connect(#[source] libvirt::Error),
}

/// Chardevs write their own logs (no virtlogd), and the pod is the only sandbox. A migration's connection to another daemon
/// ends when the launcher says so, never because that daemon was silent.
const QEMU_CONF: &str = "stdio_handler = \"file\"
cgroup_controllers = []
namespaces = []
security_driver = \"none\"
dynamic_ownership = 0
remember_owner = 0
max_core = 0
keepalive_interval = -1
";

/// Which disks both ends of a migration reach is what their claims say, not what libvirt makes of the type of a file system:
/// virt-controller lets no guest move whose claims are not shared, unless the disk is copied.
fn shared_file_systems(dirs: &Dirs) -> String {
    format!("shared_filesystems = [{:?}]\n", dirs.claims().display().to_string())
}

/// One client and one domain need few threads.
const LIBVIRTD_CONF: &str = "max_clients = 8
max_anonymous_clients = 8
min_workers = 2
max_workers = 6
prio_workers = 2
max_client_requests = 16
admin_min_workers = 1
admin_max_workers = 1
keepalive_interval = -1
log_outputs = \"3:stderr\"
";

/// A new UUID with each reading.
const HOST_UUID: &str = "/proc/sys/kernel/random/uuid";

pub(crate) struct Daemon {
    pid: Pid,
    children: broadcast::Receiver<u32>,
    socket: PathBuf,
}

impl Daemon {
    pub(crate) async fn start(dirs: &Dirs, children: Children) -> Result<Self, Error> {
        let program = ["/usr/sbin/libvirtd", "/usr/bin/libvirtd"]
            .into_iter()
            .map(Path::new)
            .find(|path| path.exists())
            .ok_or(Error::Missing)?;
        let home = dirs.private();
        let write = |path: PathBuf, text: &str| {
            std::fs::write(&path, text).map(|()| path.clone()).map_err(|source| Error::Configure { path, source })
        };
        write(home.join("libvirt/qemu.conf"), &format!("{QEMU_CONF}{}", shared_file_systems(dirs)))?;
        // Each launcher is a host of its own: libvirt moves no domain to the host it is on.
        let host =
            std::fs::read_to_string(HOST_UUID).map_err(|source| Error::Configure { path: HOST_UUID.into(), source })?;
        let text = format!("{LIBVIRTD_CONF}host_uuid = \"{}\"\n", host.trim());
        let config = write(home.join("libvirt/libvirtd.conf"), &text)?;
        let socket = dirs.libvirt_socket();
        let _ = std::fs::remove_file(&socket);
        let receiver = children.subscribe();
        let child = Command::new(program)
            .arg("-f")
            .arg(&config)
            .env_clear()
            .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
            // Sixteen threads that wait need no sixteen heaps.
            .env("MALLOC_ARENA_MAX", "1")
            .env("HOME", &home)
            .env("XDG_CONFIG_HOME", &home)
            .env("XDG_CACHE_HOME", &home)
            .env("XDG_DATA_HOME", &home)
            .env("XDG_RUNTIME_DIR", dirs.runtime())
            .stdin(Stdio::null())
            .spawn()
            .map_err(|source| Error::Spawn { path: program.to_owned(), source })?;
        let pid = Pid::from_child(&child);
        tracing::info!(pid = child.id(), "libvirtd started");
        let mut daemon = Self { pid, children: receiver, socket };
        daemon.wait_for_socket().await?;
        Ok(daemon)
    }

    async fn wait_for_socket(&mut self) -> Result<(), Error> {
        let socket = self.socket.clone();
        let listening = async {
            while std::os::unix::net::UnixStream::connect(&socket).is_err() {
                sleep(Duration::from_millis(10)).await;
            }
        };
        let waited = tokio::select! {
            waited = timeout(START_LIMIT, listening) => waited.map_err(|_| Error::Silent(START_LIMIT)),
            () = self.ended() => Err(Error::Ended),
        };
        if waited.is_err() {
            self.signal(Signal::KILL);
        }
        waited
    }

    pub(crate) async fn connect(&mut self) -> Result<Connection, Error> {
        let deadline = Instant::now() + START_LIMIT;
        loop {
            let socket = self.socket.clone();
            let opened = tokio::task::spawn_blocking(move || Connection::open(&socket, "qemu:///session")).await;
            match opened {
                Ok(Ok(connection)) => return Ok(connection),
                Ok(Err(error)) if Instant::now() > deadline => return Err(Error::Connect(error)),
                Ok(Err(error)) => tracing::debug!(%error, "libvirtd does not answer yet"),
                Err(_) => return Err(Error::Ended),
            }
            sleep(Duration::from_millis(20)).await;
        }
    }

    /// Returns when the daemon has ended.
    pub(crate) async fn ended(&mut self) {
        let pid = u32::try_from(self.pid.as_raw_nonzero().get()).unwrap_or(0);
        loop {
            match self.children.recv().await {
                Ok(ended) if ended == pid => return,
                Ok(_) => {}
                // The announcement may be among those missed: ask the kernel.
                Err(RecvError::Lagged(_)) if rustix::process::test_kill_process(self.pid).is_err() => return,
                Err(RecvError::Lagged(_)) => {}
                Err(RecvError::Closed) => return,
            }
        }
    }

    pub(crate) async fn stop(mut self) {
        self.signal(Signal::TERM);
        if timeout(STOP_LIMIT, self.ended()).await.is_err() {
            self.signal(Signal::KILL);
        }
    }

    fn signal(&self, signal: Signal) {
        // It may be gone already.
        let _ = kill_process(self.pid, signal);
    }
}
