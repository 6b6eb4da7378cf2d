//! migrate, migrate-cancel and evacuate-cancel against a server that answers as an API server does.

use std::process::Output;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use crate::cluster::{program, said};

/// What the server says to a request.
enum Answer {
    Object(u16, Value),
    /// Events of a watch, which then stays open.
    Events(Vec<Value>),
}

type Answers = fn(method: &str, path: &str) -> Answer;

struct Server {
    address: String,
    /// Method, path and body of every request.
    asked: Arc<Mutex<Vec<(String, String, Value)>>>,
}

impl Server {
    async fn start(answers: Answers) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let asked = Arc::new(Mutex::new(Vec::new()));
        let log = asked.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(stream, answers, log.clone()));
            }
        });
        Self { address, asked }
    }

    async fn virtctl(&self, arguments: &[&str]) -> Output {
        let mut command = program(arguments);
        command.arg(format!("--server={}", self.address));
        tokio::task::spawn_blocking(move || command.output().unwrap()).await.unwrap()
    }
}

async fn serve(stream: TcpStream, answers: Answers, log: Arc<Mutex<Vec<(String, String, Value)>>>) {
    let mut stream = BufReader::new(stream);
    loop {
        let (mut line, mut length) = (String::new(), 0);
        if stream.read_line(&mut line).await.unwrap_or(0) == 0 {
            return;
        }
        let mut words = line.split_whitespace().map(str::to_owned);
        let (method, path) = (words.next().unwrap(), words.next().unwrap());
        loop {
            let mut header = String::new();
            stream.read_line(&mut header).await.unwrap();
            if header.trim().is_empty() {
                break;
            }
            if let Some(value) = header.to_ascii_lowercase().strip_prefix("content-length:") {
                length = value.trim().parse().unwrap();
            }
        }
        let mut body = vec![0; length];
        stream.read_exact(&mut body).await.unwrap();
        let answer = answers(&method, &path);
        log.lock().await.push((method, path, serde_json::from_slice(&body).unwrap_or_default()));
        match answer {
            Answer::Object(code, object) => {
                let body = object.to_string();
                let head = format!(
                    "HTTP/1.1 {code} X\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
                    body.len()
                );
                stream.get_mut().write_all((head + &body).as_bytes()).await.unwrap();
            }
            Answer::Events(events) => {
                let head = "HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ntransfer-encoding: chunked\r\n\r\n";
                stream.get_mut().write_all(head.as_bytes()).await.unwrap();
                for event in events {
                    let line = format!("{event}\n");
                    let chunk = format!("{:x}\r\n{line}\r\n", line.len());
                    stream.get_mut().write_all(chunk.as_bytes()).await.unwrap();
                }
                // Until the client leaves.
                let _ = stream.read_line(&mut String::new()).await;
                return;
            }
        }
    }
}

fn migration(version: u32, phase: &str, state: &Value) -> Value {
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
        "metadata": { "name": "m1", "namespace": "default", "uid": "u", "resourceVersion": version.to_string() },
        "spec": { "vmiName": "demo" }, "status": { "phase": phase, "migrationState": state },
    })
}

fn list(kind: &str, items: &[Value]) -> Answer {
    let list =
        json!({ "apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": { "resourceVersion": "1" }, "items": items });
    Answer::Object(200, list)
}

fn not_found() -> Answer {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not here" });
    Answer::Object(404, status)
}

fn answers(end: &str, state: &Value, method: &str, path: &str) -> Answer {
    let watch = path.contains("watch=true");
    if method == "PUT" && path.ends_with("/virtualmachines/demo/migrate") {
        let details = json!({ "kind": "virtualmachineinstancemigrations", "name": "m1", "uid": "u" });
        return Answer::Object(202, json!({ "kind": "Status", "status": "Success", "details": details }));
    }
    if path.contains("/virtualmachineinstancemigrations?") {
        if !watch {
            return list("VirtualMachineInstanceMigrationList", &[migration(1, "Scheduling", &json!({}))]);
        }
        let event = |object: Value| json!({ "type": "MODIFIED", "object": object });
        return Answer::Events(vec![
            event(migration(2, "PreparingTarget", &json!({}))),
            event(migration(3, end, state)),
        ]);
    }
    if path.contains("/virtualmachineinstances?") {
        return if watch { Answer::Events(vec![]) } else { list("VirtualMachineInstanceList", &[]) };
    }
    not_found()
}

#[tokio::test]
async fn watched_until_it_is_there() {
    let server = Server::start(|method, path| answers("Succeeded", &json!({ "targetNode": "n2" }), method, path)).await;
    let output = server.virtctl(&["migrate", "demo", "--watch", "--addedNodeSelector=kubernetes.io/hostname=n2"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 0
    VM demo was scheduled to migrate
    Scheduling
    PreparingTarget
    Succeeded: runs on n2
    ");
    let asked = server.asked.lock().await;
    let (method, path, body) = &asked[0];
    assert_eq!(
        (method.as_str(), path.as_str()),
        ("PUT", "/apis/subresources.kubevirt.io/v1/namespaces/default/virtualmachines/demo/migrate")
    );
    assert_eq!(body, &json!({ "addedNodeSelector": { "kubernetes.io/hostname": "n2" } }));
}

#[tokio::test]
async fn watched_until_it_fails() {
    let server =
        Server::start(|method, path| answers("Failed", &json!({ "failureReason": "no route to n2" }), method, path))
            .await;
    let output = server.virtctl(&["migrate", "demo", "-w"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 1
    VM demo was scheduled to migrate
    Scheduling
    PreparingTarget
    Failed
    error: VM default/demo was not migrated: no route to n2
    ");
}

#[tokio::test]
async fn the_migration_under_way_is_cancelled() {
    let server = Server::start(|method, path| match method {
        "DELETE" => Answer::Object(200, json!({ "kind": "Status", "status": "Success" })),
        _ if path.contains("vmi-name%3Ddemo") || path.contains("vmi-name=demo") => {
            let mut over = migration(1, "Failed", &json!({}));
            over["metadata"]["name"] = json!("m0");
            list("VirtualMachineInstanceMigrationList", &[over, migration(1, "Running", &json!({}))])
        }
        _ => list("VirtualMachineInstanceMigrationList", &[]),
    })
    .await;
    let output = server.virtctl(&["migrate-cancel", "demo"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 0
    VM demo was scheduled to migrate-cancel
    ");
    let deleted = server.asked.lock().await.last().cloned().unwrap();
    assert!(deleted.0 == "DELETE" && deleted.1.contains("/virtualmachineinstancemigrations/m1"), "{deleted:?}");
    let output = server.virtctl(&["migrate-cancel", "other"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 1

    error: Found no migration to cancel for other
    hint: `kubectl get vmim -n default` shows those that ended
    ");
}

#[tokio::test]
async fn evacuations_are_cancelled_one_by_one_or_by_node() {
    let server = Server::start(|method, path| match (method, path) {
        ("PUT", _) => Answer::Object(200, json!({ "kind": "Status", "status": "Success" })),
        _ => {
            let vmi = |name: &str, node: &str| {
                json!({ "metadata": { "name": name, "namespace": "ns" }, "status": { "evacuationNodeName": node } })
            };
            list("VirtualMachineInstanceList", &[vmi("a", "n1"), vmi("b", "n2")])
        }
    })
    .await;
    let output = server.virtctl(&["evacuate-cancel", "vm", "demo"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 0
    VM demo was canceled evacuation
    ");
    let output = server.virtctl(&["evacuate-cancel", "node", "n1"]).await;
    insta::assert_snapshot!(said(&output), @r"
    exit 0
    VMI ns/a was canceled evacuation
    ");
    let last = server.asked.lock().await.last().cloned().unwrap();
    let path = "/apis/subresources.kubevirt.io/v1/namespaces/ns/virtualmachineinstances/a/evacuate/cancel";
    assert_eq!((last.1.as_str(), last.2), (path, json!({ "evacuationNodeName": "n1" })));
}
