//! What is held of a guest's migration, on either side.

use std::collections::HashMap;
use std::net::Shutdown;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::kubevirt::constants::annotation;
use api::kubevirt::v1::VirtualMachineInstance;
use domain::MigrationProgress;
use kit::Task;
use kit::shutdown::CancellationToken;
use kit::store::Key;
use kube::ResourceExt as _;
use tokio::time::Instant;

/// Between two writes of a migration's progress.
const NEWS: Duration = Duration::from_secs(1);

/// What a guest has of its migration; each part belongs to one migration, by its UID.
#[derive(Default)]
pub(crate) struct Moving {
    pub(crate) sending: Option<Sending>,
    pub(crate) resolving: Option<StdUnixStream>,
    pub(crate) refused: Option<(String, String)>,
    pub(crate) abort_told: String,
    pub(crate) welcome: Option<Welcome>,
    pub(crate) coming: String,
    pub(crate) expected: String,
    pub(crate) turned_away: String,
    /// What does not fit here, and of which migration.
    pub(crate) unfit: Option<(String, String)>,
    pub(crate) told_at: Option<Instant>,
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

/// Connections of one migration, carried for as long as this is held.
pub(crate) struct Sending {
    /// The migration.
    pub(crate) uid: String,
    from: StdUnixStream,
    trouble: Arc<Mutex<Option<String>>>,
    _carrying: Task<()>,
}

impl Sending {
    /// What is held of a migration whose connections come `from` its launcher.
    pub(crate) fn new(
        uid: String,
        from: StdUnixStream,
        trouble: Arc<Mutex<Option<String>>>,
        carrying: Task<()>,
    ) -> Self {
        Self { uid, from, trouble, _carrying: carrying }
    }

    /// What first went wrong on the way.
    pub(crate) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Drop for Sending {
    fn drop(&mut self) {
        // Ends the thread that reads from it. It may be closed already.
        let _ = self.from.shutdown(Shutdown::Both);
    }
}

/// Migrations that are expected, by their UID.
pub(crate) type Arrivals = Arc<Mutex<HashMap<String, Arrival>>>;

/// A migration that is expected.
#[derive(Clone, Debug)]
pub(crate) struct Arrival {
    pub(crate) vmi: Key,
    pub(crate) uid: String,
    pub(crate) from: String,
    pub(crate) pod: String,
    pub(crate) plain: bool,
    pub(crate) over: CancellationToken,
}

/// An entry in [`Arrivals`] for as long as this is held; with it end the streams.
pub(crate) struct Welcome {
    pub(crate) uid: String,
    pub(crate) arrivals: Arrivals,
}

impl Drop for Welcome {
    fn drop(&mut self) {
        if let Some(arrival) = lock(&self.arrivals).remove(&self.uid) {
            arrival.over.cancel();
        }
    }
}

/// The migrations that are expected.
pub(crate) fn lock(arrivals: &Arrivals) -> MutexGuard<'_, HashMap<String, Arrival>> {
    arrivals.lock().unwrap_or_else(PoisonError::into_inner)
}
