//! What can go wrong in this controller.

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
    Render(#[source] crate::vmi::pod::RenderError),
    /// Somebody began to use a disk that is to be copied.
    #[error("{0}")]
    InUse(String),
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
