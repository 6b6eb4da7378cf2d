//! What can go wrong in a step, in sentences for its user.

use std::path::{Path, PathBuf};

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

    /// A param that makes no sense.
    pub(crate) fn param(name: &'static str, message: impl Into<String>) -> Error {
        Error::Param { name, message: message.into() }
    }
}
