//! A guest's way from this node to another, or from another to this one.
//!
//! ```text
//!   source node                                              target node
//!   [source] Migrate --> launcher                            [target] plug, Expect --> launcher
//!      ^                    | connections of libvirt, QEMU      |   says where it listens (status)
//!      +---- descriptors ---+                                   v
//!      +================== one TLS stream each ==============> [channel] --> sockets of libvirt, QEMU
//!   started, progress, ended (status)                        has arrived, taken over (status)
//! ```
//! [`plan`] and [`status`] are pure. Nothing of the guest's memory is looked at on the way; only who sends it.

pub(crate) mod address;
pub(crate) mod channel;
pub(crate) mod metrics;
mod options;
pub(crate) mod plan;
mod post_copy;
pub(crate) mod source;
pub(crate) mod status;
pub(crate) mod target;

use std::os::unix::net::UnixStream;
use std::time::Duration;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigrationState as State};
use api::kubevirt::words::annotation;
use domain::MigrationProgress;
use kit::peer::Peers;
use kube::{Client, ResourceExt};
use tokio::time::Instant;

use source::Sending;
pub(crate) use target::Arrivals;
use target::Welcome;

/// Between two writes of a migration's progress.
const NEWS: Duration = Duration::from_secs(1);

/// What this process needs to meet the agents of other nodes.
pub(crate) struct Road {
    /// How agents recognise each other.
    pub peers: Peers,
    /// This process's address, as other nodes reach it.
    pub address: String,
    /// The port that agents listen on.
    pub port: u16,
    /// The namespace of the agents' pods.
    pub namespace: String,
    /// The API server.
    pub client: Client,
}

/// The UID of the migration that a state is about.
pub(crate) fn uid(state: &State) -> &str {
    state.migration_uid.as_deref().unwrap_or_default()
}

/// What a guest has of its migration; each part belongs to one migration, by its UID.
#[derive(Default)]
pub(crate) struct Moving {
    sending: Option<Sending>,
    resolving: Option<UnixStream>,
    refused: Option<(String, String)>,
    abort_told: String,
    welcome: Option<Welcome>,
    coming: String,
    expected: String,
    turned_away: String,
    /// What does not fit here, and of which migration.
    unfit: Option<(String, String)>,
    told_at: Option<Instant>,
}

impl Moving {
    /// What to write of the progress now: not what is known, not more often than [`NEWS`], but the end at once.
    pub(crate) fn news(&mut self, vmi: &VirtualMachineInstance, progress: &MigrationProgress) -> Option<String> {
        let text = serde_json::to_string(progress).ok()?;
        if vmi.annotations().get(annotation::MIGRATION_PROGRESS) == Some(&text) {
            return None;
        }
        let early = self.told_at.is_some_and(|told| told.elapsed() < NEWS);
        // Of a guest that stands still nothing more is told for a while.
        if early && progress.outcome.is_none() && !progress.uncertain {
            return None;
        }
        self.told_at = Some(Instant::now());
        Some(text)
    }
}
