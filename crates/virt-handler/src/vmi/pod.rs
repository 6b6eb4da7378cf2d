//! What is done with a launcher and its pod, for a guest that starts here as for one that comes from another node.

use std::sync::Arc;
use std::time::Duration;

use api::kubevirt::constants::phase;
use api::kubevirt::v1::VirtualMachineInstance;
use jiff::SignedDuration;
use kit::store::Key;
use kit::{Chain, clock};
use kube::{Resource as _, ResourceExt as _};
use rpc::launcher::{DomainState, Empty};
use tokio::time::Instant;

use super::Context;
use super::guest::Guest;
use super::launcher_state::LauncherState;
use crate::Error;
use crate::device_plugin;
use crate::launcher::{self, CALL, Launcher, answer};
use crate::network;
use crate::pace::Pace;
use crate::storage::{self, Purpose};

/// How long a launcher that listens no more may be asked for before it counts as gone: a socket in the pod's directory
/// outlives the process, and a pod that is just starting has none yet.
const PATIENCE: u32 = 8;
/// How long a launcher that has begun to end may take: QEMU gives its memory back first.
const ENDING: SignedDuration = SignedDuration::from_secs(10);
/// States that a launcher tells, each as much as it is long, see [`cost`].
const STATES: Pace = Pace::new(200, 50);

/// Makes the interfaces of the pod.
pub(super) async fn plug(context: &Context, vmi: &VirtualMachineInstance, guest: &Guest) -> Result<(), Error> {
    let launcher = current(guest, vmi)?;
    let plugged = network::plug(vmi, &launcher, &context.records).await?;
    guest.held().plugged = Some(Arc::new(plugged));
    Ok(())
}

/// The connected launcher.
pub(super) fn current(guest: &Guest, vmi: &VirtualMachineInstance) -> Result<Launcher, Error> {
    guest.launcher().ok_or_else(|| Error::NoLauncher {
        pod: vmi.name_any(),
        source: Box::new(std::io::Error::from(std::io::ErrorKind::NotConnected)),
    })
}

/// Finds the launcher and follows what it tells.
pub(super) async fn connect(
    context: &Context,
    key: &Key,
    vmi: &VirtualMachineInstance,
    guest: &Arc<Guest>,
) -> Result<(), Error> {
    let spent = guest.held().spent.clone();
    let launcher = match find(context, vmi, &spent).await {
        Ok(launcher) => launcher,
        Err(error) => {
            let mut held = guest.held();
            held.refused += 1;
            // A launcher that was seen and is dead is gone at once; one never seen gets the benefit of a slow start.
            let running = vmi.status.as_ref().and_then(|s| s.phase.as_deref()) == Some(phase::RUNNING);
            held.gone |= running && held.refused >= PATIENCE;
            if held.gone {
                held.gone_since.get_or_insert_with(clock::now);
            }
            return if held.gone { Ok(()) } else { Err(error) };
        }
    };
    if let Err(error) = device_plugin::hand_over(&launcher) {
        tracing::warn!(vmi = %key, pod = launcher.pod, error = %Chain(&error), "the launcher has not all of its devices");
    }
    let mut stream = answer(CALL, launcher.for_states().watch(Empty {})).await?;
    guest.held().meets(&launcher.pod);
    let kvm = launcher.root().is_ok_and(|root| root.reference("dev/kvm").is_ok());
    let (watched, queue, process, key) = (Arc::downgrade(guest), context.queue.clone(), launcher.clone(), key.clone());
    let watching = kit::spawn("domain", async move {
        let mut pace = STATES;
        while let Ok(Some(state)) = stream.message().await {
            // The launcher skips what it could not tell in time: the newest state is what counts.
            tokio::time::sleep(pace.spend(cost(&state), Instant::now())).await;
            let Some(guest) = watched.upgrade() else { return };
            guest.held().state = Some(LauncherState::from(state));
            queue.add(key.clone());
        }
        // Its connections end before it does. Whoever judges in between takes a dead launcher for one that is slow.
        let last = clock::now() + ENDING;
        while process.is_ending() && clock::now() < last {
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        let Some(guest) = watched.upgrade() else { return };
        let mut held = guest.held();
        held.launcher = None;
        held.gone = !process.is_alive();
        if held.gone {
            held.gone_since = Some(clock::now());
        }
        drop(held);
        queue.add(key);
    });
    let mut held = guest.held();
    held.emulation = match (&context.no_kvm, kvm) {
        (Some(why), _) => Some(why.clone()),
        (None, false) => Some("the pod was not given /dev/kvm".to_owned()),
        (None, true) => None,
    };
    held.launcher = Some(launcher);
    held.watching = Some(watching);
    held.handed_over = None;
    held.refused = 0;
    held.gone = false;
    held.gone_since = None;
    Ok(())
}

/// Disks on claims, before the launcher opens them. A volume that hangs holds up nothing but its own guest.
pub(super) async fn prepare_disks(
    context: &Context,
    vmi: &VirtualMachineInstance,
    launcher: Launcher,
    purpose: Purpose,
) -> Result<(), Error> {
    let about = vmi.clone();
    let prepared = tokio::task::spawn_blocking(move || storage::prepare(&about, &launcher, purpose)).await;
    for warning in prepared.map_err(|error| Error::Disk(error.to_string()))?? {
        context.recorder.warning(&vmi.object_ref(&()), "ToleratedSmallPV", warning);
    }
    Ok(())
}

/// What a state costs of [`STATES`]: a common one has few KiB, and the largest are few a second.
fn cost(state: &DomainState) -> f64 {
    let long = [&state.guest, &state.sync_error, &state.migration, &state.backup, &state.memory_dump];
    let bytes: usize = long.into_iter().map(String::len).sum();
    1.0 + bytes as f64 / 32768.0
}

/// The launcher that answers, among the VMI's pods on this node: one that a migration left may linger beside it.
async fn find(context: &Context, vmi: &VirtualMachineInstance, spent: &str) -> Result<Launcher, Error> {
    let pods = vmi.status.as_ref().map(|status| status.active_pods.clone()).unwrap_or_default();
    let mut failed = Error::NotThereYet(format!("none of its pods is known to be on node {}", context.node));
    for (pod, _) in pods.into_iter().filter(|(pod, node)| *node == context.node && pod != spent) {
        match launcher::connect(&context.pods, &pod).await {
            Ok(launcher) => return Ok(launcher),
            Err(error) => failed = error,
        }
    }
    Err(failed)
}
