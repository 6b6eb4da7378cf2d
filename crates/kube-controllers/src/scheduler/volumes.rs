//! What a pod's volumes say about where it can run: the one place where the scheduler looks at storage.

use k8s_openapi::api::core::v1::Node;

use super::verdict::{Plugin, Refusal};
use crate::volumes::binder::is_curable;
pub(crate) use crate::volumes::binder::{Choice, PodVolumes, bind, reserve};

/// Why the volumes cannot be used on the node.
pub(crate) fn refusal(volumes: &PodVolumes, node: &Node) -> Option<Refusal> {
    volumes.refusal(node).map(|reason| Refusal::new(Plugin::Volumes, reason, is_curable(reason)))
}
