//! What the controllers share: the client, where events go, what the administrator says, and what is known of the cluster.

use std::sync::Arc;

use api::kubevirt::constants::device;
use api::kubevirt::v1::VirtualMachineInstance;
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kit::events::Recorder;
use kit::store::Key;
use kube::{Client, Resource, ResourceExt};

use crate::facts::claims::{self, Claims};
use crate::facts::persistent_state;
use crate::settings::Settings;
use crate::stores::Stores;

/// The images that pods are made of.
#[derive(Clone, Copy, Debug)]
pub struct Images<'a> {
    /// Of guests.
    pub launcher: &'a str,
    /// Of exports.
    pub exporter: &'a str,
}

/// Shared by every worker; cheap to clone.
#[derive(Clone)]
pub struct Context(pub Arc<Inner>);

/// Behind [`Context`].
pub struct Inner {
    /// The API server.
    pub client: Client,
    /// Events.
    pub recorder: Recorder,
    /// Where this controller and its KubeVirt object live.
    pub namespace: String,
    /// The launcher's image.
    pub launcher_image: String,
    /// The image of the servers of exports.
    pub exporter_image: String,
    /// What is known of the cluster.
    pub stores: Arc<Stores>,
}

impl std::ops::Deref for Context {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

impl Inner {
    /// Of controllers that begin.
    pub(crate) fn new(client: Client, namespace: &str, images: Images<'_>, stores: Arc<Stores>) -> Self {
        Self {
            recorder: Recorder::new(client.clone(), "virtualmachine-controller", ""),
            client,
            namespace: namespace.to_owned(),
            launcher_image: images.launcher.to_owned(),
            exporter_image: images.exporter.to_owned(),
            stores,
        }
    }

    /// The administrator's choices as they are now.
    pub fn settings(&self) -> Settings {
        Settings::of(self.stores.kubevirts.list().first(), &self.launcher_image)
    }

    /// The claims that `vmi` names and that exist, and the one that holds its state.
    pub fn claims_of(&self, vmi: &VirtualMachineInstance) -> Claims {
        let namespace = vmi.namespace().unwrap_or_default();
        let found = claims::all(vmi).filter_map(|used| {
            let claim = self.stores.claims.get(&Key::new(namespace.as_str(), used.claim))?;
            Some((used.claim.to_owned(), claim))
        });
        let kept = persistent_state::is_kept_by(vmi);
        let state = kept.then(|| persistent_state::find(&self.stores.claims, &namespace, &vmi.name_any()));
        found.chain(state.flatten().map(|claim| (claim.name_any(), claim))).collect()
    }

    /// True when guests run without KVM: because the administrator wants it, or because no node offers it.
    pub fn emulation(&self, settings: &Settings) -> bool {
        if settings.use_emulation {
            return true;
        }
        let nodes = self.stores.nodes.list();
        !nodes.is_empty() && !nodes.iter().any(offers_kvm)
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context").field("namespace", &self.namespace).finish_non_exhaustive()
    }
}

fn offers_kvm(node: &Node) -> bool {
    let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
    allocatable.and_then(|all| all.get(device::KVM)).is_some_and(|amount| amount.0 != "0")
}

/// A reference to `object` for events.
pub(crate) fn reference<K: Resource<DynamicType = ()>>(object: &K) -> ObjectReference {
    object.object_ref(&())
}
