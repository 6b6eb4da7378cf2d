//! What the pod of a guest says of itself. Pure.

use api::kubevirt::constants::label;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod};
use sha2::{Digest, Sha256};

/// After its pod ended, a VMI is given this long to be reported ended by virt-handler, who knows how the guest ended.
pub(crate) const REPORT: SignedDuration = SignedDuration::from_secs(10);
/// uid and gid of everything in the pod.
pub const USER: i64 = 107;

/// The end of a name that is always the same for a UID.
pub(crate) fn suffix(uid: &str) -> String {
    const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
    let digest = Sha256::digest(uid.as_bytes());
    digest.iter().take(5).map(|byte| char::from(ALPHABET[usize::from(*byte) % ALPHABET.len()])).collect()
}

/// The pod has run to its end.
pub(crate) fn ended(pod: &Pod) -> bool {
    matches!(pod.status.as_ref().and_then(|status| status.phase.as_deref()), Some("Succeeded" | "Failed"))
}

/// What is said of every container, the init containers first.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = &ContainerStatus> {
    let status = pod.status.as_ref();
    let init = status.and_then(|status| status.init_container_statuses.as_ref()).into_iter().flatten();
    init.chain(status.and_then(|status| status.container_statuses.as_ref()).into_iter().flatten())
}

/// What is said of the container with the guest.
pub(crate) fn compute(pod: &Pod) -> Option<&ContainerStatus> {
    containers(pod).find(|container| container.name == "compute")
}

/// The launcher runs, and so does every container that lends it a disk. Readiness is the guest's and comes later.
pub(crate) fn stands(pod: &Pod) -> bool {
    let runs = |container: &ContainerStatus| container.state.as_ref().is_some_and(|state| state.running.is_some());
    let statuses = pod.status.as_ref().and_then(|status| status.container_statuses.as_ref());
    compute(pod).is_some_and(runs) && statuses.into_iter().flatten().all(runs)
}

/// When the container with the guest ended.
pub(crate) fn compute_ended(pod: &Pod) -> Option<Timestamp> {
    let ended = compute(pod)?.state.as_ref()?.terminated.as_ref()?;
    Some(ended.finished_at.as_ref().map_or(Timestamp::UNIX_EPOCH, |at| at.0))
}

/// The migration `pod` was made for; none for the pod a guest was started in.
pub fn job(pod: &Pod) -> Option<&str> {
    pod.metadata.labels.as_ref()?.get(label::MIGRATION_JOB).map(String::as_str)
}

/// True when `pod` has ended, is ending, or its launcher has.
pub fn is_down(pod: &Pod) -> bool {
    pod.metadata.deletion_timestamp.is_some() || ended(pod) || compute_ended(pod).is_some()
}
