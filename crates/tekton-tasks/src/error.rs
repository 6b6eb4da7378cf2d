//! What can go wrong in a step, in sentences for its user.

use std::path::{Path, PathBuf};
use std::time::Duration;

use kube::runtime::watcher;

/// A step's failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A param that makes no sense.
    #[error("param {name}: {message}")]
    Param {
        /// Which.
        name: &'static str,
        /// What is wrong and what to do.
        message: String,
    },
    /// A request to the API server failed.
    #[error("cannot {verb} {what}")]
    Api {
        /// What was asked.
        verb: &'static str,
        /// Kind, namespace and name.
        what: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// What was waited for has ended otherwise, or what was asked for is not there.
    #[error("{0}")]
    Failed(String),
    /// It took too long.
    #[error("{what} after {seconds} s")]
    TooLate {
        /// What did not happen.
        what: String,
        /// How long it was waited for.
        seconds: u64,
        /// Why nothing was known of it in the end, where that is so.
        #[source]
        source: Option<Box<watcher::Error>>,
    },
    /// The cluster does not let it be watched.
    #[error("cannot watch {what}")]
    Watch {
        /// Kind, namespace and name.
        what: String,
        /// Why.
        #[source]
        source: Box<watcher::Error>,
    },
    /// Several things failed, of which none hides another, or one did beside a command that has a code of its own.
    #[error("{told}")]
    Together {
        /// Each in a sentence.
        told: String,
        /// The exit code of the step.
        code: u8,
    },
    /// A file.
    #[error("cannot {verb} {path}", path = path.display())]
    File {
        /// What was done.
        verb: &'static str,
        /// With which.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A program of the image could not be run, or said no.
    #[error("{program}: {message}")]
    Program {
        /// Which.
        program: String,
        /// The end of what it said.
        message: String,
    },
    /// The cluster cannot be reached.
    #[error("cannot reach the API server")]
    Cluster(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// The registry refused or did not answer.
    #[error("cannot push {reference}")]
    Push {
        /// Where to.
        reference: String,
        /// Why.
        #[source]
        source: Box<oci_client::errors::OciDistributionError>,
    },
}

impl Error {
    /// A constructor for failures of one request.
    pub(crate) fn api(verb: &'static str, what: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        let what = what.into();
        move |source| Error::Api { verb, what, source: Box::new(source) }
    }

    /// A constructor for failures with a file.
    pub(crate) fn file(verb: &'static str, path: &Path) -> impl FnOnce(std::io::Error) -> Error + use<> {
        let path = path.to_owned();
        move |source| Error::File { verb, path, source }
    }

    /// It took too long.
    pub(crate) fn late(what: String, patience: Duration) -> Error {
        Error::too_late(what, patience, None)
    }

    /// It took too long, and this is why nothing was known of it in the end. What is left of a second counts as one.
    pub(crate) fn too_late(what: String, patience: Duration, source: Option<watcher::Error>) -> Error {
        let seconds = (patience.saturating_add(Duration::from_millis(999))).as_secs();
        Error::TooLate { what, seconds, source: source.map(Box::new) }
    }

    /// The exit code of a step that ends so.
    pub fn code(&self) -> u8 {
        match self {
            Error::Together { code, .. } => *code,
            _ => 1,
        }
    }

    /// Whether what was asked for cannot be done as things are at the moment.
    pub(crate) fn is_conflict(&self) -> bool {
        matches!(self, Error::Api { source, .. } if matches!(source.as_ref(), kube::Error::Api(status) if status.code == 409))
    }

    /// A param that makes no sense.
    pub(crate) fn param(name: &'static str, message: impl Into<String>) -> Error {
        Error::Param { name, message: message.into() }
    }
}
