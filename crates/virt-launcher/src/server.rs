//! The launcher protocol, served on a unix socket to the node agent.

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::v1::{
    VirtualMachineInstanceFileSystemInfo, VirtualMachineInstanceFileSystemList, VirtualMachineInstanceGuestAgentInfo,
    VirtualMachineInstanceGuestOSUserList,
};
use domain::GuestFacts;
use futures::{Stream, StreamExt as _};
use libvirt::Domain;
use rpc::launcher::launcher_server::{Launcher, LauncherServer};
use rpc::launcher::{
    BackupRequest, Blob, CheckpointRequest, DomainState, Empty, ExecReply, ExecRequest, ExpectRequest, FreezeRequest,
    GuestPingRequest, Json, MemoryDumpRequest, MigrateRequest, ScreenshotRequest, SyncRequest,
};
use tokio::net::UnixListener;
use tokio::sync::oneshot;
use tokio_stream::wrappers::UnixListenerStream;
use tonic::{Request, Response, Status};

use crate::agent;
use crate::driver::{Command, DriverError, Handle, Request as DriverRequest};
use crate::exec;
use crate::request_queue::Kind;
use crate::screenshot;

/// Commands in the guest when the caller names no limit.
const EXEC_SECONDS: u64 = 10;
/// No command may keep the agent longer.
const EXEC_LIMIT: u64 = 300;

type Answer<T> = Result<Response<T>, Status>;

/// Serves until the listener ends. Only root and this process's own user are heard.
pub(crate) async fn serve(listener: UnixListener, handle: Handle) -> Result<(), tonic::transport::Error> {
    let own = rustix::process::geteuid().as_raw();
    let incoming = UnixListenerStream::new(listener).filter(move |stream| {
        let allowed = match stream {
            Ok(stream) => sys::peer::peer(stream).is_ok_and(|peer| peer.uid == 0 || peer.uid == own),
            Err(_) => true,
        };
        futures::future::ready(allowed)
    });
    tonic::transport::Server::builder()
        .add_service(LauncherServer::new(Service(handle)))
        .serve_with_incoming(incoming)
        .await
}

struct Service(Handle);

fn status(error: &DriverError) -> Status {
    let sentence = kit::Chain(error).to_string();
    match error {
        DriverError::Refused(_) | DriverError::NoAgent | DriverError::Start(_) => Status::failed_precondition(sentence),
        DriverError::Migrating(_) => Status::failed_precondition(sentence),
        DriverError::BackupRuns(_) | DriverError::Dumping(_) => Status::failed_precondition(sentence),
        DriverError::BackupFiles(_) => Status::internal(sentence),
        DriverError::Checkpoint { .. } => Status::data_loss(sentence),
        DriverError::Channels(_) => Status::internal(sentence),
        DriverError::Vmi(_) | DriverError::Environment(_) | DriverError::Options(_) => {
            Status::invalid_argument(sentence)
        }
        DriverError::Libvirt(_)
        | DriverError::Disk { .. }
        | DriverError::Cpus(..)
        | DriverError::Memory(_)
        | DriverError::Link { .. } => Status::internal(sentence),
        DriverError::Ending | DriverError::SilentAgent => Status::unavailable(sentence),
    }
}

impl Service {
    async fn ask(&self, kind: Kind, command: Command) -> Answer<Empty> {
        let (reply, answer) = oneshot::channel();
        let ending = || Status::unavailable(DriverError::Ending.to_string());
        self.0.requests.send(DriverRequest { kind, command, reply }).await.map_err(|_| ending())?;
        match answer.await {
            Ok(Ok(())) => Ok(Response::new(Empty {})),
            Ok(Err(error)) => Err(status(&error)),
            Err(_) => Err(ending()),
        }
    }

    fn domain(&self) -> Result<Arc<Domain>, Status> {
        let domain = self.0.domain.borrow().clone();
        domain.ok_or_else(|| Status::failed_precondition("the virtual machine has not started yet"))
    }

    fn agent_connected(&self) -> Result<DomainState, Status> {
        Some(self.0.published.get()).filter(|state| state.agent_connected).ok_or_else(|| status(&DriverError::NoAgent))
    }

    /// What the agent said last. One that has just connected, as after a migration, is asked now.
    async fn agent_facts(&self) -> Result<GuestFacts, Status> {
        let state = self.agent_connected()?;
        let facts: GuestFacts =
            serde_json::from_str(&state.guest).map_err(|error| Status::internal(error.to_string()))?;
        if !facts.agent_version.is_empty() {
            return Ok(facts);
        }
        let domain = self.domain()?;
        let asked = tokio::task::spawn_blocking(move || agent::collect(&domain, facts)).await;
        let asked = asked.map_err(|error| Status::internal(error.to_string()))?;
        asked.ok_or_else(|| status(&DriverError::SilentAgent))
    }
}

fn json(value: &impl serde::Serialize) -> Answer<Json> {
    let json = serde_json::to_string(value).map_err(|error| Status::internal(error.to_string()))?;
    Ok(Response::new(Json { json }))
}

#[tonic::async_trait]
impl Launcher for Service {
    type WatchStream = Pin<Box<dyn Stream<Item = Result<DomainState, Status>> + Send>>;

    async fn sync(&self, request: Request<SyncRequest>) -> Answer<Empty> {
        let SyncRequest { vmi, environment } = request.into_inner();
        self.ask(Kind::Sync, Command::Sync { vmi, environment }).await
    }

    async fn watch(&self, _: Request<Empty>) -> Answer<Self::WatchStream> {
        struct Reader {
            published: crate::publish::Published,
            last: Option<u64>,
        }
        let reader = Reader { published: self.0.published.clone(), last: None };
        let states = futures::stream::unfold(reader, |mut reader| async move {
            // To be asked for the next one is to know that the last was written out.
            if let Some(last) = reader.last {
                reader.published.was_read(last);
            }
            let state = reader.published.next(reader.last.is_none()).await?;
            reader.last = Some(state.sequence);
            Some((Ok(state), reader))
        });
        Ok(Response::new(Box::pin(states)))
    }

    async fn pause(&self, _: Request<Empty>) -> Answer<Empty> {
        self.ask(Kind::Pause, Command::Plain).await
    }

    async fn unpause(&self, _: Request<Empty>) -> Answer<Empty> {
        self.ask(Kind::Unpause, Command::Plain).await
    }

    async fn reset(&self, _: Request<Empty>) -> Answer<Empty> {
        self.ask(Kind::Reset, Command::Plain).await
    }

    async fn soft_reboot(&self, _: Request<Empty>) -> Answer<Empty> {
        self.ask(Kind::SoftReboot, Command::Plain).await
    }

    async fn shutdown(&self, _: Request<Empty>) -> Answer<Empty> {
        self.ask(Kind::Shutdown, Command::Plain).await
    }

    async fn kill(&self, _: Request<Empty>) -> Answer<Empty> {
        self.ask(Kind::Kill, Command::Plain).await
    }

    async fn guest_info(&self, _: Request<Empty>) -> Answer<Json> {
        let facts = self.agent_facts().await?;
        let some = |text: String| Some(text).filter(|text| !text.is_empty());
        json(&VirtualMachineInstanceGuestAgentInfo {
            guest_agent_version: some(facts.agent_version),
            supported_commands: facts.supported_commands,
            hostname: some(facts.hostname),
            os: facts.os.map(Box::new),
            timezone: some(facts.timezone),
            user_list: facts.users,
            fs_info: Some(VirtualMachineInstanceFileSystemInfo { disks: facts.filesystems }),
            fs_freeze_status: some(facts.fs_freeze_status),
            api_version: None,
            kind: None,
        })
    }

    async fn users(&self, _: Request<Empty>) -> Answer<Json> {
        json(&VirtualMachineInstanceGuestOSUserList {
            items: self.agent_facts().await?.users,
            ..VirtualMachineInstanceGuestOSUserList::default()
        })
    }

    async fn filesystems(&self, _: Request<Empty>) -> Answer<Json> {
        json(&VirtualMachineInstanceFileSystemList {
            items: self.agent_facts().await?.filesystems,
            ..VirtualMachineInstanceFileSystemList::default()
        })
    }

    async fn screenshot(&self, _: Request<ScreenshotRequest>) -> Answer<Blob> {
        let domain = self.domain()?;
        let directory = self.0.screenshots.clone();
        let taken = tokio::task::spawn_blocking(move || screenshot::take(&domain, &directory)).await;
        let data = taken
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| Status::internal(kit::Chain(&error).to_string()))?;
        Ok(Response::new(Blob { data }))
    }

    async fn exec(&self, request: Request<ExecRequest>) -> Answer<ExecReply> {
        let request = request.into_inner();
        self.agent_connected()?;
        let seconds = u64::try_from(request.timeout_seconds).ok().filter(|seconds| *seconds > 0);
        let seconds = seconds.unwrap_or(EXEC_SECONDS).min(EXEC_LIMIT);
        match exec::run(&self.domain()?, &request.command, &request.args, seconds).await {
            Ok(outcome) => Ok(Response::new(ExecReply { exit_code: outcome.exit_code, stdout: outcome.output })),
            Err(error @ exec::Error::Timeout(_)) => Err(Status::deadline_exceeded(error.to_string())),
            Err(error) => Err(Status::internal(kit::Chain(&error).to_string())),
        }
    }

    async fn guest_ping(&self, request: Request<GuestPingRequest>) -> Answer<Empty> {
        self.agent_connected()?;
        let seconds = u64::try_from(request.into_inner().timeout_seconds).unwrap_or(0).clamp(1, EXEC_LIMIT);
        match tokio::time::timeout(Duration::from_secs(seconds), exec::ping(&self.domain()?)).await {
            Ok(Ok(())) => Ok(Response::new(Empty {})),
            Ok(Err(error)) => Err(Status::unavailable(kit::Chain(&error).to_string())),
            Err(_) => Err(Status::deadline_exceeded(format!("no answer within {seconds} seconds"))),
        }
    }

    async fn stats(&self, _: Request<Empty>) -> Answer<Json> {
        let domain = self.domain()?;
        let read = tokio::task::spawn_blocking(move || domain.stats(0)).await;
        let parameters = read
            .map_err(|error| Status::internal(error.to_string()))?
            .map_err(|error| Status::internal(kit::Chain(&error).to_string()))?;
        let figures: serde_json::Map<String, serde_json::Value> = parameters
            .into_iter()
            .map(|parameter| {
                let value = match parameter.value {
                    libvirt::Value::Integer(value) => value.into(),
                    libvirt::Value::Signed(value) => value.into(),
                    libvirt::Value::Unsigned(value) => value.into(),
                    libvirt::Value::Float(value) => value.into(),
                    libvirt::Value::Boolean(value) => value.into(),
                    libvirt::Value::Text(value) => value.into(),
                };
                (parameter.name, value)
            })
            .collect();
        json(&figures)
    }

    async fn freeze(&self, request: Request<FreezeRequest>) -> Answer<Empty> {
        let seconds = u64::try_from(request.into_inner().unfreeze_timeout_seconds).unwrap_or(0);
        self.ask(Kind::Freeze, Command::Freeze { seconds }).await
    }

    async fn unfreeze(&self, _: Request<Empty>) -> Answer<Empty> {
        self.ask(Kind::Unfreeze, Command::Plain).await
    }

    async fn expect(&self, request: Request<ExpectRequest>) -> Answer<Empty> {
        self.ask(Kind::Expect, Command::Expect { vmi: request.into_inner().vmi }).await
    }

    async fn migrate(&self, request: Request<MigrateRequest>) -> Answer<Empty> {
        self.ask(Kind::Migrate, Command::Migrate { options: request.into_inner().options }).await
    }

    async fn backup(&self, request: Request<BackupRequest>) -> Answer<Empty> {
        self.ask(Kind::Backup, Command::Backup { options: request.into_inner().options }).await
    }

    async fn redefine_checkpoint(&self, request: Request<CheckpointRequest>) -> Answer<Empty> {
        self.ask(Kind::Checkpoint, Command::Checkpoint { checkpoint: request.into_inner().checkpoint }).await
    }

    async fn dump_memory(&self, request: Request<MemoryDumpRequest>) -> Answer<Empty> {
        let MemoryDumpRequest { volume, file } = request.into_inner();
        self.ask(Kind::DumpMemory, Command::DumpMemory { volume, file }).await
    }

    async fn abort_migration(&self, _: Request<Empty>) -> Answer<Empty> {
        self.ask(Kind::AbortMigration, Command::Plain).await
    }
}
