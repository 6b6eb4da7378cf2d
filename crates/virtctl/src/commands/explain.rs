//! `virtctl explain VM`: one paragraph on why a machine is not running, the object to blame and the next command.
//!
//! ```text
//! look (this file: reads the cluster) -> Picture -> verdict (pure) -> one paragraph
//! ```

mod cause;
mod picture;
mod pod;
mod verdict;

use std::process::ExitCode;

use api::kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance};
use futures::future::OptionFuture;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::ListParams;
use kube::{Api, ResourceExt};
use picture::Picture;

use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::output;
use crate::target::Target;

/// Say why a virtual machine is not running, and what to do about it.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Name of the machine.
    #[arg(value_name = "VM")]
    name: String,
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    let target = Target::parse_name(&args.name)?;
    let cluster = globals.cluster().await?;
    let namespace = target.namespace.unwrap_or_else(|| cluster.namespace.clone());
    let picture = Box::pin(look(&cluster, &namespace, &target.name)).await?;
    if picture.vm.is_none() && picture.vmi.is_none() && picture.kubevirt.is_some() {
        return Err(Fault::new(format!("there is no VM {namespace}/{}", target.name))
            .hint("look for it with `kubectl get vm -A`, and choose the namespace with -n"));
    }
    output::say(&verdict::explain(&picture))?;
    Ok(ExitCode::SUCCESS)
}

/// Absent when the cluster does not know the kind, or the user may not read it: both leave less to say, not nothing.
fn lenient<T>(found: Result<T, kube::Error>, what: &str) -> Result<Option<T>, Fault> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(kube::Error::Api(status)) if matches!(status.code, 403 | 404) => Ok(None),
        Err(error) => Err(Fault::api(what, &error)),
    }
}

async fn look(cluster: &Cluster, namespace: &str, name: &str) -> Result<Picture, Fault> {
    let client = &cluster.client;
    let vms: Api<VirtualMachine> = Api::namespaced(client.clone(), namespace);
    let vmis: Api<VirtualMachineInstance> = Api::namespaced(client.clone(), namespace);
    let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
    let events: Api<Event> = Api::namespaced(client.clone(), namespace);
    let all = ListParams::default();
    let what = format!("cannot read VM {namespace}/{name}");
    // An answer "not found" has two meanings, told apart by whether the kind is there.
    let (vm, vmi) = tokio::join!(vms.get_opt(name), vmis.get_opt(name));
    let (vm, vmi) = (lenient(vm, &what)?.flatten(), lenient(vmi, &what)?.flatten());
    let uid = vmi.as_ref().and_then(ResourceExt::uid);
    let created_by = uid.map(|uid| ListParams::default().labels(&format!("kubevirt.io/created-by={uid}")));
    let kubevirts: Api<KubeVirt> = Api::all(client.clone());
    let nodes: Api<Node> = Api::all(client.clone());
    let (pods, events, kubevirts, nodes) = tokio::join!(
        OptionFuture::from(created_by.as_ref().map(|selected| pods.list(selected))),
        events.list(&all),
        kubevirts.list(&all),
        nodes.list(&all),
    );
    let pods = match pods {
        Some(found) => lenient(found, &what)?.map(|list| list.items).unwrap_or_default(),
        None => Vec::new(),
    };
    let known = lenient(kubevirts, &what)?;
    let mut picture = Picture {
        namespace: namespace.to_owned(),
        name: name.to_owned(),
        vm,
        vmi,
        pods,
        events: lenient(events, &what)?.map(|list| list.items).unwrap_or_default(),
        kubevirt: known.and_then(|list| list.items.into_iter().next()),
        nodes: lenient(nodes, &what)?.map(|list| list.items),
        now: kit::clock::now(),
    };
    picture.keep_related_events();
    Ok(picture)
}
