//! The only place that prints, and the subscriber that logs go through.

use std::io::Write;

/// A line on standard output. A reader that went away is not an error.
pub(crate) fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// A line on standard error.
pub(crate) fn complain(line: &str) {
    let _ = writeln!(std::io::stderr().lock(), "{line}");
}

/// Sends the log to standard error, from `level` up or as `FERROVIRT_LOG` says.
pub(crate) fn log(level: &str) {
    let filter = tracing_subscriber::EnvFilter::try_from_env("FERROVIRT_LOG")
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new(level));
    let subscriber = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(false);
    // A second subscriber is refused, and the first one is what was asked for.
    let _ = subscriber.try_init();
}
