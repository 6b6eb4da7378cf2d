//! The command line: options every command takes, and the table of commands.

use clap::{Parser, Subcommand};

use crate::commands;
use crate::connect::Globals;

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
    /// Add a volume to a running virtual machine.
    Addvolume(commands::volume::AddArgs),
    /// Generate the completion script of a shell.
    Completion(commands::completion::Args),
    /// Connect to the serial console of a virtual machine instance.
    Console(commands::console::Args),
    /// Print the manifest of a new object.
    Create(commands::create::Args),
    /// Change SSH keys and passwords of a virtual machine.
    Credentials(commands::credentials::Args),
    /// Have a virtual machine stay on the node it is being moved away from.
    EvacuateCancel(commands::evacuate_cancel::Args),
    /// Say why a virtual machine is not running, and what to do about it.
    Explain(commands::explain::Args),
    /// Print a virtual machine with what its instance type and its preference say.
    Expand(commands::expand::Args),
    /// Expose a virtual machine's ports as a Service.
    Expose(commands::expose::Args),
    /// List the guest's file systems.
    Fslist(commands::guest::Args),
    /// Start a shell beside the disk of a claim.
    Guestfs(commands::guestfs::Args),
    /// Show what the guest says of its operating system.
    Guestosinfo(commands::guest::Args),
    /// Upload a disk image into a volume.
    ImageUpload(commands::image_upload::Args),
    /// Dump the memory of a running virtual machine to a claim, or download the dump.
    MemoryDump(commands::memory_dump::Args),
    /// Move a running virtual machine to another node.
    Migrate(commands::migrate::Args),
    /// Cancel the migration of a virtual machine.
    MigrateCancel(commands::migrate_cancel::Args),
    /// Pause a virtual machine.
    Pause(commands::pause::Args),
    /// Forward local ports to a virtual machine.
    PortForward(commands::port_forward::Args),
    /// Remove a volume from a running virtual machine.
    Removevolume(commands::volume::RemoveArgs),
    /// Reset a virtual machine instance, like its reset button.
    Reset(commands::reset::Args),
    /// Restart a virtual machine.
    Restart(commands::restart::Args),
    /// Copy files from or to a virtual machine.
    Scp(commands::scp::Args),
    /// Ask the guest to reboot.
    SoftReboot(commands::reset::Args),
    /// Open an SSH connection to a virtual machine.
    Ssh(commands::ssh::Args),
    /// Start a virtual machine.
    Start(commands::start::Args),
    /// Stop a virtual machine.
    Stop(commands::stop::Args),
    /// Make virtual machines of templates.
    Template(commands::template::Args),
    /// Continue a paused virtual machine.
    Unpause(commands::pause::Args),
    /// List the users logged in to the guest.
    Userlist(commands::guest::Args),
    /// Print the versions of client and server.
    Version(commands::version::Args),
    /// Export the volumes and the manifests of a virtual machine, a snapshot or a claim.
    Vmexport(commands::vmexport::Args),
    /// Open the screen of a virtual machine instance.
    Vnc(commands::vnc::Args),
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
