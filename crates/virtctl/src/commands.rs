//! From the parsed command line to the command's module.

pub(crate) mod completion;
pub(crate) mod console;
pub(crate) mod port_forward;
mod request;
pub(crate) mod restart;
pub(crate) mod scp;
pub(crate) mod ssh;
pub(crate) mod start;
pub(crate) mod stop;
pub(crate) mod version;

use crate::{
    cli::{Cli, Command},
    fault::Outcome,
};

/// Runs what was asked for.
pub(crate) async fn run(cli: Cli) -> Outcome {
    let globals = &cli.globals;
    match cli.command {
        Command::Completion(args) => completion::run(&args),
        Command::Console(args) => Box::pin(console::run(globals, args)).await,
        Command::PortForward(args) => port_forward::run(globals, args).await,
        Command::Restart(args) => restart::run(globals, args).await,
        Command::Scp(args) => scp::run(globals, &args).await,
        Command::Ssh(args) => ssh::run(globals, &args).await,
        Command::Start(args) => start::run(globals, args).await,
        Command::Stop(args) => stop::run(globals, args).await,
        Command::Version(args) => version::run(globals, &args).await,
    }
}
