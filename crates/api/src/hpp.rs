//! Group `hostpathprovisioner.kubevirt.io`, v1beta1: the HostPathProvisioner object.

use k8s_openapi::api::core::v1::{Affinity, PersistentVolumeClaimSpec, PersistentVolumeClaimStatus, Toleration};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};

/// Where volumes are to be kept, and how that is.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct HostPathProvisioner {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// What is wanted.
    #[serde(default)]
    pub spec: Spec,
    /// What is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

/// What is wanted.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// Of the driver's image.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// The older way: one directory, for the legacy provisioner and a pool named `legacy`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path_config: Option<PathConfig>,
    /// Pools of the CSI driver.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub storage_pools: Vec<StoragePool>,
    /// Where the driver runs.
    pub workload: Placement,
    /// Words that switch something on.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub feature_gates: Vec<String>,
}

/// One directory of every node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PathConfig {
    /// The directory.
    pub path: String,
    /// Whether directories are named after their claims as well.
    pub use_naming_prefix: bool,
}

/// A pool: a directory of every node, or a volume that is mounted there.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StoragePool {
    /// What StorageClasses choose it by.
    pub name: String,
    /// The directory.
    pub path: String,
    /// The claim that each node's volume is made by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pvc_template: Option<PersistentVolumeClaimSpec>,
    /// What takes snapshots; the driver does, whatever this says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub snapshot_provider: Option<String>,
    /// Without effect: volumes are made in the pool itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub overlay_class_name: Option<String>,
}

/// Which nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// Labels they have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<std::collections::BTreeMap<String, String>>,
    /// Rules they satisfy.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub affinity: Option<Affinity>,
    /// Taints they may have.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tolerations: Option<Vec<Toleration>>,
}

/// What is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Facts that are true, false or not known.
    pub conditions: Vec<Condition>,
    /// How each pool is.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub storage_pool_statuses: Vec<PoolStatus>,
    /// The version that runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub observed_version: Option<String>,
    /// The version of the operator.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub operator_version: Option<String>,
    /// The version that is to run.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub target_version: Option<String>,
}

/// One fact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True`, `False` or `Unknown`.
    pub status: String,
    /// Why, in one word.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// Why, for people.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub message: Option<String>,
    /// When it was last found so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_heartbeat_time: Option<Time>,
    /// Since when it is so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_transition_time: Option<Time>,
}

/// How a pool is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct PoolStatus {
    /// Which.
    pub name: String,
    /// `Preparing` or `Ready`.
    pub phase: String,
    /// On how many nodes it is to be.
    pub desired_ready: i32,
    /// On how many it is.
    pub current_ready: i32,
    /// The claims it is made of.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub claim_statuses: Vec<ClaimStatus>,
}

/// How a claim of a pool is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct ClaimStatus {
    /// Which.
    pub name: String,
    /// As the claim says.
    pub status: PersistentVolumeClaimStatus,
}

/// On a HostPathProvisioner: the names of pools, separated by commas, whose directory is one on all nodes, as a file
/// server's is. Volumes in them can be ReadWriteMany.
pub const SHARED: &str = "ferrovirt.io/shared-pools";

impl HostPathProvisioner {
    /// The names of the pools that are one on all nodes.
    pub fn shared(&self) -> Vec<&str> {
        let listed = self.metadata.annotations.as_ref().and_then(|all| all.get(SHARED));
        let names = listed.into_iter().flat_map(|names| names.split(',')).map(str::trim);
        names.filter(|name| !name.is_empty()).collect()
    }

    /// Whether the condition of that type is said to be true.
    pub fn is(&self, type_: &str) -> bool {
        self.status.as_ref().is_some_and(|status| status.is(type_))
    }
}

impl Status {
    /// Whether the condition of that type is said to be true.
    pub fn is(&self, type_: &str) -> bool {
        meta::conditions::is_true(&self.conditions, type_)
    }
}

meta::kind!(
    HostPathProvisioner,
    "hostpathprovisioner.kubevirt.io",
    "v1beta1",
    "hostpathprovisioners",
    ClusterResourceScope
);
