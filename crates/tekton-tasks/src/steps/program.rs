//! Programs of the image, each with a limit.

use std::fs::File;
use std::process::Stdio;
use std::time::Duration;

use tokio::process::Command;

use crate::Error;

/// How much of what a program said is told.
const TOLD: usize = 2000;

/// Runs a program and returns what it printed.
///
/// # Errors
/// When it cannot be started, fails, or does not end.
pub(super) async fn output(program: &str, words: Vec<String>, patience: Duration) -> Result<String, Error> {
    let mut command = Command::new(program);
    command.args(words).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let failed = |message: String| Error::Program { program: program.to_owned(), message };
    let running = command.spawn().map_err(|error| failed(error.to_string()))?.wait_with_output();
    let ended = match tokio::time::timeout(patience, running).await {
        Ok(ended) => ended.map_err(|error| failed(error.to_string()))?,
        Err(_) => return Err(failed(format!("it has not ended after {} s", patience.as_secs()))),
    };
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    if ended.status.success() {
        return Ok(text(&ended.stdout));
    }
    Err(failed(format!("{}: {}", ended.status, tail(&text(&ended.stderr)))))
}

/// Runs a program whose output is the step's; its exit code.
///
/// # Errors
/// When it cannot be started, or does not end.
pub(super) async fn run(
    program: &str,
    words: &[String],
    variables: &[(&str, &str)],
    patience: Duration,
) -> Result<u8, Error> {
    let mut command = Command::new(program);
    command.args(words).envs(variables.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
    let failed = |message: String| Error::Program { program: program.to_owned(), message };
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    match tokio::time::timeout(patience, child.wait()).await {
        Ok(ended) => Ok(code(ended.map_err(|error| failed(error.to_string()))?)),
        Err(_) => Err(failed(format!("it has not ended after {} s", patience.as_secs()))),
    }
}

/// Runs a program and hands what it prints to `read` as it comes; its exit code. What it says on standard error is the step's.
///
/// # Errors
/// When it cannot be started or does not end, or what it printed cannot be read, which is told with the program's code.
pub(super) async fn piped(
    program: &str,
    words: &[String],
    variables: &[(&str, &str)],
    patience: Duration,
    read: impl FnOnce(File) -> Result<(), Error> + Send + 'static,
) -> Result<u8, Error> {
    let failed = |message: String| Error::Program { program: program.to_owned(), message };
    let mut command = Command::new(program);
    command.args(words).envs(variables.iter().copied());
    command.stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
    let mut child = command.spawn().map_err(|error| failed(error.to_string()))?;
    let printed = child.stdout.take().ok_or_else(|| failed("it has no standard output".to_owned()))?;
    let printed = printed.into_owned_fd().map_err(|error| failed(error.to_string()))?;
    let reading = tokio::task::spawn_blocking(move || read(File::from(printed)));
    let ended = match tokio::time::timeout(patience, child.wait()).await {
        Ok(ended) => code(ended.map_err(|error| failed(error.to_string()))?),
        Err(_) => return Err(failed(format!("it has not ended after {} s", patience.as_secs()))),
    };
    match reading.await.map_err(|error| failed(format!("what it printed was not read: {error}")))? {
        Ok(()) => Ok(ended),
        Err(error) => Err(failed(format!("it ended with {ended}, and {}", kit::Chain(&error)))),
    }
}

/// The exit code; that of a shell where a signal ended the program.
pub(super) fn code(ended: std::process::ExitStatus) -> u8 {
    use std::os::unix::process::ExitStatusExt as _;
    let code = ended.code().or_else(|| ended.signal().map(|signal| 128 + signal)).unwrap_or(1);
    u8::try_from(code).unwrap_or(1)
}

fn tail(text: &str) -> &str {
    let from = text.char_indices().rev().nth(TOLD - 1).map_or(0, |(at, _)| at);
    &text[from..]
}

#[cfg(test)]
mod tests {
    use std::io::Read as _;

    use super::*;

    async fn print(script: &str, read: impl FnOnce(File) -> Result<(), Error> + Send + 'static) -> Result<u8, Error> {
        piped("sh", &["-c", script].map(str::to_owned), &[], Duration::from_secs(60), read).await
    }

    #[tokio::test]
    async fn what_is_printed_is_read_as_it_comes() {
        let read = |mut file: File| {
            let mut text = String::new();
            file.read_to_string(&mut text).unwrap();
            assert_eq!(text.len(), 200_000);
            Ok(())
        };
        assert_eq!(print("head -c 200000 /dev/zero; exit 3", read).await.unwrap(), 3);
        // Who stops reading ends who prints.
        let full = |_| Err(Error::Failed("there is no room".to_owned()));
        let error = print("while echo x; do :; done", full).await.unwrap_err().to_string();
        assert!(error.contains("there is no room"), "{error}");
    }
}
