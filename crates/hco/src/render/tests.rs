#![expect(clippy::needless_pass_by_value, reason = "cases are literals")]

use serde_json::{Value, json};

use super::*;
use crate::tree::get;

fn hco(annotations: Value, spec: Value) -> HyperConverged {
    serde_json::from_value(json!({ "metadata": { "name": NAME, "annotations": annotations }, "spec": spec })).unwrap()
}

fn input() -> Input {
    Input { namespace: "hc".into(), version: "v1".into(), schedule: "1 2/12 * * *".into(), ..Input::default() }
}

/// What `spec` makes of the field at `path` of a child.
#[track_caller]
fn check(child: Child, spec: Value, path: &str, expect: Value) {
    let rendered = render(child, &hco(json!({}), spec.clone()), &input()).unwrap();
    assert_eq!(get(&rendered["spec"], path).cloned().unwrap_or_default(), expect, "{spec} -> {path}");
}

/// A field that is handed on as it stands.
#[track_caller]
fn passes(child: Child, from: &str, to: &str, value: Value) {
    let mut spec = json!({});
    crate::tree::put(&mut spec, from, value.clone());
    check(child, spec, to, value);
}

#[test]
fn every_field_of_the_object_reaches_kubevirt() {
    let config = |field: &str| format!("configuration.{field}");
    let machines = |field: &str| format!("virtualization.{field}");
    let some = || json!({ "matchLabels": { "a": "b" } });
    let same = [
        "autoCPULimitNamespaceLabelSelector",
        "changedBlockTrackingLabelSelectors",
        "ksmConfiguration",
        "liveUpdateConfiguration",
        "mediatedDevicesConfiguration",
    ];
    for field in same {
        passes(Child::KubeVirt, &machines(field), &config(field), some());
    }
    passes(Child::KubeVirt, &machines("liveMigrationConfig"), &config("migrations"), some());
    passes(Child::KubeVirt, &machines("hypervisors"), &config("hypervisors"), json!([{ "name": "kvm" }]));
    passes(Child::KubeVirt, &machines("evictionStrategy"), &config("evictionStrategy"), json!("External"));
    passes(Child::KubeVirt, &machines("roleAggregationStrategy"), &config("roleAggregationStrategy"), json!("Manual"));
    passes(Child::KubeVirt, &machines("workloadUpdateStrategy"), "workloadUpdateStrategy", some());
    let developer = |field: &str| config(&format!("developerConfiguration.{field}"));
    passes(Child::KubeVirt, &machines("vmiCPUAllocationRatio"), &developer("cpuAllocationRatio"), json!(4));
    let density = machines("higherWorkloadDensity.memoryOvercommitPercentage");
    passes(Child::KubeVirt, &density, &developer("memoryOvercommit"), json!(150));
    let verbosity = "deployment.logVerbosityConfig.kubevirt";
    passes(Child::KubeVirt, verbosity, &developer("logVerbosity"), json!({ "virtAPI": 3 }));
    let options = |field: &str| machines(&format!("virtualMachineOptions.{field}"));
    passes(Child::KubeVirt, &options("defaultCPUModel"), &config("cpuModel"), json!("Haswell"));
    passes(Child::KubeVirt, &options("defaultRuntimeClass"), &config("defaultRuntimeClass"), json!("kata"));
    for field in ["disableFreePageReporting", "disableSerialConsoleLog"] {
        let (from, to) = (options(field), config(&format!("virtualMachineOptions.{field}")));
        let mut spec = json!({});
        crate::tree::put(&mut spec, &from, json!(true));
        check(Child::KubeVirt, spec.clone(), &to, json!({}));
        crate::tree::put(&mut spec, &from, json!(false));
        check(Child::KubeVirt, spec, &to, Value::Null);
    }
    passes(Child::KubeVirt, "storage.vmStateStorageClass", &config("vmStateStorageClass"), json!("fast"));
    let reservation = "storage.persistentReservationConfiguration";
    passes(Child::KubeVirt, reservation, &config("persistentReservationConfiguration"), json!({ "enabled": true }));
    passes(Child::KubeVirt, "networking.networkBinding", &config("network.binding"), json!({ "passt": {} }));
    let sources = |field: &str| format!("workloadSources.{field}");
    passes(
        Child::KubeVirt,
        &sources("instancetypeConfig"),
        &config("instancetype"),
        json!({ "referencePolicy": "expand" }),
    );
    let deployed = "commonInstancetypesDeployment";
    passes(Child::KubeVirt, &sources(deployed), &config(deployed), json!({ "enabled": false }));
    passes(Child::KubeVirt, "deployment.uninstallStrategy", "uninstallStrategy", json!("RemoveWorkloads"));
    let place = || json!({ "nodeSelector": { "a": "b" } });
    passes(Child::KubeVirt, "deployment.nodePlacements.infra", "infra.nodePlacement", place());
    passes(Child::KubeVirt, "deployment.nodePlacements.workload", "workloads.nodePlacement", place());
    let life = || json!({ "duration": "1h", "renewBefore": "10m" });
    for part in ["ca", "server"] {
        let to = format!("certificateRotateStrategy.selfSigned.{part}");
        passes(Child::KubeVirt, &format!("security.certConfig.{part}"), &to, life());
    }
}

#[test]
fn devices_get_the_names_of_kubevirts_fields_and_disabled_ones_are_left_out() {
    let devices = json!({
        "pciHostDevices": [
            { "pciDeviceSelector": "10de:1eb8", "resourceName": "a/b" },
            { "pciDeviceSelector": "1:2", "resourceName": "c/d", "disabled": true },
        ],
        "usbHostDevices": [{ "resourceName": "e/f", "disabled": false }],
    });
    let expect = json!({
        "pciHostDevices": [{ "pciVendorSelector": "10de:1eb8", "resourceName": "a/b" }],
        "usb": [{ "resourceName": "e/f" }],
    });
    let spec = json!({ "virtualization": { "permittedHostDevices": devices } });
    check(Child::KubeVirt, spec, "configuration.permittedHostDevices", expect);
}

#[test]
fn obsolete_models_join_those_that_always_are() {
    let spec = json!({ "virtualization": { "obsoleteCPUModels": ["Penryn"] } });
    let rendered = render(Child::KubeVirt, &hco(json!({}), spec), &input()).unwrap();
    let models = rendered.pointer("/spec/configuration/obsoleteCPUModels").unwrap().as_object().unwrap();
    assert_eq!(models.len(), 35);
    assert!(models.contains_key("Penryn") && models.contains_key("qemu64-v1"));
}

#[track_caller]
fn check_gates(spec: Value, emulation: bool, on: &[&str], off: Value) {
    let input = Input { emulation, ..input() };
    let rendered = render(Child::KubeVirt, &hco(json!({}), spec), &input).unwrap();
    let developer = &rendered["spec"]["configuration"]["developerConfiguration"];
    let always = ["CPUManager", "HostDevices", "KubevirtSeccompProfile", "Snapshot"];
    let found = developer["featureGates"].as_array().unwrap().iter().map(|gate| gate.as_str().unwrap());
    let beside: Vec<&str> = found.filter(|gate| !always.contains(gate)).collect();
    assert_eq!(beside, on);
    assert_eq!(developer.get("disabledFeatureGates").cloned().unwrap_or_default(), off);
}

#[test]
fn gates_follow_those_of_the_object() {
    let usual = ["DecentralizedLiveMigration", "DeclarativeHotplugVolumes", "HypervStrictCheck", "Template"];
    check_gates(json!({}), false, &usual, Value::Null);
    let spec = json!({ "featureGates": [
        { "name": "incrementalBackup" }, { "name": "template", "state": "Disabled" },
        { "name": "declarativeHotplugVolumes", "state": "Disabled" },
    ] });
    let on = ["DecentralizedLiveMigration", "HotplugVolumes", "IncrementalBackup", "UtilityVolumes"];
    check_gates(spec, true, &on, json!(["DeclarativeHotplugVolumes", "Template"]));
}

#[test]
fn rates_are_those_of_the_policy() {
    let policy = |annotations: Value, policy: &str| {
        let object = hco(annotations, json!({ "virtualization": { "tuningPolicy": policy } }));
        render(Child::KubeVirt, &object, &input()).map(|rendered| {
            let rates = "configuration.webhookConfiguration.restClient.rateLimiter.tokenBucketRateLimiter";
            get(&rendered["spec"], rates).cloned().unwrap_or_default()
        })
    };
    let annotated = |text: &str| json!({ "hco.kubevirt.io/tuningPolicy": text });
    assert_eq!(policy(json!({}), "highBurst").unwrap(), json!({ "qps": 200.0, "burst": 400 }));
    let found = policy(annotated(r#"{"qps": 10, "burst": 20}"#), "annotation").unwrap();
    assert_eq!(found, json!({ "qps": 10.0, "burst": 20 }));
    for bad in ["", "{}", r#"{"qps": 0, "burst": 1}"#, r#"{"qps": 1, "burst": -1}"#] {
        assert!(policy(annotated(bad), "annotation").unwrap_err().to_string().contains("both above 0"), "{bad}");
    }
    assert!(policy(annotated("{}"), "highBurst").is_err());
}

#[test]
fn every_field_of_the_object_reaches_cdi() {
    passes(Child::Cdi, "storage.filesystemOverhead", "config.filesystemOverhead", json!({ "global": "0.1" }));
    passes(Child::Cdi, "storage.scratchSpaceStorageClass", "config.scratchSpaceStorageClass", json!("fast"));
    let requirements = json!({ "limits": { "cpu": "1" } });
    passes(Child::Cdi, "storage.workloadResourceRequirements", "config.podResourceRequirements", requirements);
    passes(Child::Cdi, "storage.storageImport.insecureRegistries", "config.insecureRegistries", json!(["r:5000"]));
    passes(Child::Cdi, "deployment.logVerbosityConfig.cdi", "config.logVerbosity", json!(3));
    passes(Child::Cdi, "deployment.uninstallStrategy", "uninstallStrategy", json!("RemoveWorkloads"));
    let place = || json!({ "nodeSelector": { "a": "b" } });
    passes(Child::Cdi, "deployment.nodePlacements.infra", "infra", place());
    passes(Child::Cdi, "deployment.nodePlacements.workload", "workload", place());
    let life = || json!({ "duration": "1h", "renewBefore": "10m" });
    passes(Child::Cdi, "security.certConfig.ca", "certConfig.ca", life());
    check(Child::Cdi, json!({ "security": { "certConfig": { "server": life() } } }), "certConfig.client", life());
    passes(
        Child::Cdi,
        "security.tlsSecurityProfile",
        "config.tlsSecurityProfile",
        json!({ "type": "Modern", "modern": {} }),
    );
}

#[test]
fn every_field_of_the_object_reaches_the_network_addons() {
    let range = json!({ "rangeStart": "02:00:00:00:00:00", "rangeEnd": "02:00:00:00:00:ff" });
    passes(Child::NetworkAddons, "networking.kubeMacPoolConfiguration", "kubeMacPool", range);
    let server = json!({
        "networking": { "kubeSecondaryDNSNameServerIP": "10.0.0.1" }, "featureGates": [{ "name": "deployKubeSecondaryDNS" }],
    });
    check(Child::NetworkAddons, server, "kubeSecondaryDNS", json!({ "nameServerIP": "10.0.0.1" }));
    check(Child::NetworkAddons, json!({}), "kubeSecondaryDNS", Value::Null);
    let place = || json!({ "nodeSelector": { "a": "b" } });
    passes(Child::NetworkAddons, "deployment.nodePlacements.infra", "placementConfiguration.infra", place());
    passes(Child::NetworkAddons, "deployment.nodePlacements.workload", "placementConfiguration.workloads", place());
    let life = json!({ "ca": { "duration": "2h", "renewBefore": "20m" }, "server": { "duration": "1h", "renewBefore": "10m" } });
    let expect = json!({
        "caRotateInterval": "2h", "caOverlapInterval": "20m", "certRotateInterval": "1h", "certOverlapInterval": "10m",
    });
    check(Child::NetworkAddons, json!({ "security": { "certConfig": life } }), "selfSignConfiguration", expect);
    let object = hco(json!({ "deployOVS": "true" }), json!({}));
    assert_eq!(render(Child::NetworkAddons, &object, &input()).unwrap()["spec"]["ovs"], json!({}));
}

#[test]
fn every_field_of_the_object_reaches_ssp() {
    passes(Child::Ssp, "workloadSources.commonTemplatesNamespace", "commonTemplates.namespace", json!("templates"));
    check(Child::Ssp, json!({}), "commonTemplates.namespace", json!("hc"));
    let proxy = json!({ "deployment": { "deployVmConsoleProxy": true } });
    check(Child::Ssp, proxy, "tokenGenerationService.enabled", json!(true));
    let off = json!({ "workloadSources": { "enableCommonBootImageImport": false } });
    check(Child::Ssp, off, "commonTemplates.dataImportCronTemplates", Value::Null);
    let many = json!({ "workloadSources": { "enableMultiArchBootImageImport": true } });
    check(Child::Ssp, many, "enableMultipleArchitectures", json!(true));
    passes(
        Child::Ssp,
        "deployment.nodePlacements.infra",
        "templateValidator.placement",
        json!({ "nodeSelector": { "a": "b" } }),
    );
}

#[test]
fn tls_is_the_same_for_all() {
    let profile = |profile: Value| json!({ "security": { "tlsSecurityProfile": profile } });
    let tls = "configuration.tlsConfiguration";
    check(Child::KubeVirt, profile(json!({ "type": "Modern" })), tls, json!({ "minTLSVersion": "VersionTLS13" }));
    let custom = json!({ "type": "Custom", "custom": { "minTLSVersion": "VersionTLS12", "ciphers": ["X"] } });
    let expect = json!({ "minTLSVersion": "VersionTLS12", "ciphers": ["X"] });
    check(Child::KubeVirt, profile(custom.clone()), tls, expect);
    check(Child::NetworkAddons, profile(custom.clone()), "tlsSecurityProfile", custom.clone());
    check(Child::Ssp, profile(custom.clone()), "tlsSecurityProfile", custom);
    check(Child::KubeVirt, json!({}), tls, Value::Null);
}

#[test]
fn one_node_has_no_eviction_and_one_copy() {
    check(Child::KubeVirt, json!({}), "configuration.evictionStrategy", json!("None"));
    check(Child::KubeVirt, json!({}), "infra.replicas", json!(1));
    check(Child::Ssp, json!({}), "templateValidator.replicas", json!(1));
}
