//! Which request may follow which, and in what order they run. Pure: no domain, no clock.
//!
//! ```text
//!   Empty --Sync--> Running <--Pause/Unpause--> Paused
//!     |              ^ |  Shutdown                 |
//!   Expect           | v                           v
//!     v            arrival  ShuttingDown --guest off, or moved away--> Gone <--Kill-- (any)
//!   Expecting -------+
//! ```

use std::collections::VecDeque;

/// Where the domain is in its one life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Empty,
    /// Another launcher is to send the domain.
    Expecting,
    Running,
    Paused,
    ShuttingDown,
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Sync,
    Pause,
    Unpause,
    Reset,
    SoftReboot,
    Shutdown,
    Kill,
    Freeze,
    Unfreeze,
    Expect,
    Migrate,
    AbortMigration,
    /// A disk is lent that the guest may be given.
    Lend,
    Backup,
    Checkpoint,
    DumpMemory,
}

/// What becomes of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Run,
    /// Nothing to do: it is so already.
    Done,
    Refuse(&'static str),
}

pub(crate) fn judge(phase: Phase, kind: Kind) -> Verdict {
    use Verdict::{Done, Refuse, Run};
    match (kind, phase) {
        (Kind::Sync, Phase::Gone | Phase::ShuttingDown) => Done,
        (Kind::Sync, Phase::Expecting) => Refuse("the virtual machine is still on its way here"),
        (Kind::Sync, _) => Run,

        (Kind::Expect, Phase::Empty) => Run,
        (Kind::Expect, Phase::Expecting | Phase::Running | Phase::Paused) => Done,
        (Kind::AbortMigration | Kind::Lend, _) => Run,

        (Kind::Kill | Kind::Shutdown, Phase::Gone) => Done,
        // Without a domain, ending means that none will start.
        (Kind::Kill, _) => Run,
        (Kind::Shutdown, Phase::ShuttingDown) => Done,
        (Kind::Shutdown, _) => Run,

        (_, Phase::Expecting) => Refuse("the virtual machine is still on its way here"),
        (_, Phase::Empty) => Refuse("the virtual machine has not started yet"),
        (_, Phase::Gone) => Refuse("the virtual machine is no longer running"),

        (Kind::Pause, Phase::Paused) | (Kind::Unpause, Phase::Running) => Done,
        (
            Kind::Pause | Kind::Freeze | Kind::Migrate | Kind::Expect | Kind::Backup | Kind::DumpMemory,
            Phase::ShuttingDown,
        ) => Refuse("the virtual machine is shutting down"),
        (Kind::SoftReboot | Kind::Freeze, Phase::Paused) => Refuse("the virtual machine is paused"),
        (Kind::SoftReboot, Phase::ShuttingDown) => Refuse("the virtual machine is shutting down"),
        _ => Run,
    }
}

/// Requests that wait. Ending the guest overtakes everything else; the rest keeps its order.
#[derive(Debug)]
pub(crate) struct Queue<T> {
    waiting: VecDeque<(Kind, T)>,
}

impl<T> Default for Queue<T> {
    fn default() -> Self {
        Self { waiting: VecDeque::new() }
    }
}

impl<T> Queue<T> {
    pub(crate) fn push(&mut self, kind: Kind, request: T) {
        let rank = |kind: Kind| match kind {
            Kind::Kill => 0,
            Kind::Shutdown => 1,
            _ => 2,
        };
        let position = self.waiting.iter().position(|(other, _)| rank(*other) > rank(kind));
        self.waiting.insert(position.unwrap_or(self.waiting.len()), (kind, request));
    }

    pub(crate) fn pop(&mut self) -> Option<(Kind, T)> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(kind: Kind, phase: Phase, expect: Verdict) {
        assert_eq!(judge(phase, kind), expect);
    }

    #[test]
    fn a_domain_has_one_life() {
        check(Kind::Sync, Phase::Empty, Verdict::Run);
        check(Kind::Sync, Phase::Running, Verdict::Run);
        check(Kind::Sync, Phase::Gone, Verdict::Done);
        check(Kind::Sync, Phase::ShuttingDown, Verdict::Done);
    }

    #[test]
    fn ending_always_works() {
        for phase in [Phase::Empty, Phase::Running, Phase::Paused, Phase::ShuttingDown] {
            check(Kind::Kill, phase, Verdict::Run);
        }
        check(Kind::Kill, Phase::Gone, Verdict::Done);
        check(Kind::Shutdown, Phase::Paused, Verdict::Run);
        check(Kind::Shutdown, Phase::ShuttingDown, Verdict::Done);
    }

    #[test]
    fn pausing_is_idempotent() {
        check(Kind::Pause, Phase::Running, Verdict::Run);
        check(Kind::Pause, Phase::Paused, Verdict::Done);
        check(Kind::Unpause, Phase::Running, Verdict::Done);
        check(Kind::Unpause, Phase::Paused, Verdict::Run);
        check(Kind::Pause, Phase::Empty, Verdict::Refuse("the virtual machine has not started yet"));
        check(Kind::SoftReboot, Phase::Paused, Verdict::Refuse("the virtual machine is paused"));
    }

    #[test]
    fn a_domain_on_its_way_is_left_alone() {
        check(Kind::Expect, Phase::Empty, Verdict::Run);
        check(Kind::Expect, Phase::Expecting, Verdict::Done);
        check(Kind::Expect, Phase::Running, Verdict::Done);
        check(Kind::Expect, Phase::Gone, Verdict::Refuse("the virtual machine is no longer running"));
        check(Kind::Kill, Phase::Expecting, Verdict::Run);
        check(Kind::AbortMigration, Phase::Empty, Verdict::Run);
        check(Kind::Lend, Phase::Empty, Verdict::Run);
        check(Kind::Migrate, Phase::Paused, Verdict::Run);
        for kind in [Kind::Sync, Kind::Pause, Kind::Migrate] {
            check(kind, Phase::Expecting, Verdict::Refuse("the virtual machine is still on its way here"));
        }
        check(Kind::Migrate, Phase::ShuttingDown, Verdict::Refuse("the virtual machine is shutting down"));
    }

    #[test]
    fn kill_overtakes_shutdown_overtakes_the_rest() {
        let mut queue = Queue::default();
        for (index, kind) in [Kind::Pause, Kind::Shutdown, Kind::Unpause, Kind::Kill, Kind::Shutdown].iter().enumerate()
        {
            queue.push(*kind, index);
        }
        let order: Vec<usize> = std::iter::from_fn(|| queue.pop().map(|(_, index)| index)).collect();
        assert_eq!(order, [3, 1, 4, 0, 2]);
    }
}
