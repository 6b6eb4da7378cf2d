//! What can go wrong with the networks of a pod.

use std::path::PathBuf;

/// An operation that failed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the API server failed.
    #[error("API server: {what}")]
    Api {
        /// The request, in words.
        what: String,
        #[source]
        source: Box<kube::Error>,
    },
    /// A file operation failed.
    #[error("{what} {}", path.display())]
    File {
        /// The operation, in words.
        what: &'static str,
        /// On what.
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The pod, or a definition that it names, asks for something that cannot be had. A sentence for the pod's owner.
    #[error("{0}")]
    Invalid(String),
}

impl Error {
    pub(crate) fn api(what: impl Into<String>) -> impl FnOnce(kube::Error) -> Error {
        move |source| Error::Api { what: what.into(), source: Box::new(source) }
    }

    pub(crate) fn file(what: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Error {
        move |source| Error::File { what, path: path.into(), source }
    }
}

/// What this crate's functions return.
pub type Result<T, E = Error> = std::result::Result<T, E>;
