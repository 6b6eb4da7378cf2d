//! The states a domain can be in, and why.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    None,
    Running,
    Blocked,
    Paused(PausedReason),
    /// The guest is shutting down.
    Shutdown,
    Shutoff(ShutoffReason),
    Crashed,
    PmSuspended,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PausedReason {
    Unknown,
    User,
    Migration,
    Save,
    Dump,
    IoError,
    Watchdog,
    Snapshot,
    ShuttingDown,
    Crashed,
    StartingUp,
    PostCopy,
    PostCopyFailed,
    ApiError,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ShutoffReason {
    Unknown,
    /// The guest switched itself off.
    Shutdown,
    Destroyed,
    Crashed,
    Migrated,
    Saved,
    Failed,
    FromSnapshot,
    Daemon,
}

impl State {
    pub(crate) fn from_raw(state: i32, reason: i32) -> Self {
        match state {
            1 => Self::Running,
            2 => Self::Blocked,
            3 => Self::Paused(match reason {
                1 => PausedReason::User,
                2 => PausedReason::Migration,
                3 => PausedReason::Save,
                4 => PausedReason::Dump,
                5 => PausedReason::IoError,
                6 => PausedReason::Watchdog,
                7 | 9 => PausedReason::Snapshot,
                8 => PausedReason::ShuttingDown,
                10 => PausedReason::Crashed,
                11 => PausedReason::StartingUp,
                12 => PausedReason::PostCopy,
                13 => PausedReason::PostCopyFailed,
                14 => PausedReason::ApiError,
                _ => PausedReason::Unknown,
            }),
            4 => Self::Shutdown,
            5 => Self::Shutoff(match reason {
                1 => ShutoffReason::Shutdown,
                2 => ShutoffReason::Destroyed,
                3 => ShutoffReason::Crashed,
                4 => ShutoffReason::Migrated,
                5 => ShutoffReason::Saved,
                6 => ShutoffReason::Failed,
                7 => ShutoffReason::FromSnapshot,
                8 => ShutoffReason::Daemon,
                _ => ShutoffReason::Unknown,
            }),
            6 => Self::Crashed,
            7 => Self::PmSuspended,
            _ => Self::None,
        }
    }

    /// QEMU is there, whatever the guest does.
    pub fn is_active(self) -> bool {
        !matches!(self, Self::None | Self::Shutoff(_) | Self::Crashed)
    }
}
