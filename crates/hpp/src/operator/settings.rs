//! How things are deployed, and the names that manifests have in common.

use serde_json::{Value, json};

/// The classes of volumes and of snapshots.
pub const CLASS: &str = "hostpath-csi";
/// The DaemonSet of the CSI driver.
pub(crate) const DRIVER: &str = "hostpath-provisioner-csi";
/// The account its pods have. The driver asks the cluster for nothing; what calls it beside it does.
pub(crate) const ACCOUNT: &str = "hostpath-provisioner-admin-csi";

/// The DaemonSet of the legacy provisioner.
pub(crate) const LEGACY: &str = "hostpath-provisioner";
/// The account of the legacy provisioner, which makes volumes.
pub(crate) const LEGACY_ACCOUNT: &str = "hostpath-provisioner-admin";

/// How things are deployed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Settings {
    /// The namespace.
    pub(crate) namespace: String,
    /// The image of every program.
    pub(crate) image: String,
    /// Who calls the driver.
    pub(crate) controllers: Controllers,
    /// The cluster knows the kinds of Prometheus' operator.
    pub(crate) monitored: bool,
    /// The cluster knows SecurityContextConstraints.
    pub(crate) constrained: bool,
    /// The cluster knows snapshots of volumes.
    pub(crate) captured: bool,
}

/// Labels by which what is deployed is found again.
pub(crate) fn labels(app: &str) -> Value {
    json!({
        "k8s-app": app, "app.kubernetes.io/component": "storage",
        "app.kubernetes.io/managed-by": "hostpath-provisioner-operator",
    })
}

/// Who calls the driver's controller service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Controllers {
    /// A sidecar of the driver, as on any Kubernetes.
    #[default]
    Driver,
    /// The control plane, which looks after drivers that bring nobody.
    Cluster,
}
