//! The program's command line: mistakes are named, with what to do next.
#![allow(clippy::unwrap_used, reason = "a test ends at the first surprise")]

mod cluster;
mod deploy;
mod idle;
mod operators;
mod rights;

use std::path::Path;
use std::process::{Command, Output};

/// Runs the program on a state directory of its own.
fn ferrovirt(state: &Path, words: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_ferrovirt");
    Command::new(program).args(words).env("FERROVIRT_STATE", state).output().unwrap()
}

#[test]
fn mistakes_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let check = |words: &[&str], code: i32, expect: &str| {
        let output = ferrovirt(dir.path(), words);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(code), "{words:?}: {text}");
        assert!(text.contains(expect), "{words:?}: {text}");
    };
    check(&["upp"], 2, "error: \"upp\" is not a command\nhint: `ferrovirt help` lists them");
    check(&["up", "--fast"], 2, "unexpected argument '--fast'");
    check(&["kubeconfig"], 1, "hint: `ferrovirt up` makes it");
    check(&["logs", "node"], 1, "hint: the log appears with the first `ferrovirt up`");
    check(&["logs", "node", "--node", "node9"], 1, "error: there is no node9");
    check(&["node", "kill", "nod1"], 2, "nodes are called node1 to node200");
    check(&["up", "--nodes", "0"], 2, "a cluster has 1 to 200 nodes");
    check(&["backup"], 2, "<FILE>");
    check(&["backup", "saved"], 1, "hint: `ferrovirt up` makes one");
    check(&["restore", "/nowhere"], 1, "error: cannot open /nowhere: No such file");
    check(&["restore", "/etc/passwd"], 1, "it is not a backup made by `ferrovirt backup`");
    check(&["demo"], 1, "error: no cluster runs\nhint: `ferrovirt up` starts it");
    let nowhere = dir.path().join("images");
    let nowhere = nowhere.to_str().unwrap();
    let nothing = "error: no image is built; run `ferrovirt images build`";
    check(&["images", "push", "127.0.0.1:1", "--cache", nowhere], 1, nothing);
    check(&["images", "push", "https://x", "--cache", nowhere], 1, "is not a registry reference");
    check(&["logs", "virt-api"], 1, "no pod of it has run on this node");
}
