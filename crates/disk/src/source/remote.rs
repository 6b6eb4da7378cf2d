//! A source behind an [`Origin`]: one stream of bytes, continued where it broke off for as long as it stays the same thing.
//!
//! ```text
//!  open(offset) ─▶ task: ask ─▶ pieces ─▶ bounded channel ─▶ Read
//!                    ▲            │ broke off, stalled, 503
//!                    └── pause ◀──┘ next question from the offset reached, only if the validator still holds
//! ```

use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Buf, Bytes};
use http::{StatusCode, header};
use reqwest::Response;
use tokio::runtime::Handle;
use tokio::sync::mpsc;
use tokio::task::AbortHandle;

use super::answer::{Facts, Validator, content_range};
use super::origin::{Ask, Origin, Tries};
use super::{Error, Source};

/// Pieces that may wait between the network and the decoder: a piece is at most some 400 KiB.
const AHEAD: usize = 8;

/// Bytes at an address, whose length and abilities were asked for.
pub(super) struct Remote {
    shared: Arc<Shared>,
    handle: Handle,
}

struct Shared {
    origin: Origin,
    facts: Facts,
    /// The answer to the first question, kept for whoever begins at the beginning.
    first: Mutex<Option<Response>>,
}

impl Remote {
    /// Asks `origin` for the beginning, which also tells how long it is and whether ranges work.
    pub(super) async fn probe(origin: Origin) -> Result<Self, Error> {
        let mut tries = Tries::new(origin.patience);
        let (facts, first) = loop {
            match begin(&origin).await {
                Ok(begun) => break begun,
                Err(error) => match tries.pause(&error) {
                    Some(pause) => tokio::time::sleep(pause).await,
                    None => return Err(error),
                },
            }
        };
        let shared = Arc::new(Shared { origin, facts, first: Mutex::new(first) });
        Ok(Self { shared, handle: Handle::current() })
    }

    /// A reader from `offset` on.
    pub(super) fn reader(&self, offset: u64) -> Reader {
        let (out, pieces) = mpsc::channel(AHEAD);
        let task = self.handle.spawn(pump(self.shared.clone(), offset, out));
        Reader { pieces, current: Bytes::new(), task: task.abort_handle() }
    }
}

impl Source for Remote {
    fn size(&self) -> Option<u64> {
        self.shared.facts.size
    }

    fn ranged(&self) -> bool {
        self.shared.facts.ranged
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(self.reader(offset)))
    }

    fn identity(&self) -> Option<String> {
        let facts = &self.shared.facts;
        let version = facts.validator.text()?;
        Some(format!("{} {version} {}", self.shared.origin.name(), facts.size?))
    }
}

/// The first question. A server that knows no ranges ignores it and sends the whole; an empty file has no first byte.
async fn begin(origin: &Origin) -> Result<(Facts, Option<Response>), Error> {
    let answer = match origin.get(&Ask { from: Some(0), condition: None }).await {
        Err(Error::Status { status: StatusCode::RANGE_NOT_SATISFIABLE, .. }) => origin.get(&Ask::default()).await?,
        other => other?,
    };
    let validator = Validator::of(answer.headers());
    let facts = match partial(origin, &answer, 0)? {
        Some(size) => Facts { size, ranged: size.is_some(), validator },
        None => Facts { size: answer.content_length(), ranged: false, validator },
    };
    Ok((facts, Some(answer)))
}

/// The length of the whole in a partial answer from `from` on; none when the answer is the whole.
fn partial(origin: &Origin, answer: &Response, from: u64) -> Result<Option<Option<u64>>, Error> {
    if answer.status() != StatusCode::PARTIAL_CONTENT {
        return Ok(None);
    }
    let value = answer.headers().get(header::CONTENT_RANGE).and_then(|value| value.to_str().ok()).unwrap_or("no range");
    match content_range(value) {
        Some((first, whole)) if first == from => Ok(Some(whole)),
        _ => Err(Error::Range { url: origin.name(), asked: from, got: value.chars().take(80).collect() }),
    }
}

/// Fetches from `at` to the end into `out`, over as many connections as it takes.
async fn pump(shared: Arc<Shared>, mut at: u64, out: mpsc::Sender<Result<Bytes, Error>>) {
    let origin = &shared.origin;
    let mut tries = Tries::new(origin.patience);
    let mut kept = if at == 0 { take(&shared.first) } else { None };
    loop {
        let error = match shared.stream(&mut at, kept.take(), &mut tries, &out).await {
            Ok(()) => return,
            Err(error) => error,
        };
        let Some(pause) = tries.pause(&error) else {
            // Nobody listens any more: nobody misses the error.
            let _ = out.send(Err(error)).await;
            return;
        };
        if at > 0 && !shared.repeatable() {
            let _ = out.send(Err(Error::Unrepeatable { url: origin.name(), got: at })).await;
            return;
        }
        tokio::time::sleep(pause).await;
    }
}

fn take(first: &Mutex<Option<Response>>) -> Option<Response> {
    first.lock().unwrap_or_else(PoisonError::into_inner).take()
}

impl Shared {
    /// Whether a second answer can be compared with the first.
    fn repeatable(&self) -> bool {
        self.facts.size.is_some() || !self.facts.validator.is_empty()
    }

    /// One connection's worth: moves `at` on with each piece, returns at the end of the bytes or of the listener.
    async fn stream(
        &self,
        at: &mut u64,
        kept: Option<Response>,
        tries: &mut Tries,
        out: &mpsc::Sender<Result<Bytes, Error>>,
    ) -> Result<(), Error> {
        if self.facts.size.is_some_and(|size| *at >= size) {
            return Ok(());
        }
        let (mut answer, mut skip) = match kept {
            Some(answer) => (answer, 0),
            None => self.again(*at).await?,
        };
        while let Some(mut piece) = self.origin.piece(&mut answer).await? {
            let skipped = skip.min(piece.len() as u64);
            piece.advance(usize::try_from(skipped).unwrap_or(piece.len()));
            skip -= skipped;
            if piece.is_empty() {
                continue;
            }
            *at += piece.len() as u64;
            tries.progressed(piece.len() as u64);
            if out.send(Ok(piece)).await.is_err() {
                return Ok(());
            }
        }
        match self.facts.size {
            Some(expected) if *at < expected => Err(Error::Short { url: self.origin.name(), got: *at, expected }),
            _ => Ok(()),
        }
    }

    /// The rest from `at` on, and how many bytes to drop before it. Fails when it is not the rest of the same thing.
    async fn again(&self, at: u64) -> Result<(Response, u64), Error> {
        let ask = match self.facts.ranged && at > 0 {
            true => Ask { from: Some(at), condition: self.facts.validator.condition().cloned() },
            false => Ask::default(),
        };
        let answer = self.origin.get(&ask).await?;
        let (size, skip) = match partial(&self.origin, &answer, at)? {
            Some(size) => (size, 0),
            None => (answer.content_length(), at),
        };
        let same = self.facts.validator.allows(&Validator::of(answer.headers()))
            && (self.facts.size.is_none() || size.is_none() || self.facts.size == size);
        if same { Ok((answer, skip)) } else { Err(Error::Changed { url: self.origin.name() }) }
    }
}

/// The reading end; dropping it ends the connection.
pub(super) struct Reader {
    pieces: mpsc::Receiver<Result<Bytes, Error>>,
    current: Bytes,
    task: AbortHandle,
}

impl Read for Reader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        while self.current.is_empty() {
            match self.pieces.blocking_recv() {
                Some(piece) => self.current = piece?,
                None => return Ok(0),
            }
        }
        let length = self.current.len().min(into.len());
        self.current.copy_to_slice(&mut into[..length]);
        Ok(length)
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.task.abort();
    }
}
