//! Fetching: what is compressed is decompressed on the way if it is to be, and what breaks off goes on where it did.

use std::io::Write;
use std::time::Duration;

use bytes::Bytes;
use flate2::write::MultiGzDecoder;
use http::{HeaderMap, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper_util::rt::TokioIo;
use indicatif::{ProgressBar, ProgressStyle};

use super::Failed;
use super::links::Chosen;
use super::sink::Sink;
use super::way::Way;
use crate::fault::{Fault, chain};

/// How often a download goes on that broke off.
const CONTINUED: u32 = 5;
const PAUSE: Duration = Duration::from_secs(1);
/// The longest text that is taken into memory.
const LONGEST: usize = 16 << 20;

fn broken(what: &str, error: &hyper::Error) -> Failed {
    Failed { fault: Fault::new(what).because(chain(error)), again: true }
}

/// One request on a connection of its own.
async fn ask(
    way: &Way,
    (method, url): (Method, &str),
    token: &str,
    more: &[(header::HeaderName, &str)],
) -> Result<Response<Incoming>, Failed> {
    let what = format!("cannot fetch {url}");
    let uri: Uri = url.parse().map_err(|error| Fault::new(&what).because(error))?;
    let stream = way.connect(&uri).await.map_err(|fault| Failed { fault, again: true })?;
    let shaken = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|error| broken(&what, &error))?;
    // It carries the body, which is read afterwards.
    kit::spawn("download", connection).detach();
    let path = uri.path_and_query().map_or("/", |path| path.as_str());
    let mut request = Request::builder()
        .method(method)
        .uri(path)
        .header(header::HOST, uri.host().unwrap_or_default())
        .header(api::export::constants::TOKEN, token);
    for (name, value) in more {
        request = request.header(name, *value);
    }
    let request = request.body(Empty::<Bytes>::new()).map_err(|error| Fault::new(&what).because(error))?;
    sender.send_request(request).await.map_err(|error| broken(&what, &error))
}

fn good(answer: &Response<Incoming>, expect: StatusCode, url: &str) -> Result<(), Failed> {
    let status = answer.status();
    if status == expect {
        return Ok(());
    }
    let fault = Fault::new(format!("Bad status: {status}")).because(format!("so {url} was answered"));
    let fault = match status {
        StatusCode::UNAUTHORIZED => fault.hint("the token in the export's Secret is not the one that its server has"),
        _ => fault,
    };
    // The server may be changing its certificate, or the proxy may not know it yet.
    Err(Failed { fault, again: status.is_server_error() || status == StatusCode::UNAUTHORIZED })
}

/// A text.
pub(super) async fn text(way: &Way, url: &str, token: &str, accept: &str) -> Result<Vec<u8>, Failed> {
    let answer = ask(way, (Method::GET, url), token, &[(header::ACCEPT, accept)]).await?;
    good(&answer, StatusCode::OK, url)?;
    let mut body = answer.into_body();
    let mut text = Vec::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&format!("cannot fetch {url}"), &error))?;
        text.extend_from_slice(frame.data_ref().map(Bytes::as_ref).unwrap_or_default());
        if text.len() > LONGEST {
            return Err(Fault::new(format!("cannot fetch {url}")).because("the answer does not end").into());
        }
    }
    Ok(text)
}

/// What is known of a disk before it is fetched.
#[derive(Default)]
struct Known {
    size: Option<u64>,
    /// Says that it is still the same.
    tag: Option<String>,
}

async fn look(way: &Way, url: &str, token: &str) -> Known {
    // Who does not say is not asked twice: it is of use, and not needed.
    let Ok(answer) = ask(way, (Method::HEAD, url), token, &[]).await else { return Known::default() };
    let said = |headers: &HeaderMap, name| Some(headers.get(name)?.to_str().ok()?.to_owned());
    let size = said(answer.headers(), header::CONTENT_LENGTH).and_then(|text| text.parse().ok());
    let known = Known { size, tag: said(answer.headers(), header::ETAG) };
    if answer.status().is_success() { known } else { Known::default() }
}

/// A download, which may take more than one attempt.
pub(super) struct Transfer {
    sink: Sink,
    /// Of the disk that what has come is of.
    tag: Option<String>,
}

impl Transfer {
    /// One that has not begun.
    pub(super) fn into(sink: Sink) -> Self {
        Self { sink, tag: None }
    }

    /// Whether what comes next can be put behind what has come.
    fn goes_on(&self, known: &Known) -> bool {
        self.sink.taken() > 0 && self.tag.is_some() && self.tag == known.tag
    }
}

/// A volume.
pub(super) async fn volume(way: &Way, chosen: &Chosen, token: &str, transfer: &mut Transfer) -> Result<(), Failed> {
    let known = match &chosen.raw {
        Some(url) => look(way, url, token).await,
        None => Known::default(),
    };
    let (bar, goes_on) = (bar(known.size), transfer.goes_on(&known));
    let sink = &mut transfer.sink;
    let mut ended = match (&chosen.raw, &known.tag) {
        (Some(url), Some(tag)) if goes_on => {
            bar.println(format!("continuing at byte {}", sink.taken()));
            rest(way, url, (token, tag), sink, &bar).await
        }
        _ => {
            sink.restart().map_err(|error| Fault::new("the download cannot begin again").because(error))?;
            whole(way, chosen, token, sink, &bar).await
        }
    };
    transfer.tag.clone_from(&known.tag);
    for _ in 0..CONTINUED {
        let (Err(Failed { again: true, fault }), Some(url), Some(tag)) = (&ended, &chosen.raw, &known.tag) else {
            break;
        };
        bar.println(format!("{fault}\ncontinuing at byte {}", sink.taken()));
        tokio::time::sleep(PAUSE).await;
        ended = rest(way, url, (token, tag), sink, &bar).await;
    }
    ended?;
    if let Some(size) = known.size.filter(|size| *size != sink.taken()) {
        let why = format!("it has {size} bytes, and {} came", sink.taken());
        return Err(Failed { fault: Fault::new("the download is not complete").because(why), again: true });
    }
    sink.finish().map_err(|error| Fault::new("cannot write the file").because(error))?;
    bar.finish();
    Ok(())
}

fn bar(size: Option<u64>) -> ProgressBar {
    let (bar, template) = match size {
        Some(size) => {
            let template =
                "Downloading file: {bar:40} {percent}% {bytes} of {total_bytes}, {bytes_per_sec}, {eta} left";
            (ProgressBar::new(size), template)
        }
        None => (ProgressBar::new_spinner(), "Downloading file: {bytes} {spinner} {bytes_per_sec}"),
    };
    match ProgressStyle::with_template(template) {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

async fn whole(way: &Way, chosen: &Chosen, token: &str, sink: &mut Sink, bar: &ProgressBar) -> Result<(), Failed> {
    let answer = ask(way, (Method::GET, &chosen.url), token, &[]).await?;
    good(&answer, StatusCode::OK, &chosen.url)?;
    if !chosen.decompress {
        return take(answer, &chosen.url, sink, bar, |sink| sink.taken()).await;
    }
    let mut decoder = MultiGzDecoder::new(sink);
    take(answer, &chosen.url, &mut decoder, bar, |decoder| decoder.get_ref().taken()).await?;
    // A stream that ends too soon has no trailer.
    let ended = decoder.try_finish();
    ended.map_err(|error| Failed {
        fault: Fault::new("the compressed disk is not complete").because(error),
        again: true,
    })
}

/// The disk from where the sink is on.
async fn rest(
    way: &Way,
    url: &str,
    (token, tag): (&str, &str),
    sink: &mut Sink,
    bar: &ProgressBar,
) -> Result<(), Failed> {
    let range = format!("bytes={}-", sink.taken());
    let headers = [(header::RANGE, range.as_str()), (header::IF_RANGE, tag)];
    let answer = ask(way, (Method::GET, url), token, &headers).await?;
    if answer.status() == StatusCode::OK {
        return Err(Fault::new("the download cannot go on").because("the disk has changed meanwhile").into());
    }
    if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE {
        // There was nothing left but the end of the stream.
        return Ok(());
    }
    good(&answer, StatusCode::PARTIAL_CONTENT, url)?;
    take(answer, url, sink, bar, |sink| sink.taken()).await
}

/// Writes what comes.
async fn take<W: Write>(
    answer: Response<Incoming>,
    url: &str,
    out: &mut W,
    bar: &ProgressBar,
    taken: impl Fn(&W) -> u64,
) -> Result<(), Failed> {
    let mut body = answer.into_body();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|error| broken(&format!("the download of {url} broke off"), &error))?;
        let bytes = frame.data_ref().map(Bytes::as_ref).unwrap_or_default();
        out.write_all(bytes).map_err(|error| Fault::new("cannot write the file").because(error))?;
        bar.set_position(taken(out));
    }
    Ok(())
}
