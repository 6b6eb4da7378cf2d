//! libvirt's states in KubeVirt's words.

use libvirt::{PausedReason, ShutoffReason, State};

use crate::request_queue::Phase;

pub(crate) fn status(state: State) -> &'static str {
    match state {
        State::None => "NoState",
        State::Running => "Running",
        State::Blocked => "Blocked",
        State::Paused(_) => "Paused",
        State::Shutdown => "Shutdown",
        State::Shutoff(_) => "Shutoff",
        State::Crashed => "Crashed",
        State::PmSuspended => "PMSuspended",
    }
}

pub(crate) fn reason(state: State) -> &'static str {
    match state {
        State::Paused(reason) => match reason {
            PausedReason::User => "PausedUser",
            PausedReason::Migration => "PausedMigration",
            PausedReason::Save => "PausedSave",
            PausedReason::Dump => "PausedDump",
            PausedReason::IoError => "PausedIOError",
            PausedReason::Watchdog => "PausedWatchdog",
            PausedReason::Snapshot => "PausedSnapshot",
            PausedReason::ShuttingDown => "PausedShuttingDown",
            PausedReason::Crashed => "PausedCrashed",
            PausedReason::StartingUp => "PausedStartingUp",
            PausedReason::PostCopy => "PausedPostcopy",
            PausedReason::PostCopyFailed => "PausedPostcopyFailed",
            PausedReason::ApiError | PausedReason::Unknown => "PausedUnknown",
        },
        State::Shutoff(reason) => match reason {
            ShutoffReason::Shutdown => "Shutdown",
            ShutoffReason::Destroyed => "Destroyed",
            ShutoffReason::Crashed => "Crashed",
            ShutoffReason::Migrated => "Migrated",
            ShutoffReason::Saved => "Saved",
            ShutoffReason::Failed => "Failed",
            ShutoffReason::FromSnapshot => "FromSnapshot",
            ShutoffReason::Daemon | ShutoffReason::Unknown => "Unknown",
        },
        State::Crashed => "Crashed",
        State::None | State::Running | State::Blocked | State::Shutdown | State::PmSuspended => "Unknown",
    }
}

/// Where a state puts the domain's life. A guest that shuts itself down is as good as gone, but not yet.
pub(crate) fn phase(state: State, before: Phase) -> Phase {
    match state {
        State::Shutoff(_) | State::Crashed => {
            // Defined and not yet started also reads as shut off.
            if before == Phase::Empty { Phase::Empty } else { Phase::Gone }
        }
        State::Shutdown => Phase::ShuttingDown,
        _ if before == Phase::ShuttingDown => Phase::ShuttingDown,
        State::Paused(_) | State::PmSuspended => Phase::Paused,
        State::Running | State::Blocked => Phase::Running,
        State::None => before,
    }
}
