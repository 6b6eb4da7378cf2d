//! What a preference gives a machine: what its user left open.

use serde_json::{Map, Value, json};

use crate::devices;
use crate::fields::{at, object, put, put_if_open, written};

/// Where the fields of a preference go, below `spec` of an instance, unless something is there.
const OPEN: &[(&str, &str)] = &[
    ("devices.preferredAutoattachGraphicsDevice", "domain.devices.autoattachGraphicsDevice"),
    ("devices.preferredAutoattachMemBalloon", "domain.devices.autoattachMemBalloon"),
    ("devices.preferredAutoattachSerialConsole", "domain.devices.autoattachSerialConsole"),
    ("devices.preferredUseVirtioTransitional", "domain.devices.useVirtioTransitional"),
    ("devices.preferredBlockMultiQueue", "domain.devices.blockMultiQueue"),
    ("devices.preferredNetworkInterfaceMultiQueue", "domain.devices.networkInterfaceMultiqueue"),
    ("devices.preferredRng", "domain.devices.rng"),
    ("devices.preferredTPM", "domain.devices.tpm"),
    ("devices.preferredVideoType", "domain.devices.video.type"),
    ("features.preferredApic", "domain.features.apic"),
    ("features.preferredKvm", "domain.features.kvm"),
    ("features.preferredPvspinlock", "domain.features.pvspinlock"),
    ("features.preferredSmm", "domain.features.smm"),
    ("clock.preferredTimer", "domain.clock.timer"),
    ("machine.preferredMachineType", "domain.machine.type"),
    ("preferredArchitecture", "architecture"),
    ("preferredSubdomain", "subdomain"),
    ("preferredTerminationGracePeriodSeconds", "terminationGracePeriodSeconds"),
    ("preferredLaunchSecurity", "domain.launchSecurity"),
];

/// Fields that decide which devices there are, and so come first.
const ATTACHED: &[(&str, &str)] = &[
    ("devices.preferredAutoattachPodInterface", "domain.devices.autoattachPodInterface"),
    ("devices.preferredAutoattachInputDevice", "domain.devices.autoattachInputDevice"),
];

/// Where fields go whatever the user wrote, as in KubeVirt.
const ALWAYS: &[(&str, &str)] = &[
    ("devices.preferredDisableHotplug", "domain.devices.disableHotplug"),
    ("features.preferredAcpi", "domain.features.acpi"),
];

const TEMPLATE: &str = "spec.template.spec";
const ANNOTATIONS: &str = "spec.template.metadata.annotations";

/// What a preference says of a machine that is decided when the VM is stored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PreferredHardware {
    /// Architecture of the guest.
    pub architecture: Option<String>,
    /// Machine type.
    pub machine_type: Option<String>,
    /// Storage class of the machine's data volumes.
    pub storage_class: Option<String>,
}

/// Of the spec of a preference.
pub fn hardware(preference: &Value) -> PreferredHardware {
    let text = |path| at(preference, path).and_then(Value::as_str).filter(|text| !text.is_empty()).map(str::to_owned);
    PreferredHardware {
        architecture: text("preferredArchitecture"),
        machine_type: text("machine.preferredMachineType"),
        storage_class: text("volumes.preferredStorageClassName"),
    }
}

/// Says of `vm` which devices it gets by itself.
pub(crate) fn attach(preference: &Value, vm: &mut Value) {
    copy(ATTACHED, preference, object(vm, TEMPLATE));
}

/// Gives `vm`, whose devices are all listed, what `preference` says.
pub(crate) fn apply(preference: &Value, vm: &mut Value) {
    let spec = object(vm, TEMPLATE);
    copy(OPEN, preference, spec);
    for (from, to) in ALWAYS {
        if let Some(value) = at(preference, from) {
            put(spec, to, value.clone());
        }
    }
    cpu_features(preference, spec);
    hyperv(preference, spec);
    firmware(preference, spec);
    clock(preference, spec);
    devices::apply(preference, spec);
    annotations(preference, vm);
}

fn copy(fields: &[(&str, &str)], preference: &Value, spec: &mut Value) {
    for (from, to) in fields {
        if let Some(value) = at(preference, from) {
            put_if_open(spec, to, value);
        }
    }
}

/// Features that the user does not name themselves.
fn cpu_features(preference: &Value, spec: &mut Value) {
    let Some(wanted) = at(preference, "cpu.preferredCPUFeatures").and_then(Value::as_array) else { return };
    let mut features = at(spec, "domain.cpu.features").and_then(Value::as_array).cloned().unwrap_or_default();
    for feature in wanted {
        if features.iter().all(|held| held.get("name") != feature.get("name")) {
            features.push(feature.clone());
        }
    }
    put(spec, "domain.cpu.features", Value::Array(features));
}

/// Each enlightenment by itself.
fn hyperv(preference: &Value, spec: &mut Value) {
    let wanted = at(preference, "features.preferredHyperv").and_then(Value::as_object);
    for (name, value) in wanted.into_iter().flatten() {
        put_if_open(spec, &format!("domain.features.hyperv.{name}"), value);
    }
}

fn firmware(preference: &Value, spec: &mut Value) {
    let is = |path| at(preference, path) == Some(&Value::Bool(true));
    let boots = |kind: &str| format!("domain.firmware.bootloader.{kind}");
    let chosen = ["bios", "efi"].iter().any(|kind| at(spec, &boots(kind)).is_some());
    if !chosen {
        if let Some(efi) = at(preference, "firmware.preferredEfi") {
            put(spec, &boots("efi"), efi.clone());
        } else if is("firmware.preferredUseEfi") {
            let secure = at(preference, "firmware.preferredUseSecureBoot");
            let efi = secure.map_or_else(|| json!({}), |secure| json!({ "secureBoot": secure }));
            put(spec, &boots("efi"), efi);
        } else if is("firmware.preferredUseBios") {
            put(spec, &boots("bios"), json!({}));
        }
    }
    if is("firmware.preferredUseBiosSerial") && at(spec, &boots("bios")).is_some() {
        put_if_open(spec, &boots("bios.useSerial"), &json!(true));
    }
}

/// The offset from which the clock counts, where the user names none.
fn clock(preference: &Value, spec: &mut Value) {
    let said = ["utc", "timezone"].iter().any(|kind| at(spec, &format!("domain.clock.{kind}")).is_some());
    let offset = at(preference, "clock.preferredClockOffset").and_then(Value::as_object).filter(|_| !said);
    for (kind, value) in offset.into_iter().flatten() {
        put(spec, &format!("domain.clock.{kind}"), value.clone());
    }
}

fn annotations(preference: &Value, vm: &mut Value) {
    let Some(wanted) = written(preference, "annotations").and_then(Value::as_object).filter(|all| !all.is_empty())
    else {
        return;
    };
    let held = object(vm, ANNOTATIONS);
    if !held.is_object() {
        *held = Value::Object(Map::new());
    }
    for (key, value) in wanted {
        if held.get(key).is_none() {
            held[key] = value.clone();
        }
    }
}
