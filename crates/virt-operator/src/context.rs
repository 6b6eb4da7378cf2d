//! What the operator's workers share.

use std::sync::Arc;

use api::kubevirt::v1::{KubeVirt, KubeVirtStatus};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use kit::apply::Applied;
use kit::operator::Requests;
use kit::store::Store;
use kit::tls::Material;
use kube::{Client, ResourceExt};

use crate::error::Error;

/// What the operator was started with.
#[derive(Clone, Debug)]
pub struct Release {
    /// Namespace of the operator, and of the KubeVirt object.
    pub namespace: String,
    /// Image of the components.
    pub component: String,
    /// Image of launcher pods.
    pub launcher: String,
    /// Image of what `virtctl guestfs` runs.
    pub guestfs: String,
    /// Version of the product.
    pub version: String,
}

/// Shared by the workers.
pub struct Context {
    /// The API server.
    pub client: Client,
    /// What is deployed.
    pub release: Release,
    /// The KubeVirt object that counts.
    pub requests: Requests<KubeVirt>,
    /// KubeVirt objects.
    pub kubevirts: Store<KubeVirt>,
    /// Our Deployments.
    pub deployments: Store<Deployment>,
    /// Our DaemonSet.
    pub daemon_sets: Store<DaemonSet>,
    /// The operator's own certificate.
    pub material: Arc<Material>,
    /// What was applied last.
    pub applied: Applied,
}

impl Context {
    /// Writes `wanted` as the status of `kubevirt` if it differs.
    pub(crate) async fn write(&self, kubevirt: &KubeVirt, wanted: KubeVirtStatus) -> Result<(), Error> {
        let old = kubevirt.status.as_deref().cloned().unwrap_or_default();
        if old == wanted {
            return Ok(());
        }
        let written = self.requests.write_status(kubevirt, &wanted).await;
        written.map_err(Error::api("patch", "kubevirt", &kubevirt.name_any()))
    }
}
