//! `virtctl evacuate-cancel`: a machine that is being moved off its node stays there.

use std::process::ExitCode;

use api::kubevirt::v1::VirtualMachineInstance;
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::request::{self, DryRun};
use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::output;
use crate::target::Kind;

/// Have a virtual machine stay where it is.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// vm, vmi, or node for every machine that is being moved off it.
    #[arg(value_name = "vm|vmi|node")]
    kind: String,
    /// Name of the machine or of the node.
    #[arg(value_name = "NAME")]
    name: String,
    #[command(flatten)]
    dry_run: DryRun,
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let Some(kind) = Kind::parse(&args.kind) else {
        if matches!(args.kind.to_ascii_lowercase().as_str(), "node" | "nodes" | "no") {
            let cluster = globals.cluster().await?;
            return node(&cluster, &args).await;
        }
        return Err(Fault::usage(format!("{:?} is neither vm nor vmi nor node", args.kind)));
    };
    let cluster = globals.cluster().await?;
    let (namespace, name) = request::named(&cluster, kind, &args.name)?;
    cancel(&cluster, kind, (&namespace, &name), "", &args.dry_run).await?;
    args.dry_run.done(kind, &name, "was canceled evacuation")
}

async fn cancel(
    cluster: &Cluster,
    kind: Kind,
    machine: (&str, &str),
    node: &str,
    dry_run: &DryRun,
) -> Result<(), Fault> {
    let options = dry_run.add(json!({ "evacuationNodeName": node }));
    request::put(cluster, kind, machine, "evacuate/cancel", &options).await
}

/// Every machine of the cluster that is being moved off the node. One that cannot be kept does not keep the others.
async fn node(cluster: &Cluster, args: &Args) -> Outcome {
    let all: Api<VirtualMachineInstance> = Api::all(cluster.client.clone());
    let list = all.list(&ListParams::default()).await;
    let list = list.map_err(|error| Fault::api(format!("cannot list the machines of node {}", args.name), &error))?;
    let leaving = |vmi: &&VirtualMachineInstance| {
        vmi.status.as_ref().and_then(|status| status.evacuation_node_name.as_deref()) == Some(args.name.as_str())
    };
    let mut failed = None;
    for vmi in list.items.iter().filter(leaving) {
        let (namespace, name) = (vmi.namespace().unwrap_or_default(), vmi.name_any());
        match cancel(cluster, Kind::Vmi, (&namespace, &name), &args.name, &args.dry_run).await {
            Ok(()) => {
                args.dry_run.done(Kind::Vmi, &format!("{namespace}/{name}"), "was canceled evacuation")?;
            }
            Err(fault) => {
                fault.report();
                failed = Some(ExitCode::FAILURE);
            }
        }
    }
    if list.items.iter().filter(leaving).count() == 0 {
        output::say(&format!("no machine is being moved off node {}", args.name))?;
    }
    Ok(failed.unwrap_or(ExitCode::SUCCESS))
}
