//! `cdi-cloner`: the source side of a clone that no storage helps with. Sends what a claim holds to the upload server of
//! another claim.
//!
//! ```text
//!  files ─▶ tar, holes left out ─┐
//!  device ───────────────────────┴▶ snappy ─▶ bounded channel ─▶ POST ─▶ upload server
//! ```

mod pack;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use axum::body::{Body, Bytes};
use http::{Request, StatusCode, header};
use http_body_util::BodyExt;
use tokio::sync::mpsc;
use url::Url;

use crate::Error;
use crate::importer::truth;
use crate::mutual::{self, Identity};
use crate::progress::{self, Counters, Work};
use crate::termination::Termination;

/// Compressed pieces that may wait for the network.
const AHEAD: usize = 8;
/// The size of a piece.
const PIECE: usize = 256 << 10;
/// What an upload server says at most.
const ANSWER: usize = 16 << 10;

/// What the controller says.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// `filesystem-clone` or `blockdevice-clone`.
    #[arg(long, env = "CLONE_CONTENT_TYPE")]
    pub content_type: String,
    /// The directory or the device to send.
    #[arg(long, env = "MOUNT_POINT")]
    pub mount: PathBuf,
    /// About how many bytes that is; 0 asks the source.
    #[arg(long, env = "UPLOAD_BYTES", default_value_t = 0)]
    pub upload_bytes: u64,
    /// Our key, PEM.
    #[arg(long, env = "CLIENT_KEY", hide_env_values = true)]
    pub client_key: String,
    /// Our certificate, PEM.
    #[arg(long, env = "CLIENT_CERT", hide_env_values = true)]
    pub client_cert: String,
    /// The authorities of upload servers, PEM.
    #[arg(long, env = "SERVER_CA_CERT", hide_env_values = true)]
    pub server_ca_cert: String,
    /// Where to send it.
    #[arg(long, env = "UPLOAD_URL")]
    pub upload_url: String,
    /// `true`: zeros are sent too.
    #[arg(long, env = "PREALLOCATION", default_value = "false")]
    pub preallocation: String,
    /// The UID of the object that wants the clone; a label of the metrics.
    #[arg(long, env = "OWNER_UID", default_value = "")]
    pub owner_uid: String,
    /// Where the last words go.
    #[arg(long, default_value = "/dev/termination-log")]
    pub termination_log: PathBuf,
    /// Port of the metrics; 0 serves none.
    #[arg(long, default_value_t = 8443)]
    pub metrics_port: u16,
}

/// Bytes read of the source.
#[derive(Debug, Default)]
struct Sent {
    bytes: AtomicU64,
    total: AtomicU64,
}

impl Counters for Sent {
    fn fetched(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    fn written(&self) -> u64 {
        self.fetched()
    }

    fn total(&self) -> Option<u64> {
        Some(self.total.load(Ordering::Relaxed)).filter(|total| *total > 0)
    }

    fn fraction(&self) -> Option<f64> {
        self.total().map(|total| (self.fetched() as f64 / total as f64).min(1.0))
    }
}

/// Sends one claim's content.
///
/// # Errors
/// When a variable cannot be used, the source cannot be read, or the server does not store it.
pub async fn run(args: Args) -> Result<(), Error> {
    let log = args.termination_log.clone();
    match clone(args).await {
        Ok(preallocated) => {
            let preallocation_applied = Some(preallocated);
            Termination { preallocation_applied, ..Termination::message("Clone Complete") }.write(&log);
            Ok(())
        }
        Err(error) => {
            Termination::message(kit::Chain(&error).to_string()).write(&log);
            Err(error)
        }
    }
}

async fn clone(args: Args) -> Result<bool, Error> {
    let stop = kit::shutdown::on_signals().map_err(Error::setup("listen for signals"))?;
    let preallocate = truth("PREALLOCATION", &args.preallocation).map_err(Error::Variable)?;
    let url: Url = args
        .upload_url
        .parse()
        .map_err(|e| Error::Variable(format!("UPLOAD_URL is {:?}, which is no address: {e}", args.upload_url)))?;
    let host = url.host_str().ok_or_else(|| Error::Variable("UPLOAD_URL names no host".into()))?.to_owned();
    let port = url.port_or_known_default().unwrap_or(443);
    let identity =
        Identity { certificate: &args.client_cert, key: &args.client_key, authorities: &args.server_ca_cert };
    let config = identity.config().map_err(Error::setup("use the certificates of the clone"))?;
    let files = match args.content_type.as_str() {
        "filesystem-clone" => true,
        "blockdevice-clone" => false,
        other => {
            let expected = "it has to be filesystem-clone or blockdevice-clone";
            return Err(Error::Variable(format!("the content type is {other:?}, and {expected}")));
        }
    };
    let sent = Arc::new(Sent { total: AtomicU64::new(args.upload_bytes), ..Sent::default() });
    let _metrics = match args.metrics_port {
        0 => None,
        port => Some(progress::serve(Work::Clone, &args.owner_uid, sent.clone(), port).await?),
    };
    let (pieces, mut body) = mpsc::channel(AHEAD);
    let (mount, counted) = (args.mount.clone(), sent.clone());
    let reading = tokio::task::spawn_blocking(move || read(&mount, files, !preallocate, &counted, &pieces));
    let stream = futures::stream::poll_fn(move |context| body.poll_recv(context));
    let request = Request::post(url.path())
        .header(header::HOST, url.host_str().unwrap_or_default())
        .header("x-cdi-content-type", &args.content_type)
        .body(Body::from_stream(stream))
        .map_err(Error::setup("make the request"))?;
    let exchange = async {
        let answer = mutual::send(config, &host, port, request).await.map_err(Error::setup("send the content"))?;
        let status = answer.status();
        let text = http_body_util::Limited::new(answer.into_body(), ANSWER).collect().await;
        let text = text.map(|text| String::from_utf8_lossy(&text.to_bytes()).into_owned()).unwrap_or_default();
        Ok::<_, Error>((status, text))
    };
    let (status, text) = tokio::select! {
        answered = exchange => answered?,
        () = stop.cancelled() => return Err(Error::Upload("the clone was stopped".into())),
    };
    if status != StatusCode::OK {
        return Err(Error::Upload(format!("the upload server answered {status}: {text}")));
    }
    // The server has it all, so the source was read to its end.
    reading.await.map_err(Error::setup("read the source"))?.map_err(Error::setup("read the source"))?;
    Ok(preallocate)
}

type Piece = Result<Bytes, io::Error>;

/// Reads the source into the channel. Blocks. What fails here also ends the body, so that the server stores no half.
fn read(
    mount: &std::path::Path,
    files: bool,
    sparse: bool,
    sent: &Sent,
    pieces: &mpsc::Sender<Piece>,
) -> io::Result<()> {
    let frames = snap::write::FrameEncoder::new(Pipe { pieces: pieces.clone(), piece: Vec::with_capacity(PIECE) });
    let counted = pack::Counted::new(frames, &sent.bytes);
    let packed = match files {
        true => disk::pack(mount, sparse, counted),
        false => pack::device(mount, &sent.total, counted),
    };
    let finished = packed.and_then(|counted| {
        let pipe = counted.into_inner().into_inner().map_err(|e| io::Error::other(e.to_string()))?;
        pipe.finish()
    });
    if let Err(error) = &finished {
        // A server that has gone misses nothing.
        let _ = pieces.blocking_send(Err(io::Error::new(error.kind(), error.to_string())));
    }
    finished
}

/// The writing end of a body.
struct Pipe {
    pieces: mpsc::Sender<Piece>,
    piece: Vec<u8>,
}

impl Pipe {
    fn push(&mut self) -> io::Result<()> {
        let piece = std::mem::replace(&mut self.piece, Vec::with_capacity(PIECE));
        let gone = |_| io::Error::new(io::ErrorKind::BrokenPipe, "the upload server takes no more");
        self.pieces.blocking_send(Ok(piece.into())).map_err(gone)
    }

    fn finish(mut self) -> io::Result<()> {
        if self.piece.is_empty() { Ok(()) } else { self.push() }
    }
}

impl Write for Pipe {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.piece.extend_from_slice(bytes);
        if self.piece.len() >= PIECE {
            self.push()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}
