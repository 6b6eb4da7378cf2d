//! `virtctl completion`: the script that completes commands and options in a shell.

use std::process::ExitCode;

use clap_complete::Shell;

use crate::fault::Outcome;
use crate::output;

/// Generate the completion script of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "For bash: source <(virtctl completion bash)")]
pub(crate) struct Args {
    /// The shell: bash, zsh, fish or powershell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Prints the script for `command`, which is all of virtctl.
pub(crate) fn run(args: &Args, command: &mut clap::Command) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, command, "virtctl", &mut script);
    output::say(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
