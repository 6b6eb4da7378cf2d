//! `virtctl template create`: a VirtualMachineTemplateRequest, of which a template comes that is like a machine that is there.

use std::process::ExitCode;

use api::template::{GROUP, VERSIONS, request};
use http::Method;
use serde_json::json;

use crate::commands::document::send;
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::output;

/// Ask for a template of a virtual machine that is there, with copies of its disks.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl template create --vm-name my-vm
  virtctl template create --vm-name my-vm --vm-namespace production --name golden
  virtctl template create --vm-name my-vm && kubectl get vmtr -w")]
pub(crate) struct Args {
    /// The virtual machine.
    #[arg(long, value_name = "VM", required = true)]
    vm_name: String,
    /// Its namespace; the current one unless it is said.
    #[arg(long, value_name = "NAMESPACE")]
    vm_namespace: Option<String>,
    /// Name of the template; one that nobody has unless it is said.
    #[arg(long, value_name = "TEMPLATE")]
    name: Option<String>,
}

pub(crate) async fn run(globals: &Globals, args: &Args) -> Outcome {
    let cluster = globals.cluster().await?;
    let version = format!("{GROUP}/{}", VERSIONS[0]);
    let namespace = args.vm_namespace.as_deref().unwrap_or(&cluster.namespace);
    let mut wanted = json!({
        "apiVersion": version, "kind": "VirtualMachineTemplateRequest",
        "metadata": { "generateName": format!("{}-", args.vm_name) },
        "spec": { "virtualMachineRef": { "namespace": namespace, "name": args.vm_name } },
    });
    if let Some(name) = &args.name {
        wanted["spec"]["templateName"] = json!(name);
    }
    let what = format!("cannot ask for a template of VirtualMachine {namespace}/{}", args.vm_name);
    let at = format!("/apis/{version}/namespaces/{}/{}", cluster.namespace, request::PLURAL);
    let made = send(&cluster, &what, Method::POST, &at, &wanted).await?;
    let name =
        made["metadata"]["name"].as_str().ok_or_else(|| Fault::new(format!("{what}: the answer has no name")))?;
    output::say(&format!("virtualmachinetemplaterequest.{GROUP}/{name} created"))?;
    Ok(ExitCode::SUCCESS)
}
