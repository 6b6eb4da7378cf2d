//! Trials, and what is told of them after everything else, for whoever sees only the end of a long output: which took longest,
//! and, in short, why some of them failed.

use std::process::ExitCode;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::Result;
use libtest_mimic::{Failed, Trial};

static FAILURES: Mutex<Vec<String>> = Mutex::new(Vec::new());
static TIMES: Mutex<Vec<(Duration, String)>> = Mutex::new(Vec::new());
/// So many of the longest are named.
const LONGEST: usize = 30;
/// Of a reason, its beginning and its end: what was wrong, and what was seen last.
const LINES: usize = 3;
const WIDTH: usize = 400;

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
