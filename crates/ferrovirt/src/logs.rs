//! `ferrovirt logs`: what the parts of the cluster wrote.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::Context;
use clap::{Parser, ValueEnum};

use crate::failure::{advise, parse};
use crate::nodes::{self, Number};
use crate::operators;
use crate::state::{State, StateArgs};

/// Print the log of a part of the cluster
#[derive(Debug, Parser)]
#[command(name = "logs")]
struct LogsArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Which part
    component: Component,
    /// The node whose log it is
    #[arg(long, value_name = "NAME", default_value_t = nodes::FIRST)]
    node: Number,
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
    /// All operators, where they share a process
    Operators,
    VirtOperator,
    VirtApi,
    VirtController,
    VirtHandler,
}

impl Component {
    /// The files of its log, oldest first, and whether each line carries the container runtime's prefix.
    fn files(self, state: &State, node: Number) -> anyhow::Result<(Vec<PathBuf>, bool)> {
        let kept = state.node(node)?.dir.join("var/log");
        let pods = |name: &str| (pod_logs(&kept.join("pods"), &format!("_{name}-")), true);
        Ok(match self {
            Self::ControlPlane => (vec![state.log("control-plane")], false),
            Self::Node => (vec![state.log(&node.to_string())], false),
            Self::Containerd => (vec![kept.join("containerd.log")], false),
            Self::Operators => pods(operators::NAME),
            Self::VirtOperator => {
                // Where operators share a process, they share its log.
                let own = pods("virt-operator");
                if own.0.is_empty() { pods(operators::NAME) } else { own }
            }
            Self::VirtApi => pods("virt-api"),
            Self::VirtController => pods("virt-controller"),
            Self::VirtHandler => pods("virt-handler"),
        })
    }
}

/// `ferrovirt logs`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<LogsArgs>(words)? else { return Ok(()) };
    let state = arguments.state.state()?;
    state.has_node(arguments.node)?;
    let (files, prefixed) = arguments.component.files(&state, arguments.node)?;
    if files.is_empty() {
        return Err(advise(
            anyhow::anyhow!("no pod of it has run on this node"),
            "`kubectl get pods -A` shows what runs",
        ));
    }
    let mut text = Vec::new();
    for path in &files {
        let content = std::fs::read(path)
            .with_context(|| format!("cannot read {}", path.display()))
            .map_err(|error| advise(error, "the log appears with the first `ferrovirt up`"))?;
        if prefixed { without_prefix(&content, &mut text) } else { text.extend(content) }
    }
    // A reader that went away is not an error.
    let _ = std::io::stdout().lock().write_all(last_lines(&text, arguments.tail));
    Ok(())
}

/// `<pods>/<namespace>_<pod>_<uid>/<container>/<n>.log`, in the order in which they were last written to.
fn pod_logs(pods: &Path, part: &str) -> Vec<PathBuf> {
    let below = |dir: &Path| std::fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_wanted = |dir: &PathBuf| dir.file_name().is_some_and(|name| name.to_string_lossy().contains(part));
    let mut files: Vec<_> = below(pods)
        .filter(is_wanted)
        .flat_map(|pod| below(&pod).collect::<Vec<_>>())
        .flat_map(|container| below(&container).collect::<Vec<_>>())
        .filter(|file| file.extension().is_some_and(|extension| extension == "log"))
        .map(|file| (file.metadata().and_then(|metadata| metadata.modified()).ok(), file))
        .collect();
    files.sort();
    files.into_iter().map(|(_, file)| file).collect()
}

/// The runtime writes `<time> <stream> <F or P> <text>`; P says that the line goes on.
fn without_prefix(log: &[u8], text: &mut Vec<u8>) {
    for line in log.split_inclusive(|byte| *byte == b'\n') {
        let mut fields = line.splitn(4, |byte| *byte == b' ').skip(2);
        match (fields.next(), fields.next()) {
            (Some(b"P"), Some(part)) => text.extend(part.strip_suffix(b"\n").unwrap_or(part)),
            (Some(_), Some(rest)) => text.extend(rest),
            _ => text.extend(line),
        }
    }
}

fn last_lines(text: &[u8], count: Option<usize>) -> &[u8] {
    let Some(count) = count else { return text };
    let ends = text.len().saturating_sub(1);
    let mut starts = text[..ends].iter().enumerate().rev().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    match count.checked_sub(1) {
        None => &[],
        Some(skip) => &text[starts.nth(skip).unwrap_or(0)..],
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

    #[test]
    fn the_runtimes_prefix_goes() {
        let mut text = Vec::new();
        without_prefix(b"2026-01-01T00:00:00Z stdout P one \n2026-01-01T00:00:00Z stdout F line\nodd\n", &mut text);
        assert_eq!(std::str::from_utf8(&text), Ok("one line\nodd\n"));
    }
}
