//! A client of NBD, the protocol in which QEMU serves disks: their bytes, and which of their blocks hold data or changed.
//!
//! ```text
//! greeting -> structured replies -> contexts -> the export   |   read, block status, read, …
//! ```
//! The server is not believed: what it says is bounded, and an answer that is not the answer to what was asked is an error.

mod client;
mod extents;

pub use client::Client;
pub use extents::{DIRTY, Extent, HOLE, ZERO, append, merge};

/// The context that tells data from holes and zeros.
pub const ALLOCATION: &str = "base:allocation";

/// The context of what changed, by the name of QEMU's bitmap.
pub fn dirty_bitmap(name: &str) -> String {
    format!("qemu:dirty-bitmap:{name}")
}

/// What goes wrong between a client and a server.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection.
    #[error("the connection to the NBD server broke")]
    Connection(#[from] std::io::Error),
    /// The server does not offer what was asked for.
    #[error("the NBD server refuses {what}: {why}")]
    Refused {
        /// An option of the protocol, in words.
        what: &'static str,
        /// Its answer.
        why: String,
    },
    /// The server could not do it.
    #[error("the NBD server failed with error {code}: {why}")]
    Failed {
        /// As errno numbers it.
        code: u32,
        /// Its answer.
        why: String,
    },
    /// What was asked for does not lie in the export.
    #[error("{length} bytes at {offset} are not within the {size} bytes of the export")]
    Beyond {
        /// Where it begins.
        offset: u64,
        /// How long it is.
        length: u32,
        /// How long the export is.
        size: u64,
    },
    /// The server does not keep to the protocol.
    #[error("the NBD server does not keep to the protocol: {0}")]
    Protocol(&'static str),
}
