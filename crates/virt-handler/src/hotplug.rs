//! Disks that come to a running guest and leave it: lent to its launcher out of the attachment pods that virt-controller
//! makes on the guest's node.

mod lend;
mod plan;

use std::collections::BTreeSet;

use api::kubevirt::v1::VirtualMachineInstance;
use kit::events::Recorder;
use kube::{Resource as _, ResourceExt as _};

pub(crate) use plan::{Attached, Larger, has, larger, plan};

use crate::Error;
use crate::launcher::{Launcher, Pods};
use crate::storage::{self, Purpose};

/// Volumes that a launcher was lent.
pub(crate) type Lent = BTreeSet<String>;

/// Lends the disk of `attached` to the `launcher` of `vmi`.
pub(crate) async fn lend(
    pods: &Pods,
    recorder: &Recorder,
    vmi: &VirtualMachineInstance,
    launcher: Launcher,
    attached: &Attached,
    purpose: Purpose,
) -> Result<(), Error> {
    if api::kubevirt::hotplug::is_utility(&vmi.spec, &attached.volume) {
        let (pods, uid, about) = (pods.clone(), vmi.uid().unwrap_or_default(), attached.clone());
        let lent = tokio::task::spawn_blocking(move || lend::lend_directory(&pods, &launcher, &uid, &about)).await;
        tracing::info!(vmi = %vmi.name_any(), volume = attached.volume, pod = attached.pod, "the volume is lent to the launcher");
        return lent.map_err(|error| Error::Disk(error.to_string()))?;
    }
    let Some(disk) = storage::hotplugged(vmi, &attached.volume, purpose) else {
        let why = format!("volume {}: the size of its claim is not known yet", attached.volume);
        return Err(Error::NotThereYet(why));
    };
    let (pods, uid, about) = (pods.clone(), vmi.uid().unwrap_or_default(), attached.clone());
    let lent = tokio::task::spawn_blocking(move || lend::lend(&pods, &launcher, &uid, &about, &disk, purpose)).await;
    if let Some(warning) = lent.map_err(|error| Error::Disk(error.to_string()))?? {
        recorder.warning(&vmi.object_ref(&()), "ToleratedSmallPV", warning);
    }
    tracing::info!(vmi = %vmi.name_any(), volume = attached.volume, pod = attached.pod, "the disk was lent to the launcher");
    Ok(())
}

/// Sees to it that the launcher may go on opening the device that it was lent for `volume`.
pub(crate) async fn renew(launcher: Launcher, volume: String) -> Result<(), Error> {
    let renewed = tokio::task::spawn_blocking(move || lend::renew(&launcher, &volume)).await;
    renewed.map_err(|error| Error::Disk(error.to_string()))?
}

/// Takes back what the launcher has no use for any more.
pub(crate) async fn take_back(launcher: Launcher, volume: String) -> Result<(), Error> {
    let taken = tokio::task::spawn_blocking(move || lend::take_back(&launcher, &volume)).await;
    taken.map_err(|error| Error::Disk(error.to_string()))?
}

/// The volumes that come with a guest to this node, in the pod that has them here.
pub(crate) fn arriving(vmi: &VirtualMachineInstance) -> Vec<Attached> {
    let pod = vmi.status.as_ref().and_then(|status| status.migration_state.as_ref()?.target_attachment_pod_uid.clone());
    let Some(pod) = pod.filter(|pod| !pod.is_empty()) else { return Vec::new() };
    let along = api::kubevirt::hotplug::carried(vmi);
    along.map(|volume| Attached { volume: volume.to_owned(), pod: pod.clone() }).collect()
}
