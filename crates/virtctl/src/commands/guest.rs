//! `virtctl guestosinfo`, `fslist`, `userlist`: what the guest's agent says, as JSON.

use std::process::ExitCode;

use super::request;
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::output;
use crate::target::Kind;

/// Show what the guest's agent says.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VMI")]
    name: String,
}

pub(crate) async fn run(globals: &Globals, args: Args, subresource: &str) -> Outcome {
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vmi, &args.name)?;
    let says = request::get(&cluster, (&namespace, &name), subresource).await.map_err(|fault| match fault.status {
        Some(409) => fault.hint("the guest must run, with qemu-guest-agent started in it"),
        _ => fault,
    })?;
    let text = serde_json::to_string_pretty(&says).map_err(|error| Fault::new("cannot print").because(error))?;
    output::say(&text)?;
    Ok(ExitCode::SUCCESS)
}
