//! The way to the target broke: what that means for the guest, and what follows.
//!
//! ```text
//!   it runs here --------------------------------> libvirt is told: the guest stays
//!   it stands still: the target may run it ------> who runs it is asked --moved, stays-->
//!   post-copy --QEMU says that memory is missing-> libvirt is told: the guest is torn, and ended
//!             \-QEMU does not----------------------> who runs it is asked
//! ```
//! In post-copy the target runs the guest, whether it will get the rest of its memory or not. So it is not asked before this
//! side's QEMU had the time to notice that the rest cannot be sent.

use std::sync::Arc;
use std::time::Duration;

use domain::{MigrationOutcome, MigrationProgress};
use libvirt::{Domain, PausedReason, State};
use tokio::time::Instant;

use super::call;
use super::channels::{Open, Word};

/// Streams that lead nowhere are found dead within this, all of them.
const NOTICED: Duration = Duration::from_secs(30);

/// What a guest is to its source.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Guest {
    /// It runs here, or would if somebody let it.
    Here,
    /// It stands still, and the target may have been told to run it.
    Between,
    /// It runs on the target, and fetches what it lacks.
    There,
    /// It runs on the target, and lacks what it will never get.
    Torn,
}

impl Guest {
    fn of(state: &State) -> Self {
        match state {
            State::Paused(PausedReason::Migration) => Self::Between,
            State::Paused(PausedReason::PostCopy) => Self::There,
            State::Paused(PausedReason::PostCopyFailed) => Self::Torn,
            _ => Self::Here,
        }
    }
}

/// What follows from it, so long after the way broke.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Libvirt may see that its connection has ended.
    Cut,
    /// The target has to say.
    Ask,
    Wait,
}

fn judge(guest: Guest, since: Duration) -> Verdict {
    match guest {
        Guest::Here | Guest::Torn => Verdict::Cut,
        Guest::There if since < NOTICED => Verdict::Wait,
        Guest::There | Guest::Between => Verdict::Ask,
    }
}

/// A way that may be broken.
#[derive(Default)]
pub(super) struct Handover {
    lost_at: Option<Instant>,
}

impl Handover {
    /// What follows from what the node agent tells; how the migration ends by it, if it does.
    pub(super) async fn heard(
        &mut self,
        domain: &Arc<Domain>,
        word: Word,
        open: &Open,
        progress: &mut MigrationProgress,
    ) -> Option<MigrationOutcome> {
        match word {
            Word::Lost => {
                self.lost_at.get_or_insert_with(Instant::now);
                self.look(domain, open, progress).await;
                None
            }
            Word::Stays => {
                self.settle(open, progress);
                None
            }
            Word::Moved => {
                tracing::info!("the guest runs on the target: what is left of it here is ended");
                let _ = call(domain, Domain::destroy).await;
                self.settle(open, progress);
                Some(MigrationOutcome::Moved)
            }
        }
    }

    /// Looks at the guest once the way is lost; whether there is something new to tell.
    pub(super) async fn look(&mut self, domain: &Arc<Domain>, open: &Open, progress: &mut MigrationProgress) -> bool {
        let Some(lost_at) = self.lost_at else { return false };
        let Ok(state) = call(domain, Domain::state).await else { return false };
        let guest = Guest::of(&state);
        match judge(guest, lost_at.elapsed()) {
            Verdict::Cut => {
                tracing::warn!(?guest, "the way to the target broke");
                self.settle(open, progress);
            }
            Verdict::Ask if !progress.uncertain => {
                tracing::warn!(
                    ?guest,
                    "the way to the target broke while the guest was handed over: it waits to hear where it runs"
                );
                progress.uncertain = true;
            }
            Verdict::Ask | Verdict::Wait => return false,
        }
        true
    }

    fn settle(&mut self, open: &Open, progress: &mut MigrationProgress) {
        self.lost_at = None;
        progress.uncertain = false;
        open.cut();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(state: State, seconds: u64, expect: Verdict) {
        assert_eq!(judge(Guest::of(&state), Duration::from_secs(seconds)), expect, "{state:?}");
    }

    #[test]
    fn the_target_is_asked_for_its_state_only_when_ownership_is_uncertain() {
        check(State::Running, 0, Verdict::Cut);
        check(State::Paused(PausedReason::User), 0, Verdict::Cut);
        check(State::Paused(PausedReason::Migration), 0, Verdict::Ask);
        check(State::Paused(PausedReason::PostCopy), 1, Verdict::Wait);
        check(State::Paused(PausedReason::PostCopyFailed), 1, Verdict::Cut);
        // Its memory had all been sent.
        check(State::Paused(PausedReason::PostCopy), 31, Verdict::Ask);
    }
}
