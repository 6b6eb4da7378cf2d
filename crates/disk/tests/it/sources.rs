//! Every source against a server of ours on loopback, which does what the test tells it.

mod gcs;
mod http;
mod imageio;
mod openstack;
mod registry;
mod s3;
mod server;
mod tls;

use std::io::{self, Read};
use std::time::Duration;

use disk::Source;
use disk::source::{Connection, Patience};

/// Pauses short enough for tests, and waits long enough for a machine that is busy.
fn connection() -> Connection {
    let patience = Patience {
        connect: Duration::from_secs(10),
        answer: Duration::from_secs(10),
        idle: Duration::from_secs(10),
        first: Duration::from_millis(1),
        longest: Duration::from_millis(4),
        attempts: 4,
    };
    Connection { patience, ..Connection::default() }
}

/// Reads a source from an offset to its end, as an import does: on a thread that may block.
async fn read<S: Source + 'static>(source: S, offset: u64) -> io::Result<Vec<u8>> {
    let read = tokio::task::spawn_blocking(move || {
        let mut bytes = Vec::new();
        source.open(offset)?.read_to_end(&mut bytes)?;
        Ok(bytes)
    });
    read.await.unwrap()
}

/// An error with all its causes, as users see it.
fn chain(error: &(dyn std::error::Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text = format!("{text}: {cause}");
        next = cause.source();
    }
    text
}

/// Bytes that differ everywhere enough to show a gap or a repetition.
fn pattern(length: usize) -> Vec<u8> {
    (0..length).map(|i| (i * 31 + i / 251) as u8).collect()
}
