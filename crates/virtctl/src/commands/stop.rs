//! `virtctl stop`: a machine is to stop, in its own time or by a deadline.

use super::request::{self, Deadline, DryRun};
use crate::connect::Globals;
use crate::fault::Outcome;
use crate::target::Kind;

/// Stop a virtual machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VM")]
    name: String,
    #[command(flatten)]
    deadline: Deadline,
    #[command(flatten)]
    dry_run: DryRun,
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let options = args.dry_run.add(args.deadline.options("stop", "gracePeriod")?);
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vm, &args.name)?;
    request::put(&cluster, Kind::Vm, (&namespace, &name), "stop", &options).await?;
    args.dry_run.done(Kind::Vm, &name, "was scheduled to stop")
}
