//! The screen for viewers at a local port.

use std::io::BufRead;
use std::process::Stdio;

use futures::SinkExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::protocol::CloseFrame;
use tokio_tungstenite::tungstenite::protocol::frame::coding::CloseCode;

use crate::cluster::{Cluster, bytes};

#[tokio::test(flavor = "multi_thread")]
async fn viewers_find_the_screen_again_after_the_connection_was_lost_and_not_after_it_was_closed() {
    let mut cluster = Cluster::start().await;
    let mut child = cluster.virtctl(&["vnc", "demo", "--proxy-only"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut output = std::io::BufReader::new(child.stdout.take().unwrap());
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        output.read_line(&mut line).unwrap();
        line
    });
    let line: serde_json::Value = serde_json::from_str(&line.await.unwrap()).unwrap();
    let port = u16::try_from(line["port"].as_u64().unwrap()).unwrap();
    for last in [false, true] {
        let mut opened = cluster.opened.recv().await.unwrap();
        assert!(opened.path.ends_with("/virtualmachineinstances/demo/vnc"), "{}", opened.path);
        let mut viewer = TcpStream::connect(("127.0.0.1", port)).await.unwrap();
        viewer.write_all(b"look").await.unwrap();
        assert_eq!(bytes(&mut opened.socket).await, b"look");
        opened.socket.send(Message::Binary("seen".into())).await.unwrap();
        let mut seen = [0; 4];
        viewer.read_exact(&mut seen).await.unwrap();
        assert_eq!(&seen, b"seen");
        if last {
            let frame = CloseFrame { code: CloseCode::Normal, reason: "the guest's console closed".into() };
            opened.socket.close(Some(frame)).await.unwrap();
        }
        drop(opened);
        assert_eq!(viewer.read(&mut seen).await.unwrap_or(0), 0, "the viewer is told");
    }
    let status = tokio::task::spawn_blocking(move || child.wait().unwrap()).await.unwrap();
    assert_eq!(status.code(), Some(0));
}
