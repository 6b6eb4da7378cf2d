//! exec, logs and port-forward with the real kubectl, against a kubelet played by the test: commands run on this host.
//!
//! Skipped where no kubectl is on PATH; `FERROVIRT_KUBECTL` names another one.

use std::process::Stdio;
use std::sync::Arc;

use axum::extract::ws::{CloseFrame, Message, WebSocket, WebSocketUpgrade};
use axum::extract::{Path, RawQuery};
use axum::response::Response;
use axum::routing::get;
use bytes::Bytes;
use futures::{SinkExt, StreamExt};
use kube_apiserver::serve::serve;
use kube_apiserver::serve::tls::Tls;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::process::Command;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::hostile::{begin, ended};
use super::served::Served;

async fn exec(RawQuery(query): RawQuery, upgrade: WebSocketUpgrade) -> Response {
    let query = query.unwrap_or_default();
    let command: Vec<String> = url::form_urlencoded::parse(query.as_bytes())
        .filter(|(k, _)| k == "command")
        .map(|(_, v)| v.into_owned())
        .collect();
    upgrade.protocols(["v5.channel.k8s.io"]).on_upgrade(|socket| run(socket, command))
}

fn framed(channel: u8, data: &[u8]) -> Message {
    Message::Binary(Bytes::from([&[channel], data].concat()))
}

/// What a kubelet does, with a child process for the container.
async fn run(socket: WebSocket, command: Vec<String>) {
    let (mut sink, mut source) = socket.split();
    let (out, mut queued) = mpsc::channel::<Message>(16);
    let child = Command::new(&command[0])
        .args(&command[1..])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn();
    let mut child = child.unwrap();
    let mut stdin = child.stdin.take();
    tokio::spawn(async move {
        while let Some(Ok(message)) = source.next().await {
            match message {
                Message::Binary(data) if data.first() == Some(&0) => {
                    if let Some(stdin) = &mut stdin {
                        let _ = stdin.write_all(&data[1..]).await;
                    }
                }
                Message::Binary(data) if data[..] == [255, 0] => stdin = None,
                _ => {}
            }
        }
    });
    let writing = tokio::spawn(async move {
        while let Some(message) = queued.recv().await {
            let _ = sink.send(message).await;
        }
        let normal = CloseFrame { code: 1000, reason: "".into() };
        let _ = sink.send(Message::Close(Some(normal))).await;
    });
    let stdout = copy(1, child.stdout.take().unwrap(), out.clone());
    let stderr = copy(2, child.stderr.take().unwrap(), out.clone());
    tokio::join!(stdout, stderr);
    let code = child.wait().await.unwrap().code().unwrap_or(1);
    let status = if code == 0 {
        json!({"metadata": {}, "status": "Success"})
    } else {
        json!({"metadata": {}, "status": "Failure", "reason": "NonZeroExitCode", "message": format!("command terminated with non-zero exit code: {code}"),
            "details": {"causes": [{"reason": "ExitCode", "message": code.to_string()}]}})
    };
    let _ = out.send(framed(3, status.to_string().as_bytes())).await;
    drop(out);
    let _ = writing.await;
}

async fn copy(channel: u8, mut from: impl tokio::io::AsyncRead + Unpin, to: mpsc::Sender<Message>) {
    let mut buffer = vec![0; 16 * 1024];
    while let Ok(count @ 1..) = from.read(&mut buffer).await {
        let _ = to.send(framed(channel, &buffer[..count])).await;
    }
}

/// A pod that answers each connection with what it was sent, in capitals.
async fn forward(upgrade: WebSocketUpgrade) -> Response {
    upgrade.on_upgrade(|mut socket| async move {
        while let Some(Ok(Message::Binary(data))) = socket.recv().await {
            if data.is_empty() {
                break;
            }
            let _ = socket.send(Message::Binary(data.to_ascii_uppercase().into())).await;
        }
        let _ = socket.send(Message::Close(None)).await;
    })
}

async fn logs(Path((_, _, container)): Path<(String, String, String)>, RawQuery(query): RawQuery) -> String {
    format!("log of {container} {}\n", query.unwrap_or_default())
}

async fn start() -> (Served, CancellationToken, tempfile::TempDir) {
    let served = Served::start().await;
    let pki = &served.server.edges().pki;
    let pair = pki.kubelet_server("n1", &["127.0.0.1".into()]).unwrap();
    let tls = Tls::from_pem(&pair.certificate, &pair.key, pki.ca_pem()).unwrap();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let router = axum::Router::new()
        .route("/exec/{ns}/{pod}/{container}", get(exec))
        .route("/attach/{ns}/{pod}/{container}", get(exec))
        .route("/portForward/{ns}/{pod}", get(forward))
        .route("/containerLogs/{ns}/{pod}/{container}", get(logs));
    let shutdown = CancellationToken::new();
    tokio::spawn(serve(vec![listener], Arc::new(tls), router, shutdown.clone()));
    let client = served.server.client();
    let send = |method: &str, path: &str, body: Value| {
        let kind = if method == "PATCH" { "application/merge-patch+json" } else { "application/json" };
        let request = http::Request::builder().method(method).uri(path).header("content-type", kind);
        let request = request.body(body.to_string().into_bytes()).unwrap();
        let client = client.clone();
        async move { client.request::<Value>(request).await.unwrap() }
    };
    send("POST", "/api/v1/nodes", json!({"metadata": {"name": "n1"}})).await;
    let status = json!({"status": {"addresses": [{"type": "InternalIP", "address": "127.0.0.1"}], "daemonEndpoints": {"kubeletEndpoint": {"Port": port}}}});
    send("PATCH", "/api/v1/nodes/n1/status", status).await;
    let pod =
        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n1", "containers": [{"name": "c", "image": "i"}]}});
    send("POST", "/api/v1/namespaces/default/pods", pod).await;
    let status = json!({"status": {"phase": "Running", "containerStatuses": [{"name": "c", "ready": true, "restartCount": 0,
        "image": "i", "imageID": "", "state": {"running": {}}}]}});
    send("PATCH", "/api/v1/namespaces/default/pods/p/status", status).await;
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("kubeconfig"), served.kubeconfig()).unwrap();
    (served, shutdown, dir)
}

fn kubectl(dir: &tempfile::TempDir) -> Option<Command> {
    let program = std::env::var("FERROVIRT_KUBECTL").unwrap_or_else(|_| "kubectl".into());
    let found = std::process::Command::new(&program)
        .args(["version", "--client"])
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    found.ok()?;
    let mut command = Command::new(program);
    command.env("KUBECONFIG", dir.path().join("kubeconfig")).env("HOME", dir.path()).kill_on_drop(true);
    Some(command)
}

async fn output(mut command: Command, input: &[u8]) -> (Option<i32>, String, String) {
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let input = input.to_vec();
    tokio::spawn(async move {
        let _ = stdin.write_all(&input).await;
    });
    let done =
        tokio::time::timeout(std::time::Duration::from_secs(60), child.wait_with_output()).await.unwrap().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (done.status.code(), text(done.stdout), text(done.stderr))
}

macro_rules! kubectl_or_skip {
    ($dir:expr, $($argument:expr),+) => {{
        let Some(mut command) = kubectl($dir) else { return };
        command.args([$($argument),+]);
        command
    }};
}

#[tokio::test]
async fn exec_carries_output_input_and_exit_code() {
    let (_served, shutdown, dir) = start().await;
    let _guard = shutdown.drop_guard();
    let command = kubectl_or_skip!(&dir, "exec", "p", "--", "sh", "-c", "echo out; echo err >&2; exit 3");
    let (code, out, err) = output(command, b"").await;
    assert_eq!((code, out.as_str()), (Some(3), "out\n"), "{err}");
    assert!(err.contains("err\n") && err.contains("exit code 3"), "{err}");
    let input = vec![b'x'; 300_000];
    let command = kubectl_or_skip!(&dir, "exec", "-i", "p", "--", "sh", "-c", "wc -c");
    let (code, out, err) = output(command, &input).await;
    assert_eq!((code, out.trim()), (Some(0), "300000"), "{err}");
}

#[tokio::test]
async fn cp_goes_both_ways() {
    let (_served, shutdown, dir) = start().await;
    let _guard = shutdown.drop_guard();
    let at = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    let content: Vec<u8> = (0..200_000_u32).map(|i| i.to_le_bytes()[0]).collect();
    std::fs::write(at("from"), &content).unwrap();
    let command = kubectl_or_skip!(&dir, "cp", at("from").as_str(), format!("p:{}", at("there")).as_str());
    let (code, _, err) = output(command, b"").await;
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(std::fs::read(at("there")).unwrap(), content);
    let command = kubectl_or_skip!(&dir, "cp", format!("p:{}", at("there")).as_str(), at("back").as_str());
    let (code, _, err) = output(command, b"").await;
    assert_eq!(code, Some(0), "{err}");
    assert_eq!(std::fs::read(at("back")).unwrap(), content);
}

#[tokio::test]
async fn logs_pass_their_options() {
    let (_served, shutdown, dir) = start().await;
    let _guard = shutdown.drop_guard();
    let (code, out, err) = output(kubectl_or_skip!(&dir, "logs", "p", "--tail=5"), b"").await;
    assert_eq!((code, out.as_str()), (Some(0), "log of c tailLines=5\n"), "{err}");
}

#[tokio::test]
async fn port_forward_carries_many_connections() {
    let (_served, shutdown, dir) = start().await;
    let _guard = shutdown.drop_guard();
    let mut command = kubectl_or_skip!(&dir, "port-forward", "p", ":80");
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    let mut lines = tokio::io::BufReader::new(child.stdout.take().unwrap());
    tokio::io::AsyncBufReadExt::read_line(&mut lines, &mut line).await.unwrap();
    let port: u16 = line.split("127.0.0.1:").nth(1).unwrap().split(' ').next().unwrap().parse().unwrap();
    let mut connections = tokio::task::JoinSet::new();
    for index in 0..30 {
        connections.spawn(async move {
            let mut stream = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
            let sent = format!("connection {index}");
            stream.write_all(sent.as_bytes()).await.unwrap();
            let mut got = vec![0; sent.len()];
            stream.read_exact(&mut got).await.unwrap();
            assert_eq!(String::from_utf8(got).unwrap(), sent.to_uppercase());
        });
    }
    let all = tokio::time::timeout(std::time::Duration::from_secs(60), connections.join_all());
    all.await.unwrap();
}

#[tokio::test]
async fn can_i_and_tokens_work_from_the_command_line() {
    let (_served, shutdown, dir) = start().await;
    let _guard = shutdown.drop_guard();
    let check = async |arguments: &[&str], code: i32, expect: &str| {
        let Some(mut command) = kubectl(&dir) else { return };
        command.args(arguments);
        let (got, out, err) = output(command, b"").await;
        assert_eq!(got, Some(code), "{arguments:?}: {out} {err}");
        assert!(format!("{out}{err}").contains(expect), "{arguments:?}: {out} {err}");
    };
    check(&["auth", "can-i", "delete", "pods"], 0, "yes").await;
    check(&["auth", "can-i", "delete", "pods", "--as=bob"], 1, "no").await;
    check(&["create", "serviceaccount", "robot"], 0, "serviceaccount/robot created").await;
    check(&["create", "token", "robot"], 0, "eyJ").await;
    check(&["create", "configmap", "m", "--from-literal=a=b"], 0, "configmap/m created").await;
    check(&["create", "deployment", "d", "--image=i", "--replicas=0"], 0, "deployment.apps/d created").await;
    check(&["create", "role", "r", "--verb=get", "--resource=pods"], 0, "role.rbac.authorization.k8s.io/r created")
        .await;
    check(&["get", "deployment", "d", "-o", "jsonpath={.spec.replicas}"], 0, "0").await;
    check(&["get", "pods", "--as=bob"], 1, "pods is forbidden: User \"bob\" cannot list resource \"pods\"").await;
}

#[tokio::test]
async fn a_frame_that_is_too_large_ends_its_stream() {
    let (served, _shutdown, _dir) = start().await;
    let pod = "/api/v1/namespaces/default/pods/p";
    let head = |path: &str, upgrade: &str| {
        format!("GET {pod}/{path} HTTP/1.1\r\nhost: x\r\nconnection: upgrade\r\nupgrade: {upgrade}\r\n")
    };
    // A SPDY control frame that says it has 16 MiB.
    let mut spdy = served.administrator().await;
    let request = head("exec?command=cat&stdin=true&stdout=true", "SPDY/3.1");
    let request = format!("{request}x-stream-protocol-version: v4.channel.k8s.io\r\n\r\n");
    assert_eq!(begin(&mut spdy, &request).await, "HTTP/1.1 101 Switching Protocols");
    spdy.write_all(&[0x80, 3, 0, 1, 0, 0xff, 0xff, 0xff]).await.unwrap();
    ended(spdy).await;
    // A WebSocket frame that says it has 1 GiB.
    let mut socket = served.administrator().await;
    let request = head("portforward?ports=80", "websocket");
    let request = format!(
        "{request}sec-websocket-version: 13\r\nsec-websocket-key: dGhlIHNhbXBsZSBub25jZQ==\r\nsec-websocket-protocol: v4.channel.k8s.io\r\n\r\n"
    );
    assert_eq!(begin(&mut socket, &request).await, "HTTP/1.1 101 Switching Protocols");
    socket.write_all(&[0x82, 0xff, 0, 0, 0, 0, 0x40, 0, 0, 0, 1, 2, 3, 4]).await.unwrap();
    ended(socket).await;
}
