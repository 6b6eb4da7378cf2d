//! Which request may follow which, and in what order they run. Pure: no domain, no clock.
//!
//! ```text
//!   Empty --Sync--> Running <--Pause/Unpause--> Paused
//!                      |  Shutdown                 |
//!                      v                           v
//!                  ShuttingDown ----guest off---> Gone <--Kill-- (any)
//! ```

use std::collections::VecDeque;

/// Where the domain is in its one life.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Phase {
    #[default]
    Empty,
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
        (Kind::Sync, _) => Run,

        (Kind::Kill | Kind::Shutdown, Phase::Gone) => Done,
        // Without a domain, ending means that none will start.
        (Kind::Kill, _) => Run,
        (Kind::Shutdown, Phase::ShuttingDown) => Done,
        (Kind::Shutdown, _) => Run,

        (_, Phase::Empty) => Refuse("the virtual machine has not started yet"),
        (_, Phase::Gone) => Refuse("the virtual machine is no longer running"),

        (Kind::Pause, Phase::Paused) | (Kind::Unpause, Phase::Running) => Done,
        (Kind::Pause | Kind::Freeze, Phase::ShuttingDown) => Refuse("the virtual machine is shutting down"),
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
