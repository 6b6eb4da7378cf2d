//! Why bytes could not be had from somewhere.

use std::path::PathBuf;
use std::time::Duration;

use http::StatusCode;

/// What went wrong between us and a source. Addresses are shown without user names, passwords and queries: those may be
/// secret, and these sentences end in conditions that everybody reads.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An address that names nothing we can fetch.
    #[error("{url:?} cannot be imported: {why}")]
    Address {
        /// As it was given, without secrets.
        url: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A header that cannot be sent.
    #[error("the extra header {name:?} cannot be sent: a header is \"Name: value\", without control characters")]
    Header {
        /// Its name, never its value.
        name: String,
    },
    /// A file that a source needs: certificates, credentials, an archive.
    #[error("cannot read {}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A file that is not what it should be.
    #[error("{} is not {what}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What it should be.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The client could not be set up.
    #[error("cannot set up {what}")]
    Setup {
        /// Which part.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// No answer, or one that is not HTTP.
    #[error("HTTP request errored: Get {url:?}")]
    Request {
        /// Of whom it was asked.
        url: String,
        /// Why.
        #[source]
        source: reqwest::Error,
    },
    /// A server that accepts and then says nothing.
    #[error("{url} did not answer within {} s", after.as_secs_f32())]
    Silent {
        /// Who.
        url: String,
        /// How long it was given.
        after: Duration,
    },
    /// An answer that carries no image.
    #[error("expected status code 200, got {}. Status: {status}", status.as_u16())]
    Status {
        /// Who answered.
        url: String,
        /// With what.
        status: StatusCode,
        /// When to ask again, by the server.
        again: Option<Duration>,
    },
    /// A chain of redirections without an end.
    #[error("{url} redirects more than {limit} times")]
    Redirects {
        /// Where it began.
        url: String,
        /// How many are followed.
        limit: usize,
    },
    /// A redirection to something that is not fetched.
    #[error("{url} redirects to {location:?}, which is not an http or https address")]
    Redirect {
        /// Who redirects.
        url: String,
        /// Where to.
        location: String,
    },
    /// An answer to a question for a range that is not that range.
    #[error("{url} was asked for the bytes from {asked} and answered with {got}")]
    Range {
        /// Who.
        url: String,
        /// The offset asked for.
        asked: u64,
        /// What came.
        got: String,
    },
    /// The image is not the one whose beginning was read.
    #[error("{url} changed while it was read; import it again")]
    Changed {
        /// What.
        url: String,
    },
    /// The connection ended early.
    #[error("{url} ended after {got} of {expected} bytes")]
    Short {
        /// What.
        url: String,
        /// Bytes that came.
        got: u64,
        /// Bytes that were announced.
        expected: u64,
    },
    /// The connection dropped, and nothing says that a second answer would be the same bytes.
    #[error("{url} broke off after {got} bytes, and it has neither a length nor a validator to continue by")]
    Unrepeatable {
        /// What.
        url: String,
        /// Bytes that came.
        got: u64,
    },
    /// An answer that should be small is not.
    #[error("{url} answered with more than {limit} bytes where {what} was expected")]
    Large {
        /// Who.
        url: String,
        /// What was expected.
        what: &'static str,
        /// The bound.
        limit: usize,
    },
    /// An answer that should be a document is not one.
    #[error("{url} did not answer with {what}")]
    Document {
        /// Who.
        url: String,
        /// What was expected.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Credentials that are refused or cannot be used.
    #[error("cannot log in to {url}: {why}")]
    Credentials {
        /// Where.
        url: String,
        /// What is wrong.
        why: String,
    },
    /// Bytes that are not the ones their name promises.
    #[error("{what} has the digest {found}, not {expected}")]
    Digest {
        /// Of what.
        what: String,
        /// As it was named.
        expected: String,
        /// As it was read.
        found: String,
    },
    /// A container image without a disk, or one that is not for this machine.
    #[error("{0}")]
    Image(String),
    /// A tar archive that holds what must not be unpacked.
    #[error("the archive's entry {path:?} is refused: {why}")]
    Entry {
        /// Its path.
        path: String,
        /// What is wrong.
        why: &'static str,
    },
    /// A stream that is not the one that was meant.
    #[error("the source's checksum is {found}, not {expected}: what was fetched is deleted")]
    Checksum {
        /// As it was given.
        expected: crate::Checksum,
        /// As it was read.
        found: crate::Checksum,
    },
    /// The volume takes no more of an archive.
    #[error("the volume is full after {written} bytes: free space on its storage or use a larger one")]
    Full {
        /// Bytes of files that it took.
        written: u64,
    },
    /// Reading the bytes of something that was found, or writing them, failed.
    #[error("cannot {what}")]
    Io {
        /// What was tried.
        what: &'static str,
        /// Why.
        #[source]
        source: std::io::Error,
    },
}

impl Error {
    /// Whether it is the server's certificate that is in the way.
    pub fn is_untrusted(&self) -> bool {
        matches!(self, Self::Request { source, .. } if untrusted(source))
    }

    /// Whether asking the same again may well be answered.
    pub(super) fn transient(&self) -> bool {
        match self {
            Self::Request { source, .. } => !source.is_builder() && !untrusted(source),
            Self::Silent { .. } | Self::Short { .. } => true,
            Self::Status { status, .. } => matches!(status.as_u16(), 408 | 425 | 429 | 500 | 502 | 503 | 504),
            _ => false,
        }
    }

    /// How long the server asked to be left alone.
    pub(super) fn again(&self) -> Option<Duration> {
        match self {
            Self::Status { again, .. } => *again,
            _ => None,
        }
    }
}

/// A certificate that is not trusted now will not be in a minute.
fn untrusted(error: &(dyn std::error::Error + 'static)) -> bool {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(rustls::Error::InvalidCertificate(_)) = error.downcast_ref() {
            return true;
        }
        // An io::Error hides the error it carries from `source` and shows that error's source instead.
        if let Some(inner) = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::get_ref)
            && untrusted(inner)
        {
            return true;
        }
        next = error.source();
    }
    false
}

/// The kind says whether asking again can help: see [`Source::open`](super::Source::open).
impl From<Error> for std::io::Error {
    fn from(error: Error) -> Self {
        use std::io::ErrorKind::{InvalidData, NotFound, Other, PermissionDenied};
        let kind = match &error {
            error if error.transient() => Other,
            Error::Status { status: StatusCode::NOT_FOUND | StatusCode::GONE, .. } => NotFound,
            Error::Status { status: StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN, .. } => PermissionDenied,
            Error::Credentials { .. } => PermissionDenied,
            _ => InvalidData,
        };
        std::io::Error::new(kind, error)
    }
}

/// An address as it may be shown.
pub(super) fn shown(url: &url::Url) -> String {
    let mut url = url.clone();
    // Neither can fail for an address that has a host; others carry neither.
    let _ = url.set_username("");
    let _ = url.set_password(None);
    url.set_query(None);
    url.set_fragment(None);
    url.into()
}
