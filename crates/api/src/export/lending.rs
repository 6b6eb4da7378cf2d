//! How the server of a backup comes to its data: in its pod it waits at a socket for the agent of its node, and has of it as
//! many connections to the guest's NBD server as it asks for. Neither opens anything else to the other, and no data passes
//! through the agent.
//!
//! ```text
//! agent:  connects, {"identity":…}\n        server: {}\n, or {"refused":…}\n
//! server: a byte, for each connection       agent:  {}\n with a descriptor, or {"refused":…}\n
//! ```

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

/// The emptyDir of the server's pod in which the socket is.
pub const VOLUME: &str = "backup";
/// Where it is mounted.
pub const DIRECTORY: &str = "/backup";
/// The name of the socket.
pub const SOCKET: &str = "agent";
/// What the server asks for a connection with.
pub const ASK: u8 = b'+';
/// Bytes of the longest line.
pub const LONGEST_LINE: usize = 4 << 10;

/// Says whose backup the agent has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// As [`identity`] says it.
    pub identity: String,
}

/// Yes, or why not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Answer {
    /// In a sentence.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub refused: Option<String>,
}

/// One backup of one instance: no other has this name. The instance's part is the agent's own word, and not that of whoever
/// asks it to lend.
pub fn identity(instance: &str, backup: &str, started: &str) -> String {
    format!("{instance}/{backup}/{started}")
}

/// The name of the socket that QEMU serves a backup at, in the launcher's pod: another for each backup, so that no server is
/// ever lent what another one is to show.
pub fn served_at(backup: &str, started: &str) -> String {
    let digest = Sha256::digest(format!("{backup}/{started}"));
    digest.iter().take(8).fold("backup-".to_owned(), |mut name, byte| {
        let _ = write!(name, "{byte:02x}");
        name
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_backup_is_served_at_its_own_socket() {
        let (one, at) = (served_at("b", "2026-01-31T13:59:59Z"), "2026-01-31T13:59:59Z");
        assert_eq!(one, served_at("b", at));
        assert_ne!(one, served_at("c", at));
        assert_ne!(one, served_at("b", "2026-01-31T14:00:00Z"));
        assert!(served_at(&"x".repeat(253), at).len() == "backup-".len() + 16);
    }
}
