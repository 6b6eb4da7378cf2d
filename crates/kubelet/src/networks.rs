//! Secondary networks of pods: what their annotation asks for, made by CNI plugins beside the pod's own interface.
//!
//! ```text
//!  annotation k8s.v1.cni.cncf.io/networks --selection--> NetworkAttachmentDefinitions --definition--> chains of plugins
//!       ADD net1, net2, … in the sandbox, DEL before it is stopped --status--> annotation …/network-status
//! ```
//! What was made is recorded on disk, so that it is taken back by whichever life of this process stops the sandbox, also after
//! a power cut. A sandbox in which not everything was made is never used.

mod definition;
mod inspect;
mod pool;
mod range;
mod records;
mod selection;
mod status;

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, Patch, PatchParams};
use net::cni::{self, Attachment, Network};
use pool::Taker;
use records::{Record, Records};
use selection::Selected;
use serde_json::{Map, Value, json};
use status::Interface;

use crate::context::{Context, about};
use crate::error::{Error, Result};
use crate::{netns, sandbox};

/// Where plugins are looked for: the product's own, what the distribution brings, what pods of plugins install.
const PLUGINS: [&str; 3] = [crate::node::config::PLUGINS, "/usr/lib/cni", "/opt/cni/bin"];

/// A network to join, with all that is needed for it.
#[derive(Clone, Debug)]
pub(crate) struct Wanted {
    selected: Selected,
    network: Network,
}

fn dirs() -> Vec<PathBuf> {
    PLUGINS.iter().map(PathBuf::from).collect()
}

fn records(context: &Context) -> Records {
    Records::new(&context.config.root)
}

/// What the pod asks for; nothing on the host network.
///
/// # Errors
/// When the annotation cannot be read, or names what is not there.
pub(crate) async fn wanted(context: &Context, pod: &Pod) -> Result<Vec<Wanted>> {
    let host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    let annotations = pod.metadata.annotations.as_ref();
    let Some(text) = annotations.and_then(|all| all.get(selection::ANNOTATION)).filter(|_| !host) else {
        return Ok(Vec::new());
    };
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let mut out = Vec::new();
    for selected in selection::parse(text, namespace).map_err(Error::Invalid)? {
        let network = definition(context, pod, &selected).await?;
        out.push(Wanted { selected, network });
    }
    Ok(out)
}

async fn definition(context: &Context, pod: &Pod, selected: &Selected) -> Result<Network> {
    let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
    let kind = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
    let (namespace, name) = (&selected.namespace, &selected.name);
    let api: Api<DynamicObject> = Api::namespaced_with(context.client.clone(), namespace, &kind);
    let found = match api.get_opt(name).await {
        Ok(Some(found)) => found,
        Ok(None) => {
            let message = format!(
                "cannot find a network-attachment-definition ({name}) in namespace ({namespace}): \
                 network-attachment-definitions.k8s.cni.cncf.io \"{name}\" not found"
            );
            context.events.warning(&about(pod), "NoNetworkFound", message.clone());
            return Err(Error::Invalid(message));
        }
        Err(error) => return Err(Error::api(format!("read network-attachment-definition {namespace}/{name}"))(error)),
    };
    let config = found.data["spec"]["config"].as_str().unwrap_or_default();
    let mut network = definition::parse(config, namespace, name).map_err(Error::Invalid)?;
    definition::add_arguments(&mut network, &selected.arguments);
    Ok(network)
}

/// Says that a sandbox is about to be made for a pod with networks: until [`attach`] has ended it is not to be used.
pub(crate) fn begin(context: &Context, uid: &str) -> Result<()> {
    records(context).begin(uid)
}

/// Makes all interfaces in the sandbox and writes down what they are, on disk and in the pod's annotation.
///
/// # Errors
/// The first plugin that fails. The caller stops the sandbox, which takes back what was made.
pub(crate) async fn attach(context: &Context, pod: &Pod, id: &str, all: Vec<Wanted>) -> Result<()> {
    let (name, namespace, uid) = sandbox::names(pod);
    let netns = netns::of_sandbox(&context.runtime, id).await?;
    let records = records(context);
    let mut record = Record::default();
    let mut interfaces = vec![inspect::of_pod_network(&netns).await];
    for Wanted { selected, network } in all {
        let title = format!("{}/{}", selected.namespace, selected.name);
        let attachment = Attachment {
            container: id.to_owned(),
            netns: netns.display().to_string(),
            interface: selected.interface.clone(),
            args: arguments(&name, &namespace, &uid, id, &selected),
            capabilities: capabilities(&selected),
        };
        let bridge = definition::open_bridge(&network).map(str::to_owned);
        record.entries.push(records::Entry { network, attachment, ..Default::default() });
        let failed = |error: kit::Chain<'_>| {
            Error::Invalid(format!("[{namespace}/{name}/{uid}:{title}]: error adding container to network: {error}"))
        };
        let Some(entry) = record.entries.last_mut() else { continue };
        let interface = selected.interface.as_str();
        let taker = Taker { namespace: &namespace, pod: &name, sandbox: id, interface };
        let taken = pool::take(context, &mut entry.network, &taker, &mut entry.leases).await;
        // Before the plugin is run: what it has made when it is interrupted is found again.
        records.save(id, &record)?;
        taken.map_err(|error| failed(kit::Chain(&error)))?;
        let Some(entry) = record.entries.last_mut() else { continue };
        let result = cni::add(&dirs(), &entry.network, &entry.attachment).await;
        entry.result = result.map_err(|error| failed(kit::Chain(&error)))?;
        if let (Some(bridge), Some(uplinks)) = (bridge, &context.config.uplinks) {
            uplinks.connect(&bridge).await.map_err(|error| failed(kit::Chain(&error)))?;
        }
        let made = cni::made(&entry.result, &entry.attachment.interface);
        let addresses = made.addresses.join(" ");
        let added = format!("Add {} [{addresses}] from {title}", entry.attachment.interface);
        context.events.normal(&about(pod), "AddedInterface", added);
        interfaces.push(Interface { network: title, name: entry.attachment.interface.clone(), made, default: false });
        records.save(id, &record)?;
    }
    publish(context, pod, &interfaces).await?;
    records.end(&uid)
}

/// Facts about the pod, as plugins know them.
fn arguments(name: &str, namespace: &str, uid: &str, id: &str, selected: &Selected) -> Vec<(String, String)> {
    let own = [
        ("IgnoreUnknown", "1"),
        ("K8S_POD_NAMESPACE", namespace),
        ("K8S_POD_NAME", name),
        ("K8S_POD_INFRA_CONTAINER_ID", id),
        ("K8S_POD_UID", uid),
    ];
    let mac = selected.mac.as_deref().map(|mac| ("MAC", mac));
    own.into_iter().chain(mac).map(|(name, value)| (name.to_owned(), value.to_owned())).collect()
}

fn capabilities(selected: &Selected) -> Map<String, Value> {
    let mut out = Map::new();
    if let Some(mac) = &selected.mac {
        out.insert("mac".into(), json!(mac));
    }
    if !selected.ips.is_empty() {
        out.insert("ips".into(), json!(selected.ips));
    }
    out
}

async fn publish(context: &Context, pod: &Pod, interfaces: &[Interface]) -> Result<()> {
    let (name, namespace, uid) = sandbox::names(pod);
    let text = status::text(interfaces);
    let body = json!({ "metadata": { "uid": uid, "annotations": { status::ANNOTATION: text } } });
    let api: Api<Pod> = Api::namespaced(context.client.clone(), &namespace);
    let written = api.patch_status(&name, &PatchParams::default(), &Patch::Merge(body)).await;
    written.map(drop).map_err(Error::api("write the pod's network status"))
}

/// Takes back every interface that was made in the sandbox beside the pod's own. What a plugin cannot undo goes with the
/// namespace, so a plugin's failure holds up nothing.
pub(crate) async fn detach(context: &Context, id: &str) -> Result<()> {
    let records = records(context);
    let Some(record) = records.load(id)? else { return Ok(()) };
    for entry in record.entries.iter().rev() {
        if let Err(error) = cni::del(&dirs(), &entry.network, &entry.attachment, &entry.result).await {
            let interface = &entry.attachment.interface;
            tracing::warn!(sandbox = id, interface, error = %kit::Chain(&error), "a network was not left properly");
        }
        pool::give_back(context, &entry.leases).await?;
    }
    records.remove(id)
}

/// Forgets a pod that has no sandbox any more.
pub(crate) fn forget(context: &Context, uid: &str) -> Result<()> {
    records(context).end(uid)
}

/// After a start: sandboxes that were not finished are stopped, and what is recorded of sandboxes that are gone is taken back.
///
/// # Errors
/// When the runtime cannot be asked, or a record not be read.
pub(crate) async fn recover(context: &Context) -> Result<()> {
    let records = records(context);
    for uid in records.begun()? {
        for sandbox in context.runtime.sandboxes(Some(&uid)).await? {
            if sandbox.state == rpc::cri::PodSandboxState::SandboxReady as i32 {
                tracing::info!(pod = uid, sandbox = sandbox.id, "a sandbox lacks its networks: it is made again");
                leave(context, &sandbox.id).await;
                context.runtime.stop_sandbox(&sandbox.id).await?;
            }
        }
        records.end(&uid)?;
    }
    let there = context.runtime.sandboxes(None).await?;
    for id in records.sandboxes()? {
        if !there.iter().any(|sandbox| sandbox.id == id) {
            leave(context, &id).await;
        }
    }
    Ok(())
}

/// As [`detach`]; what fails, as when the API server does not answer yet, is left to the next start.
async fn leave(context: &Context, id: &str) {
    if let Err(error) = detach(context, id).await {
        tracing::warn!(sandbox = id, error = %kit::Chain(&error), "networks of a sandbox were not left");
    }
}

/// Stops a sandbox after its networks were left.
pub(crate) async fn stop_sandbox(context: &Context, id: &str) -> Result<()> {
    detach(context, id).await?;
    context.runtime.stop_sandbox(id).await
}
