//! What a cluster lacks for virtual machines at their best, in sentences.

use anyhow::Context;
use api::kubevirt::constants::device;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::api::storage::v1::StorageClass;
use kube::api::ListParams;
use kube::{Api, Client};

/// Marks the StorageClass of claims that name none.
pub(super) const DEFAULT_CLASS: &str = "storageclass.kubernetes.io/is-default-class";

/// What was found.
#[derive(Clone, Copy, Debug, Default)]
struct Found {
    /// A node offers KVM.
    kvm: bool,
    /// Claims that name no StorageClass get one.
    default_class: bool,
    /// The kinds of volume snapshots are served.
    snapshots: bool,
    /// Pods may have networks beside their own.
    networks: bool,
}

/// Looks, after everything was installed.
///
/// # Errors
/// When the API server refuses to tell.
pub(super) async fn look(client: &Client) -> anyhow::Result<Vec<&'static str>> {
    let nodes: Api<Node> = Api::all(client.clone());
    let nodes = nodes.list(&ListParams::default()).await.context("cannot list the nodes")?;
    let offers = |node: &Node| {
        let allocatable = node.status.as_ref().and_then(|status| status.allocatable.as_ref());
        allocatable.and_then(|all| all.get(device::KVM)).is_some_and(|amount| amount.0 != "0")
    };
    let classes: Api<StorageClass> = Api::all(client.clone());
    let classes = classes.list(&ListParams::default()).await.context("cannot list the StorageClasses")?;
    let known = client.list_api_group_resources("snapshot.storage.k8s.io/v1").await;
    let networks = client.list_api_group_resources("k8s.cni.cncf.io/v1").await;
    Ok(sentences(Found {
        networks: !matches!(networks, Err(kube::Error::Api(status)) if status.code == 404),
        kvm: nodes.iter().any(offers),
        default_class: classes.iter().any(is_default),
        snapshots: !matches!(known, Err(kube::Error::Api(status)) if status.code == 404),
    }))
}

/// Whether claims that name no class get this one.
pub(super) fn is_default(class: &StorageClass) -> bool {
    let marks = class.metadata.annotations.as_ref();
    marks.and_then(|marks| marks.get(DEFAULT_CLASS)).is_some_and(|mark| mark == "true")
}

fn sentences(found: Found) -> Vec<&'static str> {
    [
        (found.kvm, "no node offers KVM: guests are emulated, which is slow"),
        (found.default_class, "no StorageClass is the default one: name one in each DataVolume and claim"),
        (
            found.snapshots,
            "snapshots need the CRDs of snapshot.storage.k8s.io and the snapshot controller, which this cluster lacks",
        ),
        (found.networks, "machines have the network of their pod alone: install Multus for networks beside it"),
    ]
    .into_iter()
    .filter(|(there, _)| !there)
    .map(|(_, sentence)| sentence)
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_lacking_is_said() {
        assert!(sentences(Found { kvm: true, default_class: true, snapshots: true, networks: true }).is_empty());
        let all = sentences(Found::default());
        assert!(
            all.len() == 4 && all[0].contains("KVM") && all[1].contains("StorageClass") && all[2].contains("snapshot")
        );
    }
}
