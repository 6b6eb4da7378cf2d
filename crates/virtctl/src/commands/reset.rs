//! `virtctl reset`: the reset button.

use std::process::ExitCode;

use serde_json::Value;

use super::request;
use crate::{connect::Globals, fault::Outcome, target::Kind, words};

/// Reset a virtual machine instance, like its reset button.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VMI")]
    name: String,
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vmi, &args.name)?;
    request::put(&cluster, Kind::Vmi, (&namespace, &name), "reset", &Value::Null).await?;
    words::say(&format!("VMI {name} was scheduled to reset"))?;
    Ok(ExitCode::SUCCESS)
}
