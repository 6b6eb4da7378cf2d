//! What can go wrong in the programs of this crate.

/// A program's failure, naming what it was doing.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the API server failed.
    #[error("cannot {verb} {kind} {name}")]
    Api {
        /// What was asked.
        verb: &'static str,
        /// Of which kind.
        kind: String,
        /// Its name.
        name: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// A manifest could not be applied or removed.
    #[error(transparent)]
    Apply(#[from] kit::apply::Error),
    /// A certificate could not be made.
    #[error("cannot make the certificates")]
    Certificates(#[source] kit::certs::Error),
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
    pub fn api(verb: &'static str, kind: &str, name: &str) -> impl FnOnce(kube::Error) -> Error + use<> {
        let (kind, name) = (kind.to_owned(), name.to_owned());
        move |source| Error::Api { verb, kind, name, source: Box::new(source) }
    }

    /// A constructor for failures of setting up.
    pub fn setup<E: std::error::Error + Send + Sync + 'static>(what: &'static str) -> impl FnOnce(E) -> Error {
        move |source| Error::Setup { what, source: Box::new(source) }
    }
}
