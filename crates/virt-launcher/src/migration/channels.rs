//! The ways out of the pod that a migration needs.
//!
//! ```text
//!   libvirtd, QEMU --connect--> launcher --descriptor--> node agent ==TLS==> node agent --> the target's sockets
//! ```
//!
//! libvirt connects to sockets of this pod as if the target were here: to its daemon, to its QEMU for memory and to its QEMU
//! for disks. The launcher accepts, and hands each connection over as a descriptor; no byte of the guest passes through it.
//! On the target QEMU itself listens at the same paths.
//!
//! Of libvirt's own connection the launcher keeps a second descriptor. When libvirt sees that connection end, it takes the
//! guest for not moved and lets it run on here, which is wrong if the target was told to start it and its answer was lost. So
//! the connection ends when the launcher says so, and not with the way to the target or with the node agent.

use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use domain::MigrationChannel;
use kit::Task;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};
use tokio::net::UnixListener;
use tokio::sync::mpsc;

use crate::Dirs;
use crate::socket::listen;

/// Bytes of what a node agent may tell.
const LONGEST_TALK: u64 = 4 << 10;
/// Words that wait to be heard.
const WORDS: usize = 8;

/// What a node agent tells about the way to the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Word {
    /// Libvirt's connection leads nowhere any more.
    Lost,
    /// The guest runs on the target.
    Moved,
    /// The guest does not run on the target, and will not.
    Stays,
}

impl Word {
    fn said(line: &str) -> Option<Self> {
        match line {
            "lost" => Some(Self::Lost),
            "moved" => Some(Self::Moved),
            "stays" => Some(Self::Stays),
            _ => None,
        }
    }
}

/// Whom connections are handed to, and who hears what is told.
#[derive(Default)]
struct Shared {
    /// The node agent that came last.
    agent: Option<UnixStream>,
    /// How many have come.
    came: u64,
    /// The migration that runs.
    listener: Option<mpsc::Sender<Word>>,
}

type Agent = Arc<Mutex<Shared>>;

fn lock(agent: &Agent) -> MutexGuard<'_, Shared> {
    agent.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Accepts node agents. Lives as long as the launcher.
pub(crate) struct Channels {
    agent: Agent,
    _accepting: Task<()>,
}

/// The sockets of one migration; they are gone with this.
pub(crate) struct Open {
    listening: Vec<Task<()>>,
    paths: Vec<PathBuf>,
    kept: Kept,
    words: mpsc::Receiver<Word>,
}

/// Second descriptors of libvirt's connections.
type Kept = Arc<Mutex<Vec<UnixStream>>>;

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
                if !sys::peer::peer(&stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == own) {
                    continue;
                }
                if let Err(error) = stream.into_std().and_then(|stream| admit(&newest, stream)) {
                    tracing::warn!(%error, "a node agent cannot be talked to");
                }
            }
        });
        Ok(Self { agent, _accepting: accepting })
    }

    /// Listens for what libvirt will connect to.
    pub(crate) fn open(&self, dirs: &Dirs) -> io::Result<Open> {
        let (sender, words) = mpsc::channel(WORDS);
        let mut open = Open { listening: Vec::new(), paths: Vec::new(), kept: Kept::default(), words };
        for channel in MigrationChannel::ALL {
            let path = dirs.migration_socket(channel);
            let listener = listen(&path)?;
            open.paths.push(path);
            let task = hand_over(listener, channel, self.agent.clone(), open.kept.clone());
            open.listening.push(kit::spawn("channel", task));
        }
        lock(&self.agent).listener = Some(sender);
        Ok(open)
    }
}

/// From now on connections go to this node agent, and what it tells counts.
fn admit(agent: &Agent, stream: UnixStream) -> io::Result<()> {
    let heard = tokio::net::UnixStream::from_std(stream.try_clone()?)?;
    let mut shared = lock(agent);
    shared.agent = Some(stream);
    shared.came += 1;
    let turn = shared.came;
    drop(shared);
    kit::spawn("agent", hear(agent.clone(), heard, turn)).detach();
    Ok(())
}

async fn hear(agent: Agent, stream: tokio::net::UnixStream, turn: u64) {
    let mut lines = BufReader::new(stream.take(LONGEST_TALK)).lines();
    loop {
        let line = lines.next_line().await.ok().flatten();
        let ended = line.is_none();
        // With the agent's process everything it carried has ended.
        let Some(word) = line.as_deref().map_or(Some(Word::Lost), Word::said) else { continue };
        let listener = {
            let shared = lock(&agent);
            shared.listener.clone().filter(|_| shared.came == turn)
        };
        if let Some(listener) = listener {
            // Without a migration nobody listens.
            let _ = listener.send(word).await;
        }
        if ended {
            return;
        }
    }
}

impl Open {
    /// What a node agent tells next.
    pub(crate) async fn word(&mut self) -> Word {
        match self.words.recv().await {
            Some(word) => word,
            // A new migration listens; this one's task is about to end.
            None => std::future::pending().await,
        }
    }

    /// Lets libvirt see that its connection has ended.
    pub(crate) fn cut(&self) {
        for stream in self.kept.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            // The other side may have closed it already.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        self.listening.clear();
        for path in &self.paths {
            remove(path);
        }
    }
}

/// Removes a socket that may not be there.
fn remove(path: &Path) {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %path.display(), "a migration's socket stays");
        }
        _ => {}
    }
}

async fn hand_over(listener: UnixListener, channel: MigrationChannel, agent: Agent, kept: Kept) {
    while let Ok((stream, _)) = listener.accept().await {
        // libvirt sees its connection closed, and says so.
        if let Err(error) = hand(stream, channel, &agent, &kept) {
            tracing::warn!(%error, channel = channel.name(), "a connection of the migration was not handed over");
        }
    }
}

fn hand(stream: tokio::net::UnixStream, channel: MigrationChannel, agent: &Agent, kept: &Kept) -> io::Result<()> {
    let stream = stream.into_std()?;
    let shared = lock(agent);
    let agent = shared.agent.as_ref().ok_or_else(|| io::Error::other("no node agent is connected"))?;
    let line = format!("{}\n", channel.name());
    let second = (channel == MigrationChannel::Libvirt).then(|| stream.try_clone()).transpose()?;
    sys::fdpass::send(agent, line.as_bytes(), &[stream.as_fd()]).map_err(io::Error::other)?;
    kept.lock().unwrap_or_else(PoisonError::into_inner).extend(second);
    Ok(())
}
