//! Claims and volumes in every state, and what is to be done about them.
#![expect(clippy::needless_pass_by_value, reason = "cases are literals")]

use serde_json::{Value, json};

use super::*;

fn claim_of(annotations: Value, spec: Value) -> PersistentVolumeClaim {
    let mut value = json!({"metadata": {"name": "c", "namespace": "n", "uid": "u", "annotations": annotations},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    for (key, part) in spec.as_object().unwrap() {
        value["spec"][key] = part.clone();
    }
    serde_json::from_value(value).unwrap()
}

fn volume_of(annotations: Value, spec: Value) -> PersistentVolume {
    let mut value = json!({"metadata": {"name": "v", "annotations": annotations}, "status": {"phase": "Available"},
        "spec": {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}}});
    for (key, part) in spec.as_object().unwrap() {
        value["spec"][key] = part.clone();
    }
    serde_json::from_value(value).unwrap()
}

fn class(name: &str, mode: &str, provisioner: &str, default: bool) -> Arc<StorageClass> {
    Arc::new(
        serde_json::from_value(json!({"metadata": {"name": name, "creationTimestamp": "2026-01-01T00:00:00Z",
            "annotations": {"storageclass.kubernetes.io/is-default-class": default.to_string()}},
            "provisioner": provisioner, "volumeBindingMode": mode}))
        .unwrap(),
    )
}

fn described(step: &ClaimStep) -> String {
    match step {
        ClaimStep::Wait(None) => "wait".into(),
        ClaimStep::Wait(Some(note)) => format!("wait {} {}", note.reason, note.message),
        ClaimStep::TakeClass(name) => format!("class {name}"),
        ClaimStep::Provision(by) => format!("provision {by}"),
        ClaimStep::Bind(volume) => format!("bind {}", volume.name_any()),
        ClaimStep::Lose(reason, _) => format!("lose {reason}"),
    }
}

#[track_caller]
fn check(claim: &PersistentVolumeClaim, volumes: &[Arc<PersistentVolume>], expect: &str) {
    let classes = [
        class("now", "Immediate", "d", false),
        class("later", "WaitForFirstConsumer", "d", false),
        class("hand", "Immediate", NO_PROVISIONER, false),
    ];
    let world = World { volumes, classes: &classes, consumers: &[] };
    assert_eq!(described(&super::claim(claim, world)), expect);
}

#[test]
fn claims_without_a_volume() {
    let of = |class: &str| claim_of(json!({}), json!({"storageClassName": class}));
    check(&of("now"), &[], "provision d");
    check(&of("later"), &[], "wait WaitForFirstConsumer waiting for first consumer to be created before binding");
    let chosen = claim_of(json!({"volume.kubernetes.io/selected-node": "n1"}), json!({"storageClassName": "later"}));
    check(&chosen, &[], "provision d");
    check(&of("hand"), &[], "wait ProvisioningFailed no volume plugin matched name: kubernetes.io/no-provisioner");
    check(&of("gone"), &[], "wait ProvisioningFailed storageclass.storage.k8s.io \"gone\" not found");
    let none = "wait FailedBinding no persistent volumes available for this claim and no storage class is set";
    check(&of(""), &[], none);
    check(&claim_of(json!({}), json!({})), &[], none);
}

#[test]
fn a_default_class_is_taken_late() {
    let classes = [class("old", "Immediate", "d", true)];
    let world = World { volumes: &[], classes: &classes, consumers: &[] };
    let step = |spec: Value| described(&claim(&claim_of(json!({}), spec), world));
    assert_eq!(step(json!({})), "class old");
    assert_ne!(step(json!({"storageClassName": ""})), "class old");
    assert_eq!(step(json!({"volumeName": "v"})), "wait");
}

#[test]
fn claims_with_a_volume() {
    let free = Arc::new(volume_of(json!({}), json!({})));
    let other = Arc::new(volume_of(json!({}), json!({"claimRef": {"name": "x", "namespace": "n", "uid": "y"}})));
    let mine = Arc::new(volume_of(json!({}), json!({"claimRef": {"name": "c", "namespace": "n", "uid": "u"}})));
    let asks = claim_of(json!({}), json!({"volumeName": "v"}));
    check(&asks, &[], "wait");
    check(&asks, std::slice::from_ref(&free), "bind v");
    check(&asks, std::slice::from_ref(&mine), "bind v");
    check(&asks, std::slice::from_ref(&other), "wait FailedBinding volume \"v\" already bound to a different claim.");
    let large = claim_of(json!({}), json!({"volumeName": "v", "resources": {"requests": {"storage": "2Gi"}}}));
    let why = "wait VolumeMismatch Cannot bind to requested volume \"v\": requested PV is too small";
    check(&large, std::slice::from_ref(&free), why);
    let bound = claim_of(json!({"pv.kubernetes.io/bind-completed": "yes"}), json!({"volumeName": "v"}));
    check(&bound, &[mine], "bind v");
    check(&bound, &[], "lose ClaimLost");
    check(&bound, &[other], "lose ClaimMisbound");
    let nowhere = claim_of(json!({"pv.kubernetes.io/bind-completed": "yes"}), json!({}));
    check(&nowhere, &[free], "lose ClaimLost");
}

#[track_caller]
fn check_volume(volume: &PersistentVolume, claim: Option<&PersistentVolumeClaim>, expect: &VolumeStep) {
    assert_eq!(&super::volume(volume, claim), expect);
}

#[test]
fn volumes() {
    let reference = json!({"name": "c", "namespace": "n", "uid": "u"});
    let of = |annotations: Value, policy: &str| {
        volume_of(annotations, json!({"claimRef": reference, "persistentVolumeReclaimPolicy": policy}))
    };
    let here = claim_of(json!({}), json!({"volumeName": "v"}));
    let elsewhere = claim_of(json!({}), json!({"volumeName": "w"}));
    check_volume(&volume_of(json!({}), json!({})), None, &VolumeStep::Phase("Available"));
    let kept = volume_of(json!({}), json!({"claimRef": {"name": "c", "namespace": "n"}}));
    check_volume(&kept, Some(&here), &VolumeStep::Phase("Available"));
    let volume = of(json!({}), "Retain");
    check_volume(&volume, Some(&here), &VolumeStep::Phase("Bound"));
    check_volume(&volume, Some(&claim_of(json!({}), json!({}))), &VolumeStep::WakeClaim);
    check_volume(&volume, Some(&claim_of(json!({}), json!({"volumeMode": "Block"}))), &VolumeStep::Mismatch);
    check_volume(&volume, Some(&elsewhere), &VolumeStep::Free { forget_name: false });
    let chosen = of(json!({"pv.kubernetes.io/bound-by-controller": "yes"}), "Retain");
    check_volume(&chosen, Some(&elsewhere), &VolumeStep::Free { forget_name: true });
    check_volume(&volume, None, &VolumeStep::Release(Reclaim::Keep));
    let made = of(json!({"pv.kubernetes.io/provisioned-by": "d"}), "Delete");
    check_volume(&made, None, &VolumeStep::Release(Reclaim::ByProvisioner));
    check_volume(&made, Some(&elsewhere), &VolumeStep::Release(Reclaim::ByProvisioner));
    for policy in ["Delete", "Recycle"] {
        let step = super::volume(&of(json!({}), policy), None);
        assert!(matches!(step, VolumeStep::Release(Reclaim::Fail(..))), "{step:?}");
    }
}
