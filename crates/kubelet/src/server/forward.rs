//! portForward: a TCP connection made inside the pod's network namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use axum::extract::ws::{Message, WebSocket};
use axum::extract::{Path as UrlPath, RawQuery, State, WebSocketUpgrade};
use axum::http::StatusCode;
use axum::response::Response;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::{Site, refuse};
use crate::error::{Error, Result};
use crate::netns;
use crate::runtime::Runtime;

const CONNECT: Duration = Duration::from_secs(10);
const BUFFER: usize = 32 * 1024;

pub(super) async fn serve(
    State(site): State<Site>,
    UrlPath((namespace, name)): UrlPath<(String, String)>,
    RawQuery(query): RawQuery,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Response> {
    let pod = site.pod(&namespace, &name)?;
    let pairs = super::log::pairs(query.as_deref().unwrap_or_default());
    let port = pairs.iter().find(|(name, _)| name == "port").and_then(|(_, value)| value.parse::<u16>().ok());
    let Some(port) = port.filter(|port| *port > 0) else {
        return Err(refuse(StatusCode::BAD_REQUEST, "query parameter \"port\" is required"));
    };
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let host_network = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    let stream = connect(&site.context.runtime, uid, host_network, port).await.map_err(|error| {
        let message = format!("failed to connect to localhost:{port} inside the pod: {}", kit::Chain(&error));
        refuse(StatusCode::INTERNAL_SERVER_ERROR, message)
    })?;
    Ok(upgrade.on_upgrade(move |socket| pump(socket, stream)))
}

async fn connect(runtime: &Runtime, uid: &str, host_network: bool, port: u16) -> Result<TcpStream> {
    let netns = if host_network { None } else { Some(netns::of_pod(runtime, uid).await?) };
    let dialling = tokio::task::spawn_blocking(move || match netns {
        Some(path) => sys::namespace::in_netns_at(&path, || dial(port)).map_err(std::io::Error::other)?,
        None => dial(port),
    });
    let fail = || Error::file("connect in", "the pod's network");
    let stream = dialling.await.map_err(|error| fail()(std::io::Error::other(error)))?.map_err(fail())?;
    stream.set_nonblocking(true).map_err(fail())?;
    TcpStream::from_std(stream).map_err(fail())
}

fn dial(port: u16) -> std::io::Result<std::net::TcpStream> {
    let local: [IpAddr; 2] = [Ipv4Addr::LOCALHOST.into(), Ipv6Addr::LOCALHOST.into()];
    let mut last = None;
    for ip in local {
        match std::net::TcpStream::connect_timeout(&SocketAddr::new(ip, port), CONNECT) {
            Ok(stream) => return Ok(stream),
            // What IPv4 said tells more than that IPv6 is not there.
            Err(error) => last = last.or(Some(error)),
        }
    }
    Err(last.unwrap_or_else(|| std::io::ErrorKind::NotConnected.into()))
}

/// Copies both ways until the pod's side ends. An empty frame is the end of the client's input.
async fn pump(socket: WebSocket, stream: TcpStream) {
    // Small writes of interactive protocols should not wait for each other; without it they merely are slower.
    let _ = stream.set_nodelay(true);
    let (mut read, mut write) = stream.into_split();
    let (mut sink, mut source) = socket.split();
    let up = async {
        while let Some(Ok(message)) = source.next().await {
            match message {
                Message::Binary(data) if data.is_empty() && write.shutdown().await.is_err() => {
                    return;
                }
                Message::Binary(data) if write.write_all(&data).await.is_err() => {
                    return;
                }
                Message::Close(_) => return,
                _ => {}
            }
        }
    };
    let down = async {
        let mut buffer = vec![0; BUFFER];
        while let Ok(count) = read.read(&mut buffer).await {
            if count == 0 || sink.send(Message::Binary(Bytes::copy_from_slice(&buffer[..count]))).await.is_err() {
                break;
            }
        }
        // The client may have gone first.
        let _ = sink.close().await;
    };
    tokio::select! {
        () = up => {}
        () = down => {}
    }
}
