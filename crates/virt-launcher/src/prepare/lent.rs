//! Files that the pod's other containers lend: their disks, opened there and used here.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{Error, not_lent};
use crate::dirs::Dirs;

/// The container may still be starting.
const WAIT: Duration = Duration::from_secs(120);
/// The answer comes from a local program that has nothing else to do.
const ANSWER: Duration = Duration::from_secs(10);
const LINE_LIMIT: usize = 8 << 10;

/// An open file, and the link by which QEMU (same user, same PID namespace) reaches it.
#[derive(Debug)]
pub(crate) struct Lent {
    pub(crate) file: File,
    pub(crate) size: u64,
    pub(crate) link: PathBuf,
}

impl Lent {
    /// Makes the link `name` in `directory`.
    pub(crate) fn new(file: File, directory: &Path, name: &str) -> std::io::Result<Self> {
        let link = directory.join(name);
        let target = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        // A link of an earlier try points to a file that is closed now.
        let _ = std::fs::remove_file(&link);
        std::os::unix::fs::symlink(target, &link)?;
        Ok(Self { size: file.metadata()?.len(), file, link })
    }
}

/// What comes with each file.
#[derive(serde::Deserialize)]
struct Answer {
    #[serde(default)]
    path: String,
    #[serde(default)]
    error: Option<String>,
}

/// Borrows `count` files from the container that listens on `socket`.
pub(super) async fn borrow(dirs: &Dirs, volume: &str, socket: &str, count: usize) -> Result<Vec<Lent>, Error> {
    let directory = dirs.container_disks();
    let socket = directory.join(socket);
    let deadline = Instant::now() + WAIT;
    let stream = loop {
        match UnixStream::connect(&socket) {
            Ok(stream) => break stream,
            Err(error) if Instant::now() > deadline => {
                return Err(not_lent(volume, &format!("its container does not lend its disk: {error}")));
            }
            Err(_) => sleep(Duration::from_millis(20)).await,
        }
    };
    let volume = volume.to_owned();
    let joined = tokio::task::spawn_blocking(move || receive(&stream, &directory, &volume, count)).await;
    joined.unwrap_or_else(|error| Err(not_lent("", &error.to_string())))
}

fn receive(stream: &UnixStream, directory: &Path, volume: &str, count: usize) -> Result<Vec<Lent>, Error> {
    let failed = |error: &dyn std::fmt::Display| not_lent(volume, &error.to_string());
    // Only containers of this pod can listen there; and only those that run as this user may lend.
    let peer = sys::peer::peer(stream).map_err(|error| failed(&error))?;
    if peer.uid != rustix::process::geteuid().as_raw() {
        return Err(failed(&format!("its container runs as user {}, not as the launcher's", peer.uid)));
    }
    stream.set_read_timeout(Some(ANSWER)).map_err(|error| failed(&error))?;
    let mut out = Vec::new();
    for index in 0..count {
        let (line, mut fds) = sys::fdpass::receive_line(stream, LINE_LIMIT).map_err(|error| failed(&error))?;
        let answer: Answer = serde_json::from_str(&line).map_err(|error| failed(&error))?;
        if let Some(message) = answer.error {
            return Err(Error::Unusable { volume: volume.to_owned(), message });
        }
        let file = fds.pop().map(File::from).ok_or_else(|| failed(&"no file came with the answer"))?;
        if !file.metadata().map_err(|error| failed(&error))?.is_file() {
            return Err(failed(&format!("{} is not a regular file", answer.path)));
        }
        let name = if index == 0 { format!("{volume}.img") } else { format!("{volume}-{index}.img") };
        out.push(Lent::new(file, directory, &name).map_err(|error| failed(&error))?);
    }
    Ok(out)
}
