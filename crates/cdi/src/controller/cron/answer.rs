//! What is known of a cron's source once it was asked for. Plain data.

use kit::queue::Next;

/// What was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Names what the source is: two that are the same have the same.
    pub digest: String,
    /// Where a stream's image is.
    pub reference: Option<String>,
}

/// What asking has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Asked {
    /// This.
    Found(Found),
    /// Nothing yet; when to look again, if nobody tells.
    Later(Next),
    /// Nothing.
    Unknown(Unknown),
}

/// Why it is not known: reason and message of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// `NoDigest` or `NotAuthorized`.
    pub reason: &'static str,
    /// In words.
    pub message: String,
}

/// Reason of a source that nobody may have.
pub const NOT_AUTHORIZED: &str = "NotAuthorized";

pub(super) fn unknown(message: impl Into<String>) -> Unknown {
    Unknown { reason: "NoDigest", message: message.into() }
}
