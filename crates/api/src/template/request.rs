//! VirtualMachineTemplateRequest: the wish for a template of a machine that is there, with copies of its disks.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::LocalObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, ObjectMeta};
use serde::{Deserialize, Serialize};

/// Plural of requests.
pub const PLURAL: &str = "virtualmachinetemplaterequests";
/// On what is made for a request: its UID.
pub const REQUEST_UID: &str = "template.kubevirt.io/RequestUID";
/// On a request, until the snapshot that was taken for it is gone.
pub const FINALIZER: &str = "template.kubevirt.io/SnapshotCleanup";

/// The wish for a template.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VirtualMachineTemplateRequest {
    /// Name and the like.
    pub metadata: ObjectMeta,
    /// Of which machine; it never changes.
    #[serde(default)]
    pub spec: Spec,
    /// How far it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<Status>,
}

meta::kind!(
    VirtualMachineTemplateRequest,
    "template.kubevirt.io",
    "v1beta1",
    "virtualmachinetemplaterequests",
    NamespaceResourceScope
);

/// The spec of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Spec {
    /// The machine.
    pub virtual_machine_ref: MachineRef,
    /// The template's name; that of the request unless it is said.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub template_name: String,
    /// Labels of the template.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub template_labels: BTreeMap<String, String>,
    /// How long the request stays once the template is there, in seconds; for good unless it is said.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ttl_seconds_after_finished: Option<i32>,
}

/// A machine of any namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct MachineRef {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// The status of a request.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    /// `Ready`: the template is there. `Progressing`: something is done for it.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub conditions: Vec<Condition>,
    /// The template.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub template_ref: Option<LocalObjectReference>,
}
