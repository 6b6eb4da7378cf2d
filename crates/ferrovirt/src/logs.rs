//! `ferrovirt logs`: what the parts of the cluster wrote.

use std::ffi::OsString;
use std::io::Write;
use std::path::PathBuf;

use anyhow::Context;
use clap::{Parser, ValueEnum};

use crate::failure::{advise, parse};
use crate::state::{State, StateArgs};

/// Print the log of a part of the cluster
#[derive(Debug, Parser)]
#[command(name = "logs")]
struct LogsArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Which part
    component: Component,
    /// Print only the last lines
    #[arg(long, value_name = "N")]
    tail: Option<usize>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Component {
    /// API server, controllers, scheduler
    ControlPlane,
    /// Kubelet, service proxy, DNS
    Node,
    /// The container runtime
    Containerd,
}

impl Component {
    fn path(self, state: &State) -> anyhow::Result<PathBuf> {
        Ok(match self {
            Self::ControlPlane => state.log("control-plane"),
            Self::Node => state.log("node"),
            Self::Containerd => state.node()?.dir.join("var/log/containerd.log"),
        })
    }
}

/// `ferrovirt logs`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<LogsArgs>(words)? else { return Ok(()) };
    let path = arguments.component.path(&arguments.state.state()?)?;
    let text = std::fs::read(&path)
        .with_context(|| format!("cannot read {}", path.display()))
        .map_err(|error| advise(error, "the log appears with the first `ferrovirt up`"))?;
    // A reader that went away is not an error.
    let _ = std::io::stdout().lock().write_all(last_lines(&text, arguments.tail));
    Ok(())
}

fn last_lines(text: &[u8], count: Option<usize>) -> &[u8] {
    let Some(count) = count else { return text };
    let ends = text.len().saturating_sub(1);
    let starts = text[..ends].iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    match count.checked_sub(1) {
        None => &[],
        Some(skip) => &text[starts.skip(skip).next().unwrap_or(0)..],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, count: Option<usize>, expect: &str) {
        assert_eq!(std::str::from_utf8(last_lines(text.as_bytes(), count)), Ok(expect));
    }

    #[test]
    fn tails() {
        check("a\nb\nc\n", None, "a\nb\nc\n");
        check("a\nb\nc\n", Some(2), "b\nc\n");
        check("a\nb\nc", Some(1), "c");
        check("a\nb\n", Some(9), "a\nb\n");
        check("a\n", Some(0), "");
        check("", Some(3), "");
    }
}
