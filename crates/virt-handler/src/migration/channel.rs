//! One stream of a migration between the agents of two nodes.
//!
//! ```text
//!   source: TCP, TLS, {"namespace":…,"name":…,"uid":…,"migration":…,"channel":…}\n
//!   target:                                            {}\n  or  {"refused":"why"}\n
//!   then the bytes of libvirt or QEMU, both ways
//! ```
//! Without TLS, when the administrator chose so, the same lines go over TCP alone, and the source is known by its address.

use std::io;
use std::net::SocketAddr;
use std::time::Duration;

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::time::timeout;

use kit::peer::{self, Peers};

/// Bytes of a line that is read from another node (rule R7).
const LONGEST_LINE: usize = 2 << 10;
/// For each line.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long the other node may leave bytes unacknowledged, or be silent when asked for a sign of life.
const SILENCE: Duration = Duration::from_secs(20);
const ALIVE: Duration = Duration::from_secs(5);
/// Bytes moved at a time, each way: several TLS records.
const CHUNK: usize = 256 << 10;

/// Why a stream did not come to be.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot connect to virt-handler on node {node} at {address}")]
    Connect {
        node: String,
        address: SocketAddr,
        #[source]
        source: io::Error,
    },
    #[error("virt-handler on node {node} at {address} is not who it should be")]
    Stranger {
        node: String,
        address: SocketAddr,
        #[source]
        source: peer::Error,
    },
    #[error("virt-handler on node {node} refused: {why}")]
    Refused { node: String, why: String },
    #[error("the way to virt-handler on node {node} broke")]
    Broke {
        node: String,
        #[source]
        source: io::Error,
    },
    #[error("{what}")]
    Line {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

/// What a stream is for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Hello {
    pub(crate) namespace: String,
    pub(crate) name: String,
    /// Of the VMI.
    pub(crate) uid: String,
    /// UID of the migration.
    pub(crate) migration: String,
    pub(crate) channel: String,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(default)]
struct Answer {
    #[serde(skip_serializing_if = "Option::is_none")]
    refused: Option<String>,
}

/// The channel of a question, and the answer to it.
pub(crate) const OUTCOME: &str = "outcome";
/// How long the target may take to be certain.
const CERTAINTY: Duration = Duration::from_secs(60);

#[derive(Serialize, Deserialize)]
struct Outcome {
    runs: bool,
}

/// A stream, encrypted or not.
pub(crate) trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Connects to the agent of `node` and has it accept `hello`. Without `peers` nothing is encrypted.
pub(crate) async fn open(
    peers: Option<&Peers>,
    node: &str,
    address: SocketAddr,
    hello: &Hello,
) -> Result<Box<dyn Stream>, Error> {
    let failed = |source| Error::Connect { node: node.to_owned(), address, source };
    let stream = timeout(PATIENCE, TcpStream::connect(address)).await;
    let stream = stream.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into())).map_err(failed)?;
    tune(&stream).map_err(failed)?;
    let mut stream: Box<dyn Stream> = match peers {
        None => Box::new(stream),
        Some(peers) => {
            let stranger = |source| Error::Stranger { node: node.to_owned(), address, source };
            Box::new(peers.connect(stream, node).await.map_err(stranger)?)
        }
    };
    write_line(&mut stream, hello).await?;
    let answer: Answer = read_line(&mut stream).await?;
    match answer.refused {
        None => Ok(stream),
        Some(why) => Err(Error::Refused { node: node.to_owned(), why }),
    }
}

/// Tells the source whether its stream is taken.
pub(crate) async fn answer(stream: &mut (impl AsyncWrite + Unpin), refused: Option<String>) -> Result<(), Error> {
    write_line(stream, &Answer { refused }).await
}

/// A peer that vanished is noticed, whether bytes are on their way or none are.
pub(crate) fn tune(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let socket = socket2::SockRef::from(stream);
    socket.set_tcp_user_timeout(Some(SILENCE))?;
    socket.set_tcp_keepalive(&socket2::TcpKeepalive::new().with_time(ALIVE).with_interval(ALIVE))
}

/// Asks the agent of the target whether the guest of `hello` runs there. It answers once that is certain.
pub(crate) async fn ask(peers: Option<&Peers>, node: &str, address: SocketAddr, hello: &Hello) -> Result<bool, Error> {
    let hello = Hello { channel: OUTCOME.to_owned(), ..hello.clone() };
    let mut stream = open(peers, node, address, &hello).await?;
    let outcome: Outcome = read_line_within(&mut stream, CERTAINTY).await?;
    Ok(outcome.runs)
}

/// Answers [`ask`].
pub(crate) async fn tell(stream: &mut (impl AsyncWrite + Unpin), runs: bool) -> Result<(), Error> {
    write_line(stream, &Outcome { runs }).await
}

/// Copies both ways until libvirt at `near` has ended, or the way has, which is an error: then `near` is not told.
pub(crate) async fn splice_held(near: impl Stream, far: impl Stream) -> io::Result<()> {
    let (mut near_reads, mut near_writes) = tokio::io::split(near);
    let (mut far_reads, mut far_writes) = tokio::io::split(far);
    let sending = async {
        let mut buffer = vec![0; CHUNK];
        // Libvirt that closes without having read everything looks like an error here.
        while let Ok(length @ 1..) = near_reads.read(&mut buffer).await {
            far_writes.write_all(&buffer[..length]).await?;
            far_writes.flush().await?;
        }
        Ok(())
    };
    let ended = tokio::select! {
        ended = sending => ended,
        got = tokio::io::copy(&mut far_reads, &mut near_writes) => match got {
            Ok(_) => Err(io::ErrorKind::UnexpectedEof.into()),
            Err(error) => Err(error),
        },
    };
    // The target has what was sent, or the connection's end.
    let _ = far_writes.shutdown().await;
    ended
}

/// Copies both ways until both have ended, or one breaks.
pub(crate) async fn splice(mut a: impl Stream, mut b: impl Stream) -> io::Result<(u64, u64)> {
    tokio::io::copy_bidirectional_with_sizes(&mut a, &mut b, CHUNK, CHUNK).await
}

async fn write_line(stream: &mut (impl AsyncWrite + Unpin), line: &impl Serialize) -> Result<(), Error> {
    let write = async {
        let mut text = serde_json::to_vec(line)?;
        text.push(b'\n');
        stream.write_all(&text).await?;
        stream.flush().await
    };
    let written = timeout(PATIENCE, write).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    written.map_err(|source| Error::Line { what: "cannot greet the other node's virt-handler", source })
}

/// One line and not a byte more: what follows is not ours.
pub(crate) async fn read_line<T: DeserializeOwned>(stream: &mut (impl AsyncRead + Unpin)) -> Result<T, Error> {
    read_line_within(stream, PATIENCE).await
}

async fn read_line_within<T: DeserializeOwned>(
    stream: &mut (impl AsyncRead + Unpin),
    patience: Duration,
) -> Result<T, Error> {
    let read = async {
        let mut line = Vec::new();
        loop {
            match stream.read_u8().await? {
                b'\n' => return Ok(serde_json::from_slice(&line)?),
                _ if line.len() >= LONGEST_LINE => return Err(io::ErrorKind::InvalidData.into()),
                byte => line.push(byte),
            }
        }
    };
    let read = timeout(patience, read).await.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    read.map_err(|source| Error::Line { what: "the other node's virt-handler does not greet", source })
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    #[tokio::test]
    async fn bytes_after_a_line_stay_in_the_stream() {
        let (mut near, mut far) = duplex(4096);
        let hello = Hello { name: "a".into(), ..Hello::default() };
        write_line(&mut near, &hello).await.unwrap();
        near.write_all(b"raw").await.unwrap();
        drop(near);
        assert_eq!(read_line::<Hello>(&mut far).await.unwrap(), hello);
        let mut rest = Vec::new();
        far.read_to_end(&mut rest).await.unwrap();
        assert_eq!(rest, b"raw");
    }

    #[tokio::test]
    async fn the_way_that_ends_is_told_from_the_end_of_libvirt() {
        let (near, libvirt) = duplex(64);
        let (far, target) = duplex(64);
        let splicing = splice_held(near, far);
        drop(libvirt);
        splicing.await.unwrap();
        drop(target);
        let (near, mut libvirt) = duplex(64);
        let (far, target) = duplex(64);
        drop(target);
        splice_held(near, far).await.unwrap_err();
        let mut told = Vec::new();
        libvirt.read_to_end(&mut told).await.unwrap();
        assert!(told.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn lines_are_bounded_in_length_and_time() {
        let check = async |bytes: &[u8]| {
            let (mut near, mut far) = duplex(8192);
            near.write_all(bytes).await.unwrap();
            read_line::<Hello>(&mut far).await.unwrap_err()
        };
        for bytes in [&[b'x'; 4096][..], b"{\"unknown\":1}\n", b"\xff\n", b"{\"name\":"] {
            let error = check(bytes).await;
            assert_eq!(error.to_string(), "the other node's virt-handler does not greet");
        }
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A greeting, or an error; of what follows the line nothing is read.
        #[test]
        fn any_greeting_is_read_or_refused(line in proptest::collection::vec(any::<u8>(), 0..6000), rest in proptest::collection::vec(any::<u8>(), 0..16)) {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build().unwrap();
            let said = [&line[..], b"\n", &rest].concat();
            let end = said.iter().position(|byte| *byte == b'\n').unwrap();
            let (read, left) = runtime.block_on(async {
                let mut stream = said.as_slice();
                (read_line::<Hello>(&mut stream).await.is_ok(), stream.len())
            });
            if end <= LONGEST_LINE {
                prop_assert_eq!(left, said.len() - end - 1);
            } else {
                prop_assert!(!read && said.len() - left <= LONGEST_LINE + 1);
            }
        }

        #[test]
        fn a_greeting_that_was_changed_is_a_greeting_or_refused(at in any::<prop::sample::Index>(), byte in any::<u8>()) {
            let mut line = serde_json::to_vec(&Hello { name: "guest".into(), ..Hello::default() }).unwrap();
            let at = at.index(line.len());
            line[at] = byte;
            if let Ok(hello) = serde_json::from_slice::<Hello>(&line) {
                prop_assert!(serde_json::to_vec(&hello).is_ok());
            }
        }
    }
}
