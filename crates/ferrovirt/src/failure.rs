//! How failures are told: what, why, and what to do about it where that is known.

use std::fmt;
use std::process::ExitCode;

use crate::terminal;

/// An error with advice.
#[derive(Debug)]
struct Advised {
    error: anyhow::Error,
    hint: String,
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl std::error::Error for Advised {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Adds advice to an error.
pub(crate) fn advise(error: anyhow::Error, hint: impl Into<String>) -> anyhow::Error {
    anyhow::Error::new(Advised { error, hint: hint.into() })
}

/// A usage error: exit code 2.
#[derive(Debug)]
pub(crate) struct Usage(pub(crate) clap::Error);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl std::error::Error for Usage {}

/// What a program that was run ended with: who ran it has said all there is to say.
#[derive(Debug)]
pub(crate) struct Ended(pub(crate) u8);

impl fmt::Display for Ended {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "it ended with code {}", self.0)
    }
}

impl std::error::Error for Ended {}

/// Reads arguments; help and version are printed and end in success.
pub(crate) fn parse<A: clap::Parser>(words: Vec<std::ffi::OsString>) -> anyhow::Result<Option<A>> {
    let name = A::command().get_name().to_owned();
    let words = std::iter::once(std::ffi::OsString::from(format!("ferrovirt {name}"))).chain(words);
    match A::try_parse_from(words) {
        Ok(arguments) => Ok(Some(arguments)),
        Err(error) if !error.use_stderr() => {
            terminal::say(error.to_string().trim_end());
            Ok(None)
        }
        Err(error) => Err(Usage(error).into()),
    }
}

/// Prints the error and gives the exit code: 2 for usage, that of a program that was run, else 1.
pub(crate) fn report(error: &anyhow::Error) -> ExitCode {
    if let Some(Ended(code)) = error.downcast_ref() {
        return ExitCode::from(*code);
    }
    terminal::complain(&text(error));
    ExitCode::from(if error.is::<Usage>() { 2 } else { 1 })
}

fn text(error: &anyhow::Error) -> String {
    if let Some(Usage(usage)) = error.downcast_ref() {
        return usage.to_string().trim_end().to_owned();
    }
    let mut text = "error".to_owned();
    let mut last = String::new();
    for cause in error.chain() {
        // What the API server answered is a sentence; the library shows the whole answer.
        let words = match (cause.downcast_ref(), cause.downcast_ref::<Box<kube::core::Status>>()) {
            (Some(kube::Error::Api(status)), _) | (_, Some(status)) => status.message.clone(),
            _ => cause.to_string(),
        };
        // Some libraries repeat their source in their own words.
        if !last.contains(&words) {
            text.push_str(": ");
            text.push_str(&words);
        }
        last = words;
    }
    for cause in error.chain() {
        if let Some(advised) = cause.downcast_ref::<Advised>() {
            text.push_str("\nhint: ");
            text.push_str(&advised.hint);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::anyhow;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are made in the call")]
    fn check(error: anyhow::Error, expect: &str) {
        assert_eq!(text(&error), expect);
    }

    #[test]
    fn errors_show_causes_and_hint() {
        check(anyhow!("no route").context("cannot start the node"), "error: cannot start the node: no route");
        let advised = advise(anyhow!("no route").context("cannot dial"), "bring the link up");
        check(advised.context("cannot start"), "error: cannot start: cannot dial: no route\nhint: bring the link up");
        check(anyhow!("inner").context("outer: inner"), "error: outer: inner");
        let status = kube::core::Status::failure("pods \"a\" is forbidden", "Forbidden").with_code(403);
        let refused = anyhow::Error::new(kube::Error::Api(status.boxed())).context("cannot apply Pod a");
        check(refused, "error: cannot apply Pod a: pods \"a\" is forbidden");
    }
}
