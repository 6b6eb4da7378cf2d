//! The agent of the node, which lends this server connections to QEMU. See `api::export::lending`.
//!
//! There is at most one: a new one takes the place of the one before, which is how an agent comes back after a restart.

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use api::export::lending::{ASK, Answer, Hello, LONGEST_LINE};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, Interest};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::server::volume::plain;

/// For each line of the agent's.
const PATIENCE: Duration = Duration::from_secs(10);
/// Requests that wait for a connection at once; more wait for those.
const WAITING: usize = 16;

type Wish = oneshot::Sender<io::Result<UnixStream>>;

/// Whoever lends connections to the one backup that this server shows.
#[derive(Debug)]
pub struct Lender {
    /// Of the backup.
    identity: String,
    agent: Mutex<Option<mpsc::Sender<Wish>>>,
}

impl Lender {
    /// Nobody yet. Only who lends the backup called `identity` will be.
    pub fn new(identity: impl Into<String>) -> Arc<Self> {
        Arc::new(Self { identity: identity.into(), agent: Mutex::default() })
    }

    /// Whether there is somebody.
    pub fn is_there(&self) -> bool {
        self.agent().is_some()
    }

    fn agent(&self) -> Option<mpsc::Sender<Wish>> {
        let agent = self.agent.lock().unwrap_or_else(PoisonError::into_inner);
        agent.clone().filter(|agent| !agent.is_closed())
    }

    /// A new connection to QEMU.
    ///
    /// # Errors
    /// When there is nobody to lend one, or QEMU does not serve the backup any more.
    pub async fn borrow(&self) -> io::Result<UnixStream> {
        let gone = || io::Error::new(io::ErrorKind::NotConnected, "the guest's node does not lend its disks");
        let agent = self.agent().ok_or_else(gone)?;
        let (wish, granted) = oneshot::channel();
        agent.send(wish).await.map_err(|_| gone())?;
        granted.await.map_err(|_| gone())?
    }

    /// Takes agents that connect, for as long as it is polled.
    pub async fn take(self: Arc<Self>, listener: UnixListener) {
        loop {
            match listener.accept().await {
                Ok((stream, _)) => {
                    let own = self.clone();
                    kit::spawn("agent", async move { own.welcome(stream).await }).detach();
                }
                Err(error) => {
                    tracing::warn!(%error, "an agent could not connect");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    async fn welcome(&self, mut stream: UnixStream) {
        let greeted = timeout(PATIENCE, self.greet(&mut stream)).await;
        match greeted.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
            Ok(true) => {}
            Ok(false) => return,
            Err(error) => return tracing::warn!(%error, "an agent did not say what it lends"),
        }
        let (wishes, waiting) = mpsc::channel(WAITING);
        *self.agent.lock().unwrap_or_else(PoisonError::into_inner) = Some(wishes);
        tracing::info!("the guest's node lends its disks");
        let ended = grant(&mut stream, waiting).await;
        tracing::info!(ended = ?ended.err(), "the guest's node does not lend its disks any more");
    }

    /// Whether the agent lends what this server shows.
    async fn greet(&self, stream: &mut UnixStream) -> io::Result<bool> {
        let mut hello = Vec::new();
        loop {
            match stream.read_u8().await? {
                b'\n' => break,
                _ if hello.len() >= LONGEST_LINE => return Err(io::ErrorKind::InvalidData.into()),
                byte => hello.push(byte),
            }
        }
        let hello: Hello = serde_json::from_slice(&hello)?;
        let ours = hello.identity == self.identity;
        if !ours {
            tracing::warn!(lent = hello.identity, shown = self.identity, "an agent lends another backup");
        }
        let answer = Answer { refused: (!ours).then(|| "another backup is shown here".to_owned()) };
        let mut line = serde_json::to_vec(&answer)?;
        line.push(b'\n');
        stream.write_all(&line).await?;
        Ok(ours)
    }
}

/// Grants one wish after another, until the agent goes, or another one has come.
async fn grant(stream: &mut UnixStream, mut wishes: mpsc::Receiver<Wish>) -> io::Result<()> {
    loop {
        tokio::select! {
            wish = wishes.recv() => {
                let Some(wish) = wish else { return Ok(()) };
                let lent = timeout(PATIENCE, lend(stream)).await;
                match lent.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())) {
                    Ok(lent) => drop(wish.send(lent)),
                    // What it says next is not the answer to what is asked next.
                    Err(error) => {
                        let again = io::Error::new(error.kind(), "the guest's node did not answer");
                        drop(wish.send(Err(again)));
                        return Err(error);
                    }
                }
            }
            // Unasked, an agent says nothing: it has gone.
            ready = stream.readable() => {
                ready?;
                match stream.try_read(&mut [0]) {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Ok(0) => return Ok(()),
                    Ok(_) => return Err(io::ErrorKind::InvalidData.into()),
                    Err(error) => return Err(error),
                }
            }
        }
    }
}

/// Asks for a connection: the outer error is the agent's end, the inner one its refusal.
async fn lend(stream: &mut UnixStream) -> io::Result<io::Result<UnixStream>> {
    stream.write_all(&[ASK]).await?;
    // It is sent at once, with its descriptor.
    let receive = || sys::fdpass::receive(&*stream, LONGEST_LINE).map_err(plain);
    let (line, mut lent) = stream.async_io(Interest::READABLE, receive).await?;
    if line.last() != Some(&b'\n') {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    let answer: Answer = serde_json::from_slice(&line)?;
    match (answer.refused, lent.pop()) {
        (None, Some(connection)) => {
            let connection = StdUnixStream::from(connection);
            connection.set_nonblocking(true)?;
            UnixStream::from_std(connection).map(Ok)
        }
        (why, _) => {
            let why = why.unwrap_or_else(|| "no connection came".to_owned());
            Ok(Err(io::Error::new(io::ErrorKind::NotConnected, why)))
        }
    }
}
