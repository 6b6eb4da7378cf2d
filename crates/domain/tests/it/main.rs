//! VMIs and the domains they become: each `testdata/NAME.json` against `testdata/NAME.xml`.
//!
//! `UPDATE_EXPECT=1 cargo test -p domain` writes the XML anew; the difference is then for a reader to judge.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

use std::path::{Path, PathBuf};
use std::process::Command;

use api::kubevirt::v1::VirtualMachineInstance;
use domain::{DeviceKind, Environment, Error, LiveDomain, to_xml};
use serde_json::{Value, json};

#[derive(serde::Deserialize)]
struct Case {
    vmi: VirtualMachineInstance,
    environment: Environment,
}

fn testdata(name: &str) -> PathBuf {
    Path::new("testdata").join(name)
}

#[track_caller]
fn check(name: &str) {
    let text = std::fs::read_to_string(testdata(&format!("{name}.json"))).unwrap();
    let case: Case = serde_json::from_str(&text).unwrap();
    let xml = to_xml(&case.vmi, &case.environment).unwrap();
    let path = testdata(&format!("{name}.xml"));
    if std::env::var_os("UPDATE_EXPECT").is_some() {
        std::fs::write(&path, &xml).unwrap();
    }
    assert_eq!(xml, std::fs::read_to_string(&path).unwrap(), "{name}.xml");
    // libvirt's own schema, where libvirt is installed.
    if let Ok(output) = Command::new("virt-xml-validate").arg(&path).arg("domain").output() {
        assert!(output.status.success(), "{name}.xml: {}", String::from_utf8_lossy(&output.stderr));
    }
}

#[test]
fn typical() {
    check("typical");
}

#[test]
fn minimal() {
    check("minimal");
}

#[test]
fn kvm_windows() {
    check("kvm-windows");
}

#[test]
fn kernel_boot() {
    check("kernel-boot");
}

#[test]
fn many_options() {
    check("many-options");
}

#[test]
fn pc() {
    check("pc");
}

#[track_caller]
fn refused(domain: &Value, volumes: &Value, expect: &Error, sentence: &str) {
    let vmi: VirtualMachineInstance =
        serde_json::from_value(json!({"spec": {"domain": domain, "volumes": volumes}})).unwrap();
    let error = to_xml(&vmi, &Environment::default()).unwrap_err();
    assert_eq!((&error, error.to_string().as_str()), (expect, sentence));
}

#[test]
fn incomplete_specs_are_refused() {
    let memory = json!({"guest": "64Mi"});
    refused(
        &json!({"devices": {}}),
        &json!([]),
        &Error::NoMemory,
        "no memory is requested: set spec.domain.memory.guest or spec.domain.resources.requests.memory",
    );
    refused(
        &json!({"memory": memory, "devices": {"disks": [{"name": "a"}]}}),
        &json!([]),
        &Error::NoVolume { disk: "a".to_owned() },
        "disk a has no volume of that name",
    );
    refused(
        &json!({"memory": memory, "devices": {"disks": [{"name": "a", "disk": {"bus": "ide"}}]}}),
        &json!([{"name": "a"}]),
        &Error::Bus { disk: "a".to_owned(), bus: "ide".to_owned() },
        "disk a: bus ide is not one of virtio, sata, scsi, usb",
    );
    refused(
        &json!({"memory": memory, "devices": {"interfaces": [{"name": "i"}]}}),
        &json!([]),
        &Error::NotPlugged { interface: "i".to_owned() },
        "interface i is not plugged into the pod",
    );
    refused(
        &json!({"memory": {"guest": "much"}, "devices": {}}),
        &json!([]),
        &Error::Quantity { field: "memory.guest", value: "much".to_owned() },
        "spec.domain.memory.guest: \"much\" is not a quantity",
    );
}

#[test]
fn facts_from_live_xml() {
    let live = LiveDomain::read(include_str!("../../testdata/live.xml")).unwrap();
    assert_eq!((live.machine.as_str(), live.memory_kib, live.vcpus), ("pc-q35-10.0", 262_144, 1));
    let named: Vec<(&str, &str)> =
        live.devices.iter().map(|device| (device.name.as_str(), device.target.as_str())).collect();
    assert_eq!(named, [("root", "vda"), ("seed", "vdb"), ("scratch", "sda")]);
    assert!(live.devices.iter().all(|device| device.kind == DeviceKind::Disk));
    assert!(LiveDomain::read("<domain><devices>").is_ok_and(|live| live.devices.is_empty()));
    assert!(LiveDomain::read(&"x".repeat(5 << 20)).is_err());
}

#[test]
fn memory_that_came_later_is_read() {
    let live = LiveDomain::read(
        "<domain><vcpu placement='static' current='3'>4</vcpu><devices><memory model='virtio-mem'><target>\
         <size unit='KiB'>3145728</size><node>0</node><block unit='KiB'>2048</block>\
         <requested unit='KiB'>1048576</requested><current unit='KiB'>524288</current></target>\
         <alias name='ua-virtio-mem'/><address type='pci' domain='0x0000' bus='0x07' slot='0x00' function='0x0'/>\
         </memory></devices></domain>",
    )
    .unwrap();
    let device = live.memory_device.unwrap();
    assert_eq!((live.vcpus, device.size, device.requested, device.current), (3, 3_145_728, 1_048_576, 524_288));
}
