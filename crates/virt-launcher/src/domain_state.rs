//! libvirt's states in KubeVirt's words.

use domain::{DomainReason, DomainStatus};
use libvirt::{PausedReason, ShutoffReason, State};

use crate::request_queue::Phase;

pub(crate) fn status(state: State) -> DomainStatus {
    match state {
        State::None => DomainStatus::NoState,
        State::Running => DomainStatus::Running,
        State::Blocked => DomainStatus::Blocked,
        State::Paused(_) => DomainStatus::Paused,
        State::Shutdown => DomainStatus::Shutdown,
        State::Shutoff(_) => DomainStatus::Shutoff,
        State::Crashed => DomainStatus::Crashed,
        State::PmSuspended => DomainStatus::PmSuspended,
    }
}

pub(crate) fn reason(state: State) -> DomainReason {
    match state {
        State::Paused(reason) => match reason {
            PausedReason::User => DomainReason::PausedUser,
            PausedReason::Migration => DomainReason::PausedMigration,
            PausedReason::Save => DomainReason::PausedSave,
            PausedReason::Dump => DomainReason::PausedDump,
            PausedReason::IoError => DomainReason::PausedIoError,
            PausedReason::Watchdog => DomainReason::PausedWatchdog,
            PausedReason::Snapshot => DomainReason::PausedSnapshot,
            PausedReason::ShuttingDown => DomainReason::PausedShuttingDown,
            PausedReason::Crashed => DomainReason::PausedCrashed,
            PausedReason::StartingUp => DomainReason::PausedStartingUp,
            PausedReason::PostCopy => DomainReason::PausedPostCopy,
            PausedReason::PostCopyFailed => DomainReason::PausedPostCopyFailed,
            PausedReason::ApiError | PausedReason::Unknown => DomainReason::PausedUnknown,
        },
        State::Shutoff(reason) => match reason {
            ShutoffReason::Shutdown => DomainReason::Shutdown,
            ShutoffReason::Destroyed => DomainReason::Destroyed,
            ShutoffReason::Crashed => DomainReason::Crashed,
            ShutoffReason::Migrated => DomainReason::Migrated,
            ShutoffReason::Saved => DomainReason::Saved,
            ShutoffReason::Failed => DomainReason::Failed,
            ShutoffReason::FromSnapshot => DomainReason::FromSnapshot,
            ShutoffReason::Daemon | ShutoffReason::Unknown => DomainReason::Unknown,
        },
        State::Crashed => DomainReason::Crashed,
        State::None | State::Running | State::Blocked | State::Shutdown | State::PmSuspended => DomainReason::Unknown,
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
