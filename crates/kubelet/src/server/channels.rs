//! The `v5.channel.k8s.io` protocol: one byte of channel, then data.

use std::time::Duration;

use axum::extract::ws::{CloseFrame, Message, WebSocket, close_code};
use bytes::{BufMut, Bytes, BytesMut};
use futures::stream::SplitStream;
use futures::{SinkExt, StreamExt};
use serde::Deserialize;
use serde_json::json;
use tokio::sync::mpsc;

/// What the kubelet offers; the older versions differ only in what they lack.
pub(super) const PROTOCOLS: [&str; 2] = ["v5.channel.k8s.io", "v4.channel.k8s.io"];

pub(super) const STDOUT: u8 = 1;
pub(super) const STDERR: u8 = 2;
const STDIN: u8 = 0;
const ERROR: u8 = 3;
const RESIZE: u8 = 4;
const CLOSE: u8 = 255;
/// Frames on their way to the client.
const QUEUE: usize = 16;
/// How long a client may take to close after the last word.
const GOODBYE: Duration = Duration::from_secs(5);

/// What the client sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Input {
    Stdin(Bytes),
    StdinEnd,
    Resize { width: u16, height: u16 },
}

/// The way to the client; the connection is closed when the last clone is gone.
#[derive(Clone)]
pub(super) struct Output(mpsc::Sender<Message>);

/// The way from the client.
pub(super) struct Inputs(SplitStream<WebSocket>);

/// Both ways, and a task that ends when everything was written.
pub(super) fn open(socket: WebSocket) -> (Output, Inputs, kit::Task<()>) {
    let (mut sink, stream) = socket.split();
    let (send, mut receive) = mpsc::channel::<Message>(QUEUE);
    let writing = kit::spawn("channels", async move {
        while let Some(message) = receive.recv().await {
            if sink.send(message).await.is_err() {
                return;
            }
        }
        // kubectl takes a close without the normal code for a failure. The client may have gone first.
        let normal = CloseFrame { code: close_code::NORMAL, reason: "".into() };
        let _ = sink.send(Message::Close(Some(normal))).await;
    });
    (Output(send), Inputs(stream), writing)
}

impl Output {
    /// False when the client is gone.
    pub(super) async fn send(&self, channel: u8, data: &[u8]) -> bool {
        let mut frame = BytesMut::with_capacity(data.len() + 1);
        frame.put_u8(channel);
        frame.put_slice(data);
        self.0.send(Message::Binary(frame.freeze())).await.is_ok()
    }

    /// The last word: how the command ended.
    pub(super) async fn finish(&self, ending: &Ending) {
        let status = ending.status().to_string();
        self.send(ERROR, status.as_bytes()).await;
    }

    /// Resolves when the client can no longer be written to.
    pub(super) async fn gone(&self) {
        self.0.closed().await;
    }
}

impl Inputs {
    /// Waits until everything is written and the client has closed. What it still sends is read and dropped: a connection
    /// closed with unread input is reset, and the last word lost with it.
    pub(super) async fn drain(&mut self, writing: kit::Task<()>) {
        let reading = async { while self.next().await.is_some() {} };
        let goodbye = futures::future::join(writing, reading);
        if tokio::time::timeout(GOODBYE, goodbye).await.is_err() {
            tracing::debug!("a client did not close its channels");
        }
    }

    /// The next input; `None` when the client is gone.
    pub(super) async fn next(&mut self) -> Option<Input> {
        loop {
            let message = self.0.next().await?.ok()?;
            if matches!(message, Message::Close(_)) {
                return None;
            }
            if let Some(input) = frame(message).and_then(parse) {
                return Some(input);
            }
        }
    }
}

/// What a message carries. Clients that write strings, such as the one for Python, send them as text.
fn frame(message: Message) -> Option<Bytes> {
    match message {
        Message::Binary(frame) => Some(frame),
        Message::Text(text) => Some(text.into()),
        _ => None,
    }
}

fn parse(mut frame: Bytes) -> Option<Input> {
    #[derive(Deserialize)]
    struct Size {
        #[serde(rename = "Width", alias = "width")]
        width: u16,
        #[serde(rename = "Height", alias = "height")]
        height: u16,
    }
    if frame.is_empty() {
        return None;
    }
    match frame.split_to(1)[0] {
        STDIN => (!frame.is_empty()).then_some(Input::Stdin(frame)),
        CLOSE => (frame.first() == Some(&STDIN)).then_some(Input::StdinEnd),
        RESIZE => serde_json::from_slice::<Size>(&frame)
            .ok()
            .map(|size| Input::Resize { width: size.width, height: size.height }),
        _ => None,
    }
}

/// How a command ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Exit(u32),
    /// It never ran, or was lost.
    Failed(String),
}

impl Ending {
    fn status(&self) -> serde_json::Value {
        match self {
            Ending::Exit(0) => json!({"metadata": {}, "status": "Success"}),
            Ending::Exit(code) => json!({
                "metadata": {},
                "status": "Failure",
                "reason": "NonZeroExitCode",
                "message": format!("command terminated with non-zero exit code: exit status {code}"),
                "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]},
            }),
            Ending::Failed(message) => json!({
                "metadata": {},
                "status": "Failure",
                "reason": "InternalError",
                "message": format!("Internal error occurred: {message}"),
                "details": {"causes": [{"message": message}]},
                "code": 500,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(frame: &'static [u8], expect: Option<Input>) {
        assert_eq!(parse(Bytes::from_static(frame)), expect);
    }

    #[test]
    fn strings_are_frames_too() {
        let typed = Some(Input::Stdin(Bytes::from_static(b"id\n")));
        for message in [Message::Binary("\0id\n".into()), Message::Text("\0id\n".into())] {
            assert_eq!(frame(message).and_then(parse), typed);
        }
        assert_eq!(frame(Message::Ping("\0id\n".into())), None);
    }

    #[test]
    fn frames() {
        check(b"\x00abc", Some(Input::Stdin(Bytes::from_static(b"abc"))));
        check(b"\x00", None);
        check(b"\xff\x00", Some(Input::StdinEnd));
        check(b"\xff\x01", None);
        check(b"\x04{\"Width\":80,\"Height\":24}", Some(Input::Resize { width: 80, height: 24 }));
        check(b"\x04rubbish", None);
        check(b"\x01x", None);
        check(b"", None);
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// A frame is one input or none; standard input is what follows the number of its channel, byte for byte.
        #[test]
        fn any_frame_is_one_input_or_none(bytes in proptest::collection::vec(any::<u8>(), 0..64)) {
            match parse(Bytes::from(bytes.clone())) {
                Some(Input::Stdin(data)) => prop_assert!(bytes[0] == STDIN && data[..] == bytes[1..] && !data.is_empty()),
                Some(Input::StdinEnd) => prop_assert_eq!(bytes[0], CLOSE),
                Some(Input::Resize { .. }) => prop_assert_eq!(bytes[0], RESIZE),
                _ => {}
            }
        }
    }
}
