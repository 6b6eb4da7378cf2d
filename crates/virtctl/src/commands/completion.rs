//! `virtctl completion`: the script that completes commands and options in a shell.

use std::process::ExitCode;

use clap::CommandFactory;
use clap_complete::Shell;

use crate::{cli::Cli, fault::Outcome, words};

/// Generate the completion script of a shell.
#[derive(Debug, clap::Args)]
#[command(after_help = "For bash: source <(virtctl completion bash)")]
pub(crate) struct Args {
    /// The shell: bash, zsh, fish or powershell.
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub(crate) fn run(args: &Args) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "virtctl", &mut script);
    words::say(String::from_utf8_lossy(&script).trim_end())?;
    Ok(ExitCode::SUCCESS)
}
