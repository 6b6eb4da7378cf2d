//! Every turn of a request.

use serde_json::Value;

use super::*;

fn request(spec: Value) -> VirtualMachineTemplateRequest {
    let mut spec = spec;
    if spec["virtualMachineRef"].is_null() {
        spec["virtualMachineRef"] = json!({ "namespace": "src", "name": "vm" });
    }
    let metadata = json!({ "name": "r", "namespace": "ns", "uid": "u", "generation": 1 });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

/// The step by its name, and Ready, Progressing and the message.
#[track_caller]
fn check(request: &VirtualMachineTemplateRequest, world: &World, step: &str, said: [&str; 3]) -> Step {
    let plan = plan(request, world, Timestamp::UNIX_EPOCH);
    let name = match &plan.step {
        Step::None => "none",
        Step::Snapshot(_) => "snapshot",
        Step::Volumes(_) => "volumes",
        Step::Template(_) => "template",
        Step::HandOver => "hand over",
    };
    let conditions = &plan.status.conditions;
    let found = [conditions[0].status.as_str(), conditions[1].status.as_str(), conditions[0].message.as_str()];
    assert_eq!((name, found), (step, said));
    plan.step
}

fn labelled(uid: &str) -> Value {
    json!({ "name": "x", "labels": { (REQUEST_UID): uid } })
}

fn snapshot(uid: &str, status: Value) -> Option<VirtualMachineSnapshot> {
    serde_json::from_value(json!({ "metadata": labelled(uid), "spec": { "source": { "kind": "VirtualMachine", "name": "vm" } }, "status": status })).unwrap()
}

fn content() -> Option<VirtualMachineSnapshotContent> {
    let machine = json!({ "spec": { "template": { "spec": { "domain": { "devices": {} }, "volumes": [
        { "name": "root", "dataVolume": { "name": "d" } },
    ] } } } });
    let backups = json!([{ "volumeName": "root", "volumeSnapshotName": "vs", "persistentVolumeClaim": { "metadata": {}, "spec": {} } }]);
    let spec = json!({ "source": { "virtualMachine": machine }, "volumeBackups": backups });
    serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap()
}

fn volume(uid: &str, phase: &str, owner: &str) -> DataVolume {
    let mut metadata = labelled(uid);
    metadata["ownerReferences"] = json!([{ "apiVersion": "a/v1", "kind": "K", "name": "n", "uid": owner }]);
    serde_json::from_value(json!({ "metadata": metadata, "spec": {}, "status": { "phase": phase } })).unwrap()
}

fn template(uid: &str, ready: &str) -> Option<VirtualMachineTemplate> {
    let mut metadata = labelled(uid);
    (metadata["name"], metadata["uid"]) = (json!("r"), json!("t"));
    let conditions = if ready.is_empty() {
        json!([])
    } else {
        json!([{ "type": "Ready", "status": ready, "reason": "R", "message": "m", "lastTransitionTime": "1970-01-01T00:00:00Z" }])
    };
    serde_json::from_value(json!({ "metadata": metadata, "status": { "conditions": conditions } })).unwrap()
}

#[test]
fn a_machine_is_snapshotted_first() {
    let request = request(json!({}));
    let name = snapshot_name(&request);
    let none = World::default();
    check(&request, &none, "none", ["False", "False", "there is no VirtualMachine src/vm"]);
    let waits = format!("Waiting for VirtualMachineSnapshot src/{name} to be ready");
    let there = World { has_machine: true, ..World::default() };
    let Step::Snapshot(wanted) = check(&request, &there, "snapshot", ["False", "True", &waits]) else { panic!() };
    assert_eq!((wanted.namespace().as_deref(), wanted.name_any()), (Some("src"), name));
    let of = |uid: &str, status: Value| World { snapshot: snapshot(uid, status), ..World::default() };
    let stolen = "the VirtualMachineSnapshot src/x was not made for this request";
    check(&request, &of("other", json!({ "readyToUse": true })), "none", ["False", "False", stolen]);
    let failed = json!({ "phase": "Failed", "error": { "message": "no room" } });
    check(&request, &of("u", failed), "none", ["False", "False", "VirtualMachineSnapshot src/x failed: no room"]);
    let waits = "Waiting for VirtualMachineSnapshot src/x to be ready";
    check(&request, &of("u", json!({ "phase": "InProgress" })), "none", ["False", "True", waits]);
}

#[test]
fn its_disks_are_copied_and_then_the_template_is_made() {
    let request = request(json!({ "templateName": "golden", "templateLabels": { "a": "b" } }));
    let name = volume_names(&request, content().as_ref()).remove(0);
    let ready =
        || World { snapshot: snapshot("u", json!({ "readyToUse": true })), content: content(), ..World::default() };
    let waits = format!("Waiting for DataVolume ns/{name} to be ready");
    let Step::Volumes(wanted) = check(&request, &ready(), "volumes", ["False", "True", &waits]) else { panic!() };
    let source = serde_json::to_value(&wanted[0].spec).unwrap()["source"]["snapshot"].clone();
    assert_eq!(source, json!({ "namespace": "src", "name": "vs" }));
    assert_eq!(wanted[0].metadata.owner_references.as_ref().unwrap()[0].uid, "u");
    let with = |volume: DataVolume| World { volumes: BTreeMap::from([(name.clone(), volume)]), ..ready() };
    check(&request, &with(volume("u", "ImportInProgress", "u")), "none", ["False", "True", &waits]);
    let failed = format!("DataVolume ns/{name} failed");
    check(&request, &with(volume("u", "Failed", "u")), "none", ["False", "False", &failed]);
    let stolen = format!("the DataVolume ns/{name} was not made for this request");
    check(&request, &with(volume("other", "Succeeded", "u")), "none", ["False", "False", &stolen]);
    let waits = "Waiting for VirtualMachineTemplate ns/golden to be ready";
    let made = check(&request, &with(volume("u", "Succeeded", "u")), "template", ["False", "True", waits]);
    let Step::Template(wanted) = made else { panic!() };
    assert_eq!((wanted.labels()["a"].as_str(), wanted.labels()[REQUEST_UID].as_str()), ("b", "u"));
    let source = &wanted.spec.virtual_machine["spec"]["dataVolumeTemplates"][0]["spec"]["source"]["pvc"];
    assert_eq!(*source, json!({ "namespace": "ns", "name": name }));
}

#[test]
fn the_template_gets_the_disks_and_is_waited_for() {
    let request = request(json!({}));
    let name = volume_names(&request, content().as_ref()).remove(0);
    let world = |ready: &str, snapshot| World { template: template("u", ready), snapshot, ..World::default() };
    let held = snapshot("u", json!({ "readyToUse": true }));
    let mut giving = world("", held);
    giving.volumes.insert(name.clone(), volume("u", "Succeeded", "u"));
    check(&request, &giving, "hand over", ["False", "True", "Waiting for the disks to be those of ns/r"]);
    assert_eq!(to_hand_over(&request, &giving).concat(), name);
    giving.volumes.insert(name, volume("u", "Succeeded", "t"));
    assert!(to_hand_over(&request, &giving).is_empty());
    let waits = "Waiting for VirtualMachineTemplate ns/r to be ready";
    check(&request, &world("", None), "none", ["False", "True", waits]);
    check(&request, &world("True", None), "none", ["True", "False", "m"]);
    check(&request, &world("False", None), "none", ["False", "False", "VirtualMachineTemplate ns/r: m"]);
    // A snapshot of somebody else with its name is left alone.
    check(&request, &world("True", snapshot("other", json!({}))), "none", ["True", "False", "m"]);
    let stolen = World { template: template("other", "True"), ..World::default() };
    let why = "the VirtualMachineTemplate ns/r was not made for this request: choose another name";
    check(&request, &stolen, "none", ["False", "False", why]);
}

#[test]
fn a_finished_request_stays_unless_it_is_to_go() {
    let check = |ready: &str, progressing: &str, ttl: Value, expect: Option<Rest>| {
        let mut request = request(json!({ "ttlSecondsAfterFinished": ttl }));
        let condition = |kind: &str, status: &str| json!({ "type": kind, "status": status, "reason": "R", "message": "", "lastTransitionTime": "1970-01-01T00:00:00Z" });
        let conditions = json!([condition("Ready", ready), condition("Progressing", progressing)]);
        request.status = serde_json::from_value(json!({ "conditions": conditions })).unwrap();
        assert_eq!(finished(&request, Timestamp::from_second(10).unwrap()), expect);
    };
    check("False", "True", json!(5), None);
    check("True", "False", json!(null), Some(Rest::Stays));
    check("False", "False", json!(0), Some(Rest::Stays));
    check("True", "False", json!(15), Some(Rest::Goes(Duration::from_secs(5))));
    check("True", "False", json!(0), Some(Rest::Goes(Duration::ZERO)));
}

#[test]
fn names_are_short_and_of_one_request() {
    let request = request(json!({ "templateName": "a".repeat(80) }));
    let name = volume_name(&request, "root");
    assert!(name.len() <= LONGEST && name != volume_name(&request, "data"), "{name}");
}
