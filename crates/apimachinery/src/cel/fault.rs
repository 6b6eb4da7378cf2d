//! Why an expression has no value.

/// Why there is no value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The expression failed on these values.
    Error(String),
    /// The expression cost too much.
    Spent,
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Error(text) => f.write_str(text),
            Self::Spent => f.write_str("operation cancelled: actual cost limit exceeded"),
        }
    }
}

impl Fault {
    pub(crate) fn new(text: impl Into<String>) -> Self {
        Self::Error(text.into())
    }
    pub(crate) fn overload() -> Self {
        Self::new("no such overload")
    }
}
