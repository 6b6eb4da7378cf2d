//! `exec` and `attach`.
//!
//! A WebSocket client speaks the kubelet's own protocol, so its connection is passed through byte for byte. A SPDY client
//! has a stream for each channel, which are moved into the channels of one WebSocket.

use axum::extract::Request;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use http::{HeaderValue, header};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::Message;
use tokio_util::codec::{BytesCodec, FramedWrite};
use tokio_util::io::ReaderStream;

use apimachinery::error::ApiError;
use apimachinery::request::RequestInfo;

use super::spdy::headers::value;
use super::spdy::session::{Session, SpdyStream, StreamWriter};
use super::upgrade::{Offer, accept_spdy};
use super::websocket::Leg;
use super::{Streams, kubelet, options};

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";
const CLOSE: u8 = 255;
/// How long a SPDY client may take to open its streams.
const STREAMS: std::time::Duration = std::time::Duration::from_secs(30);

/// What the command is connected to.
#[derive(Clone, Copy, Debug)]
struct Wanted {
    stdin: bool,
    stdout: bool,
    stderr: bool,
    tty: bool,
}

pub(super) async fn serve(
    streams: &Streams,
    info: &RequestInfo,
    what: &str,
    request: Request,
) -> Result<Response, ApiError> {
    let offer = Offer::of(&request)?;
    let pod = streams.pod(info)?;
    let pairs = kubelet::query(&request);
    let container = kubelet::container(&pod, kubelet::parameter(&pairs, "container"))?;
    let set = |name: &str| options::is_true(kubelet::parameter(&pairs, name));
    let tty = set("tty");
    let wanted = Wanted { stdin: set("stdin"), stdout: set("stdout"), stderr: set("stderr") && !tty, tty };
    if !(wanted.stdin || wanted.stdout || wanted.stderr) {
        return Err(ApiError::bad_request("you must specify at least one of stdin, stdout, stderr"));
    }
    if what == "exec" && kubelet::parameter(&pairs, "command").is_empty() {
        return Err(ApiError::bad_request("you must specify at least one command for the container"));
    }
    let target = streams.kubelet_of_pod(&pod)?;
    let path = {
        let mut query = url::form_urlencoded::Serializer::new(String::new());
        query.extend_pairs(pairs.iter().filter(|(k, _)| k == "command"));
        for (name, on) in [("stdin", wanted.stdin), ("stdout", wanted.stdout), ("stderr", wanted.stderr), ("tty", tty)]
        {
            if on {
                query.append_pair(name, "true");
            }
        }
        format!("/{what}/{}/{}/{container}?{}", info.namespace, info.name, query.finish())
    };
    match offer {
        Offer::WebSocket { protocols, .. } => {
            let chosen = [V5, V4].into_iter().find(|p| protocols.iter().any(|o| o == p)).ok_or_else(|| {
                ApiError::bad_request(format!("unable to negotiate a subprotocol, supported are {V5} and {V4}"))
            })?;
            through(streams, &target, &path, chosen, request).await
        }
        Offer::Spdy { protocols } => {
            let chosen = [V4, "v5.channel.k8s.io", "v3.channel.k8s.io", "v2.channel.k8s.io"]
                .into_iter()
                .find(|p| protocols.iter().any(|o| o == p))
                .ok_or_else(|| ApiError::new(403, "Forbidden", format!("unable to upgrade: unable to negotiate protocol: client supports {protocols:?}, server accepts [{V4}]")))?;
            let leg = streams.leg(&target, &path, Some(V5)).await?;
            translate(request, leg, wanted, chosen);
            Ok(accept_spdy(chosen))
        }
    }
}

/// Passes a WebSocket on; both sides use the same frames, v4 merely lacks the signal that closes a channel.
async fn through(
    streams: &Streams,
    target: &kubelet::Kubelet,
    path: &str,
    chosen: &'static str,
    mut request: Request,
) -> Result<Response, ApiError> {
    let failed =
        |e: &dyn std::fmt::Display| ApiError::internal(format!("Internal error occurred: error dialing backend: {e}"));
    *request.uri_mut() = path.parse().map_err(|e| failed(&e))?;
    *request.method_mut() = http::Method::GET;
    let stream = streams.open(target).await?;
    let adjust = |headers: &mut http::HeaderMap| {
        headers.insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(V5));
        headers.remove(header::SEC_WEBSOCKET_EXTENSIONS);
        headers.remove(header::ORIGIN);
    };
    let mut response =
        crate::aggregation::pass(stream, &target.address.to_string(), adjust, request).await.map_err(|e| failed(&e))?;
    if response.status() == http::StatusCode::SWITCHING_PROTOCOLS {
        response.headers_mut().insert(header::SEC_WEBSOCKET_PROTOCOL, HeaderValue::from_static(chosen));
        return Ok(response);
    }
    let (parts, body) = response.into_parts();
    Err(kubelet::refusal(parts.status, body).await)
}

/// Joins the client's SPDY connection, as soon as it is one, with the leg.
fn translate(mut request: Request, leg: Leg, wanted: Wanted, protocol: &'static str) {
    let upgrade = hyper::upgrade::on(&mut request);
    let translation = async move {
        let Ok(upgraded) = upgrade.await else { return };
        let (read, write) = tokio::io::split(TokioIo::new(upgraded));
        let session = Session::start(ReaderStream::new(read), FramedWrite::new(write, BytesCodec::new()));
        join(session, leg, wanted, protocol).await;
    };
    kit::spawn("spdy-translation", translation).detach();
}

#[derive(Default)]
struct Channels {
    stdin: Option<SpdyStream>,
    stdout: Option<SpdyStream>,
    stderr: Option<SpdyStream>,
    error: Option<SpdyStream>,
    resize: Option<SpdyStream>,
}

impl Channels {
    fn complete(&self, wanted: Wanted, resize: bool) -> bool {
        self.error.is_some()
            && self.stdin.is_some() >= wanted.stdin
            && self.stdout.is_some() >= wanted.stdout
            && self.stderr.is_some() >= wanted.stderr
            && self.resize.is_some() >= resize
    }

    async fn open(session: &mut Session, wanted: Wanted, resize: bool) -> Option<Self> {
        let mut channels = Self::default();
        while !channels.complete(wanted, resize) {
            let stream = session.accept().await?;
            match value(&stream.headers, "streamtype") {
                "stdin" => channels.stdin = Some(stream),
                "stdout" => channels.stdout = Some(stream),
                "stderr" => channels.stderr = Some(stream),
                "error" => channels.error = Some(stream),
                "resize" => channels.resize = Some(stream),
                _ => return None,
            }
        }
        Some(channels)
    }
}

async fn join(mut session: Session, leg: Leg, wanted: Wanted, protocol: &str) {
    let resize = wanted.tty && protocol != "v2.channel.k8s.io";
    let opened = tokio::time::timeout(STREAMS, Channels::open(&mut session, wanted, resize)).await;
    let Ok(Some(channels)) = opened else { return };
    let (mut sink, mut source) = leg.split();
    let (to_kubelet, mut queued) = mpsc::channel::<Bytes>(16);
    let writing = kit::spawn("remote-write", async move {
        while let Some(frame) = queued.recv().await {
            if sink.send(Message::Binary(frame)).await.is_err() {
                return;
            }
        }
        let _ = sink.close().await;
    });
    let mut feeding = tokio::task::JoinSet::new();
    if let Some(stream) = channels.stdin {
        feeding.spawn(feed_stdin(stream, to_kubelet.clone()));
    }
    if let Some(stream) = channels.resize {
        feeding.spawn(feed_resize(stream, to_kubelet.clone()));
    }
    let writer = |stream: Option<SpdyStream>| stream.map(|s| s.writer);
    let outputs = [writer(channels.stdout), writer(channels.stderr), writer(channels.error)];
    let ended = session.ended();
    let finished = loop {
        let message = tokio::select! {
            () = ended.cancelled() => break false,
            message = source.next() => message,
        };
        match message {
            Some(Ok(Message::Binary(frame))) => {
                if !deliver(frame, &outputs).await {
                    break false;
                }
            }
            Some(Ok(Message::Close(_)) | Err(_)) | None => break true,
            Some(Ok(_)) => {}
        }
    };
    if finished {
        for output in outputs.iter().flatten() {
            output.finish().await;
        }
    }
    feeding.shutdown().await;
    drop((outputs, to_kubelet));
    session.close().await;
    let _ = tokio::time::timeout(std::time::Duration::from_secs(5), writing).await;
}

/// Moves a frame of the kubelet into the stream of its channel (1 stdout, 2 stderr, 3 error).
async fn deliver(mut frame: Bytes, outputs: &[Option<StreamWriter>; 3]) -> bool {
    if frame.is_empty() {
        return true;
    }
    let channel = frame.split_to(1)[0];
    let output = usize::from(channel).checked_sub(1).and_then(|i| outputs.get(i)).and_then(Option::as_ref);
    match output {
        Some(output) if !frame.is_empty() => output.write(frame).await,
        _ => true,
    }
}

fn framed(channel: u8, data: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(data.len() + 1);
    frame.put_u8(channel);
    frame.extend_from_slice(data);
    frame.freeze()
}

async fn feed_stdin(mut stream: SpdyStream, to_kubelet: mpsc::Sender<Bytes>) {
    while let Some(data) = stream.incoming.recv().await {
        if to_kubelet.send(framed(0, &data)).await.is_err() {
            return;
        }
    }
    let _ = to_kubelet.send(framed(CLOSE, &[0])).await;
}

/// Sizes are JSON documents, one for each line; a frame must hold a whole one.
async fn feed_resize(mut stream: SpdyStream, to_kubelet: mpsc::Sender<Bytes>) {
    let mut text = BytesMut::new();
    while let Some(data) = stream.incoming.recv().await {
        text.extend_from_slice(&data);
        while let Some(end) = text.iter().position(|b| *b == b'}') {
            let document = text.split_to(end + 1);
            let start = document.iter().position(|b| *b == b'{').unwrap_or(0);
            if to_kubelet.send(framed(4, &document[start..])).await.is_err() {
                return;
            }
        }
        if text.len() > 4096 {
            return;
        }
    }
}
