//! A server that answers requests as an API server does, and remembers them.

use std::process::Output;
use std::sync::Arc;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Mutex;

use crate::cluster::program;

/// What the server says to a request.
pub(crate) enum Answer {
    Object(u16, Value),
    /// Events of a watch, which then stays open.
    Events(Vec<Value>),
}

pub(crate) type Answers = fn(method: &str, path: &str) -> Answer;

pub(crate) struct Server {
    address: String,
    /// Method, path and body of every request.
    pub(crate) asked: Arc<Mutex<Vec<(String, String, Value)>>>,
}

impl Server {
    pub(crate) async fn start(answers: Answers) -> Self {
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

    pub(crate) async fn virtctl(&self, arguments: &[&str]) -> Output {
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

pub(crate) fn list(kind: &str, items: &[Value]) -> Answer {
    let list =
        json!({ "apiVersion": "kubevirt.io/v1", "kind": kind, "metadata": { "resourceVersion": "1" }, "items": items });
    Answer::Object(200, list)
}

pub(crate) fn not_found() -> Answer {
    let status = json!({ "kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404, "message": "not here" });
    Answer::Object(404, status)
}
