//! The NetworkAddonsConfig object.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The one name.
pub const NAME: &str = "cluster";

/// Which networks the cluster has beside its own.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct NetworkAddonsConfig {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// What is wanted: a part that is there is deployed.
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
    /// How images are pulled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_policy: Option<String>,
    /// MAC addresses.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kube_mac_pool: Option<KubeMacPool>,
    /// Names of machines on secondary networks.
    #[serde(rename = "kubeSecondaryDNS", skip_serializing_if = "Option::is_none")]
    pub kube_secondary_dns: Option<KubeSecondaryDns>,
    /// Addresses that outlive pods.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub kubevirt_ipam_controller: Option<KubevirtIpamController>,
    /// Bridges of nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub linux_bridge: Option<Value>,
    /// Links of nodes for machines alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub macvtap: Option<Macvtap>,
    /// Networks beside the pod's own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multus: Option<Value>,
    /// Networks that come and go while the pod runs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub multus_dynamic_networks: Option<Value>,
    /// Switches of Open vSwitch.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ovs: Option<Value>,
    /// Which nodes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement_configuration: Option<PlacementConfiguration>,
    /// How long certificates live.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub self_sign_configuration: Option<BTreeMap<String, String>>,
    /// Versions and ciphers of TLS.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tls_security_profile: Option<Value>,
}

/// Addresses that outlive pods.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KubevirtIpamController {
    /// Namespace of the definition of the pod's own network, where that is a user-defined one.
    #[serde(rename = "defaultNetworkNADNamespace", skip_serializing_if = "Option::is_none")]
    pub default_network_nad_namespace: Option<String>,
}

/// Names of machines on secondary networks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct KubeSecondaryDns {
    /// What follows `vm` in the zone's name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub domain: Option<String>,
    /// The address by which others reach the name server.
    #[serde(rename = "nameServerIP", skip_serializing_if = "Option::is_none")]
    pub name_server_ip: Option<String>,
}

impl KubeSecondaryDns {
    /// The domain, or empty.
    pub fn domain(&self) -> &str {
        self.domain.as_deref().unwrap_or_default()
    }

    /// The address, or empty.
    pub fn name_server_ip(&self) -> &str {
        self.name_server_ip.as_deref().unwrap_or_default()
    }
}

/// Links of nodes for machines alone.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Macvtap {
    /// The ConfigMap that says which links.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device_plugin_config: Option<String>,
}

/// MAC addresses.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct KubeMacPool {
    /// The first.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_start: Option<String>,
    /// The last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub range_end: Option<String>,
}

/// Which nodes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct PlacementConfiguration {
    /// For controllers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub infra: Option<Placement>,
    /// For what runs on every node of machines.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workloads: Option<Placement>,
}

/// Nodes by their labels and taints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Placement {
    /// Rules they satisfy.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub affinity: Value,
    /// Labels they have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints they may have.
    #[serde(skip_serializing_if = "Value::is_null")]
    pub tolerations: Value,
}

/// What is.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// Facts that are true or false.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The containers of what is deployed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub containers: Vec<Container>,
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

/// A container of what is deployed.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Container {
    /// Its image.
    pub image: String,
    /// Its name.
    pub name: String,
    /// The kind of the workload.
    pub parent_kind: String,
    /// The workload's name.
    pub parent_name: String,
}

/// One fact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    /// Which.
    #[serde(rename = "type")]
    pub type_: String,
    /// `True` or `False`.
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

meta::condition!(Condition, last_heartbeat_time);
meta::kind!(
    NetworkAddonsConfig,
    "networkaddonsoperator.network.kubevirt.io",
    "v1",
    "networkaddonsconfigs",
    ClusterResourceScope
);
