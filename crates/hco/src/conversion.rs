//! HyperConverged objects of version v1beta1 as v1 and back, without a loss. Pure.
//!
//! Most fields of one version are fields of the other at another place. What only one version has is kept in an annotation of the
//! other, and comes back from there. What a client put into such an annotation is only taken where it has the form of the field.

use api::hco::FeatureGate;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::feature_gates::{self, KNOWN, REPLACED};
use crate::tree::{put, put_some, take};

const GROUP: &str = "hco.kubevirt.io";
/// Of an object of v1beta1: the fields that only v1 has, as JSON.
pub(crate) const V1_ONLY: &str = "hco.kubevirt.io/v1-only-fields";
/// Of an object of v1: the fields that only v1beta1 has, as JSON.
pub(crate) const V1BETA1_ONLY: &str = "hco.kubevirt.io/v1beta1-only-fields";

/// Fields below `spec` of v1beta1 and of v1.
const MOVES: [(&str, &str); 45] = [
    ("infra.nodePlacement", "deployment.nodePlacements.infra"),
    ("workloads.nodePlacement", "deployment.nodePlacements.workload"),
    ("enableApplicationAwareQuota", "deployment.applicationAwareConfig.enable"),
    (
        "applicationAwareConfig.allowApplicationAwareClusterResourceQuota",
        "deployment.applicationAwareConfig.allowApplicationAwareClusterResourceQuota",
    ),
    ("applicationAwareConfig.namespaceSelector", "deployment.applicationAwareConfig.namespaceSelector"),
    ("applicationAwareConfig.vmiCalcConfigName", "deployment.applicationAwareConfig.vmiCalcConfigName"),
    ("deployVmConsoleProxy", "deployment.deployVmConsoleProxy"),
    ("logVerbosityConfig", "deployment.logVerbosityConfig"),
    ("uninstallStrategy", "deployment.uninstallStrategy"),
    ("kubeMacPoolConfiguration", "networking.kubeMacPoolConfiguration"),
    ("kubeSecondaryDNSNameServerIP", "networking.kubeSecondaryDNSNameServerIP"),
    ("networkBinding", "networking.networkBinding"),
    ("certConfig", "security.certConfig"),
    ("tlsSecurityProfile", "security.tlsSecurityProfile"),
    ("filesystemOverhead", "storage.filesystemOverhead"),
    ("featureGates.persistentReservation", "storage.persistentReservationConfiguration.enabled"),
    ("scratchSpaceStorageClass", "storage.scratchSpaceStorageClass"),
    ("storageImport", "storage.storageImport"),
    ("vmStateStorageClass", "storage.vmStateStorageClass"),
    ("resourceRequirements.storageWorkloads", "storage.workloadResourceRequirements"),
    ("resourceRequirements.autoCPULimitNamespaceLabelSelector", "virtualization.autoCPULimitNamespaceLabelSelector"),
    ("resourceRequirements.vmiCPUAllocationRatio", "virtualization.vmiCPUAllocationRatio"),
    ("changedBlockTrackingLabelSelectors", "virtualization.changedBlockTrackingLabelSelectors"),
    ("evictionStrategy", "virtualization.evictionStrategy"),
    ("higherWorkloadDensity", "virtualization.higherWorkloadDensity"),
    ("hypervisors", "virtualization.hypervisors"),
    ("ksmConfiguration", "virtualization.ksmConfiguration"),
    ("liveMigrationConfig", "virtualization.liveMigrationConfig"),
    ("liveUpdateConfiguration", "virtualization.liveUpdateConfiguration"),
    ("mediatedDevicesConfiguration", "virtualization.mediatedDevicesConfiguration"),
    ("obsoleteCPUs.cpuModels", "virtualization.obsoleteCPUModels"),
    ("permittedHostDevices", "virtualization.permittedHostDevices"),
    ("roleAggregationStrategy", "virtualization.roleAggregationStrategy"),
    ("tuningPolicy", "virtualization.tuningPolicy"),
    ("virtualMachineOptions", "virtualization.virtualMachineOptions"),
    ("defaultCPUModel", "virtualization.virtualMachineOptions.defaultCPUModel"),
    ("defaultRuntimeClass", "virtualization.virtualMachineOptions.defaultRuntimeClass"),
    ("workloadUpdateStrategy", "virtualization.workloadUpdateStrategy"),
    ("commonBootImageNamespace", "workloadSources.commonBootImageNamespace"),
    ("CommonInstancetypesDeployment", "workloadSources.commonInstancetypesDeployment"),
    ("commonTemplatesNamespace", "workloadSources.commonTemplatesNamespace"),
    ("dataImportCronTemplates", "workloadSources.dataImportCronTemplates"),
    ("enableCommonBootImageImport", "workloadSources.enableCommonBootImageImport"),
    ("featureGates.enableMultiArchBootImageImport", "workloadSources.enableMultiArchBootImageImport"),
    ("instancetypeConfig", "workloadSources.instancetypeConfig"),
];
/// On in the one is off in the other.
const INVERSE: (&str, &str) =
    ("featureGates.disableMDevConfiguration", "virtualization.mediatedDevicesConfiguration.enabled");
/// Fields of v1beta1 that no version has any more and nothing acts on.
pub(crate) const DROPPED: [&str; 5] = [
    "localStorageClassName",
    "obsoleteCPUs.minCPUModel",
    "tektonPipelinesNamespace",
    "tektonTasksNamespace",
    "vddkInitImage",
];

/// What only v1 has.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct V1Only {
    #[serde(skip_serializing_if = "Option::is_none")]
    deploy_network_resources_injector: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    feature_gates: Option<Vec<FeatureGate>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    observability: Option<Observability>,
}

/// `spec.observability` of v1.
#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Observability {
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_alerts: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_recording_rules: Option<Vec<String>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    workloads: Option<Workloads>,
}

#[derive(Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Workloads {
    #[serde(skip_serializing_if = "Option::is_none")]
    allowed_metrics: Option<Vec<String>>,
}

/// `object` as version `wanted` (`hco.kubevirt.io/v1`) has it.
///
/// # Errors
/// A sentence when one of the versions is not known.
pub fn convert(mut object: Value, wanted: &str) -> Result<Value, String> {
    let version = object["apiVersion"].as_str().unwrap_or_default().to_owned();
    let split = |version: &str| {
        let (group, version) = version.split_once('/').unwrap_or_default();
        (group == GROUP).then(|| version.to_owned())
    };
    match (split(&version).as_deref(), split(wanted).as_deref()) {
        (Some("v1beta1"), Some("v1")) => to_v1(&mut object),
        (Some("v1"), Some("v1beta1")) => to_v1beta1(&mut object),
        (Some("v1"), Some("v1")) | (Some("v1beta1"), Some("v1beta1")) => {}
        _ => return Err(format!("HyperConverged cannot be converted from {version:?} to {wanted:?}")),
    }
    object["apiVersion"] = wanted.into();
    Ok(object)
}

fn to_v1(object: &mut Value) {
    let only: V1Only = annotation(object, V1_ONLY);
    let mut old = object["spec"].take();
    rename(&mut old);
    let mut spec = json!({});
    for (from, to) in MOVES {
        put_some(&mut spec, to, take(&mut old, from));
    }
    if let Some(disabled) = take(&mut old, INVERSE.0).and_then(|value| value.as_bool()) {
        put(&mut spec, INVERSE.1, (!disabled).into());
    }
    let mut gates = only.feature_gates.unwrap_or_default();
    for known in KNOWN.iter().filter(|known| known.in_v1beta1) {
        let said = take(&mut old, &format!("featureGates.{}", known.name));
        feature_gates::set(&mut gates, known.name, said.and_then(|value| value.as_bool()).unwrap_or(known.default));
    }
    if !gates.is_empty() {
        put(&mut spec, "featureGates", json!(gates));
    }
    let injector = only.deploy_network_resources_injector.map(Value::from);
    put_some(&mut spec, "deployment.deployNetworkResourcesInjector", injector);
    put_some(&mut spec, "observability", only.observability.map(|wanted| json!(wanted)));
    object["spec"] = spec;
    keep(object, V1BETA1_ONLY, &remainder(old));
}

fn to_v1beta1(object: &mut Value) {
    let mut spec: Value = annotation(object, V1BETA1_ONLY);
    let mut new = object["spec"].take();
    spec = only_of_v1beta1(spec);
    let inverse = take(&mut new, INVERSE.1).and_then(|value| value.as_bool());
    // What lies inside of another field that moves is taken first.
    for (to, from) in MOVES.iter().rev() {
        put_some(&mut spec, to, take(&mut new, from));
    }
    put_some(&mut spec, INVERSE.0, inverse.map(|enabled| (!enabled).into()));
    let gates: Vec<FeatureGate> =
        take(&mut new, "featureGates").and_then(|value| serde_json::from_value(value).ok()).unwrap_or_default();
    let mut usual = Vec::new();
    for known in KNOWN.iter().filter(|known| known.in_v1beta1) {
        let on = feature_gates::is_on(&gates, known.name);
        feature_gates::set(&mut usual, known.name, on);
        put(&mut spec, &format!("featureGates.{}", known.name), on.into());
    }
    let only = V1Only {
        // On is what it is when nothing is said.
        deploy_network_resources_injector: take(&mut new, "deployment.deployNetworkResourcesInjector")
            .and_then(|value| value.as_bool())
            .filter(|on| !on),
        // Where the fields say all that the list says, it is not kept.
        feature_gates: (gates != usual).then_some(gates),
        observability: take(&mut new, "observability").and_then(|value| serde_json::from_value(value).ok()),
    };
    object["spec"] = spec;
    keep(object, V1_ONLY, &if only == V1Only::default() { json!({}) } else { json!(only) });
}

/// Types of mediated devices were spelled in another way once.
fn rename(spec: &mut Value) {
    let rename = |fields: &mut Value| {
        if let Some(old) = take(fields, "mediatedDevicesTypes")
            && fields.get("mediatedDeviceTypes").is_none()
        {
            put(fields, "mediatedDeviceTypes", old);
        }
    };
    let Some(devices) = spec.get_mut("mediatedDevicesConfiguration") else { return };
    rename(devices);
    let nodes = devices.get_mut("nodeMediatedDeviceTypes").and_then(Value::as_array_mut);
    nodes.into_iter().flatten().for_each(rename);
}

/// What is left of a spec that fields were taken from, without objects that have no field.
fn remainder(left: Value) -> Value {
    match left {
        Value::Object(fields) => {
            let fields = fields.into_iter().map(|(key, value)| (key, remainder(value)));
            Value::Object(fields.filter(|(_, value)| !value.as_object().is_some_and(Map::is_empty)).collect())
        }
        other => other,
    }
}

/// Of what was kept, the fields that v1beta1 has: strings, and switches that nothing acts on.
fn only_of_v1beta1(mut kept: Value) -> Value {
    let mut spec = json!({});
    for field in DROPPED {
        put_some(&mut spec, field, take(&mut kept, field).filter(Value::is_string));
    }
    for gate in feature_gates::DEPRECATED {
        let field = format!("featureGates.{gate}");
        put_some(&mut spec, &field, take(&mut kept, &field).filter(Value::is_boolean));
    }
    spec
}

/// Takes an annotation with JSON off `object`.
fn annotation<T: Default + for<'a> Deserialize<'a>>(object: &mut Value, name: &str) -> T {
    let Some(annotations) = object.pointer_mut("/metadata/annotations").and_then(Value::as_object_mut) else {
        return T::default();
    };
    let text = annotations.remove(name);
    if annotations.is_empty()
        && let Some(metadata) = object["metadata"].as_object_mut()
    {
        metadata.remove("annotations");
    }
    text.as_ref().and_then(Value::as_str).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Annotates `object` with `fields`, where there are any.
fn keep(object: &mut Value, name: &str, fields: &Value) {
    if fields.as_object().is_some_and(|fields| !fields.is_empty()) {
        put(
            object,
            "metadata.annotations",
            object.pointer("/metadata/annotations").cloned().unwrap_or_else(|| json!({})),
        );
        object["metadata"]["annotations"][name] = fields.to_string().into();
    }
}

/// The fields of an object of v1beta1 that nothing acts on, by their paths.
pub(crate) fn without_effect(spec: &Value) -> Vec<String> {
    let dropped = DROPPED.iter().filter(|field| crate::tree::get(spec, field).is_some_and(|value| !value.is_null()));
    dropped.map(|field| format!("spec.{field}")).collect()
}

/// The gates of an object of v1 that fields have replaced, moved into those. Errors name both, where they contradict each other.
pub(crate) fn move_gates(spec: &mut Value) -> Result<Vec<String>, String> {
    let gates: Vec<FeatureGate> = serde_json::from_value(spec["featureGates"].clone()).unwrap_or_default();
    let mut warnings = Vec::new();
    let mut left = Vec::new();
    for gate in gates {
        let replaced = REPLACED.iter().find(|(name, _)| name.eq_ignore_ascii_case(&gate.name));
        let Some((name, field)) = replaced else {
            left.push(gate);
            continue;
        };
        let value = gate.is_enabled() != (*field == INVERSE.1);
        match crate::tree::get(spec, field).and_then(Value::as_bool) {
            Some(said) if said != value => {
                return Err(format!(
                    "feature gate {name} and the field spec.{field} contradict each other: drop the gate"
                ));
            }
            _ => put(spec, field, value.into()),
        }
        warnings.push(format!("feature gate {name} is deprecated; please use the spec.{field} field instead"));
    }
    if !warnings.is_empty() {
        take(spec, "featureGates");
        if !left.is_empty() {
            put(spec, "featureGates", json!(left));
        }
    }
    Ok(warnings)
}

#[cfg(test)]
mod tests;
