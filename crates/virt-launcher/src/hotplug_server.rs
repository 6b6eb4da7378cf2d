//! The socket over which the node agent lends disks to the guest that runs.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use kit::Task;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, oneshot};

use crate::Dirs;
use crate::driver::{Command, Request};
use crate::hotplug::Lending;
use crate::request_queue::Kind;
use crate::socket;

/// Bytes of a request.
const LINE_LIMIT: usize = 4 << 10;
/// The node agent has its request ready when it connects.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);

/// What is asked for a disk.
#[derive(Debug, serde::Deserialize)]
struct LendRequest {
    volume: String,
    writable: bool,
    /// It is not a disk: the launcher itself uses the volume, whose directory comes with it.
    #[serde(default)]
    directory: bool,
}

/// Takes what is lent, until the driver is gone.
pub(crate) fn listen(dirs: &Dirs, requests: mpsc::Sender<Request>) -> io::Result<Task<()>> {
    let listener: UnixListener = socket::listen(&dirs.hotplug_socket())?;
    let own = rustix::process::geteuid().as_raw();
    Ok(kit::spawn("hotplug", async move {
        while let Ok((stream, _)) = listener.accept().await {
            if !sys::peer::peer(&stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == own) {
                continue;
            }
            let requests = requests.clone();
            kit::spawn("lending", async move {
                if let Err(error) = take(stream, requests).await {
                    tracing::warn!(%error, "a disk was not taken");
                }
            })
            .detach();
        }
    }))
}

async fn take(stream: tokio::net::UnixStream, requests: mpsc::Sender<Request>) -> io::Result<()> {
    let stream = stream.into_std()?;
    let (mut stream, lending) = blocking(move || receive(&stream).map(|lending| (stream, lending))).await?;
    let (reply, answer) = oneshot::channel();
    let request = Request { kind: Kind::Lend, command: Command::Lend(lending), reply };
    let gone = || "the launcher is ending".to_owned();
    let error = match requests.send(request).await {
        Ok(()) => answer.await.map_or_else(|_| Some(gone()), |done| done.err().map(|e| kit::Chain(&e).to_string())),
        Err(_) => Some(gone()),
    };
    let line = format!("{}\n", serde_json::json!({ "error": error }));
    blocking(move || stream.write_all(line.as_bytes())).await
}

async fn blocking<T: Send + 'static>(call: impl FnOnce() -> io::Result<T> + Send + 'static) -> io::Result<T> {
    tokio::task::spawn_blocking(call).await.map_err(io::Error::other)?
}

fn receive(stream: &UnixStream) -> io::Result<Lending> {
    stream.set_nonblocking(false)?;
    stream.set_read_timeout(Some(REQUEST_LIMIT))?;
    stream.set_write_timeout(Some(REQUEST_LIMIT))?;
    let (line, fds) = sys::fdpass::receive_line(stream, LINE_LIMIT).map_err(io::Error::other)?;
    let request: LendRequest = serde_json::from_str(&line)?;
    let LendRequest { volume, writable, directory } = request;
    let mut files = fds.into_iter().map(File::from);
    Ok(Lending { volume, writable, directory, image: files.next(), layer: files.next() })
}
