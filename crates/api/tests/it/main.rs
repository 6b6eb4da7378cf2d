//! Our types against objects of a running cluster: what is read and written again is the same JSON.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod cdi;
mod fields;

use api::kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance};
use serde_json::{Value, json};

/// `null` means absent.
fn without_nulls(value: Value) -> Value {
    match value {
        Value::Object(map) => {
            map.into_iter().filter(|(_, v)| !v.is_null()).map(|(k, v)| (k, without_nulls(v))).collect()
        }
        Value::Array(items) => items.into_iter().map(without_nulls).collect(),
        other => other,
    }
}

#[track_caller]
fn round_trip<T: serde::Serialize + serde::de::DeserializeOwned>(object: &Value) {
    let typed: T = serde_json::from_value(object.clone()).unwrap();
    assert_eq!(serde_json::to_value(&typed).unwrap(), without_nulls(object.clone()));
}

#[test]
fn objects_of_a_running_cluster_round_trip() {
    let objects: Vec<Value> = serde_json::from_str(include_str!("../../testdata/running-vm.json")).unwrap();
    for object in &objects {
        match object["kind"].as_str() {
            Some("VirtualMachine") => round_trip::<VirtualMachine>(object),
            Some("VirtualMachineInstance") => round_trip::<VirtualMachineInstance>(object),
            other => panic!("unexpected {other:?}"),
        }
    }
}

/// Threads that serve have stacks of 2 MiB, and a decoder runs beneath a handler, a queue and a stream.
#[test]
fn a_machine_is_decoded_on_a_quarter_of_a_stack() {
    let objects: Vec<Value> = serde_json::from_str(include_str!("../../testdata/running-vm.json")).unwrap();
    let decode =
        move || objects.iter().for_each(|object| drop(serde_json::from_value::<VirtualMachine>(object.clone())));
    std::thread::Builder::new().stack_size(512 << 10).spawn(decode).unwrap().join().unwrap();
}

#[test]
fn numbers_are_quantities_and_null_is_absent() {
    let vmi: VirtualMachineInstance = serde_json::from_value(json!({
        "spec": {"domain": {
            "resources": {"requests": {"cpu": 2, "memory": "1Gi"}},
            "memory": {"guest": 1_073_741_824},
            "devices": {"disks": null},
        }},
    }))
    .unwrap();
    let domain = vmi.spec.domain;
    assert_eq!(domain.resources.unwrap().requests["cpu"].0, "2");
    assert_eq!(domain.memory.unwrap().guest.unwrap().0, "1073741824");
    assert!(domain.devices.disks.is_empty());
}

#[test]
fn a_kind_says_what_it_is() {
    let object = serde_json::to_value(KubeVirt::default()).unwrap();
    assert_eq!((&object["apiVersion"], &object["kind"]), (&json!("kubevirt.io/v1"), &json!("KubeVirt")));
}
