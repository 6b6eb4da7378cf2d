//! `virtctl unpause`: a paused guest goes on.

use serde_json::json;

use super::{
    pause,
    request::{self, DryRun},
};
use crate::{connect::Globals, fault::Outcome, target::Kind};

/// Continue a paused virtual machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// vm or vmi.
    #[arg(value_name = "vm|vmi")]
    kind: String,
    /// Name of the machine.
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    dry_run: DryRun,
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    pause::kind(&args.kind)?;
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vmi, &args.name)?;
    request::put(&cluster, Kind::Vmi, (&namespace, &name), "unpause", &args.dry_run.add(json!({}))).await?;
    args.dry_run.done(Kind::Vmi, &name, "was scheduled to unpause")
}
