//! The KubeVirt object.

use std::collections::BTreeMap;

use api::hco::{HyperConverged, PermittedHostDevices};
use serde_json::{Value, json};

use super::{Input, placement, tls};
use crate::feature_gates::{self, is_on};
use crate::refusal::Refusal;
use crate::tree::{put, put_some};

/// A guest with CPUs of its own and an even number of them: the emulator's thread gets a whole core.
pub(super) const EVEN: &str = "alpha.kubevirt.io/EmulatorThreadCompleteToEvenParity";
/// The annotation with the rates of `tuningPolicy: annotation`.
pub(crate) const TUNING: &str = "hco.kubevirt.io/tuningPolicy";
/// Requests per second and at once of `tuningPolicy: highBurst`.
const HIGH_BURST: (f64, u64) = (200.0, 400);
/// Processors of the last century and of emulators: each is followed by its first version, which libvirt lists as well.
const OBSOLETE: [&str; 17] = [
    "486",
    "Conroe",
    "Opteron_G1",
    "Opteron_G2",
    "athlon",
    "core2duo",
    "coreduo",
    "kvm32",
    "kvm64",
    "n270",
    "pentium",
    "pentium2",
    "pentium3",
    "pentiumpro",
    "phenom",
    "qemu32",
    "qemu64",
];

pub(super) fn annotations(hco: &HyperConverged) -> Value {
    match is_on(&hco.spec.feature_gates, feature_gates::ALIGN_CPUS) {
        true => json!({ (EVEN): "" }),
        false => json!({}),
    }
}

pub(super) fn spec(hco: &HyperConverged, input: &Input) -> Result<Value, Refusal> {
    let deployment = &hco.spec.deployment;
    let certificates = &hco.spec.security.cert_config;
    let strategy = deployment.uninstall_strategy.as_deref().unwrap_or("BlockUninstallIfWorkloadsExist");
    let mut spec = json!({
        "certificateRotateStrategy": { "selfSigned": { "ca": certificates.ca, "server": certificates.server } },
        "configuration": configuration(hco, input)?,
        "uninstallStrategy": strategy,
    });
    put_some(&mut spec, "workloadUpdateStrategy", Some(hco.spec.virtualization.workload_update_strategy.clone()));
    let mut infra = json!({});
    put_some(&mut infra, "nodePlacement", placement(deployment.node_placements.infra.as_ref()));
    if infra == json!({}) && !input.topology.shows_control_plane() {
        // No node of the control plane is to be seen: the components run with the machines.
        put(&mut infra, "nodePlacement", json!({}));
    }
    if input.topology.has_one_place_for_infra() {
        put(&mut infra, "replicas", json!(1));
    }
    if infra != json!({}) {
        spec["infra"] = infra;
    }
    put_some(&mut spec, "workloads.nodePlacement", placement(deployment.node_placements.workload.as_ref()));
    Ok(spec)
}

fn configuration(hco: &HyperConverged, input: &Input) -> Result<Value, Refusal> {
    let (spec, machines) = (&hco.spec, &hco.spec.virtualization);
    let mut config = json!({
        "developerConfiguration": developer(hco, input),
        "network": { "defaultNetworkInterface": "masquerade" },
        "obsoleteCPUModels": obsolete(&machines.obsolete_cpu_models),
        "vmRolloutStrategy": "LiveUpdate",
    });
    let eviction = machines.eviction_strategy.as_deref();
    let usual = if input.topology.can_migrate() { "LiveMigrate" } else { "None" };
    put(&mut config, "evictionStrategy", json!(eviction.unwrap_or(usual)));
    put_some(&mut config, "network.binding", Some(spec.networking.network_binding.clone()));
    put_some(&mut config, "smbios", Some(input.smbios.clone()));
    if !input.machine_type.is_empty() {
        put(&mut config, "architectureConfiguration.amd64.machineType", json!(input.machine_type));
    }
    let as_it_stands = [
        ("autoCPULimitNamespaceLabelSelector", &machines.auto_cpu_limit_namespace_label_selector),
        ("changedBlockTrackingLabelSelectors", &machines.changed_block_tracking_label_selectors),
        ("hypervisors", &machines.hypervisors),
        ("ksmConfiguration", &machines.ksm_configuration),
        ("liveUpdateConfiguration", &machines.live_update_configuration),
        ("mediatedDevicesConfiguration", &machines.mediated_devices_configuration),
        ("migrations", &machines.live_migration_config),
        ("instancetype", &spec.workload_sources.instancetype_config),
    ];
    for (field, value) in as_it_stands {
        put_some(&mut config, field, Some(value.clone()));
    }
    let options = &machines.virtual_machine_options;
    let text = |value: &Option<String>| value.clone().filter(|text| !text.is_empty()).map(Value::from);
    put_some(&mut config, "cpuModel", text(&options.default_cpu_model));
    put_some(&mut config, "defaultRuntimeClass", text(&options.default_runtime_class));
    put_some(&mut config, "vmStateStorageClass", text(&spec.storage.vm_state_storage_class));
    put_some(&mut config, "roleAggregationStrategy", text(&machines.role_aggregation_strategy));
    let switched = |off: Option<bool>| (off == Some(true)).then(|| json!({}));
    put_some(
        &mut config,
        "virtualMachineOptions.disableFreePageReporting",
        switched(options.disable_free_page_reporting),
    );
    put_some(
        &mut config,
        "virtualMachineOptions.disableSerialConsoleLog",
        switched(options.disable_serial_console_log),
    );
    let instancetypes = spec.workload_sources.common_instancetypes_deployment.as_ref();
    put_some(&mut config, "commonInstancetypesDeployment", instancetypes.map(|wanted| json!(wanted)));
    let reservations = spec.storage.persistent_reservation_configuration.as_ref();
    put_some(&mut config, "persistentReservationConfiguration", reservations.map(|wanted| json!(wanted)));
    put_some(&mut config, "permittedHostDevices", machines.permitted_host_devices.as_ref().map(devices));
    if let Some((least, ciphers)) = tls(&spec.security.tls_security_profile) {
        put(&mut config, "tlsConfiguration.minTLSVersion", json!(least));
        put_some(&mut config, "tlsConfiguration.ciphers", Some(ciphers));
    }
    if let Some(rates) = tuning(hco)? {
        for component in ["apiConfiguration", "controllerConfiguration", "handlerConfiguration", "webhookConfiguration"]
        {
            put(&mut config, &format!("{component}.restClient.rateLimiter.tokenBucketRateLimiter"), rates.clone());
        }
    }
    Ok(config)
}

fn developer(hco: &HyperConverged, input: &Input) -> Value {
    let (on, off) = gates(hco, input.emulation);
    let mut developer = json!({ "featureGates": on });
    if !off.is_empty() {
        put(&mut developer, "disabledFeatureGates", json!(off));
    }
    let machines = &hco.spec.virtualization;
    put_some(&mut developer, "cpuAllocationRatio", machines.vmi_cpu_allocation_ratio.map(Value::from));
    let percent = machines.higher_workload_density.memory_overcommit_percentage;
    put_some(&mut developer, "memoryOvercommit", percent.map(Value::from));
    let log = hco.spec.deployment.log_verbosity_config.as_ref();
    put_some(&mut developer, "logVerbosity", log.map(|log| log.kubevirt.clone()));
    if input.emulation {
        put(&mut developer, "useEmulation", json!(true));
    }
    developer
}

/// The gates of KubeVirt that are on, and those of them that are off although they are on by default.
fn gates(hco: &HyperConverged, emulation: bool) -> (Vec<&'static str>, Vec<&'static str>) {
    let gates = &hco.spec.feature_gates;
    let is_on = |name: &str| is_on(gates, name);
    let mut on = vec!["CPUManager", "Snapshot", "HostDevices", "KubevirtSeccompProfile"];
    if !emulation {
        on.push("HypervStrictCheck");
    }
    let mut off = Vec::new();
    // Gates that are beta in KubeVirt are on there as well.
    let beta = [
        (feature_gates::DECENTRALIZED_LIVE_MIGRATION, "DecentralizedLiveMigration"),
        (feature_gates::DECLARATIVE_HOTPLUG_VOLUMES, "DeclarativeHotplugVolumes"),
        (feature_gates::TEMPLATE, "Template"),
    ];
    for (name, gate) in beta {
        if is_on(name) { on.push(gate) } else { off.push(gate) }
    }
    // One of the two ways of plugging volumes is always there.
    if !is_on(feature_gates::DECLARATIVE_HOTPLUG_VOLUMES) {
        on.push("HotplugVolumes");
    }
    let alpha: [(&str, &[&'static str]); 5] = [
        (feature_gates::ALIGN_CPUS, &["AlignCPUs"]),
        (feature_gates::CONTAINER_PATH_VOLUMES, &["ContainerPathVolumes"]),
        (feature_gates::DOWNWARD_METRICS, &["DownwardMetrics"]),
        (feature_gates::INCREMENTAL_BACKUP, &["IncrementalBackup", "UtilityVolumes"]),
        (feature_gates::OBJECT_GRAPH, &["ObjectGraph"]),
    ];
    for (name, gates) in alpha {
        if is_on(name) {
            on.extend(gates);
        }
    }
    on.sort_unstable();
    (on, off)
}

fn obsolete(more: &[String]) -> BTreeMap<String, bool> {
    let usual = OBSOLETE.iter().flat_map(|model| [(*model).to_owned(), format!("{model}-v1")]);
    usual.chain(more.iter().cloned()).map(|model| (model, true)).collect()
}

/// Devices that are not `disabled`, with the names of fields that KubeVirt has.
fn devices(wanted: &PermittedHostDevices) -> Value {
    let list = |devices: &[Value], rename: Option<(&str, &str)>| -> Vec<Value> {
        let permitted = devices.iter().filter(|device| device["disabled"] != true);
        let one = |device: &Value| {
            let mut device = device.clone();
            if let Some(fields) = device.as_object_mut() {
                fields.remove("disabled");
                if let Some((from, to)) = rename
                    && let Some(value) = fields.remove(from)
                {
                    fields.insert(to.to_owned(), value);
                }
            }
            device
        };
        permitted.map(one).collect()
    };
    let mut all = json!({});
    let lists = [
        ("pciHostDevices", list(&wanted.pci_host_devices, Some(("pciDeviceSelector", "pciVendorSelector")))),
        ("mediatedDevices", list(&wanted.mediated_devices, None)),
        ("usb", list(&wanted.usb_host_devices, None)),
    ];
    for (field, list) in lists {
        if !list.is_empty() {
            put(&mut all, field, json!(list));
        }
    }
    all
}

/// How often components may ask the API server.
fn tuning(hco: &HyperConverged) -> Result<Option<Value>, Refusal> {
    let annotation = hco.metadata.annotations.as_ref().and_then(|all| all.get(TUNING));
    match hco.spec.virtualization.tuning_policy.as_deref() {
        Some("annotation") => {
            let field = format!("metadata.annotations[{TUNING}]");
            let form =
                r#"spec.virtualization.tuningPolicy asks for rates: write {"qps": 100, "burst": 200}, both above 0"#;
            let read = annotation.and_then(|text| serde_json::from_str::<Value>(text).ok()).unwrap_or_default();
            let qps = read["qps"].as_f64().filter(|qps| *qps > 0.0);
            let burst = read["burst"].as_u64().filter(|burst| *burst > 0);
            match qps.zip(burst) {
                Some((qps, burst)) => Ok(Some(json!({ "qps": qps, "burst": burst }))),
                None => Err(Refusal::new(field, form)),
            }
        }
        Some("highBurst") if annotation.is_some() => Err(Refusal::new(
            "spec.virtualization.tuningPolicy",
            format!("highBurst has rates of its own: remove the annotation {TUNING}, or set tuningPolicy: annotation"),
        )),
        Some("highBurst") => Ok(Some(json!({ "qps": HIGH_BURST.0, "burst": HIGH_BURST.1 }))),
        _ => Ok(None),
    }
}
