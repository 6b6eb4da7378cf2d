//! What of a HyperConverged object cannot be done.

/// A value of the object that cannot be rendered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {message}")]
pub struct Refusal {
    /// The field or annotation.
    pub field: String,
    /// What is wrong and what to do about it.
    pub message: String,
}

impl Refusal {
    pub(crate) fn new(field: impl Into<String>, message: impl Into<String>) -> Self {
        Refusal { field: field.into(), message: message.into() }
    }
}
