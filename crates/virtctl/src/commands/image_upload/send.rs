//! Sending the file, continuing where a connection broke off.

use std::io::SeekFrom;
use std::path::Path;
use std::time::Duration;

use bytes::Bytes;
use futures::TryStreamExt;
use http::{HeaderMap, Method, Request, StatusCode, header};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Empty, StreamBody};
use hyper::body::Frame;
use hyper_util::rt::TokioIo;
use indicatif::{ProgressBar, ProgressStyle};
use tokio::io::AsyncSeekExt;
use tokio_util::io::ReaderStream;

use super::route::Proxy;
use crate::fault::{Fault, chain};

/// Name of an upload, by which it is continued.
const UPLOAD_ID: &str = "x-cdi-upload-id";
/// Where it is continued.
const UPLOAD_OFFSET: &str = "upload-offset";
const PIECE: usize = 1 << 20;
const PAUSE: Duration = Duration::from_secs(1);
const LONGEST_PAUSE: Duration = Duration::from_secs(15);
/// Most of an answer that is shown.
const SENTENCE: usize = 2048;

/// What is sent.
pub(super) struct Upload<'a> {
    /// The file.
    pub(super) path: &'a Path,
    /// Its size.
    pub(super) size: u64,
    /// A tar archive, and no image.
    pub(super) archive: bool,
    /// How often it is continued.
    pub(super) retries: u32,
}

type Body = BoxBody<Bytes, std::io::Error>;

/// What came of one attempt.
enum Ended {
    Taken,
    /// Worth another attempt.
    Broken(Fault),
    Refused(Fault),
}

/// Sends the file; `token` gives leave for each attempt.
pub(super) async fn send<F>(upload: &Upload<'_>, proxy: &Proxy, token: F) -> Result<(), Fault>
where
    F: AsyncFn() -> Result<String, Fault>,
{
    let id = format!("{:032x}", rand::random::<u128>());
    let bar = ProgressBar::new(upload.size);
    let style =
        ProgressStyle::with_template("{bar:40} {percent}% {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left");
    if let Ok(style) = style {
        bar.set_style(style);
    }
    let mut pause = PAUSE;
    let mut attempt = 0;
    loop {
        let leave = token().await?;
        // The first attempt begins; a later one asks how far the one before has come.
        let offset = if attempt == 0 { 0 } else { received(upload, proxy, &leave, &id).await };
        let fault = match post(upload, proxy, &leave, &id, offset, &bar).await {
            Ended::Taken => {
                bar.finish();
                return Ok(());
            }
            Ended::Refused(fault) => return Err(fault),
            Ended::Broken(fault) => fault,
        };
        attempt += 1;
        if attempt > upload.retries {
            return Err(fault);
        }
        bar.println(format!("{fault}\ncontinuing, attempt {attempt} of {}", upload.retries));
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}

fn path(upload: &Upload<'_>) -> &'static str {
    if upload.archive { "/v1beta1/upload-archive" } else { "/v1beta1/upload-async" }
}

/// How much of the upload has arrived; nothing when nobody knows of it.
async fn received(upload: &Upload<'_>, proxy: &Proxy, token: &str, id: &str) -> u64 {
    let empty = Empty::new().map_err(|never| match never {}).boxed();
    let request = request(Method::HEAD, path(upload), proxy, token, id).body(empty);
    let Ok(request) = request else { return 0 };
    let Ok((status, headers, _)) = exchange(proxy, request).await else { return 0 };
    let said = headers.get(UPLOAD_OFFSET).and_then(|value| value.to_str().ok()?.parse().ok());
    if status.is_success() { said.filter(|offset| *offset <= upload.size).unwrap_or(0) } else { 0 }
}

fn request(method: Method, path: &str, proxy: &Proxy, token: &str, id: &str) -> http::request::Builder {
    Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, proxy.host())
        .header(header::AUTHORIZATION, format!("Bearer {token}"))
        .header(UPLOAD_ID, id)
}

async fn post(upload: &Upload<'_>, proxy: &Proxy, token: &str, id: &str, offset: u64, bar: &ProgressBar) -> Ended {
    let what = format!("cannot upload {}", upload.path.display());
    let body = match body(upload.path, offset, bar).await {
        Ok(body) => body,
        Err(error) => return Ended::Refused(Fault::new(what).because(error)),
    };
    let mut builder = request(Method::POST, path(upload), proxy, token, id)
        .header(header::CONTENT_LENGTH, upload.size - offset)
        .header(header::CONTENT_TYPE, "application/octet-stream");
    if offset > 0 {
        builder = builder.header(UPLOAD_OFFSET, offset);
    }
    let request = match builder.body(body) {
        Ok(request) => request,
        Err(error) => return Ended::Refused(Fault::new(what).because(error)),
    };
    match exchange(proxy, request).await {
        Ok((status, ..)) if status.is_success() => Ended::Taken,
        Ok((status, headers, text)) => {
            let text = text.trim();
            let why = if text.is_empty() { format!("the upload proxy answered {status}") } else { text.to_owned() };
            let fault = Fault::new(what).because(why);
            // A conflict that says where to go on is a connection of ours that it had not missed yet.
            let again =
                status.is_server_error() || status == StatusCode::CONFLICT && headers.contains_key(UPLOAD_OFFSET);
            if again { Ended::Broken(fault) } else { Ended::Refused(fault) }
        }
        Err(fault) => Ended::Broken(fault),
    }
}

async fn body(path: &Path, offset: u64, bar: &ProgressBar) -> std::io::Result<Body> {
    let mut file = tokio::fs::File::open(path).await?;
    file.seek(SeekFrom::Start(offset)).await?;
    bar.set_position(offset);
    let bar = bar.clone();
    let pieces = ReaderStream::with_capacity(file, PIECE).map_ok(move |piece| {
        bar.inc(piece.len() as u64);
        Frame::data(piece)
    });
    Ok(BodyExt::boxed(StreamBody::new(pieces)))
}

/// One request on a connection of its own.
async fn exchange(proxy: &Proxy, request: Request<Body>) -> Result<(StatusCode, HeaderMap, String), Fault> {
    let failed = |error: hyper::Error| Fault::new(format!("the connection to {proxy} broke")).because(chain(&error));
    let stream = proxy.connect().await?;
    let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await.map_err(failed)?;
    let _connection = kit::spawn("upload", connection);
    let answer = sender.send_request(request).await.map_err(failed)?;
    let (parts, mut body) = answer.into_parts();
    let mut text = Vec::new();
    while let Some(Ok(frame)) = body.frame().await {
        if let Ok(data) = frame.into_data() {
            text.extend_from_slice(&data);
        }
        if text.len() > SENTENCE {
            text.truncate(SENTENCE);
            break;
        }
    }
    Ok((parts.status, parts.headers, String::from_utf8_lossy(&text).into_owned()))
}
