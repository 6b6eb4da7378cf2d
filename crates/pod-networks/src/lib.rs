//! Networks of pods beside their own: what an annotation asks for, made by CNI plugins.
//!
//! ```text
//!  annotation k8s.v1.cni.cncf.io/networks --selection--> NetworkAttachmentDefinitions --definition--> chains of plugins
//!       ADD net1, net2, … in the sandbox, DEL before it is stopped --status--> annotation …/network-status
//! ```
//! The embedded cluster's kubelet uses it, and on other clusters the daemon of Multus. What was made is recorded on disk, so that
//! it is taken back by whichever life of the process stops the sandbox, also after a power cut.

mod attach;
mod change;
mod claim;
pub mod definition;
mod device;
mod error;
mod own;
mod pool;
mod range;
mod records;
pub mod selection;
mod status;

use std::path::PathBuf;
use std::sync::Arc;

use futures::future::BoxFuture;
use k8s_openapi::api::core::v1::{ObjectReference, Pod};
use kit::events::Recorder;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, Resource};
use net::cni::{Network, Plugins};

pub use crate::attach::asked_for;
use crate::claim::Claim;
pub use crate::device::Devices;
use crate::device::RESOURCE;
pub use crate::error::{Error, Result};
use crate::records::Records;
use crate::selection::Selected;
pub use crate::status::Interface;

/// A network to join, with all that is needed for it.
#[derive(Clone, Debug)]
pub struct Wanted {
    selected: Selected,
    network: Network,
    /// What is to have its addresses.
    claim: Option<Claim>,
    /// Whose devices its interfaces are.
    resource: Option<String>,
}

/// What a NetworkAttachmentDefinition says.
struct Defined {
    network: Network,
    /// Addresses on it may outlive pods.
    persists: bool,
    /// Whose devices its interfaces are.
    resource: Option<String>,
}

/// The sandbox of a pod.
#[derive(Clone, Debug, Default)]
pub struct Sandbox {
    /// Its id, as the container runtime has it.
    pub id: String,
    /// Path of its network namespace, as plugins see it.
    pub netns: PathBuf,
}

/// What is done for a network on this node once a pod has an interface of it.
pub trait Segment: Send + Sync {
    /// Does it.
    fn connect<'a>(&'a self, network: &'a Network) -> BoxFuture<'a, Result<()>>;
}

/// Makes interfaces and takes them back.
#[derive(Clone)]
pub struct Networks {
    client: Client,
    events: Recorder,
    plugins: Plugins,
    records: Records,
    segment: Option<Arc<dyn Segment>>,
    devices: Option<Arc<dyn Devices>>,
}

impl Networks {
    /// With `plugins`; what was made is recorded in the directory `records`, which outlives the process.
    pub fn new(client: Client, events: Recorder, plugins: Plugins, records: PathBuf) -> Self {
        Self { client, events, plugins, records: Records::new(records), segment: None, devices: None }
    }

    /// Has `segment` connect each network.
    #[must_use]
    pub fn connected_by(mut self, segment: Arc<dyn Segment>) -> Self {
        self.segment = Some(segment);
        self
    }

    /// Has `devices` say which device an interface is; without it, plugins are told of none.
    #[must_use]
    pub fn made_of(mut self, devices: Arc<dyn Devices>) -> Self {
        self.devices = Some(devices);
        self
    }

    /// What the pod asks for; nothing on the host network.
    ///
    /// # Errors
    /// When the annotation cannot be read, or names what is not there.
    pub async fn wanted(&self, pod: &Pod) -> Result<Vec<Wanted>> {
        let mut out = Vec::new();
        for selected in selected(pod)? {
            out.push(self.look_up(pod, selected).await?);
        }
        Ok(out)
    }

    /// What `selected` names.
    async fn look_up(&self, pod: &Pod, selected: Selected) -> Result<Wanted> {
        let Defined { network, persists, resource } = self.defined(pod, &selected).await?;
        let mut claim = None;
        if let Some(reference) = &selected.claim {
            pool::keeps(&network, persists).map_err(|what| {
                let title = format!("{}/{}", selected.namespace, selected.name);
                Error::Invalid(format!("ipam-claim-reference {} of {title}: {what}", reference.name))
            })?;
            claim = Some(claim::read(&self.client, pod, &selected, reference, &network).await?);
        }
        Ok(Wanted { selected, network, claim, resource })
    }

    /// The network that `selected` names.
    ///
    /// # Errors
    /// When it is not there, of which an event of the pod tells, or cannot be read.
    pub async fn definition(&self, pod: &Pod, selected: &Selected) -> Result<Network> {
        Ok(self.defined(pod, selected).await?.network)
    }

    async fn defined(&self, pod: &Pod, selected: &Selected) -> Result<Defined> {
        let kind = GroupVersionKind::gvk("k8s.cni.cncf.io", "v1", "NetworkAttachmentDefinition");
        let kind = ApiResource::from_gvk_with_plural(&kind, "network-attachment-definitions");
        let (namespace, name) = (&selected.namespace, &selected.name);
        let api: Api<DynamicObject> = Api::namespaced_with(self.client.clone(), namespace, &kind);
        let found = match api.get_opt(name).await {
            Ok(Some(found)) => found,
            Ok(None) => {
                let message = format!(
                    "cannot find a network-attachment-definition ({name}) in namespace ({namespace}): \
                     network-attachment-definitions.k8s.cni.cncf.io \"{name}\" not found"
                );
                self.events.warning(&about(pod), "NoNetworkFound", message.clone());
                return Err(Error::Invalid(message));
            }
            Err(error) => {
                return Err(Error::api(format!("read network-attachment-definition {namespace}/{name}"))(error));
            }
        };
        let config = found.data["spec"]["config"].as_str().unwrap_or_default();
        let mut network = definition::parse(config, namespace, name).map_err(Error::Invalid)?;
        definition::add_arguments(&mut network, &selected.arguments);
        let resource = found.metadata.annotations.as_ref().and_then(|all| all.get(RESOURCE));
        let resource = resource.map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
        Ok(Defined { network, persists: definition::persists(config), resource })
    }

    /// Says that a sandbox is about to be made for the pod `uid` with networks: until [`Networks::attach`] has ended it is not to
    /// be used.
    ///
    /// # Errors
    /// When it cannot be recorded.
    pub fn begin(&self, uid: &str) -> Result<()> {
        self.records.begin(uid)
    }

    /// The pod has no sandbox that may lack something.
    ///
    /// # Errors
    /// When it cannot be recorded.
    pub fn end(&self, uid: &str) -> Result<()> {
        self.records.end(uid)
    }

    /// Pods whose sandbox may lack something.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub fn begun(&self) -> Result<Vec<String>> {
        self.records.begun()
    }

    /// Ids of sandboxes in which something was made.
    ///
    /// # Errors
    /// When the records cannot be read.
    pub fn sandboxes(&self) -> Result<Vec<String>> {
        self.records.sandboxes()
    }
}

/// What the pod's annotation asks for; nothing on the host network.
fn selected(pod: &Pod) -> Result<Vec<Selected>> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    selection::parse(annotation(pod), namespace).map_err(Error::Invalid)
}

/// The annotation that names a pod's networks; empty where there is none, and on the host network.
pub fn annotation(pod: &Pod) -> &str {
    let host = pod.spec.as_ref().and_then(|spec| spec.host_network) == Some(true);
    let annotations = pod.metadata.annotations.as_ref();
    let text = annotations.and_then(|all| all.get(selection::ANNOTATION)).filter(|_| !host);
    text.map(String::as_str).unwrap_or_default()
}

/// The object that events about the pod name.
fn about(pod: &Pod) -> ObjectReference {
    pod.object_ref(&())
}
