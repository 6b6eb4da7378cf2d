//! Printing an error with everything that caused it, on one line.

use std::{error::Error, fmt};

/// Displays an error and its sources as `what: why: why`.
///
/// Errors of this workspace never repeat their source in `Display`, so this is the one place where the chain becomes text.
pub struct Chain<'a>(pub &'a (dyn Error + 'a));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)?;
        let mut last = self.0.to_string();
        let mut source = self.0.source();
        while let Some(error) = source {
            let text = error.to_string();
            // Foreign errors do repeat their source; once is enough for a reader.
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
            source = error.source();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::Chain;

    #[derive(Debug, thiserror::Error)]
    #[error("cannot open the store")]
    struct Outer(#[source] std::io::Error);

    #[test]
    fn prints_each_cause_once() {
        let error = Outer(std::io::Error::other("disk is full"));
        assert_eq!(Chain(&error).to_string(), "cannot open the store: disk is full");
    }
}
