//! From the parsed command line to the command's module.

pub(crate) mod completion;
pub(crate) mod console;
pub(crate) mod create;
pub(crate) mod create_clone;
pub(crate) mod create_vm;
pub(crate) mod evacuate_cancel;
pub(crate) mod explain;
pub(crate) mod expose;
pub(crate) mod guest;
pub(crate) mod guestfs;
pub(crate) mod image_upload;
pub(crate) mod memory_dump;
pub(crate) mod migrate;
pub(crate) mod migrate_cancel;
pub(crate) mod pause;
pub(crate) mod port_forward;
mod request;
pub(crate) mod reset;
pub(crate) mod restart;
pub(crate) mod scp;
pub(crate) mod ssh;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod version;
pub(crate) mod vmexport;
pub(crate) mod vnc;
pub(crate) mod volume;

use crate::{
    cli::{Cli, Command},
    fault::Outcome,
};

/// Runs what was asked for.
pub(crate) async fn run(cli: Cli) -> Outcome {
    let globals = &cli.globals;
    match cli.command {
        Command::Addvolume(args) => volume::add(globals, args).await,
        Command::Completion(args) => completion::run(&args),
        Command::Console(args) => Box::pin(console::run(globals, args)).await,
        Command::Create(args) => create::run(globals, args),
        Command::EvacuateCancel(args) => evacuate_cancel::run(globals, args).await,
        Command::Explain(args) => explain::run(globals, args).await,
        Command::Expose(args) => expose::run(globals, args).await,
        Command::Fslist(args) => guest::run(globals, args, "filesystemlist").await,
        Command::Guestfs(args) => Box::pin(guestfs::run(globals, args)).await,
        Command::Guestosinfo(args) => guest::run(globals, args, "guestosinfo").await,
        Command::ImageUpload(args) => Box::pin(image_upload::run(globals, args)).await,
        Command::MemoryDump(args) => Box::pin(memory_dump::run(globals, args)).await,
        Command::Migrate(args) => Box::pin(migrate::run(globals, args)).await,
        Command::MigrateCancel(args) => migrate_cancel::run(globals, args).await,
        Command::Pause(args) => pause::run(globals, args, "pause").await,
        Command::PortForward(args) => port_forward::run(globals, args).await,
        Command::Removevolume(args) => volume::remove(globals, args).await,
        Command::Reset(args) => reset::run(globals, args, "reset", "reset").await,
        Command::Restart(args) => restart::run(globals, args).await,
        Command::Scp(args) => scp::run(globals, &args).await,
        Command::SoftReboot(args) => reset::run(globals, args, "softreboot", "soft reboot").await,
        Command::Ssh(args) => ssh::run(globals, &args).await,
        Command::Start(args) => start::run(globals, args).await,
        Command::Stop(args) => stop::run(globals, args).await,
        Command::Unpause(args) => pause::run(globals, args, "unpause").await,
        Command::Userlist(args) => guest::run(globals, args, "userlist").await,
        Command::Version(args) => version::run(globals, &args).await,
        Command::Vmexport(args) => Box::pin(vmexport::run(globals, args)).await,
        Command::Vnc(args) => Box::pin(vnc::run(globals, args)).await,
    }
}
