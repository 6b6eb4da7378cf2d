//! The ways out of the pod that a migration needs.
//!
//! ```text
//!   libvirtd, QEMU --connect--> launcher --descriptor--> node agent ==TLS==> node agent --> the target's sockets
//! ```
//!
//! libvirt connects to sockets of this pod as if the target were here: to its daemon, to its QEMU for memory and to its QEMU
//! for disks. The launcher accepts, and hands each connection over as a descriptor; no byte of the guest passes through it.
//! On the target QEMU itself listens at the same paths.

use std::io;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use domain::MigrationChannel;
use kit::Task;
use tokio::net::UnixListener;

use crate::Dirs;
use crate::server::listen;

/// Whom connections are handed to: the node agent that came last.
type Agent = Arc<Mutex<Option<UnixStream>>>;

/// Accepts node agents. Lives as long as the launcher.
pub(crate) struct Channels {
    agent: Agent,
    _accepting: Task<()>,
}

/// The sockets of one migration; they are gone with this.
pub(crate) struct Open {
    _listening: Vec<Task<()>>,
    paths: Vec<std::path::PathBuf>,
}

impl Channels {
    pub(crate) fn start(dirs: &Dirs) -> io::Result<Self> {
        let socket = dirs.channels_socket();
        std::fs::create_dir_all(socket.parent().unwrap_or(&socket))?;
        let listener = listen(&socket)?;
        let agent = Agent::default();
        let newest = agent.clone();
        let own = rustix::process::geteuid().as_raw();
        let accepting = kit::spawn("channels", async move {
            while let Ok((stream, _)) = listener.accept().await {
                let allowed = sys::peer::peer(&stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == own);
                match stream.into_std().and_then(|stream| stream.set_nonblocking(false).map(|()| stream)) {
                    Ok(stream) if allowed => *newest.lock().unwrap_or_else(PoisonError::into_inner) = Some(stream),
                    Ok(_stranger) => {}
                    Err(error) => tracing::warn!(%error, "a node agent cannot be talked to"),
                }
            }
        });
        Ok(Self { agent, _accepting: accepting })
    }

    /// Listens for what libvirt will connect to.
    pub(crate) fn open(&self, dirs: &Dirs) -> io::Result<Open> {
        let mut open = Open { _listening: Vec::new(), paths: Vec::new() };
        for channel in MigrationChannel::ALL {
            let path = dirs.migration_socket(channel);
            let listener = listen(&path)?;
            open.paths.push(path);
            open._listening.push(kit::spawn("channel", hand_over(listener, channel, self.agent.clone())));
        }
        Ok(open)
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        for path in &self.paths {
            remove(path);
        }
    }
}

/// Removes a socket that may not be there.
pub(super) fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "a migration's socket stays");
        }
        _ => {}
    }
}

async fn hand_over(listener: UnixListener, channel: MigrationChannel, agent: Agent) {
    while let Ok((stream, _)) = listener.accept().await {
        let agent = agent.lock().unwrap_or_else(PoisonError::into_inner);
        let line = format!("{}\n", channel.name());
        let sent = match (agent.as_ref(), stream.into_std()) {
            (None, _) => Err("no node agent is connected".to_owned()),
            (_, Err(error)) => Err(error.to_string()),
            (Some(agent), Ok(stream)) => {
                sys::fdpass::send(agent, line.as_bytes(), &[stream.as_fd()]).map_err(|error| error.to_string())
            }
        };
        // libvirt sees its connection closed, and says so.
        if let Err(error) = sent {
            tracing::warn!(error, channel = channel.name(), "a connection of the migration was not handed over");
        }
    }
}
