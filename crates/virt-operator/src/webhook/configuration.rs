//! What the KubeVirt object configures beyond certificates, placement, TLS and migrations: what makes no sense is refused, and
//! a warning names what is not acted on. Pure.

use kit::admission::Cause;
use serde_json::Value;

const PATH: &str = "spec.configuration";
/// The feature gates that something asks for.
const GATES: [&str; 3] = ["IncrementalBackup", "MigrationDowntimeTuning", "MigrationStallDetection"];

const RATES: &str = "requests are not limited by rate in clients";
const MONITORS: &str = "no ServiceMonitor and no PrometheusRule are made";
const LABELS: &str = "the labels of what is deployed are fixed";
const ONE: &str = "guests have the processor's architecture of their nodes, x86-64";
const FIRMWARE: &str = "the firmware is that of the launcher's image";
const DEVICES: &str = "devices of the host are not handed to guests";
const LIVE: &str = "processors and memory of a running guest cannot be changed";

/// What is not acted on, and why. A path ends where all beneath it shares the reason.
const UNSERVED: [(&str, &str); 44] = [
    ("spec.monitorAccount", MONITORS),
    ("spec.monitorNamespace", MONITORS),
    ("spec.serviceMonitorNamespace", MONITORS),
    ("spec.productComponent", LABELS),
    ("spec.productName", LABELS),
    ("spec.productVersion", LABELS),
    ("spec.synchronizationPort", "there is no synchronization between clusters"),
    ("spec.workloads.replicas", "virt-handler runs on every node that spec.workloads.nodePlacement selects"),
    ("spec.configuration.apiConfiguration", RATES),
    ("spec.configuration.controllerConfiguration", RATES),
    ("spec.configuration.handlerConfiguration", RATES),
    ("spec.configuration.webhookConfiguration", RATES),
    ("spec.configuration.architectureConfiguration.amd64.ovmfPath", FIRMWARE),
    ("spec.configuration.architectureConfiguration.arm64", ONE),
    ("spec.configuration.architectureConfiguration.ppc64le", ONE),
    ("spec.configuration.architectureConfiguration.s390x", ONE),
    ("spec.configuration.ovmfPath", FIRMWARE),
    ("spec.configuration.commonInstancetypesDeployment", "no common instance types are deployed"),
    ("spec.configuration.confidentialCompute", "guests are not measured"),
    ("spec.configuration.developerConfiguration.clusterProfiler", "components have no profiler"),
    (
        "spec.configuration.developerConfiguration.diskVerification",
        "images are judged by their headers, in little memory",
    ),
    (
        "spec.configuration.developerConfiguration.logVerbosity",
        "how much a component logs is set by FERROVIRT_LOG in its environment: see customizeComponents.patches",
    ),
    ("spec.configuration.developerConfiguration.minimumClusterTSCFrequency", "the frequency of each node is taken"),
    ("spec.configuration.hypervisors", "guests run on KVM, or are emulated"),
    ("spec.configuration.instancetype", "instance types are not served"),
    ("spec.configuration.ksmConfiguration", "KSM of the nodes is left as it is"),
    ("spec.configuration.liveUpdateConfiguration", LIVE),
    ("spec.configuration.vmRolloutStrategy", LIVE),
    ("spec.configuration.mediatedDevicesConfiguration", DEVICES),
    ("spec.configuration.permittedHostDevices", DEVICES),
    ("spec.configuration.memBalloonStatsPeriod", "the figures of guests' memory are taken every 10 s"),
    ("spec.configuration.minCPUModel", "it has no effect in the API either"),
    ("spec.configuration.network.binding", "network binding plugins are not served"),
    ("spec.configuration.network.permitSlirpInterface", "slirp is not served"),
    ("spec.configuration.persistentReservationConfiguration", "there is no helper for persistent reservations"),
    ("spec.configuration.roleAggregationStrategy", "the roles are always aggregated to admin, edit and view"),
    ("spec.configuration.seccompConfiguration", "launcher pods have the container runtime's profile"),
    ("spec.configuration.selinuxLauncherType", "launcher pods are given no SELinux type of their own"),
    ("spec.configuration.supportContainerResources", "containers beside a guest request what was measured"),
    ("spec.configuration.supportedGuestAgentVersions", "every version of the guest agent is asked"),
    ("spec.configuration.virtTemplateDeployment", "templates are served without a deployment of their own"),
    ("spec.configuration.virtualMachineInstancesPerNode", "each node offers 1000 of each device"),
    ("spec.configuration.architectureConfiguration.defaultArchitecture", ONE),
    ("spec.configuration.developerConfiguration.disabledFeatureGates", "what a gate guards cannot be switched off"),
];

fn at<'a>(kubevirt: &'a Value, path: &str) -> &'a Value {
    kubevirt.pointer(&format!("/{}", path.replace('.', "/"))).unwrap_or(&Value::Null)
}

/// Whether something is said: clients send empty objects for what they leave out.
fn is_said(value: &Value) -> bool {
    match value {
        Value::Null => false,
        Value::Bool(said) => *said,
        Value::Number(_) => true,
        Value::String(text) => !text.is_empty(),
        Value::Array(list) => !list.is_empty(),
        Value::Object(fields) => fields.values().any(is_said),
    }
}

fn gates<'a>(kubevirt: &'a Value, field: &str) -> Vec<&'a str> {
    let listed = at(kubevirt, &format!("{PATH}.developerConfiguration.{field}")).as_array();
    listed.into_iter().flatten().filter_map(Value::as_str).collect()
}

/// What is said and not acted on.
pub(super) fn warnings(kubevirt: &Value) -> Vec<String> {
    let unserved = UNSERVED.iter().filter(|(path, _)| is_said(at(kubevirt, path)));
    let mut warnings: Vec<String> =
        unserved.map(|(path, why)| format!("{path} is not acted on in this version: {why}")).collect();
    let idle: Vec<&str> = gates(kubevirt, "featureGates").into_iter().filter(|gate| !GATES.contains(gate)).collect();
    if !idle.is_empty() {
        warnings.push(format!(
            "{PATH}.developerConfiguration.featureGates: {} changes nothing in this version: what is served needs no gate, and \
             what is not is refused where it is asked for",
            idle.join(", ")
        ));
    }
    warnings
}

/// What makes no sense.
pub(super) fn causes(kubevirt: &Value) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut refuse = |field: String, message: String| {
        causes.push(Cause { reason: "FieldValueInvalid", field, message });
    };
    let ratio = format!("{PATH}.additionalGuestMemoryOverheadRatio");
    if let Some(text) = at(kubevirt, &ratio).as_str().filter(|text| !text.is_empty()) {
        match text.parse::<f64>() {
            Ok(number) if number.is_finite() && number >= 1.0 => {}
            Ok(_) => refuse(
                ratio.clone(),
                format!("{ratio}: ratio provided, {text}, cannot be smaller than 1.0: set 1.0 or more"),
            ),
            Err(error) => {
                let message =
                    format!("{ratio}: ratio provided, {text}, cannot be parsed into float: {error}: write it like 1.5");
                refuse(ratio.clone(), message);
            }
        }
    }
    let disabled = gates(kubevirt, "disabledFeatureGates");
    for gate in gates(kubevirt, "featureGates").into_iter().filter(|gate| disabled.contains(gate)) {
        let message = format!(
            "feature gate {gate:?} exists on both \"FeatureGates\" and \"DisabledFeatureGates\": take it out of one of them"
        );
        refuse(format!("{PATH}.developerConfiguration.featureGates"), message);
    }
    let numbers = [
        ("developerConfiguration.cpuAllocationRatio", 1, i64::MAX, "at least 1: so many virtual processors share one"),
        (
            "developerConfiguration.memoryOvercommit",
            1,
            i64::MAX,
            "at least 1: percent of a guest's memory that a node must have",
        ),
        ("developerConfiguration.pvcTolerateLessSpaceUpToPercent", 0, 100, "from 0 to 100"),
        ("developerConfiguration.minimumReservePVCBytes", 0, i64::MAX, "0 or more"),
    ];
    for (field, least, most, rule) in numbers {
        let path = format!("{PATH}.{field}");
        let Some(number) = at(kubevirt, &path).as_i64() else { continue };
        // Clients that know no absent numbers send zero.
        if number != 0 && !(least..=most).contains(&number) {
            refuse(path.clone(), format!("{path} is {number}: must be {rule}"));
        }
    }
    let words: [(&str, &[&str]); 4] = [
        ("spec.configuration.evictionStrategy", &["None", "LiveMigrate", "LiveMigrateIfPossible", "External"]),
        ("spec.imagePullPolicy", &["Always", "IfNotPresent", "Never"]),
        ("spec.configuration.imagePullPolicy", &["Always", "IfNotPresent", "Never"]),
        ("spec.uninstallStrategy", &["RemoveWorkloads", "BlockUninstallIfWorkloadsExist"]),
    ];
    for (path, known) in words {
        let said = at(kubevirt, path).as_str().unwrap_or_default();
        if !said.is_empty() && !known.contains(&said) {
            refuse(path.to_owned(), format!("{path} is {said:?}: must be one of {}", known.join(", ")));
        }
    }
    update_methods(kubevirt, &mut refuse);
    causes
}

fn update_methods(kubevirt: &Value, refuse: &mut impl FnMut(String, String)) {
    let path = "spec.workloadUpdateStrategy";
    let said = at(kubevirt, path);
    for (index, method) in said["workloadUpdateMethods"].as_array().into_iter().flatten().enumerate() {
        if !matches!(method.as_str(), Some("LiveMigrate" | "Evict")) {
            let field = format!("{path}.workloadUpdateMethods[{index}]");
            refuse(field.clone(), format!("{field} is {method}: must be LiveMigrate or Evict"));
        }
    }
    if let Some(size) = said["batchEvictionSize"].as_i64().filter(|size| *size < 0) {
        let field = format!("{path}.batchEvictionSize");
        refuse(field.clone(), format!("{field} is {size}: must be 0 or more"));
    }
    if let Some(text) = said["batchEvictionInterval"].as_str().filter(|text| kit::duration::parse(text).is_none()) {
        let field = format!("{path}.batchEvictionInterval");
        refuse(field.clone(), format!("{field} is {text:?}, which is not a duration: write it like 1m or 30s"));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn what_is_named_is_in_the_schema() {
        let schema: Value =
            serde_json::from_str(&std::fs::read_to_string("../../xtask/data/kubevirt-openapi.json").unwrap()).unwrap();
        let definitions = &schema["definitions"];
        for (path, _) in UNSERVED {
            let mut at = &definitions["v1.KubeVirtSpec"];
            for field in path.split('.').skip(1) {
                let found = &at["properties"][field];
                assert!(!found.is_null(), "{path}: no {field}");
                let reference = found["$ref"].as_str().or_else(|| found["allOf"][0]["$ref"].as_str());
                at = reference.map_or(found, |name| &definitions[name.trim_start_matches("#/definitions/")]);
            }
        }
    }

    #[test]
    fn what_is_not_acted_on_is_said() {
        let told = |spec: Value| warnings(&json!({ "spec": spec }));
        assert_eq!(
            told(json!({ "configuration": { "liveUpdateConfiguration": {}, "permittedHostDevices": null } })),
            [""; 0]
        );
        let devices = json!({ "pciHostDevices": [{ "pciVendorSelector": "10de:1eb8", "resourceName": "a/b" }] });
        let line = "spec.configuration.permittedHostDevices is not acted on in this version: devices of the host are not handed to guests";
        assert_eq!(told(json!({ "configuration": { "permittedHostDevices": devices } })), [line]);
        let gates = told(
            json!({ "configuration": { "developerConfiguration": { "featureGates": ["IncrementalBackup", "VSOCK"] } } }),
        );
        assert!(gates[0].contains(": VSOCK changes nothing"), "{gates:?}");
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(spec: Value, expect: &[(&str, &str)]) {
            let found = causes(&json!({ "spec": spec }));
            assert_eq!(found.len(), expect.len(), "{found:?}");
            for (cause, (field, part)) in found.iter().zip(expect) {
                assert_eq!(cause.field, *field);
                assert!(cause.message.contains(part), "{}", cause.message);
            }
        }
        check(json!({}), &[]);
        let ratio = |text: &str| json!({ "configuration": { "additionalGuestMemoryOverheadRatio": text } });
        let field = "spec.configuration.additionalGuestMemoryOverheadRatio";
        check(ratio("1.5"), &[]);
        check(ratio("0.5"), &[(field, "ratio provided, 0.5, cannot be smaller than 1.0")]);
        check(ratio("half"), &[(field, "ratio provided, half, cannot be parsed into float")]);
        let both = json!({ "configuration": { "developerConfiguration": { "featureGates": ["A", "B"], "disabledFeatureGates": ["B"] } } });
        check(both, &[("spec.configuration.developerConfiguration.featureGates", "feature gate \"B\" exists on both")]);
        let developer = json!({ "configuration": { "developerConfiguration": { "memoryOvercommit": -5, "cpuAllocationRatio": 0 } } });
        check(developer, &[("spec.configuration.developerConfiguration.memoryOvercommit", "is -5")]);
        check(
            json!({ "uninstallStrategy": "Keep" }),
            &[("spec.uninstallStrategy", "\"Keep\": must be one of RemoveWorkloads")],
        );
        check(
            json!({ "workloadUpdateStrategy": { "workloadUpdateMethods": ["Reboot"], "batchEvictionInterval": "1d" } }),
            &[
                ("spec.workloadUpdateStrategy.workloadUpdateMethods[0]", "must be LiveMigrate or Evict"),
                ("spec.workloadUpdateStrategy.batchEvictionInterval", "\"1d\", which is not a duration"),
            ],
        );
    }
}
