//! What a pod's volumes say about where it can run: the one place where the scheduler looks at storage.

use std::sync::Arc;

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};

use super::cluster::Place;
use super::verdict::{Plugin, Refusal};
use crate::context::Context;
use crate::placement;
use crate::store::Key;

/// The volumes of one pod, as far as they limit its choice of nodes.
#[derive(Debug, Default)]
pub(crate) struct PodVolumes {
    bound: Vec<Arc<PersistentVolume>>,
}

impl PodVolumes {
    /// Reads the pod's claims; the error says why no node can take the pod before something changes about them.
    pub(crate) fn read(ctx: &Context, pod: &Pod) -> Result<Self, String> {
        let claims = ctx.store::<PersistentVolumeClaim>();
        let volumes = ctx.store::<PersistentVolume>();
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut bound = Vec::new();
        for volume in pod.spec.iter().flat_map(|s| s.volumes.iter().flatten()) {
            let name = match (&volume.persistent_volume_claim, &volume.ephemeral) {
                (Some(source), _) => source.claim_name.clone(),
                (None, Some(_)) => format!("{}-{}", pod.metadata.name.as_deref().unwrap_or_default(), volume.name),
                (None, None) => continue,
            };
            let Some(claim) = claims.get(&Key::new(namespace, &name)) else {
                return Err(format!("persistentvolumeclaim {name:?} not found"));
            };
            if claim.metadata.deletion_timestamp.is_some() {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            let Some(volume) = claim.spec.as_ref().and_then(|s| s.volume_name.as_deref()).filter(|v| !v.is_empty())
            else {
                return Err("pod has unbound immediate PersistentVolumeClaims".into());
            };
            bound.extend(volumes.get(&Key::new("", volume)));
        }
        Ok(Self { bound })
    }

    /// Why the volumes cannot be used on the node.
    pub(crate) fn refusal(&self, node: &Node, _place: &Place) -> Option<Refusal> {
        let reachable = |volume: &Arc<PersistentVolume>| {
            let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref()?.required.as_ref());
            affinity.is_none_or(|required| {
                required.node_selector_terms.iter().any(|term| placement::term_matches(term, node))
            })
        };
        let elsewhere = !self.bound.iter().all(reachable);
        elsewhere.then(|| Refusal::new(Plugin::Volumes, "node(s) had volume node affinity conflict", false))
    }
}
