//! Which changes of volumes are moved, refused, or wait for a restart.

use serde_json::{Value, json};

use super::*;
use crate::facts::volume_status;

const GI: i64 = 1 << 30;

fn claim(name: &str, mode: &str, size: &str, annotations: &Value) -> PersistentVolumeClaim {
    serde_json::from_value(json!({
        "metadata": { "name": name, "namespace": "ns", "annotations": annotations },
        "spec": { "accessModes": [mode] }, "status": { "capacity": { "storage": size } },
    }))
    .unwrap()
}

/// `old` and `new` are two claims, `small` is a small one, `shared` has other access modes, `copy` stands in for `old`.
fn claims() -> Claims {
    let stands_in = json!({ "ferrovirt.io/stands-in-for": "old" });
    let rwo = "ReadWriteOnce";
    [
        claim("old", rwo, "1Gi", &Value::Null),
        claim("new", rwo, "2Gi", &Value::Null),
        claim("small", rwo, "1Mi", &Value::Null),
        claim("shared", "ReadWriteMany", "1Gi", &Value::Null),
        claim("copy", rwo, "1Gi", &stands_in),
    ]
    .map(|claim| (claim.metadata.name.clone().unwrap(), claim))
    .into()
}

/// `root:old` is a volume on a claim, `root=old` one that comes and goes, `root~old` one of a data volume.
fn volumes(text: &str) -> Value {
    let one = |word: &str| {
        let (name, claim) = word.split_once([':', '=', '~']).unwrap();
        if word.contains('~') {
            return json!({ "name": name, "dataVolume": { "name": claim } });
        }
        let later = word.contains('=').then_some(true);
        json!({ "name": name, "persistentVolumeClaim": { "claimName": claim, "hotpluggable": later } })
    };
    text.split_whitespace().map(one).collect()
}

fn vm(strategy: Option<&str>, template: &str) -> VirtualMachine {
    serde_json::from_value(json!({
        "metadata": { "name": "vm", "namespace": "ns" },
        "spec": { "updateVolumesStrategy": strategy, "template": { "spec": { "volumes": volumes(template) } } },
    }))
    .unwrap()
}

/// An instance whose disks are `extra` beside their names.
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
fn vmi(text: &str, extra: Value) -> VirtualMachineInstance {
    let listed = volumes(text);
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|volume| volume["name"].as_str().unwrap()).collect();
    let disks: Vec<Value> = names
        .iter()
        .map(|name| {
            let mut disk = json!({ "name": name });
            disk.as_object_mut().unwrap().extend(extra.as_object().unwrap().clone());
            disk
        })
        .collect();
    let mut vmi: VirtualMachineInstance = serde_json::from_value(json!({
        "metadata": { "name": "vm", "namespace": "ns" },
        "spec": { "domain": { "devices": { "disks": disks } }, "volumes": listed },
        "status": { "phase": "Running" },
    }))
    .unwrap();
    let mut statuses = volume_status::statuses(&vmi, &claims(), &[]);
    for status in &mut statuses {
        status.size = Some(GI);
    }
    vmi.status.as_mut().unwrap().volume_status = statuses;
    vmi
}

/// One word for what follows, with what it says.
fn word(update: &Update) -> String {
    match update {
        Update::None => "none".to_owned(),
        Update::TakeBack => "take back".to_owned(),
        Update::Restart(why) => format!("restart: {why}"),
        Update::Refuse(why) => format!("refuse: {why}"),
        Update::Copy(moved) => {
            let one = |m| {
                format!(
                    "{} {}>{}",
                    StorageMigratedVolumeInfo::clone(m).volume_name,
                    volumes_change::source(m),
                    volumes_change::destination(m)
                )
            };
            moved.iter().map(one).collect::<Vec<_>>().join(", ")
        }
    }
}

#[track_caller]
fn judged(vm: &VirtualMachine, vmi: &VirtualMachineInstance, expect: &str) {
    let update = plan(&View { vm, vmi, claims: &claims(), data: &DataVolumes::new() });
    assert_eq!(word(&update), expect);
}

#[track_caller]
fn check(strategy: Option<&str>, template: &str, instance: &str, expect: &str) {
    judged(&vm(strategy, template), &vmi(instance, json!({})), expect);
}

#[test]
fn a_changed_claim_is_copied_or_needs_a_restart() {
    let moves = Some("Migration");
    check(moves, "root:old", "root:old", "none");
    check(moves, "root:new", "root:old", "root old>new");
    check(moves, "root~new", "root:old", "root old>new");
    check(None, "root:new", "root:old", &format!("restart: {REPLACED}"));
    check(Some("Replacement"), "root:new", "root:old", &format!("restart: {REPLACED}"));
    check(Some("Later"), "root:new", "root:old", "refuse: updateVolumes strategy not recognized: Later");
    // What moved with its guest is known by the claim it was made with.
    check(moves, "root:old", "root:copy", "none");
    check(moves, "root:new", "root:copy", "root old>new");
    // What comes and goes is unplugged and plugged in, where it is not to be copied.
    check(None, "data=new", "data=old", "none");
    check(moves, "data=new", "data=old", "data old>new");
    check(moves, "root:shared data:new", "root:shared data:old", "data old>new");
}

#[test]
fn volumes_that_cannot_be_copied_are_refused_by_name() {
    let moves = Some("Migration");
    let missing = "refuse: PVC ns/none does not exist, waiting for it to appear";
    check(moves, "root:none", "root:old", missing);
    let small = "refuse: PVC ns/small has 1048576 B, less than the 1073741824 B of the disk of volume root: choose a larger one";
    check(moves, "root:small", "root:old", small);
    let twice = "refuse: PVC new can take the disk of one volume, and two name it";
    check(moves, "a:new b:new", "a:old b:shared", twice);
    let stays = "restart: cannot migrate the VM. The volume a is RWO and not included in the migration volumes";
    check(moves, "a:old b:new", "a:old b:shared", stays);
    check(moves, "a:shared b:shared", "a:old b:shared", "refuse: PVC ns/shared is the disk of volume b already");
    let odd = |extra: Value, what: &str| {
        let expect = format!("restart: invalid volumes to update with migration: {what}: [root]");
        judged(&vm(moves, "root:new"), &vmi("root:old", extra), &expect);
    };
    odd(json!({ "shareable": true }), "shareable");
    odd(json!({ "lun": {} }), "luns");
    odd(json!({ "cdrom": {} }), "read-only");
    let mut stuck = vmi("root:old", json!({}));
    let no = json!([{ "type": "StorageLiveMigratable", "status": "False", "message": "a bridge" }]);
    stuck.status.as_mut().unwrap().conditions = serde_json::from_value(no).unwrap();
    let why = "restart: cannot migrate the volumes as the VMI isn't migratable: a bridge";
    judged(&vm(moves, "root:new"), &stuck, why);
}

/// `vmi` once it was asked to have `root` copied from `old` into `new`.
fn asked(copier: &str) -> VirtualMachineInstance {
    let mut vmi = vmi("root:old", json!({}));
    vmi.metadata.annotations = Some([(volumes_change::COPIED_BY.to_owned(), copier.to_owned())].into());
    let Update::Copy(moved) = plan(&View {
        vm: &vm(Some("Migration"), "root:new"),
        vmi: &self::vmi("root:old", json!({})),
        claims: &claims(),
        data: &DataVolumes::new(),
    }) else {
        panic!("not to be copied");
    };
    volumes_change::ask(vmi.status.as_mut().unwrap(), moved, jiff::Timestamp::UNIX_EPOCH);
    vmi
}

#[test]
fn a_running_update_can_only_be_reverted() {
    let moves = Some("Migration");
    judged(&vm(moves, "root:new"), &asked(""), "none");
    judged(&vm(moves, "root:old"), &asked(""), "take back");
    judged(&vm(moves, "root:shared"), &asked("job"), &format!("refuse: {ONLY_BACK}"));
    let mut back = asked("job");
    volumes_change::take_back(back.status.as_mut().unwrap(), jiff::Timestamp::UNIX_EPOCH);
    judged(&vm(moves, "root:old"), &back, "none");
}

#[test]
fn only_the_migration_that_copies_switches() {
    let with = |copier: &str, state: Value| {
        let mut vmi = asked(copier);
        let status = vmi.status.as_mut().unwrap();
        status.migration_state = serde_json::from_value(state).unwrap();
        status.node_name = Some("there".to_owned());
        vmi
    };
    let moved = |uid: &str| json!({ "migrationUid": uid, "completed": true, "targetNode": "there" });
    let left = json!({ "migrationUid": "job", "completed": true, "targetNode": "elsewhere" });
    assert_eq!(volumes_change::settle(&with("job", left)), None, "its node has not said yet that it is there");
    assert_eq!(volumes_change::settle(&with("", moved("before"))), None, "an earlier one copied nothing");
    assert_eq!(volumes_change::settle(&with("job", json!({ "migrationUid": "job" }))), None);
    assert_eq!(volumes_change::settle(&with("job", moved("job"))), Some(volumes_change::Settlement::Switch));
    let failed = json!({ "migrationUid": "job", "completed": true, "failed": true });
    assert_eq!(volumes_change::settle(&with("job", failed.clone())), Some(volumes_change::Settlement::Release));
    let mut back = with("job", failed);
    volumes_change::take_back(back.status.as_mut().unwrap(), jiff::Timestamp::UNIX_EPOCH);
    assert_eq!(volumes_change::settle(&back), Some(volumes_change::Settlement::Forget));
    let switched = volumes_change::switched(&with("job", moved("job")), |name| name == "new");
    assert_eq!(switched[0].data_volume.as_ref().map(|data| data.name.as_str()), Some("new"));
    let switched = volumes_change::switched(&with("job", moved("job")), |_| false);
    assert_eq!(switched[0].persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str()), Some("new"));
}
