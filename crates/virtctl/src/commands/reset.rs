//! `virtctl reset`, the reset button, and `virtctl soft-reboot`, which asks the guest, by its agent or by ACPI.

use std::process::ExitCode;

use serde_json::Value;

use super::request;
use crate::connect::Globals;
use crate::fault::Outcome;
use crate::output;
use crate::target::Kind;

/// The machine to reset or reboot.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VMI")]
    name: String,
}

/// `subresource` is `reset` or `softreboot`; `verb` says it in words.
pub(crate) async fn run(globals: &Globals, args: Args, subresource: &str, verb: &str) -> Outcome {
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vmi, &args.name)?;
    request::put(&cluster, Kind::Vmi, (&namespace, &name), subresource, &Value::Null).await?;
    output::say(&format!("VMI {name} was scheduled to {verb}"))?;
    Ok(ExitCode::SUCCESS)
}
