//! The command line: options every command takes, and the table of commands.

use clap::{Parser, Subcommand};

use crate::{commands, connect::Globals};

/// Controls virtual machines on Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "virtctl", disable_version_flag = true, arg_required_else_help = true, max_term_width = 120)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) globals: Globals,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Generate the completion script of a shell.
    Completion(commands::completion::Args),
    /// Connect to the serial console of a virtual machine instance.
    Console(commands::console::Args),
    /// Forward local ports to a virtual machine.
    PortForward(commands::port_forward::Args),
    /// Restart a virtual machine.
    Restart(commands::restart::Args),
    /// Copy files from or to a virtual machine.
    Scp(commands::scp::Args),
    /// Open an SSH connection to a virtual machine.
    Ssh(commands::ssh::Args),
    /// Start a virtual machine.
    Start(commands::start::Args),
    /// Stop a virtual machine.
    Stop(commands::stop::Args),
    /// Print the versions of client and server.
    Version(commands::version::Args),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn the_table_is_sound() {
        Cli::command().debug_assert();
    }
}
