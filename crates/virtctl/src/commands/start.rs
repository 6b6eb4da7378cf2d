//! `virtctl start`: a machine is to run.

use serde_json::{Value, json};

use super::request::{self, DryRun};
use crate::connect::Globals;
use crate::fault::Outcome;
use crate::target::Kind;

/// Start a virtual machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VM")]
    name: String,
    /// Start it with its CPUs stopped.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    paused: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

fn options(args: &Args) -> Value {
    args.dry_run.add(if args.paused { json!({ "paused": true }) } else { json!({}) })
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vm, &args.name)?;
    request::put(&cluster, Kind::Vm, (&namespace, &name), "start", &options(&args)).await?;
    args.dry_run.done(Kind::Vm, &name, "was scheduled to start")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_become_start_options() {
        let args = |paused, dry_run| Args { name: "a".to_owned(), paused, dry_run: DryRun { dry_run } };
        assert_eq!(options(&args(false, false)), json!({}));
        assert_eq!(options(&args(true, true)), json!({ "paused": true, "dryRun": ["All"] }));
    }
}
