//! A request at every place of its way.

use serde_json::{Value, json};

use super::*;

fn vm(request: &Value, volumes: &[&str]) -> VirtualMachine {
    let volumes: Vec<Value> = volumes
        .iter()
        .map(|name| match *name {
            "dump" => json!({ "name": "dump", "memoryDump": { "claimName": "dump", "hotpluggable": true } }),
            // Another volume, which is called as the claim.
            "taken" => json!({ "name": "dump", "persistentVolumeClaim": { "claimName": "dump" } }),
            other => json!({ "name": other, "containerDisk": { "image": "i" } }),
        })
        .collect();
    serde_json::from_value(json!({
        "spec": { "template": { "spec": { "volumes": volumes } } },
        "status": { "memoryDumpRequest": request },
    }))
    .unwrap()
}

/// An instance in this phase, which has the claim or not, and says this of it.
fn vmi(phase: &str, has: bool, entry: &Value) -> VirtualMachineInstance {
    let own = if has { json!([{ "name": "dump", "claimName": "dump", "type": "MemoryDump" }]) } else { json!([]) };
    let entries = if entry.is_null() { json!([]) } else { json!([entry]) };
    serde_json::from_value(json!({
        "spec": { "utilityVolumes": own }, "status": { "phase": phase, "volumeStatus": entries },
    }))
    .unwrap()
}

fn request(phase: &str) -> Value {
    json!({ "claimName": "dump", "phase": phase })
}

fn entry(phase: &str) -> Value {
    json!({ "name": "dump", "target": "", "phase": phase, "message": "said", "memoryDumpVolume": {
        "claimName": "dump", "targetFileName": "file", "startTimestamp": "2026-01-31T13:59:59Z",
        "endTimestamp": "2026-01-31T14:00:00Z",
    } })
}

/// The request after a pass, and what is changed: `t` the template, `i` the instance, `a` and the claim's annotation.
#[track_caller]
fn check(vm: &VirtualMachine, vmi: Option<&VirtualMachineInstance>, phase: Option<&str>, changed: &str) -> Plan {
    let plan = plan(vm, vmi).unwrap();
    let found = plan.request.as_ref().map(|request| request.phase.as_str());
    let mut words = Vec::new();
    words.extend(plan.template.as_ref().map(|volumes| format!("t{}", volumes.len())));
    words.extend(plan.instance.as_ref().map(|volumes| format!("i{}", volumes.len())));
    words.extend(plan.annotation.as_ref().map(|text| format!("a={text}")));
    assert_eq!((found, words.join(" ").as_str()), (phase, changed));
    plan
}

const RUNNING: &str = "Running";

#[test]
fn a_machine_that_is_asked_for_none_has_none() {
    assert_eq!(plan(&vm(&Value::Null, &["root"]), None), None);
    let done = vm(&request("Completed"), &["root", "dump"]);
    check(&done, Some(&vmi(RUNNING, false, &Value::Null)), Some("Completed"), "");
}

#[test]
fn the_claim_becomes_one_of_the_machines() {
    let asked = || request("Associating");
    let none = Value::Null;
    check(&vm(&asked(), &["root"]), None, Some("Associating"), "");
    check(&vm(&asked(), &["root"]), Some(&vmi("Scheduled", false, &none)), Some("Associating"), "");
    let plan = check(&vm(&asked(), &["root"]), Some(&vmi(RUNNING, false, &none)), Some("Associating"), "t2 i1");
    let volume = json!(plan.template.unwrap()[1]);
    assert_eq!(volume, json!({ "name": "dump", "memoryDump": { "claimName": "dump", "hotpluggable": true } }));
    let own = json!(plan.instance.unwrap()[0]);
    assert_eq!(own, json!({ "name": "dump", "claimName": "dump", "type": "MemoryDump" }));
    check(&vm(&asked(), &["root", "dump"]), Some(&vmi(RUNNING, true, &none)), Some("InProgress"), "");
    check(&vm(&asked(), &["root"]), Some(&vmi(RUNNING, true, &none)), Some("Associating"), "t2");
    // The same claim again: it is waited for until it has been taken away from the last dump.
    let leaving = vmi(RUNNING, false, &entry("Detaching"));
    check(&vm(&asked(), &["root", "dump"]), Some(&leaving), Some("Associating"), "");
    let taken = check(&vm(&asked(), &["taken"]), Some(&vmi(RUNNING, false, &none)), Some("Failed"), "");
    assert!(taken.request.unwrap().message.unwrap().contains("dump its memory to another claim"));
}

#[test]
fn the_vms_memory_dump_status_follows_the_vmis() {
    let machine = vm(&request("InProgress"), &["root", "dump"]);
    check(&machine, Some(&vmi(RUNNING, true, &Value::Null)), Some("InProgress"), "");
    let runs = check(&machine, Some(&vmi(RUNNING, true, &entry("MemoryDumpInProgress"))), Some("InProgress"), "");
    assert!(runs.request.unwrap().start_timestamp.is_some());
    let done = check(&machine, Some(&vmi(RUNNING, true, &entry("MemoryDumpCompleted"))), Some("Unmounting"), "");
    let done = done.request.unwrap();
    assert_eq!((done.file_name.as_deref(), done.end_timestamp.is_some()), (Some("file"), true));
    let failed = check(&machine, Some(&vmi(RUNNING, true, &entry("MemoryDumpFailed"))), Some("Failed"), "");
    assert_eq!(failed.request.unwrap().message.as_deref(), Some("said"));
    for gone in [None, Some(vmi("Succeeded", true, &Value::Null)), Some(vmi(RUNNING, false, &Value::Null))] {
        let failed = check(&machine, gone.as_ref(), Some("Failed"), "");
        assert_eq!(failed.request.unwrap().message.as_deref(), Some(ENDED));
    }
}

#[test]
fn the_claim_says_what_is_on_it_and_is_given_back() {
    let mut asked = request("Unmounting");
    asked["fileName"] = json!("file");
    let machine = vm(&asked, &["root", "dump"]);
    check(&machine, Some(&vmi(RUNNING, true, &entry("MemoryDumpCompleted"))), Some("Unmounting"), "i0 a=file");
    check(&machine, Some(&vmi(RUNNING, false, &entry("Detaching"))), Some("Unmounting"), "a=file");
    check(&machine, Some(&vmi(RUNNING, false, &Value::Null)), Some("Completed"), "a=file");
    check(&machine, None, Some("Completed"), "a=file");
    let machine = vm(&request("Failed"), &["root", "dump"]);
    let failed = vmi(RUNNING, true, &entry("MemoryDumpFailed"));
    check(&machine, Some(&failed), Some("Failed"), "i0 a=Memory dump failed");
}

#[test]
fn removing_a_memory_dump_removes_it_from_template_and_vmi() {
    let mut asked = request("InProgress");
    asked["remove"] = json!(true);
    let machine = vm(&asked, &["root", "dump"]);
    check(&machine, Some(&vmi(RUNNING, true, &entry("MemoryDumpInProgress"))), Some("Dissociating"), "t1 i0");
    let machine = vm(&request("Dissociating"), &["root"]);
    check(&machine, Some(&vmi(RUNNING, false, &entry("Detaching"))), Some("Dissociating"), "");
    check(&machine, Some(&vmi(RUNNING, false, &Value::Null)), None, "");
    // A machine that does not run has nothing but the volume of its template.
    check(&vm(&request("Dissociating"), &["root", "dump"]), None, Some("Dissociating"), "t1");
    check(&machine, None, None, "");
}
