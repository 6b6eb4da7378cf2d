//! Trials, and what is told of them after everything else, for whoever sees only the end of a long output: which took longest,
//! and, in short, why some of them failed.

#![expect(clippy::print_stderr, reason = "whoever runs the tests reads it")]

use std::fs::OpenOptions;
use std::io::Write as _;
use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};

static FAILURES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());
/// So many of the longest are named.
const LONGEST: usize = 30;
/// Of a reason, its beginning and its end: what was wrong, and what was seen last.
const LINES: usize = 3;
const WIDTH: usize = 400;

/// The kind of a trial that is not always run.
const LONG: &str = "long";
/// `all` where all trials are to run, as `make test-all` does; `long` where only those that take long are.
const WHICH: &str = "E2E_TRIALS";
/// Where the times of trials are appended, for the table at the end of `scripts/test.sh`: one line each, seconds and name.
const TABLE: &str = "E2E_TIMES";

/// A trial that runs only where all do, or where a name is asked for.
pub fn long(name: impl Into<String>, run: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    trial(name, run).with_kind(LONG)
}

/// Those of the trials that are to run.
pub fn selected(trials: Vec<Trial>, arguments: &Arguments) -> Vec<Trial> {
    let which = std::env::var(WHICH).unwrap_or_default();
    let runs = |long: bool| match which.as_str() {
        _ if arguments.filter.is_some() => true,
        "all" => true,
        "long" => long,
        _ => !long,
    };
    trials.into_iter().filter(|trial| runs(trial.kind() == LONG)).collect()
}

/// A trial that is reported by `conclude` if it fails.
pub fn trial(name: impl Into<String>, run: impl FnOnce() -> Result<()> + Send + 'static) -> Trial {
    let name = name.into();
    Trial::test(name.clone(), move || {
        let begin = Instant::now();
        let outcome = run();
        TIMES.lock().unwrap_or_else(PoisonError::into_inner).push((begin.elapsed(), name.clone()));
        outcome.map_err(|error| {
            let reason = format!("{error:#}");
            FAILURES.lock().unwrap_or_else(PoisonError::into_inner).push(format!("{name}: {}", short(&reason)));
            Failed::from(reason)
        })
    })
}

/// Tells which trials took longest and the reasons of all that failed, and how the program ends.
pub fn conclude(failed: bool) -> ExitCode {
    let mut times = std::mem::take(&mut *TIMES.lock().unwrap_or_else(PoisonError::into_inner));
    times.sort_by(|a, b| b.cmp(a));
    let longest = times.iter().take(LONGEST).map(|(time, name)| format!("{name} {} s", time.as_secs()));
    eprintln!("longest: {}", longest.collect::<Vec<_>>().join(", "));
    let rows: String = times.iter().map(|(time, name)| format!("{} {name}\n", time.as_secs())).collect();
    if let Some(path) = std::env::var_os(TABLE)
        && let Err(error) =
            OpenOptions::new().append(true).create(true).open(&path).and_then(|mut to| to.write_all(rows.as_bytes()))
    {
        eprintln!("error: the times of the tests cannot be written to {}: {error}", path.display());
        return ExitCode::FAILURE;
    }
    for failure in FAILURES.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
        eprintln!("failed: {failure}");
    }
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn short(reason: &str) -> String {
    let lines: Vec<&str> = reason.lines().filter(|line| !line.trim().is_empty()).collect();
    let cut = |line: &&str| line.chars().take(WIDTH).collect::<String>();
    let last = lines.len().saturating_sub(LINES).max(LINES);
    let kept = lines.iter().take(LINES).chain(lines.iter().skip(last));
    kept.map(cut).collect::<Vec<_>>().join("\n  ")
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_reason_is_shortened() {
        assert_eq!(super::short("one\n\ntwo"), "one\n  two");
        let many: Vec<String> = (0..20).map(|n| n.to_string()).collect();
        assert_eq!(super::short(&many.join("\n")).replace("\n  ", " "), "0 1 2 17 18 19");
        assert_eq!(super::short(&"x".repeat(1000)).len(), super::WIDTH);
    }
}
