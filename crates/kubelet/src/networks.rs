//! Secondary networks of pods, made by [`pod_networks`] in the sandboxes of this node.
//!
//! A sandbox in which not everything was made is never used. The annotation of a pod that runs is followed as well.

mod inspect;

use std::path::PathBuf;
use std::sync::Arc;

use futures::FutureExt as _;
use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kit::events::Recorder;
use kube::Client;
use net::cni::{Network, Plugins};
use pod_networks::{Networks, Sandbox, Segment, Wanted, definition};

use crate::config::Config;
use crate::context::Context;
use crate::devices::Devices;
use crate::error::Result;
use crate::uplink::Uplinks;
use crate::{cni, netns, resources};

/// Where plugins are looked for: the product's own, what the distribution brings, what pods of plugins install.
const PLUGINS: [&str; 3] = [cni::PLUGINS, "/usr/lib/cni", "/opt/cni/bin"];

/// The networks of this node's pods.
pub(crate) fn networks(config: &Config, client: &Client, events: &Recorder, devices: &Devices) -> Networks {
    let plugins = Plugins { dirs: PLUGINS.iter().map(PathBuf::from).collect(), root: None };
    let networks = Networks::new(client.clone(), events.clone(), plugins, config.root.join("networks"));
    let networks = networks.made_of(Arc::new(Given(devices.clone())));
    match &config.uplinks {
        Some(uplinks) => networks.connected_by(Arc::new(Connected(uplinks.clone()))),
        None => networks,
    }
}

/// Devices that are interfaces. Containers get theirs when they start; these are given when the sandbox is made, and kept.
struct Given(Devices);

impl pod_networks::Devices for Given {
    fn of<'a>(&'a self, pod: &'a Pod, resource: &'a str) -> BoxFuture<'a, pod_networks::Result<Vec<String>>> {
        async move {
            let uid = pod.metadata.uid.as_deref().unwrap_or_default();
            let mut all = Vec::new();
            let spec = pod.spec.as_ref();
            let sidecars = spec.and_then(|spec| spec.init_containers.as_deref()).unwrap_or_default();
            let sidecars = sidecars.iter().filter(|container| resources::is_sidecar(container));
            for container in spec.into_iter().flat_map(|spec| &spec.containers).chain(sidecars) {
                let asked = resources::extended(container).into_iter().filter(|(name, _)| name == resource);
                for (_, amount) in asked {
                    let given = self.0.give(uid, &container.name, resource, amount).await;
                    all.extend(given.map_err(|error| pod_networks::Error::Invalid(kit::Chain(&error).to_string()))?);
                }
            }
            Ok(all)
        }
        .boxed()
    }

    fn went_with_their_sandbox(&self, pod: &Pod, resource: &str) {
        self.0.ask_again(pod.metadata.uid.as_deref().unwrap_or_default(), resource);
    }
}

/// Bridges that are the same segment on every node.
struct Connected(Uplinks);

impl Segment for Connected {
    fn connect<'a>(&'a self, network: &'a Network) -> BoxFuture<'a, pod_networks::Result<()>> {
        async move {
            // The bridge of the pod network is routed.
            let Some(bridge) = definition::open_bridge(network).filter(|bridge| *bridge != cni::BRIDGE) else {
                return Ok(());
            };
            let connected = self.0.connect(bridge).await;
            connected.map_err(|error| pod_networks::Error::Invalid(kit::Chain(&error).to_string()))
        }
        .boxed()
    }
}

/// Makes all interfaces in the sandbox.
///
/// # Errors
/// The first plugin that fails. The caller stops the sandbox, which takes back what was made.
pub(crate) async fn attach(context: &Context, pod: &Pod, id: &str, all: Vec<Wanted>) -> Result<()> {
    let sandbox = sandbox(context, id).await?;
    let own = inspect::of_pod_network(&sandbox.netns).await;
    Ok(context.networks.attach(pod, &sandbox, own, all).await?)
}

/// Brings the interfaces of a running sandbox to what the pod's annotation says now.
///
/// # Errors
/// When the annotation cannot be followed, of which an event tells.
pub(crate) async fn change(context: &Context, pod: &Pod, id: &str) -> Result<()> {
    // Pods without networks beside their own have nothing that the runtime need be asked for.
    if pod_networks::annotation(pod).is_empty() && !context.networks.sandboxes()?.iter().any(|known| known == id) {
        return Ok(());
    }
    let sandbox = sandbox(context, id).await?;
    let own = async || inspect::of_pod_network(&sandbox.netns).await;
    context.networks.change(pod, &sandbox, own).await?;
    Ok(())
}

async fn sandbox(context: &Context, id: &str) -> Result<Sandbox> {
    let netns = netns::of_sandbox(&context.runtime, id).await?;
    Ok(Sandbox { id: id.to_owned(), netns })
}

/// After a start: sandboxes that were not finished are stopped, and what is recorded of sandboxes that are gone is taken back.
///
/// # Errors
/// When the runtime cannot be asked, or a record not be read.
pub(crate) async fn recover(context: &Context) -> Result<()> {
    for uid in context.networks.begun()? {
        for sandbox in context.runtime.sandboxes(Some(&uid)).await? {
            if sandbox.state == rpc::cri::PodSandboxState::SandboxReady as i32 {
                tracing::info!(pod = uid, sandbox = sandbox.id, "a sandbox lacks its networks: it is made again");
                leave(context, &sandbox.id).await;
                context.runtime.stop_sandbox(&sandbox.id).await?;
            }
        }
        context.networks.end(&uid)?;
    }
    let there = context.runtime.sandboxes(None).await?;
    for id in context.networks.sandboxes()? {
        if !there.iter().any(|sandbox| sandbox.id == id) {
            leave(context, &id).await;
        }
    }
    Ok(())
}

/// Takes back what is in the sandbox; what fails, as when the API server does not answer yet, is left to the next start.
async fn leave(context: &Context, id: &str) {
    if let Err(error) = context.networks.detach(id).await {
        tracing::warn!(sandbox = id, error = %kit::Chain(&error), "networks of a sandbox were not left");
    }
}

/// Stops a sandbox after its networks were left.
pub(crate) async fn stop_sandbox(context: &Context, id: &str) -> Result<()> {
    context.networks.detach(id).await?;
    context.runtime.stop_sandbox(id).await
}
