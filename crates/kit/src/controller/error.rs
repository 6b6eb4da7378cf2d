//! Why a controller's work failed: the operation with its object, and the client's error as the source.

/// A failed operation of a controller. All of them are retried with back-off; what a watch will repair is not an error.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request to the API server was refused or did not arrive.
    #[error("{operation} {object}")]
    Api {
        /// `create pod`, `patch status of deployment`
        operation: &'static str,
        /// `namespace/name`
        object: String,
        /// What the client said.
        #[source]
        source: Box<kube::Error>,
    },
    /// An object could not be turned into JSON or back.
    #[error("encode {object}")]
    Encode {
        /// `namespace/name`
        object: String,
        /// The field that failed.
        #[source]
        source: serde_json::Error,
    },
    /// A label selector of an object cannot be understood.
    #[error("selector of {object} is invalid")]
    Selector {
        /// `namespace/name`
        object: String,
    },
    /// Work is left that no watch will announce.
    #[error("{object}: {what}")]
    Unfinished {
        /// `namespace/name`
        object: String,
        /// What is left.
        what: String,
    },
}

/// Shorthand.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// The HTTP code of a refusal; 0 for everything else.
    pub fn code(&self) -> u16 {
        match self {
            Error::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => status.code,
                _ => 0,
            },
            _ => 0,
        }
    }
    /// The status message of a refusal, else the whole chain.
    pub fn message(&self) -> String {
        match self {
            Error::Api { source, .. } => match source.as_ref() {
                kube::Error::Api(status) => status.message.clone(),
                other => other.to_string(),
            },
            other => other.to_string(),
        }
    }
    /// The chain of causes on one line, for logs.
    pub fn chain(&self) -> String {
        crate::Chain(self).to_string()
    }
}

/// Puts the operation and the object's name on a client error.
pub trait During<T> {
    /// `operation` reads as a verb with the kind, `object` is `namespace/name`.
    fn during(self, operation: &'static str, object: impl ToString) -> Result<T>;
}

impl<T> During<T> for Result<T, kube::Error> {
    fn during(self, operation: &'static str, object: impl ToString) -> Result<T> {
        self.map_err(|source| Error::Api { operation, object: object.to_string(), source: Box::new(source) })
    }
}

impl<T> During<T> for Result<T, serde_json::Error> {
    fn during(self, _operation: &'static str, object: impl ToString) -> Result<T> {
        self.map_err(|source| Error::Encode { object: object.to_string(), source })
    }
}

/// Turns "it is not there (any more)" into `None`: most deletes and patches race with others and that is fine.
pub fn gone_is_none<T>(result: Result<T>) -> Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        Err(error) if error.code() == 404 => Ok(None),
        Err(error) => Err(error),
    }
}
