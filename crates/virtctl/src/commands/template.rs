//! `virtctl template`: machines of VirtualMachineTemplates.

mod convert;
mod create;
mod process;

use crate::connect::Globals;
use crate::fault::Outcome;

/// Make virtual machines of templates.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print the VirtualMachineTemplate that says what a Template of OpenShift says.
    Convert(convert::Args),
    /// Ask for a template of a virtual machine that is there, with copies of its disks.
    Create(create::Args),
    /// Print the virtual machine that comes of a template, or create it.
    Process(Box<process::Args>),
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    match args.what {
        What::Convert(args) => convert::run(globals, &args).await,
        What::Create(args) => create::run(globals, &args).await,
        What::Process(args) => process::run(globals, *args).await,
    }
}
