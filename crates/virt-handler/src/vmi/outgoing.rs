//! The source's part: the launcher is told to migrate, and its connections are carried to the other node.

use std::io::Write as _;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex, PoisonError};

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState as State};
use domain::MigrationChannel;
use kit::Chain;
use kube::{Resource as _, ResourceExt as _};
use rpc::launcher::{Empty, MigrateRequest};
use tokio::net::UnixStream;
use tokio::sync::mpsc;
use tokio::task::JoinSet;

use super::Context;
use super::guest::Guest;
use crate::Error;
use crate::launcher::{self, CALL, Launcher, answer, timed};
use crate::migration::channel::{self, Hello};
use crate::migration::options::options;
use crate::migration::plan::{self, Leaving, SourceStep};
use crate::migration::{Road, Sending, uid};

/// Bytes of the line that names a connection's channel.
const LONGEST_NAME: usize = 64;
/// The launcher's socket for node agents.
const AGENT: &str = "channels-sock";
/// Connections that wait to be carried.
const WAITING: usize = 8;

/// Where the streams of a migration go.
struct Way {
    address: SocketAddr,
    node: String,
    plain: bool,
    hello: Hello,
    trouble: Arc<Mutex<Option<String>>>,
    /// Where the launcher is told that the way is lost.
    lost: Option<StdUnixStream>,
}

impl Way {
    /// What libvirt may conclude from that is for the launcher to decide.
    fn tell_lost(&self) {
        if let Some(mut to) = self.lost.as_ref()
            && let Err(error) = to.write_all(b"lost\n")
        {
            // Then the launcher has seen this process's end of the socket close, which says the same.
            tracing::debug!(%error, "the launcher was not told that the way is lost");
        }
    }
}

/// Does what the plan says about a VMI of this node.
pub(crate) async fn step(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest) -> Result<(), Error> {
    let Some(state) = plan::state(vmi).filter(|state| plan::is_source(state, &context.node)) else {
        guest.moving().sending = None;
        return Ok(());
    };
    let known = known(guest, state);
    if plan::ended(state) {
        let mut moving = guest.moving();
        (moving.sending, moving.resolving) = (None, None);
    }
    match plan::source(state, &known) {
        None => Ok(()),
        Some(SourceStep::Abort) => {
            let Some(launcher) = guest.launcher() else { return Ok(()) };
            answer(CALL, launcher.client.clone().abort_migration(timed(Empty {}, CALL))).await?;
            uid(state).clone_into(&mut guest.moving().abort_told);
            Ok(())
        }
        Some(SourceStep::Resolve) => {
            let Some(launcher) = guest.launcher() else { return Ok(()) };
            let way = way(context, vmi, state)?;
            let peers = (!way.plain).then_some(&context.road.peers);
            let runs = match channel::ask(peers, &way.node, way.address, &way.hello).await {
                Ok(runs) => {
                    tracing::info!(vmi = %vmi.name_any(), migration = uid(state), runs, "the target knows where the guest runs");
                    runs
                }
                Err(error) if plan::is_fenced(vmi, state) => {
                    let error = Chain(&error).to_string();
                    tracing::warn!(vmi = %vmi.name_any(), migration = uid(state), error, "the target can do no harm: the guest stays");
                    false
                }
                Err(error) => return Err(Error::Way(error.into())),
            };
            let (mut to, ..) = launcher::open_now(&context.pods, &launcher.pod, launcher::SOCKETS, AGENT)?;
            let word: &[u8] = if runs { b"moved\n" } else { b"stays\n" };
            to.write_all(word).map_err(Error::no_launcher(&launcher.pod))?;
            // Held until the launcher has told the outcome: its end would be a word too.
            guest.moving().resolving = Some(to);
            Ok(())
        }
        Some(SourceStep::Send) => {
            let Some(launcher) = guest.launcher() else { return Ok(()) };
            match send(context, vmi, state, &launcher).await {
                Ok(sending) => {
                    guest.moving().sending = Some(sending);
                    context.recorder.normal(&vmi.object_ref(&()), "Migrating", "VirtualMachineInstance is migrating.");
                }
                Err(error) => {
                    let why = Chain(&error).to_string();
                    tracing::warn!(vmi = %vmi.name_any(), migration = uid(state), error = why, "it cannot be sent");
                    guest.moving().refused = Some((uid(state).to_owned(), why));
                }
            }
            Ok(())
        }
    }
}

/// What is known of a migration on its source.
pub(crate) fn known(guest: &Guest, state: &State) -> Leaving {
    let (heard, progress, launcher_gone) = guest.migration();
    let moving = guest.moving();
    let sending = moving.sending.as_ref().filter(|sending| sending.uid == uid(state));
    Leaving {
        heard,
        progress,
        launcher_gone,
        sent: sending.is_some(),
        refused: moving.refused.as_ref().filter(|(of, _)| of == uid(state)).map(|(_, why)| why.clone()),
        trouble: sending.and_then(Sending::trouble),
        abort_told: moving.abort_told == uid(state),
    }
}

async fn send(
    context: &Context,
    vmi: &VirtualMachineInstance,
    state: &State,
    launcher: &Launcher,
) -> Result<Sending, Error> {
    let options = options(vmi, state);
    let way = way(context, vmi, state)?;
    let trouble = way.trouble.clone();
    let (from, ..) = launcher::open_now(&context.pods, &launcher.pod, launcher::SOCKETS, AGENT)?;
    let way = Way { lost: Some(from.try_clone().map_err(Error::no_launcher(&launcher.pod))?), ..way };
    let connections = receive(&from).map_err(Error::no_launcher(&launcher.pod))?;
    let carrying = kit::spawn("migration", carry(context.road.clone(), way, connections));
    let sending = Sending::new(options.uid.clone(), from, trouble, carrying);
    let text = serde_json::to_string(&options).map_err(|error| tonic::Status::internal(error.to_string()))?;
    answer(CALL, launcher.client.clone().migrate(timed(MigrateRequest { options: text }, CALL))).await?;
    Ok(sending)
}

fn way(context: &Context, vmi: &VirtualMachineInstance, state: &State) -> Result<Way, Error> {
    let address = plan::address(state, context.road.port).ok_or_else(|| {
        let found = state.target_node_address.clone().unwrap_or_default();
        Error::Launcher(format!("status.migrationState.targetNodeAddress {found:?} is not an address"))
    })?;
    let hello = Hello {
        namespace: vmi.namespace().unwrap_or_default(),
        name: vmi.name_any(),
        uid: vmi.uid().unwrap_or_default(),
        migration: uid(state).to_owned(),
        channel: String::new(),
    };
    let node = state.target_node.clone().unwrap_or_default();
    Ok(Way { address, node, plain: plan::is_plain(state), hello, trouble: Arc::default(), lost: None })
}

type Connection = (MigrationChannel, StdUnixStream);

/// The launcher's connections, in a thread of their own: descriptors come by a blocking call.
fn receive(from: &StdUnixStream) -> std::io::Result<mpsc::Receiver<Connection>> {
    let (sender, receiver) = mpsc::channel(WAITING);
    let from = from.try_clone()?;
    from.set_nonblocking(false)?;
    tokio::task::spawn_blocking(move || {
        while let Ok((line, mut fds)) = sys::fdpass::receive_line(&from, LONGEST_NAME) {
            let (Some(channel), Some(fd)) = (MigrationChannel::named(&line), fds.pop()) else {
                tracing::warn!(line, "the launcher handed over something else than a connection");
                continue;
            };
            if sender.blocking_send((channel, fd.into())).is_err() {
                return;
            }
        }
    });
    Ok(receiver)
}

/// Carries each connection until it ends. Ending this closes them all.
async fn carry(road: Arc<Road>, way: Way, mut connections: mpsc::Receiver<Connection>) {
    let way = Arc::new(way);
    let mut carried = JoinSet::new();
    while let Some((channel, connection)) = connections.recv().await {
        let (road, way) = (road.clone(), way.clone());
        carried.spawn(async move { one(&road, &way, channel, connection).await });
    }
    while carried.join_next().await.is_some() {}
}

async fn one(road: &Road, way: &Way, channel: MigrationChannel, connection: StdUnixStream) {
    let libvirt = channel == MigrationChannel::Libvirt;
    let Err(error) = connect_and_splice(road, way, channel, connection).await else { return };
    // When a migration ends, QEMU's streams break as they like: it is libvirt's that tells of the way.
    let tells = libvirt || !matches!(error, channel::Error::Broke { .. });
    let error = Chain(&error).to_string();
    tracing::warn!(
        vmi = %way.hello.name, migration = way.hello.migration, channel = channel.name(), node = way.node, error,
        "a stream of the migration failed"
    );
    if tells {
        way.trouble.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
    }
    if libvirt {
        way.tell_lost();
    }
}

async fn connect_and_splice(
    road: &Road,
    way: &Way,
    channel: MigrationChannel,
    connection: StdUnixStream,
) -> Result<(), channel::Error> {
    let broke = |source| channel::Error::Broke { node: way.node.clone(), source };
    let hello = Hello { channel: channel.name().to_owned(), ..way.hello.clone() };
    let near = connection.set_nonblocking(true).and_then(|()| UnixStream::from_std(connection)).map_err(broke)?;
    let peers = (!way.plain).then_some(&road.peers);
    let far = channel::open(peers, &way.node, way.address, &hello).await?;
    if channel == MigrationChannel::Libvirt {
        return channel::splice_held(near, far).await.map_err(broke);
    }
    let (sent, _) = channel::splice(near, far).await.map_err(broke)?;
    tracing::debug!(channel = channel.name(), sent, "a stream of the migration ended");
    Ok(())
}
