//! The kinds of resource.k8s.io, as far as controllers read them. Writes are patches, so nothing else is lost.

use k8s_openapi::api::core::v1::NodeSelector;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const GROUP: &str = "resource.k8s.io";
const VERSION: &str = "v1";

/// A request for devices, and which they are.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResourceClaim {
    /// As of any object.
    pub metadata: ObjectMeta,
    /// What is asked for.
    #[serde(default)]
    pub spec: ClaimSpec,
    /// What was given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<ClaimStatus>,
}

/// What a claim asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClaimSpec {
    /// Which devices.
    #[serde(default)]
    pub devices: DeviceClaim,
}

/// Which devices a claim asks for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct DeviceClaim {
    /// Each for one or more devices.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<DeviceRequest>,
    /// What holds between them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub constraints: Vec<Constraint>,
    /// What drivers are told.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<Configuration>,
}

/// One request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct DeviceRequest {
    /// Unique in the claim.
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exactly: Option<Wish>,
    /// Or the first of these that can be had.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub first_available: Vec<Wish>,
}

/// What a request is for.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Wish {
    /// Of one in a list.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// Whose selectors count, too.
    pub device_class_name: String,
    /// All must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub selectors: Vec<Selector>,
    /// `ExactCount` or `All`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation_mode: Option<String>,
    /// How many.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub count: Option<i64>,
    /// Beside whoever has the device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_access: Option<bool>,
    /// Of taints.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

/// An expression about a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Selector {
    /// In CEL.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cel: Option<Expression>,
}

/// A CEL expression.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Expression {
    /// As written.
    pub expression: String,
}

/// What holds between the devices of some requests.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Constraint {
    /// Of all when it names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<String>,
    /// They have the same value of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub match_attribute: Option<String>,
}

/// What a driver is told, of a claim or a class.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Configuration {
    /// Of all when it names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<String>,
    /// Only its driver understands it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub opaque: Value,
}

/// A toleration of devices' taints.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Toleration {
    /// Any when it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub key: Option<String>,
    /// `Exists` or `Equal`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub operator: Option<String>,
    /// Of the taint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    /// Any when it is empty.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub effect: Option<String>,
    /// How long one of `NoExecute` is tolerated.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub toleration_seconds: Option<i64>,
}

/// What became of a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClaimStatus {
    /// Its devices.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<Allocation>,
    /// Who may use them.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub reserved_for: Vec<Consumer>,
}

/// The devices of a claim, and where they can be used.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocation {
    /// The devices.
    #[serde(default)]
    pub devices: AllocatedDevices,
    /// On all nodes when it is not set.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub node_selector: Option<NodeSelector>,
}

/// The devices, and what their drivers are told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct AllocatedDevices {
    /// Each device with its request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub results: Vec<Allocated>,
    /// Of the classes first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub config: Vec<Told>,
}

/// One device of a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Allocated {
    /// `request`, or `request/subrequest`.
    pub request: String,
    /// Who offers it.
    pub driver: String,
    /// Where it is.
    pub pool: String,
    /// Which it is.
    pub device: String,
    /// Beside whoever has it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub admin_access: Option<bool>,
    /// Those of the request.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tolerations: Vec<Toleration>,
}

/// What a driver is told, and by whom.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Told {
    /// `FromClass` or `FromClaim`.
    pub source: String,
    /// Of all when it names none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub requests: Vec<String>,
    /// Only its driver understands it.
    #[serde(default, skip_serializing_if = "Value::is_null")]
    pub opaque: Value,
}

/// Who may use a claim.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Consumer {
    /// Empty of pods.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub api_group: Option<String>,
    /// `pods`.
    pub resource: String,
    /// In the claim's namespace.
    pub name: String,
    /// This very one.
    pub uid: String,
}

/// What claims are made of.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResourceClaimTemplate {
    /// As of any object.
    pub metadata: ObjectMeta,
    /// The claim.
    #[serde(default)]
    pub spec: TemplateSpec,
}

/// A claim to be.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TemplateSpec {
    /// Labels and annotations.
    #[serde(default)]
    pub metadata: Option<ObjectMeta>,
    /// As it is.
    #[serde(default)]
    pub spec: Value,
}

/// What devices of a kind have in common.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct DeviceClass {
    /// As of any object.
    pub metadata: ObjectMeta,
    /// What it selects.
    #[serde(default)]
    pub spec: ClassSpec,
}

/// What a class selects, and what drivers are told.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ClassSpec {
    /// All must hold.
    #[serde(default)]
    pub selectors: Vec<Selector>,
    /// What drivers are told.
    #[serde(default)]
    pub config: Vec<Configuration>,
}

/// Some devices of a pool.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ResourceSlice {
    /// As of any object.
    pub metadata: ObjectMeta,
    /// The devices.
    #[serde(default)]
    pub spec: SliceSpec,
}

/// Some devices, and where they are.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SliceSpec {
    /// Who offers them.
    pub driver: String,
    /// Whose part they are.
    pub pool: Pool,
    /// Where the devices are.
    #[serde(flatten)]
    pub place: Place,
    /// Each device says where it is.
    #[serde(default)]
    pub per_device_node_selection: Option<bool>,
    /// The devices.
    #[serde(default)]
    pub devices: Vec<Device>,
}

/// Where devices are: one of these.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Place {
    /// On this node.
    #[serde(default)]
    pub node_name: Option<String>,
    /// On nodes like these.
    #[serde(default)]
    pub node_selector: Option<NodeSelector>,
    /// Everywhere.
    #[serde(default)]
    pub all_nodes: Option<bool>,
}

/// The devices a driver has in one place.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// Of the driver's choice.
    pub name: String,
    /// Only slices of the highest one count.
    pub generation: i64,
    /// So many slices are the whole pool.
    pub resource_slice_count: i64,
}

/// One device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Device {
    /// Unique in its pool.
    pub name: String,
    /// By their names.
    #[serde(default)]
    pub attributes: Value,
    /// By their names.
    #[serde(default)]
    pub capacity: Value,
    /// Where it is, if the slice does not say.
    #[serde(flatten)]
    pub place: Place,
    /// What keeps others off it.
    #[serde(default)]
    pub taints: Vec<Taint>,
}

/// A taint of a device.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Taint {
    /// What it is.
    pub key: String,
    /// More of it.
    #[serde(default)]
    pub value: Option<String>,
    /// `NoSchedule`, or none that matters.
    pub effect: String,
}

meta::kind!(DeviceClass, GROUP, VERSION, "deviceclasses", ClusterResourceScope);
meta::kind!(ResourceClaim, GROUP, VERSION, "resourceclaims", NamespaceResourceScope);
meta::kind!(ResourceClaimTemplate, GROUP, VERSION, "resourceclaimtemplates", NamespaceResourceScope);
meta::kind!(ResourceSlice, GROUP, VERSION, "resourceslices", ClusterResourceScope);
