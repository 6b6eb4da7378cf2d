//! `portforward`: every pair of streams of the client becomes one connection to a port of the pod.

use std::collections::HashMap;
use std::io;
use std::sync::Arc;

use axum::extract::Request;
use axum::response::Response;
use bytes::{BufMut, Bytes, BytesMut};
use futures::{SinkExt, StreamExt};
use hyper_util::rt::TokioIo;
use tokio::sync::mpsc;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_util::codec::{BytesCodec, FramedWrite};
use tokio_util::io::ReaderStream;

use apimachinery::error::ApiError;
use apimachinery::request::RequestInfo;

use super::kubelet::Kubelet;
use super::spdy::headers::value;
use super::spdy::session::{Session, SpdyStream};
use super::upgrade::{Offer, accept_spdy, accept_websocket};
use super::websocket::{Leg, bounds};
use super::{Streams, kubelet};

const TUNNEL: &str = "SPDY/3.1+portforward.k8s.io";
const CHANNELS: [&str; 2] = ["v4.channel.k8s.io", "portforward.k8s.io"];
const PORTFORWARD: &str = "portforward.k8s.io";

/// Dials ports of one pod.
#[derive(Clone)]
struct Dialer {
    streams: Arc<Streams>,
    kubelet: Kubelet,
    namespace: String,
    pod: String,
}

impl Dialer {
    async fn dial(&self, port: &str) -> Result<Leg, String> {
        let port: u16 = port.parse().ok().filter(|p| *p != 0).ok_or_else(|| format!("invalid port {port:?}"))?;
        let path = format!("/portForward/{}/{}?port={port}", self.namespace, self.pod);
        self.streams
            .leg(&self.kubelet, &path, None)
            .await
            .map_err(|e| format!("error forwarding port {port} to pod {}: {}", self.pod, e.message))
    }
}

pub(super) async fn serve(streams: &Streams, info: &RequestInfo, mut request: Request) -> Result<Response, ApiError> {
    let offer = Offer::of(&request)?;
    let pod = streams.pod(info)?;
    let phase = apimachinery::pointer::text(&pod, "/status/phase");
    if phase != "Running" {
        return Err(ApiError::bad_request(format!(
            "unable to forward port because pod is not running. Current status={phase}"
        )));
    }
    let dialer = Dialer {
        streams: Arc::new(streams.clone()),
        kubelet: streams.kubelet_of_pod(&pod)?,
        namespace: info.namespace.clone(),
        pod: info.name.clone(),
    };
    let ports: Vec<String> = kubelet::query(&request)
        .into_iter()
        .filter(|(k, _)| k == "ports")
        .flat_map(|(_, v)| v.split(',').map(ToOwned::to_owned).collect::<Vec<_>>())
        .collect();
    let upgrade = hyper::upgrade::on(&mut request);
    match offer {
        Offer::Spdy { protocols } => {
            if !protocols.iter().any(|p| p == PORTFORWARD) {
                return Err(ApiError::new(
                    403,
                    "Forbidden",
                    format!(
                        "unable to upgrade: unable to negotiate protocol: client supports {protocols:?}, server accepts [{PORTFORWARD}]"
                    ),
                ));
            }
            let forwarding = async move {
                let Ok(upgraded) = upgrade.await else { return };
                let (read, write) = tokio::io::split(TokioIo::new(upgraded));
                forward(Session::start(ReaderStream::new(read), FramedWrite::new(write, BytesCodec::new())), dialer)
                    .await;
            };
            kit::spawn("port-forward", forwarding).detach();
            Ok(accept_spdy(PORTFORWARD))
        }
        Offer::WebSocket { key, protocols } if protocols.iter().any(|p| p == TUNNEL) => {
            let forwarding = async move {
                let Ok(upgraded) = upgrade.await else { return };
                let socket =
                    WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(bounds())).await;
                let (sink, source) = socket.split();
                let read = source.filter_map(|message| {
                    std::future::ready(match message {
                        Ok(Message::Binary(data)) => Some(Ok(data)),
                        Ok(Message::Close(_)) => Some(Err(io::ErrorKind::UnexpectedEof.into())),
                        Ok(_) => None,
                        Err(error) => Some(Err(io::Error::other(error))),
                    })
                });
                let write = sink
                    .sink_map_err(io::Error::other)
                    .with(|data: Bytes| std::future::ready(Ok::<_, io::Error>(Message::Binary(data))));
                forward(Session::start(Box::pin(read), write), dialer).await;
            };
            kit::spawn("port-forward", forwarding).detach();
            Ok(accept_websocket(&key, TUNNEL))
        }
        Offer::WebSocket { key, protocols } => {
            let chosen = CHANNELS.into_iter().find(|c| protocols.iter().any(|p| p == c)).ok_or_else(|| {
                ApiError::bad_request(format!(
                    "unable to negotiate a subprotocol, supported are {TUNNEL} and {}",
                    CHANNELS[0]
                ))
            })?;
            if ports.is_empty() {
                return Err(ApiError::bad_request("query parameter \"ports\" is required"));
            }
            let forwarding = async move {
                let Ok(upgraded) = upgrade.await else { return };
                let socket =
                    WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Server, Some(bounds())).await;
                channels(socket, ports, dialer).await;
            };
            kit::spawn("port-forward", forwarding).detach();
            Ok(accept_websocket(&key, chosen))
        }
    }
}

/// Serves a SPDY session until the client ends it.
async fn forward(mut session: Session, dialer: Dialer) {
    let mut waiting: HashMap<String, (Option<SpdyStream>, Option<SpdyStream>)> = HashMap::new();
    let mut connections = tokio::task::JoinSet::new();
    while let Some(stream) = session.accept().await {
        while connections.try_join_next().is_some() {}
        let id = match value(&stream.headers, "requestid") {
            "" => value(&stream.headers, "port").to_owned(),
            id => id.to_owned(),
        };
        if waiting.len() > 256 {
            waiting.clear();
        }
        let pair = waiting.entry(id.clone()).or_default();
        match value(&stream.headers, "streamtype") {
            "error" => pair.0 = Some(stream),
            "data" => pair.1 = Some(stream),
            _ => continue,
        }
        if let (Some(_), Some(_)) = pair
            && let Some((Some(error), Some(data))) = waiting.remove(&id)
        {
            connections.spawn(connection(error, data, dialer.clone()));
        }
    }
    // The client is gone: its connections end with it.
    connections.shutdown().await;
}

async fn connection(error: SpdyStream, data: SpdyStream, dialer: Dialer) {
    let port = value(&data.headers, "port").to_owned();
    match dialer.dial(&port).await {
        Ok(leg) => {
            let SpdyStream { incoming, writer, .. } = data;
            let out = writer.clone();
            pump(leg, incoming, |data| {
                let out = out.clone();
                async move { out.write(data).await }
            })
            .await;
            writer.finish().await;
        }
        Err(message) => {
            error.writer.write(Bytes::from(message)).await;
            data.writer.finish().await;
        }
    }
    error.writer.finish().await;
}

/// Copies both directions until the pod's side ends. The client's end of input is passed on as an empty frame.
async fn pump<F, Fut>(leg: Leg, mut incoming: mpsc::Receiver<Bytes>, mut deliver: F)
where
    F: FnMut(Bytes) -> Fut,
    Fut: Future<Output = bool>,
{
    let (mut sink, mut source) = leg.split();
    let up = async {
        while let Some(data) = incoming.recv().await {
            if sink.send(Message::Binary(data)).await.is_err() {
                return;
            }
        }
        let _ = sink.send(Message::Binary(Bytes::new())).await;
        std::future::pending::<()>().await;
    };
    let down = async {
        let mut alive = true;
        while let Some(Ok(message)) = source.next().await {
            match message {
                Message::Binary(data) if data.is_empty() => {}
                Message::Binary(data) => alive = deliver(data).await,
                Message::Close(_) => return,
                _ => {}
            }
            if !alive {
                return;
            }
        }
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}

/// The older WebSocket form: channel 2i carries the data of the i-th port, 2i+1 its errors; each channel begins with the
/// port in two bytes.
async fn channels<S>(socket: WebSocketStream<S>, ports: Vec<String>, dialer: Dialer)
where
    S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin + Send + 'static,
{
    let (mut sink, mut source) = socket.split();
    let (out, mut queued) = mpsc::channel::<Bytes>(16);
    let mut tasks = tokio::task::JoinSet::new();
    let mut inputs = Vec::new();
    for (index, port) in ports.into_iter().enumerate() {
        let Ok(channel) = u8::try_from(index * 2) else { break };
        let (input, incoming) = mpsc::channel::<Bytes>(16);
        inputs.push(input);
        let (out, dialer) = (out.clone(), dialer.clone());
        tasks.spawn(async move {
            let number = port.parse::<u16>().unwrap_or_default().to_le_bytes();
            for c in [channel, channel + 1] {
                let _ = out.send(framed(c, &number)).await;
            }
            match dialer.dial(&port).await {
                Ok(leg) => {
                    pump(leg, incoming, |data| {
                        let out = out.clone();
                        async move { out.send(framed(channel, &data)).await.is_ok() }
                    })
                    .await;
                }
                Err(message) => {
                    let _ = out.send(framed(channel + 1, message.as_bytes())).await;
                }
            }
        });
    }
    drop(out);
    let writing = async {
        while let Some(frame) = queued.recv().await {
            if sink.send(Message::Binary(frame)).await.is_err() {
                return;
            }
        }
        let _ = sink.close().await;
    };
    let reading = async {
        while let Some(Ok(message)) = source.next().await {
            if message.is_close() {
                return;
            }
            let Some((channel, data)) = received(message) else { continue };
            if let Some(input) = inputs.get(channel / 2).filter(|_| channel % 2 == 0) {
                let _ = input.send(data).await;
            }
        }
    };
    tokio::select! {
        () = writing => {}
        () = reading => {}
    }
    tasks.shutdown().await;
}

/// The channel that a message is for, and its data. Clients that write strings send them as text.
fn received(message: Message) -> Option<(usize, Bytes)> {
    let mut data = match message {
        Message::Binary(data) => data,
        Message::Text(text) => text.into(),
        _ => return None,
    };
    if data.len() < 2 {
        return None;
    }
    Some((usize::from(data.split_to(1)[0]), data))
}

fn framed(channel: u8, data: &[u8]) -> Bytes {
    let mut frame = BytesMut::with_capacity(data.len() + 1);
    frame.put_u8(channel);
    frame.extend_from_slice(data);
    frame.freeze()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(message: Message, expect: Option<(usize, &'static str)>) {
        assert_eq!(received(message), expect.map(|(channel, data)| (channel, data.into())));
    }

    #[test]
    fn messages_of_channels() {
        check(Message::Binary("\x02GET /".into()), Some((2, "GET /")));
        check(Message::Text("\x02GET /".into()), Some((2, "GET /")));
        check(Message::Binary("\x02".into()), None);
        check(Message::Ping("\x02GET /".into()), None);
    }
}
