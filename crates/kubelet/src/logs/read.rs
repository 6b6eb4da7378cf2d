//! Reading a log: the end of it, since a moment, and on and on while the container runs.

use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures::{Stream, StreamExt};
use inotify::{Inotify, WatchMask};
use jiff::Timestamp;
use tokio::sync::mpsc;

use crate::logs::record;
use crate::runtime::Runtime;

const CHUNK: usize = 64 * 1024;
/// A line longer than this is passed on in pieces; the runtime cuts at 16 KiB.
const LINE_LIMIT: usize = 1 << 20;

/// What part of a log, in which form.
#[derive(Clone, Debug, Default)]
pub(crate) struct Query {
    pub(crate) follow: bool,
    pub(crate) tail: Option<usize>,
    pub(crate) since: Option<Timestamp>,
    pub(crate) timestamps: bool,
    pub(crate) limit: Option<u64>,
    pub(crate) stdout: bool,
    pub(crate) stderr: bool,
}

/// A piece of output, for those who want to know which stream it came from.
pub(crate) struct Piece {
    pub(crate) stderr: bool,
    pub(crate) text: Bytes,
}

/// The log as text. `running` is the container whose end ends the following; without one following ends at once.
pub(crate) fn stream(
    runtime: Runtime,
    path: PathBuf,
    query: Query,
    running: Option<String>,
) -> impl Stream<Item = io::Result<Bytes>> {
    let (send, receive) = mpsc::channel(8);
    let task = kit::spawn("log", async move {
        let ended = async {
            if let Some(container_id) = running {
                // Without containerd there is nothing to follow, which is an end too.
                let _ = runtime.ended(&container_id).await;
            }
        };
        read(&path, &query, ended, &send).await
    });
    futures::stream::unfold((receive, task), |(mut receive, task)| async move {
        let piece: Piece = receive.recv().await?;
        Some((Ok(piece.text), (receive, task)))
    })
}

/// Sends the pieces; ends when `ended` and everything is sent, or when nobody listens.
pub(crate) async fn read(
    path: &Path,
    query: &Query,
    ended: impl Future<Output = ()>,
    send: &mpsc::Sender<Piece>,
) -> io::Result<()> {
    let mut changes = watch(path)?;
    let mut file = open(path, query.tail)?;
    let mut format = Format { query, rest: query.limit, continued: false };
    let mut pending = Vec::new();
    let mut over = !query.follow;
    tokio::pin!(ended);
    loop {
        let mut chunk = vec![0; CHUNK];
        let count = file.read(&mut chunk)?;
        if count > 0 {
            pending.extend_from_slice(&chunk[..count]);
            let Some(()) = deliver(&mut pending, &mut format, send).await else { return Ok(()) };
            continue;
        }
        // At its end: a rotated file goes on under the old name.
        if let Some(next) = successor(path, &file) {
            file = next;
            continue;
        }
        if over {
            return Ok(());
        }
        tokio::select! {
            () = &mut ended => over = true,
            () = send.closed() => return Ok(()),
            change = changes.next() => if change.is_none() { over = true },
        }
    }
}

fn watch(path: &Path) -> io::Result<inotify::EventStream<[u8; 1024]>> {
    let inotify = Inotify::init()?;
    // The directory, because rotation replaces the file.
    let dir = path.parent().unwrap_or(path);
    inotify.watches().add(dir, WatchMask::MODIFY | WatchMask::CREATE | WatchMask::MOVE)?;
    inotify.into_event_stream([0; 1024])
}

fn successor(path: &Path, file: &File) -> Option<File> {
    let next = File::open(path).ok()?;
    let (old, new) = (file.metadata().ok()?, next.metadata().ok()?);
    (old.ino() != new.ino()).then_some(next)
}

async fn deliver(pending: &mut Vec<u8>, format: &mut Format<'_>, send: &mpsc::Sender<Piece>) -> Option<()> {
    let mut from = 0;
    while let Some(end) = pending[from..].iter().position(|byte| *byte == b'\n') {
        let line = &pending[from..=from + end];
        from += end + 1;
        if let Some(piece) = format.piece(line) {
            send.send(piece).await.ok()?;
        }
        if format.rest == Some(0) {
            return None;
        }
    }
    pending.drain(..from);
    if pending.len() > LINE_LIMIT {
        pending.clear();
    }
    Some(())
}

/// Opens the log, at its last `tail` lines.
fn open(path: &Path, tail: Option<usize>) -> io::Result<File> {
    let mut file = File::open(path)?;
    if let Some(lines) = tail {
        let start = tail_start(&mut file, lines)?;
        file.seek(SeekFrom::Start(start))?;
    }
    Ok(file)
}

fn tail_start(file: &mut File, lines: usize) -> io::Result<u64> {
    let size = file.metadata()?.len();
    let mut end = size;
    let mut found = 0;
    let mut chunk = vec![0; CHUNK];
    while end > 0 {
        let start = end.saturating_sub(CHUNK as u64);
        let length = usize::try_from(end - start).unwrap_or(CHUNK);
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut chunk[..length])?;
        for (at, byte) in chunk[..length].iter().enumerate().rev() {
            if *byte == b'\n' {
                // The newline that ends the last line begins none.
                if found == lines {
                    return Ok(start + at as u64 + 1);
                }
                found += 1;
            }
        }
        end = start;
    }
    Ok(if lines == 0 { size } else { 0 })
}

struct Format<'a> {
    query: &'a Query,
    /// Bytes that may still be sent.
    rest: Option<u64>,
    /// The line before was partial.
    continued: bool,
}

impl Format<'_> {
    fn piece(&mut self, line: &[u8]) -> Option<Piece> {
        let record = record::parse(line)?;
        let continued = std::mem::replace(&mut self.continued, record.partial);
        if !(if record.stderr { self.query.stderr } else { self.query.stdout }) {
            return None;
        }
        if let Some(since) = self.query.since
            && record.time.parse::<Timestamp>().is_ok_and(|time| time < since)
        {
            return None;
        }
        let mut text = Vec::with_capacity(record.text.len() + 40);
        if self.query.timestamps && !continued {
            text.extend_from_slice(record.time.as_bytes());
            text.push(b' ');
        }
        text.extend_from_slice(record.text);
        if !record.partial {
            text.push(b'\n');
        }
        if let Some(rest) = &mut self.rest {
            text.truncate(usize::try_from(*rest).unwrap_or(usize::MAX));
            *rest -= text.len() as u64;
        }
        Some(Piece { stderr: record.stderr, text: text.into() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOG: &str = "2026-01-01T00:00:01Z stdout F one
2026-01-01T00:00:02Z stderr F two
2026-01-01T00:00:03Z stdout P thr
2026-01-01T00:00:03Z stdout F ee
2026-01-01T00:00:04Z stdout F four
";

    async fn text(query: Query) -> String {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        std::fs::write(&path, LOG).unwrap();
        let (send, mut receive) = mpsc::channel(100);
        read(&path, &query, std::future::ready(()), &send).await.unwrap();
        drop(send);
        let mut all = Vec::new();
        while let Some(piece) = receive.recv().await {
            all.extend_from_slice(&piece.text);
        }
        String::from_utf8(all).unwrap()
    }

    fn all() -> Query {
        Query { stdout: true, stderr: true, ..Default::default() }
    }

    #[tokio::test]
    async fn parts_of_a_log() {
        assert_eq!(text(all()).await, "one\ntwo\nthree\nfour\n");
        assert_eq!(text(Query { tail: Some(1), ..all() }).await, "four\n");
        assert_eq!(text(Query { tail: Some(0), ..all() }).await, "");
        assert_eq!(text(Query { tail: Some(99), ..all() }).await, "one\ntwo\nthree\nfour\n");
        assert_eq!(text(Query { stdout: false, ..all() }).await, "two\n");
        assert_eq!(text(Query { limit: Some(5), ..all() }).await, "one\nt");
        let since = Some("2026-01-01T00:00:03Z".parse().unwrap());
        assert_eq!(text(Query { since, ..all() }).await, "three\nfour\n");
        let stamped = text(Query { timestamps: true, since, ..all() }).await;
        assert_eq!(stamped, "2026-01-01T00:00:03Z three\n2026-01-01T00:00:04Z four\n");
    }
}
