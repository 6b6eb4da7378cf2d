//! Printing an error with everything that caused it, on one line.

use std::error::Error;
use std::fmt;

/// Displays an error and its sources as `what: why: why`.
///
/// Errors of this workspace never repeat their source in `Display`, so this is the one place where the chain becomes text.
pub struct Chain<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Chain<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut last, mut source) = said(self.0);
        write!(f, "{last}")?;
        while let Some(error) = source {
            let (text, next) = said(error);
            // Foreign errors do repeat their source; once is enough for a reader.
            if !last.ends_with(&text) {
                write!(f, ": {text}")?;
            }
            last = text;
            source = next;
        }
        Ok(())
    }
}

/// What `error` says, and what it says beyond that. A refusal of the API server is its sentence: the client's error around
/// it prints the whole object in the words of its source code.
fn said<'a>(error: &'a (dyn Error + 'static)) -> (String, Option<&'a (dyn Error + 'static)>) {
    // A boxed error is a type of its own.
    let boxed = || error.downcast_ref::<Box<kube::Error>>().map(Box::as_ref);
    match error.downcast_ref().or_else(boxed) {
        Some(kube::Error::Api(status)) if !status.message.is_empty() => (status.message.clone(), None),
        _ => (error.to_string(), error.source()),
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

    #[derive(Debug, thiserror::Error)]
    #[error("cannot create pod a/b")]
    struct Create(#[source] kube::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("cannot create pod a/b")]
    struct CreateBoxed(#[source] Box<kube::Error>);

    #[test]
    fn a_refusal_of_the_api_server_is_its_sentence() {
        let status = kube::core::Status::failure("pods \"b\" is forbidden: no room", "Forbidden").with_code(403);
        let refusal = || kube::Error::Api(Box::new(status.clone()));
        assert_eq!(Chain(&refusal()).to_string(), "pods \"b\" is forbidden: no room");
        let expect = "cannot create pod a/b: pods \"b\" is forbidden: no room";
        assert_eq!(Chain(&Create(refusal())).to_string(), expect);
        assert_eq!(Chain(&CreateBoxed(Box::new(refusal()))).to_string(), expect);
    }
}
