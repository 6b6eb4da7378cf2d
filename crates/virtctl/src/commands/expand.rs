//! `virtctl expand`: a machine with what its instance type and its preference say written into it. The cluster does it.

use std::path::PathBuf;

use http::Method;
use serde_json::Value;

use super::document::{print, read, send};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::stream;
use crate::target::Kind;

/// Print a virtual machine with what its instance type and its preference say.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl expand --vm my-vm
  virtctl create vm --instancetype u1.small | virtctl expand --file - -o json")]
pub(crate) struct Args {
    /// Name of a machine that is there.
    #[arg(long, value_name = "NAME", conflicts_with = "file")]
    vm: Option<String>,
    /// File with the manifest of a machine; - is standard input.
    #[arg(long, short, value_name = "FILE")]
    file: Option<PathBuf>,
    /// yaml or json.
    #[arg(long, short, default_value = "yaml", value_parser = ["yaml", "json"])]
    output: String,
}

pub(crate) async fn run(globals: &Globals, args: &Args) -> Outcome {
    let expanded = match (&args.vm, &args.file) {
        (Some(name), _) => {
            let cluster = globals.cluster().await?;
            let what = format!("cannot expand VM {}/{name}", cluster.namespace);
            let at = stream::path(Kind::Vm, &cluster.namespace, name, "expand-spec");
            send(&cluster, &what, Method::GET, &at, &Value::Null).await?
        }
        (None, Some(file)) => {
            let machine = read(file)?;
            let what = format!("cannot expand {}", file.display());
            if machine["kind"] != "VirtualMachine" {
                return Err(Fault::new(what).because(format!("its kind is {}", machine["kind"])));
            }
            let cluster = globals.cluster().await?;
            // Where it says it is to be, unless that is said here.
            let own = machine["metadata"]["namespace"].as_str().filter(|_| globals.namespace.is_none());
            let namespace = own.unwrap_or(&cluster.namespace);
            let at = format!("/apis/subresources.kubevirt.io/v1/namespaces/{namespace}/expand-vm-spec");
            send(&cluster, &what, Method::PUT, &at, &machine).await?
        }
        (None, None) => {
            let hint = "name one with --vm, or give its manifest with --file";
            return Err(Fault::usage("which machine is not said").hint(hint));
        }
    };
    print(&expanded, &args.output)
}
