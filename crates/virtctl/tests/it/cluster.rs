//! A server for the streams of subresources, and the program run against it.

use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use futures::{Sink, Stream};
use tempfile::TempDir;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio_tungstenite::tungstenite::handshake::server::{Request, Response};
use tokio_tungstenite::tungstenite::{Error, Message};
use tokio_tungstenite::{WebSocketStream, accept_hdr_async};

/// A stream the program opened, and the path it opened.
pub(crate) struct Opened {
    pub(crate) path: String,
    pub(crate) socket: WebSocketStream<TcpStream>,
}

pub(crate) struct Cluster {
    folder: TempDir,
    pub(crate) opened: mpsc::Receiver<Opened>,
}

impl Cluster {
    /// Listens, and writes the kubeconfig.
    pub(crate) async fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let kubeconfig = format!(
            "apiVersion: v1\nkind: Config\ncurrent-context: c\n\
             clusters: [{{name: c, cluster: {{server: 'http://{address}'}}}}]\n\
             contexts: [{{name: c, context: {{cluster: c, user: u, namespace: here}}}}]\n\
             users: [{{name: u, user: {{token: secret}}}}]\n"
        );
        std::fs::write(folder.path().join("kubeconfig"), kubeconfig).unwrap();
        let (sender, opened) = mpsc::channel(4);
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let sender = sender.clone();
                tokio::spawn(async move {
                    let mut path = String::new();
                    #[expect(clippy::result_large_err, reason = "the signature is the library's")]
                    let check = |request: &Request, mut response: Response| {
                        path = request.uri().path().to_owned();
                        let header = |name: &str| request.headers().get(name).and_then(|value| value.to_str().ok());
                        assert_eq!(header("sec-websocket-protocol"), Some("plain.kubevirt.io"));
                        assert_eq!(header("authorization"), Some("Bearer secret"));
                        response.headers_mut().insert("sec-websocket-protocol", "plain.kubevirt.io".parse().unwrap());
                        Ok(response)
                    };
                    let Ok(socket) = accept_hdr_async(stream, check).await else { return };
                    let _ = sender.send(Opened { path, socket }).await;
                });
            }
        });
        Self { folder, opened }
    }

    /// The program, told of this cluster.
    pub(crate) fn virtctl(&self, arguments: &[&str]) -> Command {
        let mut command = program(arguments);
        command.env("KUBECONFIG", self.folder.path().join("kubeconfig"));
        command
    }
}

/// The program in a world of its own.
pub(crate) fn program(arguments: &[&str]) -> Command {
    let mut command = Command::new(PathBuf::from(env!("CARGO_BIN_EXE_virtctl")));
    command.args(arguments).env_clear().env("FERROVIRT_STATE", "/nonexistent").stdin(Stdio::null());
    command
}

/// Exit code, standard output and standard error in one text.
pub(crate) fn said(output: &Output) -> String {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim_end().to_owned();
    let code = output.status.code().map_or_else(|| "by signal".to_owned(), |code| code.to_string());
    format!("exit {code}\n{}\n{}", text(&output.stdout), text(&output.stderr))
}

/// The next frame's bytes.
pub(crate) async fn bytes<S>(socket: &mut S) -> Vec<u8>
where
    S: Stream<Item = Result<Message, Error>> + Sink<Message> + Unpin,
{
    use futures::StreamExt;
    loop {
        match socket.next().await.unwrap().unwrap() {
            Message::Binary(bytes) => return bytes.to_vec(),
            _ => continue,
        }
    }
}
