//! Programs that ask the launcher from within its own pod: `virt-probe`, which the kubelet runs for probes of the guest,
//! and `virt-freezer`, which backup tools run around a snapshot.

use std::path::PathBuf;

use domain::DomainStatus;
use rpc::launcher::launcher_client::LauncherClient;
use rpc::launcher::{DomainState, Empty, ExecRequest, FreezeRequest, GuestPingRequest};
use tonic::transport::{Channel, Endpoint};

use crate::Dirs;

/// Characters of a command's output that a failure repeats.
const OUTPUT_SHOWN: usize = 200;

/// Why the answer is no.
#[derive(Debug, thiserror::Error)]
pub enum InsideError {
    #[error("cannot reach the launcher at {socket}")]
    Connect {
        socket: PathBuf,
        #[source]
        source: tonic::transport::Error,
    },
    #[error("{what}: {}", .status.message())]
    Refused { what: &'static str, status: Box<tonic::Status> },
    #[error("the command ended with exit code {code}: {output}")]
    Exit { code: i32, output: String },
    #[error("neither --command nor --guestAgentPing was given")]
    NothingToDo,
    #[error("Paused VM: its file systems are neither frozen nor thawed until it runs again")]
    Paused,
}

/// Probe the guest through its agent.
#[derive(Clone, Debug, clap::Args)]
pub struct ProbeArgs {
    /// Namespace and name of the machine, for the log: there is one launcher in a pod.
    #[arg(long = "domainName", value_name = "NAMESPACE_NAME")]
    pub domain_name: String,
    /// Seconds the guest has to answer.
    #[arg(long = "timeoutSeconds", default_value_t = 1)]
    pub timeout_seconds: i32,
    /// Ask only whether the agent is alive.
    #[arg(long = "guestAgentPing")]
    pub guest_agent_ping: bool,
    /// Program to run in the guest; success is exit code 0.
    #[arg(long)]
    pub command: Option<String>,
    /// Its arguments.
    #[arg(last = true)]
    pub arguments: Vec<String>,
    #[command(flatten)]
    pub place: Place,
}

/// Freeze or thaw the guest's file systems.
#[derive(Clone, Debug, clap::Args)]
#[group(id = "what", required = true, multiple = false, args = ["freeze", "unfreeze"])]
pub struct FreezerArgs {
    /// Freeze them.
    #[arg(long)]
    pub freeze: bool,
    /// Thaw them.
    #[arg(long)]
    pub unfreeze: bool,
    /// Name of the machine, for the log: there is one launcher in a pod.
    #[arg(long, default_value = "")]
    pub name: String,
    /// Its namespace.
    #[arg(long, default_value = "")]
    pub namespace: String,
    /// Seconds after which they thaw by themselves.
    #[arg(long = "unfreezeTimeoutSeconds", default_value_t = 300)]
    pub unfreeze_timeout_seconds: i32,
    #[command(flatten)]
    pub place: Place,
}

/// Where the launcher is.
#[derive(Clone, Debug, clap::Args)]
pub struct Place {
    /// Everything is below this directory: for running outside of a pod.
    #[arg(long, default_value = "/var/run")]
    run_dir: PathBuf,
}

async fn launcher(place: &Place) -> Result<LauncherClient<Channel>, InsideError> {
    let socket = Dirs::below(&place.run_dir).launcher_socket();
    let uri = format!("unix://{}", socket.display());
    let failed = |source| InsideError::Connect { socket: socket.clone(), source };
    let channel = Endpoint::from_shared(uri).map_err(failed)?.connect().await.map_err(failed)?;
    Ok(LauncherClient::new(channel))
}

fn refused(what: &'static str) -> impl Fn(tonic::Status) -> InsideError {
    move |status| InsideError::Refused { what, status: Box::new(status) }
}

/// `virt-probe`
///
/// # Errors
/// Whenever the probe counts as failed; the sentence is what the kubelet puts into its event.
pub async fn probe(args: ProbeArgs) -> Result<(), InsideError> {
    let mut client = launcher(&args.place).await?;
    let timeout_seconds = args.timeout_seconds;
    if args.guest_agent_ping {
        let request = GuestPingRequest { timeout_seconds };
        client.guest_ping(request).await.map_err(refused("the guest agent does not answer"))?;
        return Ok(());
    }
    let command = args.command.ok_or(InsideError::NothingToDo)?;
    let request = ExecRequest { command, args: args.arguments, timeout_seconds };
    let reply = client.exec(request).await.map_err(refused("the command did not run in the guest"))?.into_inner();
    match reply.exit_code {
        0 => Ok(()),
        code => {
            let output = reply.stdout.trim().chars().take(OUTPUT_SHOWN).collect();
            Err(InsideError::Exit { code, output })
        }
    }
}

/// `virt-freezer`; what there is to say where there was nothing to do: backup tools run it for every machine, and one without
/// an agent is backed up as it is.
///
/// # Errors
/// When the guest was not frozen or thawed.
pub async fn freezer(args: FreezerArgs) -> Result<Option<&'static str>, InsideError> {
    let mut client = launcher(&args.place).await?;
    let unknown = refused("the launcher does not say how the guest is");
    let mut states = client.watch(Empty {}).await.map_err(&unknown)?.into_inner();
    let state = states.message().await.map_err(&unknown)?.unwrap_or_default();
    if let Some(why) = idle(&state)? {
        return Ok(Some(why));
    }
    if args.freeze {
        let request = FreezeRequest { unfreeze_timeout_seconds: args.unfreeze_timeout_seconds };
        client.freeze(request).await.map_err(refused("the guest's file systems were not frozen"))?;
    } else {
        client.unfreeze(Empty {}).await.map_err(refused("the guest's file systems were not thawed"))?;
    }
    Ok(None)
}

/// Why there is nothing to do for a guest in this state.
fn idle(state: &DomainState) -> Result<Option<&'static str>, InsideError> {
    match (state.agent_connected, DomainStatus::from(state.status.as_str())) {
        (false, _) => Ok(Some("No guest agent, exiting")),
        (true, DomainStatus::Paused) => Err(InsideError::Paused),
        _ => Ok(None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_without_an_agent_is_left_alone_and_a_paused_one_cannot_hear() {
        #[track_caller]
        fn check(agent_connected: bool, status: &str, expect: &str) {
            let state = DomainState { agent_connected, status: status.to_owned(), ..DomainState::default() };
            let said = match idle(&state) {
                Ok(said) => said.unwrap_or_default().to_owned(),
                Err(error) => error.to_string(),
            };
            assert!(said.starts_with(expect) && said.is_empty() == expect.is_empty(), "{said}");
        }
        check(true, "Running", "");
        check(false, "Running", "No guest agent, exiting");
        check(false, "Paused", "No guest agent, exiting");
        check(true, "Paused", "Paused VM");
    }
}
