//! Why a machine does not run, and what to do about it, as one sentence or two.

use std::fmt;

/// Why, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    why: String,
    remark: Option<String>,
    next: String,
}

impl Verdict {
    pub(super) fn new(why: impl Into<String>, next: impl Into<String>) -> Self {
        Self { why: why.into(), remark: None, next: next.into() }
    }

    /// A sentence between the cause and the command.
    pub(super) fn remark(mut self, remark: impl Into<String>) -> Self {
        self.remark = Some(remark.into());
        self
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. ", self.why)?;
        if let Some(remark) = &self.remark {
            write!(f, "{remark}. ")?;
        }
        write!(f, "Next: `{}`", self.next)
    }
}
