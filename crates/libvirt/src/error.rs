//! What libvirt says when a call fails.

use std::path::PathBuf;

use crate::xdr::Malformed;

/// Numbers of `virErrorNumber` that callers decide by.
pub mod code {
    pub const INTERNAL_ERROR: i32 = 1;
    pub const INVALID_ARGUMENT: i32 = 8;
    pub const OPERATION_INVALID: i32 = 55;
    pub const NO_DOMAIN: i32 = 42;
    pub const OPERATION_TIMEOUT: i32 = 68;
    pub const AGENT_UNRESPONSIVE: i32 = 86;
    pub const AGENT_UNSYNCED: i32 = 90;
    pub const NO_SUPPORT: i32 = 3;
    pub const INVALID_CHECKPOINT: i32 = 102;
    pub const NO_CHECKPOINT: i32 = 103;
    pub const CHECKPOINT_INCONSISTENT: i32 = 109;
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call that libvirt refused.
    #[error("{call}: {message}")]
    Call { call: &'static str, code: i32, message: String },
    #[error("connecting to libvirt at {socket}")]
    Connect {
        socket: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("libvirt at {socket} asks for authentication, which only a daemon of another user does")]
    Authentication { socket: PathBuf },
    #[error("{call}: the request was not sent")]
    Send {
        call: &'static str,
        #[source]
        source: std::io::Error,
    },
    /// Whether the daemon did what was asked is unknown.
    #[error("{call}: the connection to libvirt ended before the answer")]
    Ended { call: &'static str },
    #[error("{call}: libvirt's answer is not understood")]
    Answer {
        call: &'static str,
        #[source]
        source: Malformed,
    },
    #[error("{0} holds a zero byte")]
    Text(&'static str),
    #[error("{what} is larger than {limit} bytes")]
    TooLarge { what: &'static str, limit: usize },
}

impl Error {
    /// The number libvirt gave, 0 when there was none.
    pub fn code(&self) -> i32 {
        match self {
            Self::Call { code, .. } => *code,
            _ => 0,
        }
    }

    pub fn is_no_domain(&self) -> bool {
        self.code() == code::NO_DOMAIN
    }

    /// Why the guest's agent did not do what it was told to, in its own words; none where it did not answer.
    pub fn refused_by_agent(&self) -> Option<&str> {
        // The code is another one in newer versions of libvirt.
        let Self::Call { message, .. } = self else { return None };
        let (_, rest) = message.split_once("unable to execute QEMU agent command")?;
        Some(rest.split_once("': ").map_or(rest, |(_, why)| why))
    }

    /// A checkpoint is not there, or what it stands for cannot be relied on: a backup from it would lack changes.
    pub fn is_bad_checkpoint(&self) -> bool {
        [code::INVALID_CHECKPOINT, code::NO_CHECKPOINT, code::CHECKPOINT_INCONSISTENT].contains(&self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_agent_says_is_told_apart_from_its_silence() {
        #[track_caller]
        fn check(code: i32, message: &str, expect: Option<&str>) {
            let error = Error::Call { call: "asking the guest agent", code, message: message.to_owned() };
            assert_eq!(error.refused_by_agent(), expect);
        }
        let refusal = "internal error: unable to execute QEMU agent command 'guest-ssh-add-authorized-keys': failed to lookup user 'eve': x";
        check(code::INTERNAL_ERROR, refusal, Some("failed to lookup user 'eve': x"));
        let newer = refusal.replace("internal error", "guest agent command failed");
        check(0, &newer, Some("failed to lookup user 'eve': x"));
        check(code::INTERNAL_ERROR, "internal error: unable to parse", None);
        check(code::AGENT_UNRESPONSIVE, "Guest agent is not responding: QEMU guest agent is not connected", None);
        assert_eq!(Error::Text("x").refused_by_agent(), None);
    }
}
