//! What can go wrong in this controller, and what follows from it.

use std::time::Duration;

use kit::Chain;
use kit::queue::Next;
use kit::store::Key;

/// A controller's failure, naming what it was doing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the API server failed.
    #[error("cannot {verb} {kind} {name}")]
    Api {
        /// What was asked.
        verb: &'static str,
        /// Of which kind.
        kind: &'static str,
        /// Namespace and name.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// A pod could not be rendered.
    #[error("the VMI cannot be run")]
    Render(#[source] RenderError),
    /// What a guest keeps beside its disks has no place.
    #[error("{0}")]
    NoStateStorage(String),
    /// Somebody began to use a disk that is to be copied.
    #[error("{0}")]
    InUse(String),
    /// The volumes that come with a guest are on their way to the node that it goes to.
    #[error("attachment pod {0} does not run yet")]
    Attaching(String),
    /// A volume that the guest is to let go of cannot go to another node with it.
    #[error("volume {0} has not left the guest yet, and its claim is gone or goes: the guest moves afterwards")]
    Detaching(String),
    /// How large a claim is, which a disk is copied into, has yet to be heard of.
    #[error("the size of claim {0} is not known yet")]
    Unsized(String),
    /// Somebody may not have what is asked for in their name.
    #[error("{0}")]
    Forbidden(String),
    /// What a disk is to be copied from cannot be found.
    #[error("{0}")]
    NoSource(String),
    /// The machine cannot be what it chose to be.
    #[error("{0}")]
    Chosen(String),
    /// Somebody else has what is to be made.
    #[error("{0}")]
    Taken(String),
    /// The process could not be set up.
    #[error("cannot {what}")]
    Setup {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// Another instance leads now.
    #[error("leadership was lost")]
    Deposed,
}

impl Error {
    /// A constructor for failures of one request.
    pub fn api<'a>(
        verb: &'static str,
        kind: &'static str,
        namespace: &'a str,
        name: &'a str,
    ) -> impl FnOnce(kube::Error) -> Error + 'a {
        move |source| Error::Api {
            verb,
            kind,
            name: if namespace.is_empty() { name.to_owned() } else { format!("{namespace}/{name}") },
            source: Box::new(source),
        }
    }

    /// A constructor for failures of setting up.
    pub fn setup<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::Setup { what, source: Box::new(source) }
    }

    /// True when somebody else wrote the object first.
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Api { source, .. } if matches!(&**source, kube::Error::Api(s) if s.code == 409))
    }
}

/// Between two looks at what nobody tells of.
const LOOK_AGAIN: Duration = Duration::from_millis(500);

/// What follows from a pass over the object `key` of this kind: an error is logged, and the object looked at again.
pub(crate) fn settled(kind: &'static str, key: &Key, outcome: Result<Next, Error>) -> Next {
    match outcome {
        Ok(next) => next,
        Err(error) if error.is_conflict() => {
            tracing::debug!(kind, object = %key, error = %Chain(&error), "conflict, again with the newer object");
            Next::Retry
        }
        Err(error @ (Error::Attaching(_) | Error::Detaching(_) | Error::Unsized(_))) => {
            tracing::debug!(kind, object = %key, error = %Chain(&error), "it is waited for");
            Next::After(LOOK_AGAIN)
        }
        Err(error) => {
            tracing::warn!(kind, object = %key, error = %Chain(&error), "not reconciled, and will be tried again");
            Next::Retry
        }
    }
}

/// A pod could not be rendered from what it is for.
#[derive(Debug, thiserror::Error)]
#[error("the launcher pod cannot be rendered")]
pub struct RenderError(#[source] pub(crate) serde_json::Error);
