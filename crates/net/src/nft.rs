//! Loading nftables rulesets: text in, atomically, through `nft`.

use std::io::Write;
use std::process::{Command, Stdio};

/// A ruleset that was not loaded; nothing of it is in force.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// `nft` could not be run.
    #[error("cannot run nft")]
    Run(#[source] std::io::Error),
    /// `nft` refused the text.
    #[error("nft refused the ruleset: {0}")]
    Refused(String),
}

/// Loads `ruleset` in the network namespace of the calling thread, all of it or nothing. Blocks.
pub fn load(ruleset: &str) -> Result<(), Error> {
    let mut command = Command::new("nft");
    command.args(["-f", "-"]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(Error::Run)?;
    // A write error means that nft ended early; its own words, below, say why.
    let written = child.stdin.take().map(|mut stdin| stdin.write_all(ruleset.as_bytes()));
    let output = child.wait_with_output().map_err(Error::Run)?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr);
        return Err(Error::Refused(words.lines().take(8).collect::<Vec<_>>().join("; ")));
    }
    written.transpose().map_err(Error::Run).map(|_| ())
}

/// The whole ruleset of the calling thread's network namespace, as `nft` prints it. Blocks.
pub fn list() -> Result<String, Error> {
    let output = Command::new("nft").args(["list", "ruleset"]).output().map_err(Error::Run)?;
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
