//! `virtctl stop`: a machine is to stop, in its own time or by a deadline.

use serde_json::{Value, json};

use super::request::{self, DryRun};
use crate::{
    connect::Globals,
    fault::{Fault, Outcome},
    target::Kind,
};

/// Stop a virtual machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VM")]
    name: String,
    /// Seconds the guest has to shut down; needs --force.
    #[arg(long, default_value_t = -1, allow_negative_numbers = true, value_name = "SECONDS")]
    grace_period: i64,
    /// Do not wait longer than --grace-period for the guest; data may be lost.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    force: bool,
    #[command(flatten)]
    dry_run: DryRun,
}

fn options(args: &Args) -> Result<Value, Fault> {
    let options = match (args.force, args.grace_period) {
        (true, -1) => {
            return Err(Fault::usage("--force needs to know how long the guest has")
                .hint("`--force --grace-period=0` stops it at once"));
        }
        (true, seconds) => json!({ "gracePeriod": seconds }),
        (false, -1) => json!({}),
        (false, _) => return Err(Fault::usage("--grace-period works only together with --force")),
    };
    Ok(args.dry_run.add(options))
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let options = options(&args)?;
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, Kind::Vm, &args.name)?;
    request::put(&cluster, Kind::Vm, (&namespace, &name), "stop", &options).await?;
    args.dry_run.done(Kind::Vm, &name, "was scheduled to stop")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(force: bool, grace_period: i64, expect: Result<Value, &str>) {
        let args = Args { name: "a".to_owned(), force, grace_period, dry_run: DryRun { dry_run: false } };
        match (options(&args), expect) {
            (Ok(found), Ok(expect)) => assert_eq!(found, expect),
            (Err(fault), Err(expect)) => assert!(fault.to_string().contains(expect), "{fault}"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_is_asked() {
        check(false, -1, Ok(json!({})));
        check(true, 0, Ok(json!({ "gracePeriod": 0 })));
        check(true, 10, Ok(json!({ "gracePeriod": 10 })));
        check(true, -1, Err("--force --grace-period=0"));
        check(false, 5, Err("only together with --force"));
    }
}
