//! Which empty values are not written. Lists and maps never are, texts are where they may be told from none, numbers and
//! truths are unless they are named here. (The schema does not say which fields can tell "none" from "empty".)

use serde_json::Value;

use super::super::{Schema, Type};

/// Whether an optional field is left out with this value.
pub(super) fn goes(type_name: &str, field: &str, of: &Schema, value: &Value) -> bool {
    let listed = |table: &[(&str, &[&str])]| {
        table.iter().any(|(name, fields)| fields.contains(&field) && (*name == "*" || names(name, type_name)))
    };
    match value {
        Value::Array(items) => items.is_empty() && of.type_ == Type::Array && !listed(LISTS_KEPT),
        Value::Object(map) => map.is_empty() && of.type_ == Type::Object && of.additional.is_some(),
        Value::String(text) => text.is_empty() && of.type_ == Type::String && !listed(TEXTS_KEPT),
        Value::Bool(truth) => !truth && listed(ZEROS_DROPPED),
        Value::Number(number) => number.as_i64() == Some(0) && listed(ZEROS_DROPPED),
        _ => false,
    }
}

/// Whether a name is the end of a type's whole name.
fn names(name: &str, type_name: &str) -> bool {
    type_name.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
}

/// Lists where an empty one says something else than none: of owners it takes the ownership of every field back, of policies
/// it is no policy where there must be one.
const LISTS_KEPT: &[(&str, &[&str])] = &[("*", &["managedFields"]), ("HPAScalingRules", &["policies"])];

/// Texts where an empty one says something else than none.
const TEXTS_KEPT: &[(&str, &[&str])] = &[
    ("AppArmorProfile", &["localhostProfile"]),
    ("AzureDiskVolumeSource", &["cachingMode", "fsType", "kind"]),
    ("AzureFilePersistentVolumeSource", &["secretNamespace"]),
    ("CSIDriverSpec", &["fsGroupPolicy"]),
    ("CSIVolumeSource", &["fsType"]),
    ("ClusterTrustBundleProjection", &["name", "signerName"]),
    ("Container", &["restartPolicy"]),
    ("ContainerStatus", &["stopSignal"]),
    ("CronJobSpec", &["timeZone"]),
    ("CustomResourceDefinitionVersion", &["deprecationWarning"]),
    ("CustomResourceSubresourceScale", &["labelSelectorPath"]),
    ("Endpoint", &["hostname", "nodeName", "zone"]),
    ("EndpointAddress", &["nodeName"]),
    ("core.v1.EndpointPort", &["appProtocol"]),
    ("discovery.v1.EndpointPort", &["appProtocol", "name", "protocol"]),
    ("EphemeralContainer", &["restartPolicy"]),
    ("GRPCAction", &["service"]),
    ("GlusterfsPersistentVolumeSource", &["endpointsNamespace"]),
    ("HPAScalingRules", &["selectPolicy"]),
    ("HostPathVolumeSource", &["type"]),
    ("ISCSIPersistentVolumeSource", &["initiatorName"]),
    ("ISCSIVolumeSource", &["initiatorName"]),
    ("IngressClassParametersReference", &["apiGroup", "namespace", "scope"]),
    ("IngressPortStatus", &["error"]),
    ("IngressSpec", &["ingressClassName"]),
    ("JSONSchemaProps", &["$ref", "x-kubernetes-list-type", "x-kubernetes-map-type"]),
    ("JobSpec", &["completionMode", "managedBy", "podReplacementPolicy"]),
    ("JobStatus", &["failedIndexes"]),
    ("LeaseSpec", &["holderIdentity", "preferredHolder", "strategy"]),
    ("Lifecycle", &["stopSignal"]),
    ("LoadBalancerIngress", &["ipMode"]),
    ("LocalVolumeSource", &["fsType"]),
    ("MatchResources", &["matchPolicy"]),
    ("MutatingAdmissionPolicySpec", &["failurePolicy"]),
    ("MutatingWebhook", &["failurePolicy", "matchPolicy", "reinvocationPolicy", "sideEffects"]),
    ("NamedRuleWithOperations", &["scope"]),
    ("NetworkPolicyPort", &["protocol"]),
    ("ParamRef", &["parameterNotFoundAction"]),
    ("PersistentVolumeClaimSpec", &["storageClassName", "volumeAttributesClassName", "volumeMode"]),
    ("PersistentVolumeClaimStatus", &["currentVolumeAttributesClassName"]),
    ("PersistentVolumeSpec", &["volumeAttributesClassName", "volumeMode"]),
    ("PodDNSConfigOption", &["value"]),
    ("PodDisruptionBudgetSpec", &["unhealthyPodEvictionPolicy"]),
    ("PodFailurePolicyOnExitCodesRequirement", &["containerName"]),
    ("PodResourceClaim", &["resourceClaimName", "resourceClaimTemplateName"]),
    ("PodSecurityContext", &["fsGroupChangePolicy", "seLinuxChangePolicy", "supplementalGroupsPolicy"]),
    ("PodSpec", &["preemptionPolicy", "runtimeClassName"]),
    ("PortStatus", &["error"]),
    ("Preconditions", &["resourceVersion", "uid"]),
    ("PriorityClass", &["preemptionPolicy"]),
    ("RuleWithOperations", &["scope"]),
    ("SeccompProfile", &["localhostProfile"]),
    ("SecurityContext", &["procMount"]),
    ("ServicePort", &["appProtocol"]),
    ("ServiceReference", &["path"]),
    ("ServiceSpec", &["internalTrafficPolicy", "ipFamilyPolicy", "loadBalancerClass", "trafficDistribution"]),
    ("StorageClass", &["reclaimPolicy", "volumeBindingMode"]),
    ("SuccessPolicyRule", &["succeededIndexes"]),
    ("TopologySpreadConstraint", &["nodeAffinityPolicy", "nodeTaintsPolicy"]),
    ("TypedLocalObjectReference", &["apiGroup"]),
    ("TypedObjectReference", &["apiGroup", "namespace"]),
    ("ValidatingAdmissionPolicySpec", &["failurePolicy"]),
    ("ValidatingWebhook", &["failurePolicy", "matchPolicy", "sideEffects"]),
    ("Validation", &["reason"]),
    ("ValidationRule", &["reason"]),
    ("VolumeAttachmentSource", &["persistentVolumeName"]),
    ("VolumeMount", &["mountPropagation", "recursiveReadOnly"]),
    ("WebhookClientConfig", &["url"]),
    ("WindowsSecurityContextOptions", &["gmsaCredentialSpec", "gmsaCredentialSpecName", "runAsUserName"]),
];

/// Numbers and truths whose zero says the same as none.
const ZEROS_DROPPED: &[(&str, &[&str])] = &[
    ("*", &["readOnly", "stdin", "stdinOnce", "tty"]),
    ("APIServiceSpec", &["insecureSkipTLSVerify"]),
    ("AWSElasticBlockStoreVolumeSource", &["partition"]),
    ("ContainerPort", &["hostPort"]),
    ("CustomResourceColumnDefinition", &["priority"]),
    ("CustomResourceDefinitionSpec", &["preserveUnknownFields"]),
    ("CustomResourceDefinitionVersion", &["deprecated"]),
    ("DaemonSetSpec", &["minReadySeconds"]),
    ("DeploymentSpec", &["minReadySeconds", "paused"]),
    ("GCEPersistentDiskVolumeSource", &["partition"]),
    ("ISCSIPersistentVolumeSource", &["chapAuthDiscovery", "chapAuthSession"]),
    ("ISCSIVolumeSource", &["chapAuthDiscovery", "chapAuthSession"]),
    ("NodeSpec", &["unschedulable"]),
    ("ObjectMeta", &["generation"]),
    ("PodSpec", &["hostIPC", "hostNetwork", "hostPID"]),
    ("PriorityClass", &["globalDefault"]),
    ("Probe", &["failureThreshold", "initialDelaySeconds", "periodSeconds", "successThreshold", "timeoutSeconds"]),
    ("ReplicaSetSpec", &["minReadySeconds"]),
    ("ReplicationControllerSpec", &["minReadySeconds"]),
    ("ScaleIOPersistentVolumeSource", &["sslEnabled"]),
    ("ScaleIOVolumeSource", &["sslEnabled"]),
    ("ServicePort", &["nodePort"]),
    ("ServiceSpec", &["healthCheckNodePort", "publishNotReadyAddresses"]),
    ("StatefulSetSpec", &["minReadySeconds"]),
    ("core.v1.Event", &["count"]),
    ("events.v1.Event", &["deprecatedCount"]),
];

/// Fields that are written where they are not set, as null.
const NULLS_WRITTEN: &[(&str, &[&str])] = &[
    ("APIServiceCondition", &["lastTransitionTime"]),
    ("CSINodeDriver", &["topologyKeys"]),
    ("CSINodeSpec", &["drivers"]),
    ("CertificateSigningRequestCondition", &["lastTransitionTime", "lastUpdateTime"]),
    ("ClusterRole", &["rules"]),
    ("ContainerStateRunning", &["startedAt"]),
    ("ContainerStateTerminated", &["finishedAt", "startedAt"]),
    ("CustomResourceDefinitionCondition", &["lastTransitionTime"]),
    ("DaemonSetCondition", &["lastTransitionTime"]),
    ("DeploymentCondition", &["lastTransitionTime", "lastUpdateTime"]),
    ("EndpointSlice", &["endpoints", "ports"]),
    ("HorizontalPodAutoscalerCondition", &["lastTransitionTime"]),
    ("JobCondition", &["lastProbeTime", "lastTransitionTime"]),
    ("LimitRangeSpec", &["limits"]),
    ("NamespaceCondition", &["lastTransitionTime"]),
    ("NodeCondition", &["lastHeartbeatTime", "lastTransitionTime"]),
    ("PersistentVolumeClaimCondition", &["lastProbeTime", "lastTransitionTime"]),
    ("PodCondition", &["lastProbeTime", "lastTransitionTime"]),
    ("PodFailurePolicy", &["rules"]),
    ("ProjectedVolumeSource", &["sources"]),
    ("ReplicaSetCondition", &["lastTransitionTime"]),
    ("ReplicationControllerCondition", &["lastTransitionTime"]),
    ("Role", &["rules"]),
    ("StatefulSetCondition", &["lastTransitionTime"]),
    ("TypedLocalObjectReference", &["apiGroup"]),
    ("TypedObjectReference", &["apiGroup"]),
    ("core.v1.Event", &["eventTime", "firstTimestamp", "lastTimestamp"]),
    ("events.v1.Event", &["deprecatedFirstTimestamp", "deprecatedLastTimestamp", "eventTime"]),
];

/// The fields of a type that are written also where they are not set.
pub(super) fn written_as_null(type_name: &str) -> &'static [&'static str] {
    NULLS_WRITTEN.iter().find(|(name, _)| names(name, type_name)).map_or(&[], |(_, fields)| *fields)
}

/// Texts that are written where they are not set, as empty ones.
const TEXTS_WRITTEN: &[(&str, &[&str])] = &[
    ("DaemonSetCondition", &["status", "type"]),
    ("DeploymentCondition", &["status", "type"]),
    ("ForZone", &["name"]),
    ("JobCondition", &["status", "type"]),
    ("NodeCondition", &["status", "type"]),
    ("PodCondition", &["status", "type"]),
    ("ReplicaSetCondition", &["status", "type"]),
    ("ReplicationControllerCondition", &["status", "type"]),
    ("StatefulSetCondition", &["status", "type"]),
    ("StatefulSetSpec", &["serviceName"]),
    ("core.v1.Event", &["reportingComponent", "reportingInstance"]),
    ("storage.v1.TokenRequest", &["audience"]),
];

/// The texts of a type that are written also where they are not set.
pub(super) fn written_as_text(type_name: &str) -> &'static [&'static str] {
    TEXTS_WRITTEN.iter().find(|(name, _)| names(name, type_name)).map_or(&[], |(_, fields)| *fields)
}

/// Objects that are written where they are not set, as empty ones.
const OBJECTS_WRITTEN: &[(&str, &[&str])] =
    &[("core.v1.Event", &["source"]), ("events.v1.Event", &["deprecatedSource"])];

/// The objects of a type that are written also where they are not set.
pub(super) fn written_as_object(type_name: &str) -> &'static [&'static str] {
    OBJECTS_WRITTEN.iter().find(|(name, _)| names(name, type_name)).map_or(&[], |(_, fields)| *fields)
}
