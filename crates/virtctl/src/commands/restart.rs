//! `virtctl restart`: a machine is to stop and start again.

use serde_json::{Value, json};

use super::request::{self, DryRun};
use crate::{
    connect::Globals,
    fault::{Fault, Outcome},
    target::Kind,
};

/// Restart a virtual machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VM")]
    name: String,
    /// Seconds the guest has to shut down; needs --force.
    #[arg(long, default_value_t = -1, allow_negative_numbers = true, value_name = "SECONDS")]
    grace_period: i64,
    /// Do not wait for the guest to shut down; data may be lost.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    force: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

fn options(args: &Args) -> Result<Value, Fault> {
    let options = match (args.force, args.grace_period) {
        (true, -1) => {
            return Err(Fault::usage("--force needs to know how long the guest has")
                .hint("`--force --grace-period=0` restarts it at once"));
        }
        (true, seconds) => json!({ "gracePeriodSeconds": seconds }),
        (false, -1) => json!({}),
        (false, _) => return Err(Fault::usage("--grace-period works only together with --force")),
    };
    Ok(args.dry_run.add(options))
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let options = options(&args)?;
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vm, &args.name)?;
    request::put(&cluster, Kind::Vm, (&namespace, &name), "restart", &options).await?;
    args.dry_run.done(Kind::Vm, &name, "was scheduled to restart")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_asked() {
        let args =
            |force, grace_period| Args { name: "a".to_owned(), force, grace_period, dry_run: DryRun { dry_run: true } };
        assert_eq!(options(&args(false, -1)).unwrap(), json!({ "dryRun": ["All"] }));
        assert_eq!(options(&args(true, 0)).unwrap(), json!({ "gracePeriodSeconds": 0, "dryRun": ["All"] }));
        assert!(options(&args(false, 3)).is_err());
        assert!(options(&args(true, -1)).is_err());
    }
}
