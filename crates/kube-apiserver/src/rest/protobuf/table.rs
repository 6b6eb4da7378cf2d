//! Field numbers, JSON names and types of the built-in kinds' messages (`data/protobuf.json`), and what a zero says.

use std::collections::{BTreeMap, HashMap};
use std::sync::LazyLock;

use serde_json::Value;

use apimachinery::schema::builtin;

/// JSON name, code of the type, message. The fields of an embedded message, which has no name, are fields of its holder.
#[derive(Clone, Debug, serde::Deserialize)]
#[serde(from = "Vec<String>")]
pub(super) struct Field {
    pub(super) name: String,
    pub(super) code: String,
    pub(super) nested: String,
}

impl From<Vec<String>> for Field {
    fn from(parts: Vec<String>) -> Self {
        let mut parts = parts.into_iter();
        let mut next = || parts.next().unwrap_or_default();
        Self { name: next(), code: next(), nested: next() }
    }
}

/// The fields of a message by their numbers.
pub(super) type Message = BTreeMap<u32, Field>;

pub(super) static MESSAGES: LazyLock<HashMap<String, Message>> =
    LazyLock::new(|| serde_json::from_str(include_str!("../../../data/protobuf.json")).unwrap_or_default());

/// The message of a kind that the server ships, also of one that is only a body or an answer.
pub(super) fn of_kind(api_version: &str, kind: &str) -> Option<String> {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    // Clients name kinds of this group in each of its versions.
    let version = if group == "meta.k8s.io" { "v1" } else { version };
    let schema = builtin::schema(group, version, kind).or_else(|| builtin::schema("meta.k8s.io", "v1", kind));
    let name = match schema {
        Some(schema) => schema.type_name.clone(),
        None if group == "meta.k8s.io" => format!("io.k8s.apimachinery.pkg.apis.meta.v1.{kind}"),
        None => return None,
    };
    MESSAGES.contains_key(&name).then_some(name)
}

/// Whether a field's zero, if it is on the wire, is a value of its own; JSON would leave others out.
pub(super) fn zero_counts(message: &str, field: &str, zero: &Value) -> bool {
    let kept = KEPT.iter().any(|(of, fields)| message.ends_with(of) && fields.contains(&field));
    let listed = !zero.is_string() && (POINTERS.contains(&field) || WRITTEN.contains(&field));
    kept || listed
        || builtin::definition(message).is_some_and(|schema| schema.required.iter().any(|name| name == field))
}

/// Fields whose zero or false differs from their absence (pointers in Go).
const POINTERS: [&str; 69] = [
    "borrowingLimitPercent",
    "lendablePercent",
    "nominalConcurrencyShares",
    "multipleOf",
    "maximum",
    "minimum",
    "maxLength",
    "minLength",
    "maxItems",
    "minItems",
    "maxProperties",
    "minProperties",
    "podInfoOnMount",
    "attachRequired",
    "storageCapacity",
    "requiresRepublish",
    "seLinuxMount",
    "allowVolumeExpansion",
    "leaseTransitions",
    "stabilizationWindowSeconds",
    "replicas",
    "runAsUser",
    "runAsGroup",
    "fsGroup",
    "terminationGracePeriodSeconds",
    "activeDeadlineSeconds",
    "parallelism",
    "completions",
    "backoffLimit",
    "ttlSecondsAfterFinished",
    "revisionHistoryLimit",
    "progressDeadlineSeconds",
    "expirationSeconds",
    "defaultMode",
    "mode",
    "priority",
    "tolerationSeconds",
    "gracePeriodSeconds",
    "startingDeadlineSeconds",
    "successfulJobsHistoryLimit",
    "failedJobsHistoryLimit",
    "minAvailable",
    "maxUnavailable",
    "maxSurge",
    "partition",
    "backoffLimitPerIndex",
    "maxFailedIndexes",
    "automountServiceAccountToken",
    "allowPrivilegeEscalation",
    "runAsNonRoot",
    "readOnlyRootFilesystem",
    "privileged",
    "shareProcessNamespace",
    "enableServiceLinks",
    "immutable",
    "blockOwnerDeletion",
    "controller",
    "optional",
    "suspend",
    "hostUsers",
    "allocateLoadBalancerNodePorts",
    "setHostnameAsFQDN",
    "orphanDependents",
    "minReplicas",
    "manualSelector",
    "ready",
    "serving",
    "terminating",
    "started",
];
/// Fields that are written in JSON even when they are zero.
const WRITTEN: [&str; 4] = ["value", "allowed", "verbs", "lastTransitionTime"];
/// Fields whose zero, also that of a text, is a value in these messages alone: pointers, and what JSON always has. A claim of no
/// class is not one of the default class.
const KEPT: [(&str, &[&str]); 23] = [
    (".apiextensions.v1.ValidationRule", &["optionalOldSelf"]),
    (".apps.v1.DeploymentStatus", &["terminatingReplicas"]),
    (".apps.v1.ReplicaSetStatus", &["terminatingReplicas"]),
    (".apps.v1.StatefulSetOrdinals", &["start"]),
    (".apps.v1.StatefulSetSpec", &["serviceName"]),
    (".apps.v1.StatefulSetStatus", &["availableReplicas"]),
    (".core.v1.Event", &["reportingComponent", "reportingInstance"]),
    (".core.v1.GRPCAction", &["service"]),
    (".core.v1.HostPathVolumeSource", &["type"]),
    (".core.v1.PersistentVolumeClaimSpec", &["storageClassName", "volumeAttributesClassName"]),
    (".core.v1.PodDNSConfigOption", &["value"]),
    (".coordination.v1.LeaseSpec", &["holderIdentity"]),
    (".discovery.v1.Endpoint", &["zone"]),
    (".discovery.v1.EndpointPort", &["name", "port"]),
    (".meta.v1.ObjectMeta", &["deletionGracePeriodSeconds"]),
    (
        ".policy.v1.PodDisruptionBudgetStatus",
        &["currentHealthy", "desiredHealthy", "disruptionsAllowed", "expectedPods"],
    ),
    (".resource.v1.Device", &["allNodes"]),
    (".resource.v1.DeviceAttribute", &["bool", "int", "string", "version"]),
    (".resource.v1.ExactDeviceRequest", &["adminAccess"]),
    (".resource.v1.ResourceSliceSpec", &["allNodes", "perDeviceNodeSelection"]),
    (".storage.v1.StorageClass", &["reclaimPolicy"]),
    (".storage.v1.VolumeNodeResources", &["count"]),
    (".v1.ServiceReference", &["path"]),
];
