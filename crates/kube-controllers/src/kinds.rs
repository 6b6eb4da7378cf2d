//! What the controllers keep in memory of a kind: which objects, and which parts of them.

use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::{ConfigMap, Pod, Secret};
use kit::controller::{Kept, Kinds};
use kube::Api;
use kube::runtime::watcher;

/// Of all other kinds everything is kept.
pub(crate) fn kept() -> Kinds {
    let selected = |fields: &str| watcher::Config::default().fields(fields);
    csi_controllers::kept()
        .with(Kept::<Pod> { trim: pod, ..Kept::default() })
        .with(Kept::<ConfigMap> { config: selected("metadata.name=kube-root-ca.crt"), ..Kept::default() })
        .with(Kept::<Secret> { config: selected("type=kubernetes.io/service-account-token"), ..Kept::default() })
        // Heartbeats of nodes only; leader elections would wake us every other second.
        .with(Kept::<Lease> { api: |client| Api::namespaced(client, "kube-node-lease"), ..Kept::default() })
}

fn pod(pod: &mut Pod) {
    let Some(spec) = &mut pod.spec else { return };
    // Only who looks for a node asks which images are where.
    let placed = spec.node_name.is_some();
    for container in spec.containers.iter_mut().chain(spec.init_containers.iter_mut().flatten()) {
        container.args = None;
        container.env = None;
        container.env_from = None;
        // Which sidecars a CSI driver brings is read off its containers.
        if csi_controllers::sidecar::of(container).is_none() {
            container.command = None;
            container.image = container.image.take().filter(|_| !placed);
        }
        container.lifecycle = None;
        container.liveness_probe = None;
        container.readiness_probe = None;
        container.security_context = None;
        container.startup_probe = None;
        container.volume_mounts = None;
    }
    spec.security_context = None;
}
