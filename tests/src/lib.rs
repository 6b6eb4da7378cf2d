//! The scenarios' hands: kubectl and virtctl as a user has them, a namespace for each scenario, guests driven by their
//! serial console, processes of the node, and waiting for conditions with a limit.

pub mod boot_sector;
pub mod disks;
pub mod dns;
pub mod guest;
pub mod hostpath;
pub mod image;
pub mod machine;
pub mod node;
pub mod product;
pub mod python;
pub mod report;
pub mod screen;
pub mod servers;
pub mod space;
pub mod taskrun;
pub mod terminal;
pub mod wait;

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Context, Result, ensure};

pub use guest::Guest;
pub use space::Namespace;
pub use terminal::Console;
pub use wait::happens as until;

/// The root of the checkout: cargo runs tests in the directory of their package.
pub fn root() -> PathBuf {
    std::path::absolute("..").unwrap_or_else(|_| "..".into())
}

/// The kubeconfig of the cluster under test.
pub fn kubeconfig() -> PathBuf {
    let state = std::env::var_os("FERROVIRT_STATE").map_or_else(|| "/var/lib/ferrovirt".into(), PathBuf::from);
    state.join("kubeconfig")
}

/// Runs the `ferrovirt` of the checkout on the cluster under test.
pub fn ferrovirt(words: &[&str]) -> Result<String> {
    let state = kubeconfig().with_file_name("");
    let mut command = Command::new(root().join("bin/ferrovirt"));
    let output = command.args(words).env("FERROVIRT_STATE", state).output().context("cannot run bin/ferrovirt")?;
    ensure!(output.status.success(), "ferrovirt {}: {output:?}", words.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
