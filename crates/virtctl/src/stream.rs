//! Streams of subresources: a websocket of raw binary frames, and the copying between it and what is local.

use std::io;
use std::time::Duration;

use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use http::{Request, StatusCode, header};
use hyper::upgrade::Upgraded;
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::client::Body;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::protocol::Role;
use tokio_tungstenite::tungstenite::{Error as WsError, Message, handshake};

use crate::fault::{Fault, chain};
use crate::target::Kind;

/// The subprotocol of raw bytes in binary frames.
const PROTOCOL: &str = "plain.kubevirt.io";
/// Bytes moved at a time.
const CHUNK: usize = 32 << 10;
/// How often an idle stream says that it is alive, against proxies that end idle connections.
pub(crate) const ALIVE: Duration = Duration::from_secs(30);
/// How long the other side may be silent once this side has sent all it had.
const LINGER: Duration = Duration::from_secs(30);

/// A stream to a subresource.
pub(crate) type Socket = WebSocketStream<TokioIo<Upgraded>>;

/// The path of a subresource.
pub(crate) fn path(kind: Kind, namespace: &str, name: &str, subresource: &str) -> String {
    format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/{}/{name}/{subresource}", kind.resource())
}

/// Opens the stream at `path`; `what` says what fails when it does.
pub(crate) async fn open(client: &Client, path: &str, what: &str) -> Result<Socket, Fault> {
    let key = handshake::client::generate_key();
    let request = Request::get(path)
        .header(header::CONNECTION, "Upgrade")
        .header(header::UPGRADE, "websocket")
        .header(header::SEC_WEBSOCKET_VERSION, "13")
        .header(header::SEC_WEBSOCKET_KEY, &key)
        .header(header::SEC_WEBSOCKET_PROTOCOL, PROTOCOL)
        .body(Body::empty())
        .map_err(|error| Fault::usage(what).because(error))?;
    let answer = client.send(request).await.map_err(|error| Fault::api(what, &error))?;
    let status = answer.status();
    if status != StatusCode::SWITCHING_PROTOCOLS {
        let body = answer.into_body().collect_bytes().await.unwrap_or_default();
        return Err(refused(Fault::new(what), status, &body));
    }
    let expected = handshake::derive_accept_key(key.as_bytes());
    if answer.headers().get(header::SEC_WEBSOCKET_ACCEPT).is_none_or(|found| *found != expected) {
        return Err(Fault::new(what).because("what answered is not a websocket server"));
    }
    let upgraded = hyper::upgrade::on(answer).await.map_err(|error| Fault::new(what).because(chain(&error)))?;
    Ok(WebSocketStream::from_raw_socket(TokioIo::new(upgraded), Role::Client, None).await)
}

pub(crate) fn refused(fault: Fault, status: StatusCode, body: &[u8]) -> Fault {
    let answer: serde_json::Value = serde_json::from_slice(body).unwrap_or_default();
    let field = |name: &str| answer.get(name).and_then(serde_json::Value::as_str).map(str::to_owned);
    let message = field("message").unwrap_or_else(|| String::from_utf8_lossy(body).trim().to_owned());
    let reason = field("reason").unwrap_or_else(|| status.canonical_reason().unwrap_or_default().to_owned());
    fault.answered(status.as_u16(), &message, &reason)
}

/// Which side of a stream went away without a word.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Broken {
    /// The connection to the cluster: who carried it has ended, and opened again it may go on.
    #[error("{0}")]
    Far(String),
    /// What is local.
    #[error(transparent)]
    Near(#[from] io::Error),
}

fn lost(error: &WsError) -> Broken {
    Broken::Far(chain(error))
}

/// The bytes a frame carries; `None` for frames that are about the connection.
pub(crate) fn payload(message: Message) -> Option<Bytes> {
    match message {
        Message::Binary(bytes) => Some(bytes),
        Message::Text(text) => Some(text.into()),
        _ => None,
    }
}

/// Whether a stream was closed because the machine goes on on another node: opened again, it leads there.
pub(crate) fn says_moved(farewell: &str) -> bool {
    farewell.contains("moved to another node")
}

/// Copies both ways until the far side closes, or has been silent for a while after the near side ended. Returns what the
/// far side said as it closed.
pub(crate) async fn splice<S, R, W>(socket: WebSocketStream<S>, mut reader: R, mut writer: W) -> Result<String, Broken>
where
    S: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + Unpin,
    W: AsyncWrite + Unpin,
{
    let (mut sink, mut source) = socket.split();
    let mut buffer = vec![0; CHUNK];
    let mut alive = interval(ALIVE);
    alive.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut reading = true;
    let mut farewell = String::new();
    let mut deadline = Instant::now();
    loop {
        tokio::select! {
            read = reader.read(&mut buffer), if reading => match read {
                Ok(0) | Err(_) => {
                    reading = false;
                    deadline = Instant::now() + LINGER;
                }
                Ok(length) => {
                    let bytes = Bytes::copy_from_slice(buffer.get(..length).unwrap_or_default());
                    sink.send(Message::Binary(bytes)).await.map_err(|error| lost(&error))?;
                }
            },
            message = source.next() => match message {
                Some(Ok(Message::Close(frame))) => {
                    farewell = frame.map(|frame| frame.reason.to_string()).unwrap_or_default();
                    break;
                }
                None | Some(Err(WsError::ConnectionClosed)) => break,
                Some(Err(error)) => return Err(lost(&error)),
                Some(Ok(message)) => if let Some(bytes) = payload(message) {
                    deadline = Instant::now() + LINGER;
                    writer.write_all(&bytes).await?;
                    writer.flush().await?;
                },
            },
            _ = alive.tick() => sink.send(Message::Ping(Bytes::new())).await.map_err(|error| lost(&error))?,
            () = sleep_until(deadline), if !reading => break,
        }
    }
    let _ = sink.close().await;
    writer.shutdown().await?;
    Ok(farewell)
}

#[cfg(test)]
mod tests {
    use tokio::io::duplex;

    use super::*;

    /// A client's and a server's end of a websocket.
    async fn pair() -> (WebSocketStream<tokio::io::DuplexStream>, WebSocketStream<tokio::io::DuplexStream>) {
        let (a, b) = duplex(1 << 16);
        tokio::join!(
            WebSocketStream::from_raw_socket(a, Role::Client, None),
            WebSocketStream::from_raw_socket(b, Role::Server, None)
        )
    }

    #[tokio::test]
    async fn bytes_go_both_ways_and_the_end_arrives() {
        let (client, mut server) = pair().await;
        let (mut near, local) = duplex(1 << 16);
        let (reader, writer) = tokio::io::split(local);
        let copying = tokio::spawn(splice(client, reader, writer));
        near.write_all(b"ping").await.unwrap();
        let mut got = Vec::new();
        while got.is_empty() {
            got = payload(server.next().await.unwrap().unwrap()).unwrap_or_default().to_vec();
        }
        assert_eq!(got, b"ping");
        server.send(Message::Binary(Bytes::from_static(b"pong"))).await.unwrap();
        server.close(None).await.unwrap();
        let mut answer = String::new();
        near.read_to_string(&mut answer).await.unwrap();
        assert_eq!(answer, "pong");
        copying.await.unwrap().unwrap();
    }

    #[tokio::test]
    async fn an_answer_after_the_question_ended_is_awaited() {
        let (client, mut server) = pair().await;
        let mut answer = Vec::new();
        let asking = splice(client, &b"question"[..], &mut answer);
        let answering = async {
            while payload(server.next().await.unwrap().unwrap()).is_none_or(|bytes| bytes != "question") {}
            // A while later: the asking side has seen the end of its input.
            tokio::task::yield_now().await;
            server.send(Message::Binary(Bytes::from_static(b"answer"))).await.unwrap();
            server.close(None).await.unwrap();
        };
        let (done, ()) = tokio::join!(asking, answering);
        done.unwrap();
        assert_eq!(answer, b"answer");
    }

    #[test]
    fn a_refusal_is_told_in_the_servers_words() {
        let body = br#"{"kind":"Status","message":"VMI is not running","reason":"Conflict","code":409}"#;
        let fault = refused(Fault::new("cannot open"), StatusCode::CONFLICT, body);
        assert_eq!(fault.to_string(), "error: cannot open: VMI is not running");
        assert_eq!(fault.status, Some(409));
        let fault = refused(Fault::new("cannot open"), StatusCode::BAD_GATEWAY, b"");
        assert_eq!(fault.to_string(), "error: cannot open: the server answered 502 Bad Gateway");
    }
}
