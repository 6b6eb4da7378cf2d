//! exec: a process beside the container's own, through containerd's task service and named pipes.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use axum::extract::ws::WebSocket;
use axum::extract::{Path as UrlPath, RawQuery, State, WebSocketUpgrade};
use axum::response::Response;
use bytes::Bytes;
use rpc::containerd::containers::GetContainerRequest;
use rpc::containerd::tasks;
use rustix::fs::{FileType, Mode};
use tokio::io::AsyncWriteExt;
use tokio::net::unix::pipe;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use super::Site;
use super::channels::{self, Ending, Input, Inputs, Output, PROTOCOLS, STDERR, STDOUT};
use crate::error::{Error, Result};
use crate::runtime::Runtime;

const PROCESS: &str = "types.containerd.io/opencontainers/runtime-spec/1/Process";
const BUFFER: usize = 32 * 1024;
/// How long a process whose client left has to die.
const KILLED: Duration = Duration::from_secs(10);

/// What is asked for in the query.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) command: Vec<String>,
    pub(super) stdin: bool,
    pub(super) stdout: bool,
    pub(super) stderr: bool,
    pub(super) tty: bool,
}

impl Wanted {
    pub(super) fn parse(query: &str) -> Self {
        let mut wanted = Wanted::default();
        for (name, value) in super::log::pairs(query) {
            let on = matches!(value.as_str(), "1" | "t" | "T" | "true" | "True" | "TRUE");
            match name.as_str() {
                "command" => wanted.command.push(value),
                "stdin" | "input" => wanted.stdin = on,
                "stdout" | "output" => wanted.stdout = on,
                "stderr" | "error" => wanted.stderr = on,
                "tty" => wanted.tty = on,
                _ => {}
            }
        }
        // A terminal has one output.
        wanted.stderr &= !wanted.tty;
        wanted
    }
}

pub(super) async fn serve(
    State(site): State<Site>,
    UrlPath((namespace, pod, container)): UrlPath<(String, String, String)>,
    RawQuery(query): RawQuery,
    upgrade: WebSocketUpgrade,
) -> Result<Response, Response> {
    let pod = site.pod(&namespace, &pod)?;
    let id = site.running(&pod, &container).await?;
    let wanted = Wanted::parse(query.as_deref().unwrap_or_default());
    let (runtime, dir) = (site.context.runtime.clone(), site.context.config.root.join("exec"));
    Ok(upgrade.protocols(PROTOCOLS).on_upgrade(move |socket| async move {
        Box::pin(session(socket, runtime, dir, id, wanted)).await;
    }))
}

async fn session(socket: WebSocket, runtime: Runtime, dir: PathBuf, container: String, wanted: Wanted) {
    let (output, mut inputs, writing) = channels::open(socket);
    let exec = uuid::Uuid::new_v4().simple().to_string();
    let dir = dir.join(&exec);
    let process = Process { runtime, container, exec };
    let ending = match process.run(&dir, &wanted, &output, &mut inputs).await {
        Ok(code) => Ending::Exit(code),
        Err(error) => Ending::Failed(format!("error executing command in container: {}", error.user_message())),
    };
    output.finish(&ending).await;
    drop(output);
    inputs.drain(writing).await;
    if let Err(error) = fs::remove_dir_all(&dir) {
        tracing::debug!(%error, "the pipes of an exec were not removed");
    }
}

struct Process {
    runtime: Runtime,
    container: String,
    exec: String,
}

/// The kubelet's ends of the pipes.
struct Pipes {
    stdin: Option<pipe::Sender>,
    stdout: pipe::Receiver,
    stderr: Option<pipe::Receiver>,
}

impl Process {
    async fn run(&self, dir: &Path, wanted: &Wanted, output: &Output, inputs: &mut Inputs) -> Result<u32> {
        let spec = self.spec(wanted).await?;
        let path = |name: &str| dir.join(name).display().to_string();
        let pipes = make(dir, wanted).map_err(Error::file("make pipes in", dir))?;
        let request = tasks::ExecProcessRequest {
            container_id: self.container.clone(),
            exec_id: self.exec.clone(),
            stdin: if wanted.stdin { path("stdin") } else { String::new() },
            stdout: path("stdout"),
            stderr: if wanted.tty { String::new() } else { path("stderr") },
            terminal: wanted.tty,
            spec: Some(prost_types::Any { type_url: PROCESS.to_owned(), value: spec }),
        };
        self.runtime.tasks().exec(request).await.map_err(Error::runtime("create process"))?;
        let outcome = self.attend(pipes, wanted, output, inputs).await;
        if outcome.is_err() {
            // Whether it ran or not, nothing of it stays.
            self.kill().await;
            let _ = self.delete().await;
        }
        outcome
    }

    async fn attend(&self, pipes: Pipes, wanted: &Wanted, output: &Output, inputs: &mut Inputs) -> Result<u32> {
        let ids = || (self.container.clone(), self.exec.clone());
        let (container_id, exec_id) = ids();
        let started = self.runtime.tasks().start(tasks::StartRequest { container_id, exec_id }).await;
        started.map_err(Error::runtime("start process"))?;
        let (container_id, exec_id) = ids();
        let mut client = self.runtime.tasks();
        let exit = client.wait(tasks::WaitRequest { container_id, exec_id });
        let over = CancellationToken::new();
        let reading = async {
            let show = |on: bool| on.then_some(output);
            let out = copy(&pipes.stdout, STDOUT, show(wanted.stdout), &over);
            let err = async {
                if let Some(pipe) = &pipes.stderr {
                    copy(pipe, STDERR, show(wanted.stderr), &over).await;
                }
            };
            futures::future::join(out, err).await;
        };
        let ending = async {
            let code = tokio::select! {
                exit = exit => Ok(exit.map_err(Error::runtime("wait for process"))?.into_inner().exit_status),
                () = async { tokio::select! { () = self.feed(pipes.stdin, inputs) => {}, () = output.gone() => {} } } => Err(()),
            };
            let code = match code {
                Ok(code) => code,
                Err(()) => {
                    self.kill().await;
                    137
                }
            };
            // The answer comes when the shim has written all output into the pipes.
            self.delete().await?;
            over.cancel();
            Ok(code)
        };
        // Reading ends because `ending` says so; should that fail, it must not be waited for.
        let (outcome, ()) = futures::future::join(
            async {
                let outcome = ending.await;
                over.cancel();
                outcome
            },
            reading,
        )
        .await;
        outcome
    }

    /// The container's own process, with another command.
    async fn spec(&self, wanted: &Wanted) -> Result<Vec<u8>> {
        let reply = self.runtime.containers().get(GetContainerRequest { id: self.container.clone() }).await;
        let reply = reply.map_err(Error::runtime("get container"))?.into_inner();
        let spec = reply.container.and_then(|container| container.spec).map(|any| any.value).unwrap_or_default();
        process(&spec, wanted).ok_or_else(|| Error::Invalid("the container's specification is unreadable".into()))
    }

    /// Passes input on until the client is gone.
    async fn feed(&self, stdin: Option<pipe::Sender>, inputs: &mut Inputs) {
        let (send, mut queued) = mpsc::channel::<Option<Bytes>>(4);
        let writing = async {
            let mut stdin = stdin;
            while let Some(data) = queued.recv().await {
                match (data, &mut stdin) {
                    (Some(data), Some(pipe)) => {
                        if pipe.write_all(&data).await.is_err() {
                            stdin = None;
                        }
                    }
                    (None, Some(_)) => {
                        stdin = None;
                        self.close_stdin().await;
                    }
                    (_, None) => {}
                }
            }
            std::future::pending::<()>().await;
        };
        let reading = async {
            while let Some(input) = inputs.next().await {
                let passed = match input {
                    Input::Stdin(data) => send.send(Some(data)).await,
                    Input::StdinEnd => send.send(None).await,
                    Input::Resize { width, height } => {
                        self.resize(width, height).await;
                        Ok(())
                    }
                };
                if passed.is_err() {
                    return;
                }
            }
        };
        tokio::select! {
            () = writing => {}
            () = reading => {}
        }
    }

    async fn close_stdin(&self) {
        let (container_id, exec_id) = (self.container.clone(), self.exec.clone());
        let request = tasks::CloseIoRequest { container_id, exec_id, stdin: true };
        if let Err(status) = self.runtime.tasks().close_io(request).await {
            tracing::debug!(error = status.message(), "stdin of a process was not closed");
        }
    }

    async fn resize(&self, width: u16, height: u16) {
        let (container_id, exec_id) = (self.container.clone(), self.exec.clone());
        let request = tasks::ResizePtyRequest { container_id, exec_id, width: width.into(), height: height.into() };
        if let Err(status) = self.runtime.tasks().resize_pty(request).await {
            tracing::debug!(error = status.message(), "a terminal was not resized");
        }
    }

    async fn kill(&self) {
        let (container_id, exec_id) = (self.container.clone(), self.exec.clone());
        let request = tasks::KillRequest { container_id, exec_id, signal: 9, all: false };
        if self.runtime.tasks().kill(request).await.is_err() {
            return;
        }
        let (container_id, exec_id) = (self.container.clone(), self.exec.clone());
        let mut client = self.runtime.tasks();
        // Its end is awaited because a living process cannot be deleted.
        let _ = tokio::time::timeout(KILLED, client.wait(tasks::WaitRequest { container_id, exec_id })).await;
    }

    async fn delete(&self) -> Result<()> {
        let (container_id, exec_id) = (self.container.clone(), self.exec.clone());
        let request = tasks::DeleteProcessRequest { container_id, exec_id };
        self.runtime.tasks().delete_process(request).await.map(drop).map_err(Error::runtime("delete process"))
    }
}

/// The OCI process of a container's specification, changed to run `wanted`.
fn process(spec: &[u8], wanted: &Wanted) -> Option<Vec<u8>> {
    let mut spec: serde_json::Value = serde_json::from_slice(spec).ok()?;
    let process = spec.get_mut("process")?.as_object_mut()?;
    process.insert("args".into(), wanted.command.clone().into());
    process.insert("terminal".into(), wanted.tty.into());
    process.remove("commandLine");
    process.remove("consoleSize");
    if wanted.tty
        && let Some(env) = process.get_mut("env").and_then(|env| env.as_array_mut())
        && !env.iter().any(|variable| variable.as_str().is_some_and(|v| v.starts_with("TERM=")))
    {
        env.push("TERM=xterm".into());
    }
    serde_json::to_vec(process).ok()
}

fn make(dir: &Path, wanted: &Wanted) -> std::io::Result<Pipes> {
    fs::create_dir_all(dir)?;
    let fifo = |name: &str| {
        let path = dir.join(name);
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)?;
        Ok::<_, std::io::Error>(path)
    };
    // Opened for both directions, an end exists before the shim has opened the other, and never sees an early end.
    let mut options = pipe::OpenOptions::new();
    let options = options.read_write(true);
    let stdin = if wanted.stdin { Some(options.open_sender(fifo("stdin")?)?) } else { None };
    let stdout = options.open_receiver(fifo("stdout")?)?;
    let stderr = if wanted.tty { None } else { Some(options.open_receiver(fifo("stderr")?)?) };
    Ok(Pipes { stdin, stdout, stderr })
}

/// Moves what comes out of the pipe to the client, or nowhere; after `over` what is left, and then it ends.
async fn copy(pipe: &pipe::Receiver, channel: u8, output: Option<&Output>, over: &CancellationToken) {
    let mut buffer = vec![0; BUFFER];
    let mut draining = false;
    loop {
        match pipe.try_read(&mut buffer) {
            Ok(0) => return,
            Ok(count) => {
                if let Some(output) = output
                    && !output.send(channel, &buffer[..count]).await
                {
                    return;
                }
            }
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {
                if draining {
                    return;
                }
                tokio::select! {
                    ready = pipe.readable() => if ready.is_err() { return },
                    () = over.cancelled() => draining = true,
                }
            }
            Err(_) => return,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queries() {
        let wanted =
            Wanted::parse("command=sh&command=-c&command=echo%20a%2Bb+c&stdin=true&stdout=1&stderr=true&tty=true");
        assert_eq!(wanted.command, ["sh", "-c", "echo a+b c"]);
        assert!(wanted.stdin && wanted.stdout && wanted.tty && !wanted.stderr);
    }

    #[test]
    fn the_process_keeps_all_but_the_command() {
        let spec = br#"{"process":{"args":["a"],"env":["X=1"],"cwd":"/","terminal":false,"user":{"uid":107}}}"#;
        let wanted = Wanted { command: vec!["sh".into()], tty: true, ..Default::default() };
        let got: serde_json::Value = serde_json::from_slice(&process(spec, &wanted).unwrap()).unwrap();
        let expect = serde_json::json!({"args": ["sh"], "env": ["X=1", "TERM=xterm"], "cwd": "/", "terminal": true, "user": {"uid": 107}});
        assert_eq!(got, expect);
        assert_eq!(process(b"{}", &wanted), None);
    }
}
