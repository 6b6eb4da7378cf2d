//! exec, attach, logs and port-forward as the API server uses them: TLS, client certificate, WebSocket.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use futures::{SinkExt, StreamExt};
use kit::certs::{Authority, Leaf};
use kit::tls;
use serde_json::json;
use tokio::net::TcpStream;
use tokio_tungstenite::WebSocketStream;
use tokio_tungstenite::tungstenite::Message;
use tokio_tungstenite::tungstenite::client::IntoClientRequest;

use crate::machine::Machine;

/// Both ends of the kubelet's TLS, of one authority.
pub(crate) struct Tls {
    authority: Authority,
    pub(crate) server: kubelet::Server,
}

impl Tls {
    pub(crate) fn new() -> Tls {
        let (now, day) = (kit::clock::now(), Duration::from_secs(86_400));
        let authority = Authority::generate("test", now, day).unwrap();
        let leaf = Leaf { name: "node".into(), role: "node".into(), node: None, dns: vec!["localhost".into()] };
        let material = tls::Material::new();
        material.set(&authority.issue(&leaf, now, day).unwrap()).unwrap();
        let trust = tls::Trust::new();
        trust.set(&authority.pair().certificate).unwrap();
        let tls = tls::server(material, Some(tls::Clients::Optional(trust))).unwrap();
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        Tls { authority, server: kubelet::Server { address: SocketAddr::from(([127, 0, 0, 1], port)), tls } }
    }

    async fn connect(&self, name: &str) -> tokio_rustls::client::TlsStream<TcpStream> {
        let (now, day) = (kit::clock::now(), Duration::from_secs(86_400));
        let leaf = Leaf { name: name.into(), role: "client".into(), node: None, dns: vec![] };
        let material = tls::Material::new();
        material.set(&self.authority.issue(&leaf, now, day).unwrap()).unwrap();
        let trust = tls::Trust::new();
        trust.set(&self.authority.pair().certificate).unwrap();
        let config: Arc<rustls::ClientConfig> = tls::client(material, trust, "node", None).unwrap();
        let stream = TcpStream::connect(self.server.address).await.unwrap();
        let name = rustls::pki_types::ServerName::try_from("localhost").unwrap();
        tokio_rustls::TlsConnector::from(config).connect(name, stream).await.unwrap()
    }

    /// A page by GET: status and body.
    pub(crate) async fn get(&self, name: &str, path: &str) -> (u16, String) {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = self.connect(name).await;
        let request = format!("GET {path} HTTP/1.0\r\nhost: localhost\r\n\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        // The server may close without a TLS goodbye.
        let _ = stream.read_to_end(&mut answer).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
        (status, answer.split_once("\r\n\r\n").map(|(_, body)| body.to_owned()).unwrap_or_default())
    }

    /// Asks a CSI driver about the node, over a connection that the kubelet passes on.
    pub(crate) async fn call_driver(&self, name: &str) -> rpc::csi::NodeGetInfoResponse {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let mut stream = self.connect("kube-apiserver-kubelet-client").await;
        let upgrade =
            format!("GET /csi/{name} HTTP/1.1\r\nhost: localhost\r\nconnection: Upgrade\r\nupgrade: csi\r\n\r\n");
        stream.write_all(upgrade.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        while !answer.ends_with(b"\r\n\r\n") {
            answer.push(stream.read_u8().await.unwrap());
        }
        assert!(answer.starts_with(b"HTTP/1.1 101 "), "{}", String::from_utf8_lossy(&answer));
        let mut stream = Some(hyper_util::rt::TokioIo::new(stream));
        let connect = tower::service_fn(move |_: http::Uri| {
            std::future::ready(stream.take().ok_or_else(|| std::io::Error::other("one connection is enough")))
        });
        let endpoint = tonic::transport::Endpoint::from_static("http://driver.invalid");
        let channel = endpoint.connect_with_connector(connect).await.unwrap();
        let mut node = rpc::csi::node_client::NodeClient::new(channel);
        node.node_get_info(rpc::csi::NodeGetInfoRequest {}).await.unwrap().into_inner()
    }

    async fn websocket(&self, path: &str) -> WebSocketStream<tokio_rustls::client::TlsStream<TcpStream>> {
        let stream = self.connect("kube-apiserver-kubelet-client").await;
        let mut request = format!("wss://localhost{path}").into_client_request().unwrap();
        if !path.starts_with("/portForward") {
            request.headers_mut().insert("sec-websocket-protocol", "v5.channel.k8s.io".parse().unwrap());
        }
        tokio_tungstenite::client_async(request, stream).await.unwrap().0
    }

    /// Sends frames, then reads to the end: stdout, stderr and the status.
    async fn exec(&self, path: &str, frames: &[&[u8]]) -> (String, String, serde_json::Value) {
        let mut socket = self.websocket(path).await;
        for frame in frames {
            socket.send(Message::Binary(frame.to_vec().into())).await.unwrap();
        }
        let mut outputs = [Vec::new(), Vec::new(), Vec::new()];
        while let Some(Ok(message)) =
            tokio::time::timeout(Duration::from_secs(20), socket.next()).await.expect("an end")
        {
            if let Message::Binary(frame) = message {
                outputs[usize::from(frame[0]) - 1].extend_from_slice(&frame[1..]);
            }
        }
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        (text(&outputs[0]), text(&outputs[1]), serde_json::from_slice(&outputs[2]).unwrap_or_default())
    }
}

/// A pod with a shell, an echo server and a log.
pub(crate) async fn streams(machine: &Machine, tls: &Tls) {
    let spec = json!({"terminationGracePeriodSeconds": 0, "containers": [{"name": "c", "stdin": true,
        "command": ["sh", "-c", "echo first; echo second; nc -ll -p 7000 -e cat & while read line; do echo got $line; test \"$line\" = quit && exit 5; done"]}]});
    machine.create("streams", spec).await;
    machine.ready("streams").await;
    let exec = |query: &str| format!("/exec/default/streams/c?{query}");

    let (out, err, status) =
        tls.exec(&exec("stdout=true&stderr=true&command=sh&command=-c&command=echo+a;echo+b+%3E%262"), &[]).await;
    assert_eq!((out.as_str(), err.as_str(), status["status"].as_str()), ("a\n", "b\n", Some("Success")));

    let (_, _, status) = tls.exec(&exec("stdout=true&command=sh&command=-c&command=exit+7"), &[]).await;
    assert_eq!(status["details"]["causes"][0], json!({"reason": "ExitCode", "message": "7"}));

    let (out, _, status) =
        tls.exec(&exec("stdin=true&stdout=true&command=cat"), &[b"\x00some ", b"\x00input", b"\xff\x00"]).await;
    assert_eq!((out.as_str(), status["status"].as_str()), ("some input", Some("Success")));

    let frames: [&[u8]; 2] = [b"\x04{\"Width\":81,\"Height\":25}", b"\x00word\n"];
    let script = "read+x;echo+got+$x;stty+size;exit+4";
    let query = exec(&format!("stdin=true&stdout=true&tty=true&command=sh&command=-c&command={script}"));
    let (out, _, status) = tls.exec(&query, &frames).await;
    assert!(out.contains("got word\r\n25 81\r\n"), "{out:?}");
    assert_eq!(status["details"]["causes"][0]["message"], "4");

    let (_, _, status) = tls.exec(&exec("stdout=true&command=no-such-command"), &[]).await;
    assert!(status["message"].as_str().unwrap_or_default().contains("no-such-command"), "{status}");

    let megabytes = exec("stdout=true&command=head&command=-c&command=3000000&command=/dev/zero");
    assert_eq!(tls.exec(&megabytes, &[]).await.0.len(), 3_000_000, "nothing of a long output is lost");

    let mut socket = tls.websocket("/portForward/default/streams?port=7000").await;
    socket.send(Message::Binary("ping".into())).await.unwrap();
    let echoed = socket.next().await.unwrap().unwrap();
    assert_eq!(echoed.into_data(), "ping");
    drop(socket);

    let me = "kube-apiserver-kubelet-client";
    assert_eq!(tls.get(me, "/containerLogs/default/streams/c").await, (200, "first\nsecond\n".into()));
    assert_eq!(tls.get(me, "/containerLogs/default/streams/c?tailLines=1").await.1, "second\n");
    assert_eq!(tls.get(me, "/containerLogs/default/streams/c?previous=true").await.0, 400);
    assert_eq!(tls.get(me, "/containerLogs/default/none/c").await.0, 404);
    assert_eq!(tls.get("somebody", "/pods").await.0, 403);
    assert!(tls.get(me, "/metrics/resource").await.1.contains("pod=\"streams\""));

    let following = tls.get(me, "/containerLogs/default/streams/c?follow=true&tailLines=0");
    let attached = async {
        tokio::time::sleep(Duration::from_millis(300)).await;
        tls.exec("/attach/default/streams/c?stdin=true&stdout=true&stderr=true", &[b"\x00one\n", b"\x00quit\n"]).await
    };
    let (followed, (out, _, status)) = tokio::join!(following, attached);
    assert_eq!(out, "got one\ngot quit\n");
    assert_eq!(status["status"], "Success", "the exit code is the pod's to tell: {status}");
    assert_eq!(followed.1, "got one\ngot quit\n");
    machine.delete("streams", 0).await;
}
