//! What is held of a VMI from hand-over to the end of its guest.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use domain::{FailedDisk, MigrationProgress};
use jiff::{SignedDuration, Timestamp};
use kit::{Chain, Task, clock};
use tokio::time::Instant;

use super::handover;
use super::launcher_state::LauncherState;
use super::plan::Known;
use super::status::Observed;
use crate::Error;
use crate::hotplug;
use crate::launcher::Launcher;
use crate::migration::Moving;
use crate::network::{self, Plugged};
use crate::pace::Pace;

/// How long the target of a migration has to tell that the domain is there, once the launcher here has gone.
const WORD_OF_TARGET: SignedDuration = SignedDuration::from_secs(15);
/// How long something that passes by itself may last before the user is told.
const PASSING: SignedDuration = SignedDuration::from_secs(20);
/// Writes of a VMI's status for what its launcher told.
const WRITES: Pace = Pace::new(50, 5);

/// A VMI that was taken over.
pub(crate) struct Guest {
    /// Its UID: another machine may take its name.
    pub(super) uid: String,
    held: Mutex<Held>,
    moving: Mutex<Moving>,
    writes: Mutex<Pace>,
}

/// What is held of it.
#[derive(Default)]
pub(super) struct Held {
    pub(super) launcher: Option<Launcher>,
    /// The pod of this launcher, or of the last.
    pub(super) pod: String,
    /// A pod that is of no use any more, although its launcher may still answer.
    pub(super) spent: String,
    pub(super) watching: Option<Task<()>>,
    pub(super) plugged: Option<Arc<Plugged>>,
    /// What the launcher accepted of the VMI, see [`handover`].
    pub(super) handed_over: Option<Vec<u8>>,
    pub(super) shutdown_sent: bool,
    pub(super) refused: u32,
    pub(super) gone: bool,
    pub(super) gone_since: Option<Timestamp>,
    pub(super) emulation: Option<String>,
    pub(super) state: Option<LauncherState>,
    /// Volumes that the launcher was lent while it ran.
    pub(super) lent: hotplug::Lent,
    /// Claims that are larger than their disks, as they were when the launcher was told of them.
    pub(super) larger: hotplug::Larger,
    pub(super) trouble: Option<String>,
    /// Since when something is waited for that passes by itself.
    pub(super) passing: Option<Timestamp>,
    pub(super) told: Told,
}

impl Held {
    /// Whether what was met at `now` has to be told: what passes by itself, only when it does not.
    pub(super) fn is_news(&mut self, error: &Error, now: Timestamp) -> bool {
        let passes = matches!(error, Error::NotThereYet(_) | Error::NoLauncher { .. } | Error::Crowded { .. });
        !passes || now.duration_since(*self.passing.get_or_insert(now)) >= PASSING
    }

    /// A launcher in another pod than the one before, whose migration failed, say: what is known of that one, and what was
    /// plugged into it, is nothing to this one.
    pub(super) fn meets(&mut self, pod: &str) {
        if self.pod != pod {
            (self.plugged, self.state) = (None, None);
            self.lent.clear();
            self.larger.clear();
            pod.clone_into(&mut self.pod);
        }
    }
}

/// Events already sent, so that each is sent once.
#[derive(Default)]
pub(super) struct Told {
    pub(super) started: bool,
    pub(super) trouble: String,
    pub(super) stays: String,
    pub(super) failed: Vec<FailedDisk>,
}

impl Guest {
    pub(crate) fn of(uid: &str) -> Self {
        let writes = Mutex::new(WRITES);
        Self { uid: uid.to_owned(), held: Mutex::default(), moving: Mutex::default(), writes }
    }

    /// Counts so many writes of its status, and says how long to wait before the next.
    pub(super) fn writes(&self, count: f64) -> Duration {
        self.writes.lock().unwrap_or_else(PoisonError::into_inner).spend(count, Instant::now())
    }

    pub(super) fn held(&self) -> MutexGuard<'_, Held> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The launcher, while it is connected.
    pub(crate) fn launcher(&self) -> Option<Launcher> {
        self.held().launcher.clone()
    }

    /// Remembers that the launcher has the disk of `volume` from an attachment pod.
    pub(crate) fn was_lent(&self, volume: &str) {
        self.held().lent.insert(volume.to_owned());
    }

    /// Has done with its pod: the next launcher is another's.
    pub(crate) fn part(&self) {
        let mut held = self.held();
        let spent = std::mem::take(&mut held.pod);
        if !spent.is_empty() {
            *held = Held { spent, ..Held::default() };
        }
    }

    /// What it has of a migration.
    pub(crate) fn moving(&self) -> MutexGuard<'_, Moving> {
        self.moving.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the pod's network hear where the guest is now.
    pub(crate) fn announce(&self) {
        let held = self.held();
        if let (Some(launcher), Some(plugged)) = (held.launcher.clone(), held.plugged.clone()) {
            kit::spawn("announce", async move {
                if let Err(error) = network::announce(&plugged, &launcher).await {
                    tracing::warn!(error = %Chain(&error), "the guest was not announced");
                }
            })
            .detach();
        }
    }

    /// What is to be written of a migration's progress.
    pub(super) fn news(&self, vmi: &VirtualMachineInstance) -> Option<String> {
        let (_, progress, _) = self.migration();
        self.moving().news(vmi, progress.as_ref()?)
    }

    /// For the target of a migration: connected, plugged, and the domain is here.
    pub(crate) fn readiness(&self) -> (bool, bool, bool) {
        let known = self.known();
        (known.connected, known.plugged, known.connected && known.domain)
    }

    /// For the source of a migration: whether the launcher has told anything, what it told last of a migration, and whether
    /// it has been gone for long.
    pub(crate) fn migration(&self) -> (bool, Option<MigrationProgress>, bool) {
        let held = self.held();
        let progress = held.state.as_ref().and_then(|state| state.migration.clone());
        let gone = held.gone_since.is_some_and(|since| clock::now().duration_since(since) >= WORD_OF_TARGET);
        (held.state.is_some(), progress, gone)
    }

    pub(super) fn known(&self) -> Known {
        let held = self.held();
        Known {
            connected: held.launcher.is_some(),
            plugged: held.plugged.is_some(),
            handed_over: held.handed_over.is_some(),
            shutdown_sent: held.shutdown_sent,
            domain: held.state.as_ref().is_some_and(|state| state.status.has_guest()),
        }
    }

    /// What is known, the VMI being as it is now.
    pub(super) fn known_of(&self, vmi: &VirtualMachineInstance) -> Known {
        let same = self.held().handed_over.as_ref().is_some_and(|known| *known == handover::acted_on(vmi));
        Known { handed_over: same, ..self.known() }
    }

    pub(super) fn observed(&self) -> Observed {
        let held = self.held();
        Observed {
            domain: held.state.clone(),
            launcher_gone: held.gone,
            addresses: held.plugged.as_ref().map(|p| p.addresses.clone()).unwrap_or_default(),
            trouble: held.trouble.clone(),
            emulation: held.emulation.clone(),
            lent: held.lent.clone(),
            on_its_way: false,
            host_model: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_of_one_pod_is_taken_for_anothers() {
        let known = || Held {
            pod: "first".into(),
            plugged: Some(Arc::default()),
            state: Some(LauncherState::default()),
            ..Held::default()
        };
        for (pod, expect) in [("first", true), ("second", false)] {
            let mut held = known();
            held.meets(pod);
            assert_eq!((held.plugged.is_some(), held.state.is_some(), held.pod.as_str()), (expect, expect, pod));
        }
    }

    #[test]
    fn temporary_errors_are_reported_when_they_last() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let (passes, lasts) = (Error::NotThereYet("no pod".to_owned()), Error::Disk("no disk".to_owned()));
        let mut held = Held::default();
        assert!(held.is_news(&lasts, at(0)));
        for (second, expect) in [(5, false), (24, false), (25, true), (90, true)] {
            assert_eq!(held.is_news(&passes, at(second)), expect, "{second}");
        }
        held.passing = None;
        assert!(!held.is_news(&passes, at(91)), "it has passed meanwhile");
        // A pod that is just starting has no launcher yet; one that has none for long is something to know.
        let mut held = Held::default();
        let absent = Error::no_launcher("p")(std::io::Error::from(std::io::ErrorKind::NotFound));
        assert_eq!([0, 19, 20].map(|second| held.is_news(&absent, at(second))), [false, false, true]);
    }

    #[test]
    fn a_pod_is_parted_from_once() {
        let guest = Guest::of("u");
        guest.part();
        assert_eq!(guest.held().spent, "", "there was none");
        guest.held().meets("first");
        guest.held().plugged = Some(Arc::default());
        guest.part();
        guest.part();
        let held = guest.held();
        assert_eq!((held.spent.as_str(), held.pod.as_str(), held.plugged.is_some()), ("first", "", false));
    }
}
