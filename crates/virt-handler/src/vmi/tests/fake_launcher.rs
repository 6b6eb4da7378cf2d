//! A launcher that serves the real protocol on the socket of its pod. A test sets the state that it tells and what it
//! answers, and reads what it was asked for and when. Its process is a child of the test, so that it can die.

use std::collections::BTreeMap;
use std::path::Path;
use std::pin::Pin;
use std::process::{Child, Command};
use std::sync::{Arc, Mutex};

use futures::Stream;
use kit::Task;
use rpc::launcher::launcher_server::{Launcher, LauncherServer};
use rpc::launcher::*;
use socket2::Socket;
use tokio::net::UnixListener;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::{Request, Response, Status};

use super::bind;

/// How a call is answered that is not simply accepted.
#[derive(Clone)]
pub(super) enum Answer {
    Refused(&'static str),
    Never,
}

/// A call that the launcher was sent.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) name: &'static str,
    pub(super) request: String,
    pub(super) at: Instant,
}

#[derive(Clone)]
struct Service {
    states: watch::Receiver<DomainState>,
    calls: Arc<Mutex<Vec<Call>>>,
    answers: Arc<Mutex<BTreeMap<&'static str, Answer>>>,
}

impl Service {
    async fn answer(&self, name: &'static str, request: String) -> Result<(), Status> {
        self.calls.lock().unwrap().push(Call { name, request, at: Instant::now() });
        let answer = self.answers.lock().unwrap().get(name).cloned();
        match answer {
            None => Ok(()),
            Some(Answer::Refused(why)) => Err(Status::failed_precondition(why)),
            Some(Answer::Never) => std::future::pending().await,
        }
    }
}

macro_rules! service {
    ($($name:ident($asked:ty) -> $answer:ty;)*) => {
        #[tonic::async_trait]
        impl Launcher for Service {
            type WatchStream = Pin<Box<dyn Stream<Item = Result<DomainState, Status>> + Send>>;

            async fn watch(&self, _: Request<Empty>) -> Result<Response<Self::WatchStream>, Status> {
                let mut states = self.states.clone();
                states.mark_changed();
                let next = |mut states: watch::Receiver<DomainState>| async move {
                    states.changed().await.ok()?;
                    let state = states.borrow_and_update().clone();
                    Some((Ok(state), states))
                };
                Ok(Response::new(Box::pin(futures::stream::unfold(states, next))))
            }

            $(async fn $name(&self, request: Request<$asked>) -> Result<Response<$answer>, Status> {
                self.answer(stringify!($name), format!("{:?}", request.into_inner())).await?;
                Ok(Response::new(Default::default()))
            })*
        }
    };
}

service! {
    sync(SyncRequest) -> Empty;
    pause(Empty) -> Empty;
    unpause(Empty) -> Empty;
    reset(Empty) -> Empty;
    soft_reboot(Empty) -> Empty;
    shutdown(Empty) -> Empty;
    kill(Empty) -> Empty;
    guest_info(Empty) -> Json;
    users(Empty) -> Json;
    filesystems(Empty) -> Json;
    screenshot(ScreenshotRequest) -> Blob;
    exec(ExecRequest) -> ExecReply;
    guest_ping(GuestPingRequest) -> Empty;
    stats(Empty) -> Json;
    freeze(FreezeRequest) -> Empty;
    unfreeze(Empty) -> Empty;
    expect(ExpectRequest) -> Empty;
    migrate(MigrateRequest) -> Empty;
    abort_migration(Empty) -> Empty;
    backup(BackupRequest) -> Empty;
    redefine_checkpoint(CheckpointRequest) -> Empty;
    dump_memory(MemoryDumpRequest) -> Empty;
}

/// See the module.
pub(super) struct FakeLauncher {
    pub(super) pod: String,
    process: Child,
    told: Option<watch::Sender<DomainState>>,
    service: Service,
    serving: Option<Task<()>>,
    /// Where connections of a migration are asked for. Nobody answers there.
    _channels: Socket,
}

impl FakeLauncher {
    /// Listens in the directory of `pod`.
    pub(super) fn start(pods: &Path, pod: &str) -> Self {
        let process = Command::new("sleep").arg("infinity").spawn().unwrap();
        let (told, states) = watch::channel(DomainState::default());
        let service = Service { states, calls: Arc::default(), answers: Arc::default() };
        let listener = UnixListener::from_std(bind(pods, pod, "sockets/launcher-sock", 16).into()).unwrap();
        let _channels = bind(pods, pod, "sockets/channels-sock", 16);
        let server = tonic::transport::Server::builder()
            .add_service(LauncherServer::new(service.clone()))
            .serve_with_incoming(futures::stream::unfold(listener, |listener| async move {
                Some((listener.accept().await.map(|(stream, _)| stream), listener))
            }));
        let serving = Some(kit::spawn("launcher", async move { drop(server.await) }));
        Self { pod: pod.to_owned(), process, told: Some(told), service, serving, _channels }
    }

    /// The number of its process.
    pub(super) fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Tells this state.
    pub(super) fn tell(&self, state: DomainState) {
        self.told.as_ref().unwrap().send_replace(state);
    }

    /// Answers calls of this name so.
    pub(super) fn answer(&self, name: &'static str, answer: Answer) {
        self.service.answers.lock().unwrap().insert(name, answer);
    }

    /// Accepts calls of this name again.
    pub(super) fn accept(&self, name: &'static str) {
        self.service.answers.lock().unwrap().remove(name);
    }

    /// The calls of this name so far.
    pub(super) fn calls(&self, name: &str) -> Vec<Call> {
        self.service.calls.lock().unwrap().iter().filter(|call| call.name == name).cloned().collect()
    }

    /// Ends the process and closes its sockets.
    pub(super) fn die(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
        (self.told, self.serving) = (None, None);
    }
}

impl Drop for FakeLauncher {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
