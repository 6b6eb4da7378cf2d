//! `virtctl pause` and `virtctl unpause`: the guest's CPUs stop, its memory stays; and they go on.

use serde_json::json;

use super::request::{self, DryRun};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::target::Kind;

/// The machine to stop or continue.
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
fn kind(word: &str) -> Result<Kind, Fault> {
    Kind::parse(word).ok_or_else(|| Fault::usage(format!("{word:?} is neither vm nor vmi")))
}

/// `verb` is `pause` or `unpause`.
pub(crate) async fn run(globals: &Globals, args: Args, verb: &str) -> Outcome {
    kind(&args.kind)?;
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vmi, &args.name)?;
    request::put(&cluster, Kind::Vmi, (&namespace, &name), verb, &args.dry_run.add(json!({}))).await?;
    args.dry_run.done(Kind::Vmi, &name, &format!("was scheduled to {verb}"))
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
