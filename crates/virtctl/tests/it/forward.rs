//! Ports: standard input and output as ssh uses them, and local TCP and UDP ports.

use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Stdio};

use futures::SinkExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UdpSocket};
use tokio_tungstenite::tungstenite::Message;

use crate::cluster::{Cluster, bytes};

const PATH: &str = "/apis/subresources.kubevirt.io/v1/namespaces";

/// Started by a test, and ended with it.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The local address the program says it forwards.
async fn forwarding(cluster: &Cluster, port: &str) -> (Ended, String) {
    let mut child = cluster.virtctl(&["port-forward", "vm/demo/other", port]).stderr(Stdio::piped()).spawn().unwrap();
    let errors = child.stderr.take().unwrap();
    let line = tokio::task::spawn_blocking(move || {
        let mut line = String::new();
        BufReader::new(errors).read_line(&mut line).unwrap();
        line
    });
    let line = line.await.unwrap();
    let address = line.split(' ').nth(2).unwrap().to_owned();
    (Ended(child), address)
}

#[tokio::test(flavor = "multi_thread")]
async fn standard_input_and_output() {
    let mut cluster = Cluster::start().await;
    let mut command = cluster.virtctl(&["port-forward", "--stdio=true", "vmi/demo", "22"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut opened = cluster.opened.recv().await.unwrap();
    assert_eq!(opened.path, format!("{PATH}/here/virtualmachineinstances/demo/portforward/22/tcp"));
    child.stdin.as_mut().unwrap().write_all(b"SSH-2.0-client").unwrap();
    assert_eq!(bytes(&mut opened.socket).await, b"SSH-2.0-client");
    opened.socket.send(Message::Binary("SSH-2.0-server".into())).await.unwrap();
    opened.socket.close(None).await.unwrap();
    let output = tokio::task::spawn_blocking(move || {
        let mut text = String::new();
        child.stdout.take().unwrap().read_to_string(&mut text).unwrap();
        (text, child.wait().unwrap().code())
    });
    assert_eq!(output.await.unwrap(), ("SSH-2.0-server".to_owned(), Some(0)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tcp_port() {
    let mut cluster = Cluster::start().await;
    let (_child, address) = forwarding(&cluster, "0:80").await;
    let mut local = TcpStream::connect(&address).await.unwrap();
    let mut opened = cluster.opened.recv().await.unwrap();
    assert_eq!(opened.path, format!("{PATH}/other/virtualmachines/demo/portforward/80/tcp"));
    local.write_all(b"GET").await.unwrap();
    assert_eq!(bytes(&mut opened.socket).await, b"GET");
    opened.socket.send(Message::Binary("200".into())).await.unwrap();
    opened.socket.close(None).await.unwrap();
    let mut answer = String::new();
    local.read_to_string(&mut answer).await.unwrap();
    assert_eq!(answer, "200");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_udp_port_keeps_its_senders_apart() {
    let mut cluster = Cluster::start().await;
    let (_child, address) = forwarding(&cluster, "udp/0:53").await;
    let mut pairs = Vec::new();
    for question in ["one", "two"] {
        let local = UdpSocket::bind("127.0.0.1:0").await.unwrap();
        local.send_to(question.as_bytes(), &address).await.unwrap();
        let mut opened = cluster.opened.recv().await.unwrap();
        assert_eq!(opened.path, format!("{PATH}/other/virtualmachines/demo/portforward/53/udp"));
        assert_eq!(bytes(&mut opened.socket).await, question.as_bytes());
        pairs.push((local, opened));
    }
    for (index, (local, opened)) in pairs.iter_mut().enumerate() {
        let answer = format!("answer {index}");
        opened.socket.send(Message::Binary(answer.clone().into())).await.unwrap();
        let mut buffer = [0; 64];
        let (length, _) = local.recv_from(&mut buffer).await.unwrap();
        assert_eq!(&buffer[..length], answer.as_bytes());
    }
}
