//! attach: the container's own process. Its output is read from its log, from now on; its input goes to its pipe.
//!
//! A container whose input is for one session only (`kubectl run -i`) was made for that session, which sees its output from
//! the beginning: a command that is quick has said everything before its client is here.
//!
//! To have seen a process end is success, however it ended: its exit code is the pod's to tell, and a client that is told of
//! a failure takes the session for a broken one and prints the log once more.

use std::path::PathBuf;

use axum::extract::ws::WebSocket;
use axum::extract::{Path as UrlPath, RawQuery, State, WebSocketUpgrade};
use axum::response::Response;
use k8s_openapi::api::core::v1::Pod;
use rpc::containerd::tasks;
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;

use super::Site;
use super::channels::{self, Ending, Input, Inputs, PROTOCOLS, STDERR, STDOUT};
use super::exec::Wanted;
use crate::error::{Error, Result};
use crate::logs::read::{self, Query};
use crate::runtime::Runtime;
use crate::sandbox::{self, log_path};

struct Attached {
    runtime: Runtime,
    container: String,
    log: PathBuf,
    wanted: Wanted,
    /// Whether this is the one session of the container.
    only: bool,
}

pub(super) async fn serve(
    State(site): State<Site>,
    UrlPath((namespace, pod, container)): UrlPath<(String, String, String)>,
    RawQuery(query): RawQuery,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Response> {
    let pod = site.pod(&namespace, &pod)?;
    let id = site.running(&pod, &container).await?;
    let attempt = site
        .context
        .runtime
        .container_status(&id)
        .await
        .ok()
        .and_then(|status| status.metadata)
        .map_or(0, |m| m.attempt);
    let dir = PathBuf::from(sandbox::log_directory(&pod, &site.context.config.log_dir));
    let attached = Attached {
        runtime: site.context.runtime.clone(),
        container: id,
        log: dir.join(log_path(&container, attempt)),
        wanted: Wanted::parse(query.as_deref().unwrap_or_default()),
        only: is_for_one_session(&pod, &container),
    };
    Ok(upgrade.protocols(PROTOCOLS).on_upgrade(move |socket| async move { Box::pin(session(socket, attached)).await }))
}

fn is_for_one_session(pod: &Pod, container: &str) -> bool {
    let containers = pod.spec.iter().flat_map(|spec| &spec.containers);
    containers.into_iter().any(|known| known.name == container && known.stdin_once == Some(true))
}

async fn session(socket: WebSocket, attached: Attached) {
    let (output, mut inputs, writing) = channels::open(socket);
    let (send, mut pieces) = mpsc::channel::<read::Piece>(8);
    let ending = tokio::sync::OnceCell::new();
    let ended = async {
        // Set once, here.
        let _ = ending.set(match attached.runtime.ended(&attached.container).await {
            Err(error) => Ending::Failed(kit::Chain(&error).to_string()),
            Ok(()) => Ending::Exit(0),
        });
    };
    let tail = (!attached.only).then_some(0);
    let query = Query { follow: true, tail, stdout: true, stderr: true, ..Default::default() };
    let reading = async {
        let outcome = read::read(&attached.log, &query, ended, &send).await;
        drop(send);
        outcome
    };
    let showing = async {
        while let Some(piece) = pieces.recv().await {
            let wanted =
                if piece.stderr { attached.wanted.stderr || attached.wanted.tty } else { attached.wanted.stdout };
            let channel = if piece.stderr && !attached.wanted.tty { STDERR } else { STDOUT };
            if wanted && !output.send(channel, &piece.text).await {
                return;
            }
        }
    };
    tokio::select! {
        (outcome, ()) = futures::future::join(reading, showing) => {
            if let Err(error) = outcome {
                output.finish(&Ending::Failed(error.to_string())).await;
            } else if let Some(ending) = ending.get() {
                output.finish(ending).await;
            }
        }
        () = attached.feed(&mut inputs) => {}
    }
    drop(output);
    inputs.drain(writing).await;
}

impl Attached {
    /// Passes input on until the client is gone.
    async fn feed(&self, inputs: &mut Inputs) {
        let mut stdin = if self.wanted.stdin { self.open_stdin().await.ok() } else { None };
        while let Some(input) = inputs.next().await {
            match input {
                Input::Stdin(data) => {
                    if let Some(pipe) = &mut stdin
                        && pipe.write_all(&data).await.is_err()
                    {
                        stdin = None;
                    }
                }
                Input::StdinEnd => stdin = None,
                Input::Resize { width, height } => {
                    let request = tasks::ResizePtyRequest {
                        container_id: self.container.clone(),
                        exec_id: String::new(),
                        width: width.into(),
                        height: height.into(),
                    };
                    if let Err(status) = self.runtime.tasks().resize_pty(request).await {
                        tracing::debug!(error = status.message(), "a terminal was not resized");
                    }
                }
            }
        }
    }

    async fn open_stdin(&self) -> Result<pipe::Sender> {
        let request = tasks::GetRequest { container_id: self.container.clone(), exec_id: String::new() };
        let reply = self.runtime.tasks().get(request).await.map_err(Error::runtime("get task"))?.into_inner();
        let path = reply.process.map(|process| process.stdin).unwrap_or_default();
        pipe::OpenOptions::new().open_sender(&path).map_err(Error::file("open the input of the container", path))
    }
}
