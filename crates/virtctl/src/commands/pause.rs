//! `virtctl pause`: the guest's CPUs stop, its memory stays.

use serde_json::json;

use super::request::{self, DryRun};
use crate::{
    connect::Globals,
    fault::{Fault, Outcome},
    target::Kind,
};

/// Pause a virtual machine.
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

/// A VM is paused by its instance, which has its name.
pub(super) fn kind(word: &str) -> Result<Kind, Fault> {
    Kind::parse(word).ok_or_else(|| Fault::usage(format!("{word:?} is neither vm nor vmi")))
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    kind(&args.kind)?;
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vmi, &args.name)?;
    request::put(&cluster, Kind::Vmi, (&namespace, &name), "pause", &args.dry_run.add(json!({}))).await?;
    args.dry_run.done(Kind::Vmi, &name, "was scheduled to pause")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        assert_eq!(kind("VM").unwrap(), Kind::Vm);
        assert_eq!(kind("virtualmachineinstances").unwrap(), Kind::Vmi);
        assert_eq!(kind("pod").unwrap_err().to_string(), "error: \"pod\" is neither vm nor vmi");
    }
}
