#![expect(clippy::needless_pass_by_value, reason = "cases are literals")]

use proptest::prelude::*;

use super::*;

/// An object of `version` with `spec`.
fn object(version: &str, spec: Value) -> Value {
    json!({ "apiVersion": format!("hco.kubevirt.io/{version}"), "kind": "HyperConverged",
        "metadata": { "name": "kubevirt-hyperconverged", "annotations": { "a": "b" } }, "spec": spec })
}

/// One spec as both versions have it.
#[track_caller]
fn check(old: Value, new: Value) {
    let to_new = convert(object("v1beta1", old.clone()), "hco.kubevirt.io/v1").unwrap();
    assert_eq!(to_new["spec"], new);
    let to_old = convert(to_new, "hco.kubevirt.io/v1beta1").unwrap();
    let mut usual = json!({});
    for known in KNOWN.iter().filter(|known| known.in_v1beta1) {
        put(&mut usual, &format!("featureGates.{}", known.name), known.default.into());
    }
    json_patch::merge(&mut usual, &old);
    assert_eq!(to_old["spec"], usual);
    assert_eq!(to_old["metadata"]["annotations"], json!({ "a": "b" }), "nothing is left of the annotations");
}

#[test]
fn every_field_of_v1beta1_has_its_place_in_v1() {
    check(json!({}), json!({}));
    check(
        json!({ "infra": { "nodePlacement": { "nodeSelector": { "a": "b" } } }, "workloads": { "nodePlacement": {} } }),
        json!({ "deployment": { "nodePlacements": { "infra": { "nodeSelector": { "a": "b" } }, "workload": {} } } }),
    );
    check(
        json!({ "defaultCPUModel": "Haswell", "virtualMachineOptions": { "disableSerialConsoleLog": true } }),
        json!({ "virtualization": { "virtualMachineOptions": { "defaultCPUModel": "Haswell", "disableSerialConsoleLog": true } } }),
    );
    check(
        json!({ "enableApplicationAwareQuota": true, "applicationAwareConfig": { "vmiCalcConfigName": "VmiPodUsage" } }),
        json!({ "deployment": { "applicationAwareConfig": { "enable": true, "vmiCalcConfigName": "VmiPodUsage" } } }),
    );
    check(
        json!({ "featureGates": { "alignCPUs": true, "declarativeHotplugVolumes": false } }),
        json!({ "featureGates": [
            { "name": "alignCPUs", "state": "Enabled" }, { "name": "declarativeHotplugVolumes", "state": "Disabled" },
        ] }),
    );
    check(
        json!({ "featureGates": { "disableMDevConfiguration": true, "persistentReservation": true } }),
        json!({
            "virtualization": { "mediatedDevicesConfiguration": { "enabled": false } },
            "storage": { "persistentReservationConfiguration": { "enabled": true } },
        }),
    );
    // Kept for the way back only.
    let without =
        json!({ "vddkInitImage": "x", "obsoleteCPUs": { "minCPUModel": "y" }, "featureGates": { "nonRoot": true } });
    check(without, json!({}));
}

#[test]
fn the_old_spelling_of_mediated_devices_is_understood() {
    let old = json!({ "mediatedDevicesConfiguration": {
        "mediatedDevicesTypes": ["a"],
        "nodeMediatedDeviceTypes": [{ "nodeSelector": {}, "mediatedDevicesTypes": ["b"] }],
    } });
    let new = convert(object("v1beta1", old), "hco.kubevirt.io/v1").unwrap();
    let devices = json!({
        "mediatedDeviceTypes": ["a"], "nodeMediatedDeviceTypes": [{ "nodeSelector": {}, "mediatedDeviceTypes": ["b"] }],
    });
    assert_eq!(new["spec"]["virtualization"]["mediatedDevicesConfiguration"], devices);
}

#[test]
fn what_clients_write_into_the_annotations_is_taken_only_where_it_has_the_form_of_the_field() {
    let mut old = object("v1beta1", json!({}));
    for text in ["", "{", "[]", r#"{"observability": 5}"#, r#"{"featureGates": {"a": 1}}"#] {
        old["metadata"]["annotations"][V1_ONLY] = text.into();
        assert_eq!(convert(old.clone(), "hco.kubevirt.io/v1").unwrap()["spec"], json!({}), "{text}");
    }
    let mut new = object("v1", json!({}));
    new["metadata"]["annotations"][V1BETA1_ONLY] =
        r#"{"vddkInitImage": {"a": 1}, "evictionStrategy": "None", "x": 1}"#.into();
    let spec = convert(new, "hco.kubevirt.io/v1beta1").unwrap()["spec"].take();
    assert_eq!(
        (&spec["vddkInitImage"], &spec["evictionStrategy"], &spec["x"]),
        (&Value::Null, &Value::Null, &Value::Null)
    );
}

#[test]
fn other_versions_are_refused() {
    assert!(convert(object("v1", json!({})), "hco.kubevirt.io/v2").is_err());
    assert!(convert(object("v1", json!({})), "kubevirt.io/v1").is_err());
}

#[test]
fn gates_that_fields_have_replaced_are_moved_there() {
    let mut spec = json!({ "featureGates": [{ "name": "disableMDevConfiguration" }, { "name": "alignCPUs" }] });
    assert_eq!(move_gates(&mut spec).unwrap().len(), 1);
    let expect = json!({
        "featureGates": [{ "name": "alignCPUs" }],
        "virtualization": { "mediatedDevicesConfiguration": { "enabled": false } },
    });
    assert_eq!(spec, expect);
    let mut spec = json!({
        "featureGates": [{ "name": "persistentReservation" }],
        "storage": { "persistentReservationConfiguration": { "enabled": false } },
    });
    let error = move_gates(&mut spec).unwrap_err();
    assert!(error.contains("persistentReservation") && error.contains("spec.storage.persistentReservation"), "{error}");
}

/// A value of a field that moves as a whole.
fn leaf() -> impl Strategy<Value = Value> {
    prop_oneof![
        any::<bool>().prop_map(Value::from),
        any::<i32>().prop_map(Value::from),
        "[a-z]{0,8}".prop_map(Value::from),
        prop::collection::vec("[a-z]{0,3}", 0..3).prop_map(|list| json!(list)),
        prop::collection::btree_map("[a-z]{1,4}", any::<u8>(), 1..3).prop_map(|map| json!(map)),
    ]
}

/// Gates of any names and states, each once.
fn gates() -> impl Strategy<Value = Value> {
    let name = prop_oneof![
        "[a-z]{1,4}",
        prop::sample::select(KNOWN.iter().map(|known| known.name.to_owned()).collect::<Vec<_>>())
    ];
    let state = prop::option::of(prop::sample::select(vec!["Enabled", "Disabled"]));
    prop::collection::btree_map(name, state, 0..6).prop_map(|gates| {
        let gate = |(name, state): (String, Option<&str>)| match state {
            Some(state) => json!({ "name": name, "state": state }),
            None => json!({ "name": name }),
        };
        Value::Array(gates.into_iter().map(gate).collect())
    })
}

/// A spec of v1, as the API server stores it: what is false by default is there or not.
fn spec() -> impl Strategy<Value = Value> {
    let fields = prop::collection::vec(prop::option::of(leaf()), MOVES.len());
    let observability = prop::option::of(prop::collection::vec("[a-z]{1,4}", 0..3));
    (fields, gates(), prop::option::of(any::<bool>()), prop::option::of(any::<bool>()), observability).prop_map(
        |(values, gates, injector, devices, alerts)| {
            let mut spec = json!({});
            for ((_, field), value) in MOVES.iter().zip(values) {
                let whole = matches!(
                    *field,
                    "virtualization.virtualMachineOptions" | "virtualization.mediatedDevicesConfiguration"
                );
                // Fields lie inside of these two.
                let value = if whole { value.map(|_| json!({ "z": 1 })) } else { value };
                put_some(&mut spec, field, value);
            }
            put_some(&mut spec, "featureGates", Some(gates).filter(|gates| gates != &json!([])));
            put_some(
                &mut spec,
                "deployment.deployNetworkResourcesInjector",
                injector.filter(|on| !on).map(Value::from),
            );
            put_some(&mut spec, INVERSE.1, devices.map(Value::from));
            put_some(&mut spec, "observability", alerts.map(|list| json!({ "allowedAlerts": list })));
            spec
        },
    )
}

proptest! {
    #[test]
    fn nothing_of_v1_is_lost_by_way_of_v1beta1(spec in spec()) {
        let new = object("v1", spec);
        let old = convert(new.clone(), "hco.kubevirt.io/v1beta1").unwrap();
        prop_assert_eq!(convert(old, "hco.kubevirt.io/v1").unwrap(), new);
    }

    #[test]
    fn nothing_of_v1beta1_is_lost_by_way_of_v1(spec in spec(), dropped in prop::collection::vec(prop::option::of("[a-z]{1,4}"), DROPPED.len())) {
        let mut old = convert(object("v1", spec), "hco.kubevirt.io/v1beta1").unwrap();
        for (field, value) in DROPPED.iter().zip(dropped) {
            put_some(&mut old["spec"], field, value.map(Value::from));
        }
        put(&mut old["spec"], "featureGates.nonRoot", true.into());
        let new = convert(old.clone(), "hco.kubevirt.io/v1").unwrap();
        prop_assert_eq!(convert(new, "hco.kubevirt.io/v1beta1").unwrap(), old);
    }

    #[test]
    fn no_object_makes_the_conversion_fail(fields in prop::collection::btree_map("[a-zA-Z]{1,6}|infra|featureGates|spec|metadata", leaf(), 0..6)) {
        let mut any = json!(fields);
        any["apiVersion"] = "hco.kubevirt.io/v1beta1".into();
        let new = convert(any, "hco.kubevirt.io/v1").unwrap();
        convert(new, "hco.kubevirt.io/v1beta1").unwrap();
    }
}
