//! From the parsed command line to the command's module.

use clap::CommandFactory;

use crate::cli::{Cli, Command};
use crate::commands;
use crate::fault::Outcome;

/// Runs what was asked for.
pub(crate) async fn run(cli: Cli) -> Outcome {
    let globals = &cli.globals;
    match cli.command {
        Command::Addvolume(args) => commands::volume::add(globals, args).await,
        Command::Completion(args) => commands::completion::run(&args, &mut Cli::command()),
        Command::Console(args) => Box::pin(commands::console::run(globals, args)).await,
        Command::Create(args) => commands::create::run(globals, args),
        Command::Credentials(args) => Box::pin(commands::credentials::run(globals, args)).await,
        Command::EvacuateCancel(args) => commands::evacuate_cancel::run(globals, args).await,
        Command::Explain(args) => commands::explain::run(globals, args).await,
        Command::Expand(args) => commands::expand::run(globals, &args).await,
        Command::Expose(args) => commands::expose::run(globals, args).await,
        Command::Fslist(args) => commands::guest::run(globals, args, "filesystemlist").await,
        Command::Guestfs(args) => Box::pin(commands::guestfs::run(globals, args)).await,
        Command::Guestosinfo(args) => commands::guest::run(globals, args, "guestosinfo").await,
        Command::ImageUpload(args) => Box::pin(commands::image_upload::run(globals, args)).await,
        Command::MemoryDump(args) => Box::pin(commands::memory_dump::run(globals, args)).await,
        Command::Migrate(args) => Box::pin(commands::migrate::run(globals, args)).await,
        Command::MigrateCancel(args) => commands::migrate_cancel::run(globals, args).await,
        Command::Pause(args) => commands::pause::run(globals, args, "pause").await,
        Command::PortForward(args) => commands::port_forward::run(globals, args).await,
        Command::Removevolume(args) => commands::volume::remove(globals, args).await,
        Command::Reset(args) => commands::reset::run(globals, args, "reset", "reset").await,
        Command::Restart(args) => commands::restart::run(globals, args).await,
        Command::Scp(args) => commands::scp::run(globals, &args).await,
        Command::SoftReboot(args) => commands::reset::run(globals, args, "softreboot", "soft reboot").await,
        Command::Ssh(args) => commands::ssh::run(globals, &args).await,
        Command::Start(args) => commands::start::run(globals, args).await,
        Command::Stop(args) => commands::stop::run(globals, args).await,
        Command::Template(args) => commands::template::run(globals, args).await,
        Command::Unpause(args) => commands::pause::run(globals, args, "unpause").await,
        Command::Userlist(args) => commands::guest::run(globals, args, "userlist").await,
        Command::Version(args) => commands::version::run(globals, &args).await,
        Command::Vmexport(args) => Box::pin(commands::vmexport::run(globals, args)).await,
        Command::Vnc(args) => Box::pin(commands::vnc::run(globals, args)).await,
    }
}
