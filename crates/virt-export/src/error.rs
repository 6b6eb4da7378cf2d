//! What keeps the server or the proxy from serving.

/// A failure to set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The process could not be set up.
    #[error("cannot {what}")]
    Setup {
        /// What.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A volume that is to be exported cannot be read.
    #[error("the volume at {path} cannot be exported")]
    Volume {
        /// Where it is mounted.
        path: String,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// A variable that the controller sets is not what it should be.
    #[error("the variable {name}={value:?} cannot be used: {why}")]
    Variable {
        /// Its name.
        name: &'static str,
        /// Its value.
        value: String,
        /// What is expected.
        why: String,
    },
}

impl Error {
    /// A constructor for failures of setting up.
    pub(crate) fn setup<E>(what: &'static str) -> impl FnOnce(E) -> Error
    where
        E: Into<Box<dyn std::error::Error + Send + Sync>>,
    {
        move |source| Error::Setup { what, source: source.into() }
    }
}
