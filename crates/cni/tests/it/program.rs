//! The program apart from any network: its versions, its errors, its names.

use serde_json::{Value, json};

use crate::scene::{Scene, plugin};

#[test]
fn versions_and_errors_are_those_of_the_specification() {
    let scene = Scene::new();
    let asked = scene.call("bridge", "VERSION", &json!({ "cniVersion": "1.0.0" }), &[]).unwrap();
    assert_eq!(asked["cniVersion"], "1.0.0");
    assert!(asked["supportedVersions"].as_array().unwrap().iter().any(|version| version == "1.1.0"));
    let config = json!({ "cniVersion": "9.0.0", "name": "red", "type": "bridge" });
    let refused = scene.call("bridge", "ADD", &config, &[]).unwrap_err();
    assert_eq!((&refused["code"], &refused["cniVersion"]), (&json!(1), &json!("9.0.0")));
    let config = json!({ "cniVersion": "1.0.0", "name": "red", "type": "bridge" });
    assert_eq!(scene.call("bridge", "EAT", &config, &[]).unwrap_err()["code"], 4);
    assert_eq!(scene.call("bridge", "ADD", &config, &[("CNI_NETNS", "")]).unwrap_err()["code"], 4);
    let bad = json!({ "cniVersion": "1.0.0", "name": "red", "type": "bridge", "vlan": 5000 });
    let refused = scene.call("bridge", "ADD", &bad, &[]).unwrap_err();
    assert_eq!((&refused["code"], &refused["msg"]), (&json!(7), &json!("vlan is 5000: set a number from 0 to 4094")));
    assert_eq!(scene.call("bridge", "STATUS", &config, &[]).unwrap(), Value::Null);
}

#[test]
fn it_is_the_plugin_that_it_is_called_by() {
    let dir = tempfile::tempdir().unwrap();
    let program = env!("CARGO_BIN_EXE_ferrovirt-cni");
    let done = std::process::Command::new(program)
        .arg("install")
        .arg(dir.path())
        .args(["bridge", "tuning", "macvtap"])
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    for name in ["bridge", "cnv-bridge", "tuning", "cnv-tuning", "macvtap"] {
        let answer = plugin(&dir.path().join(name), &[], "VERSION", &json!({ "cniVersion": "0.4.0" }), &[]).unwrap();
        assert_eq!(answer["cniVersion"], "0.4.0", "{name}");
    }
    let unknown = std::process::Command::new(program).arg("ptp").output().unwrap();
    assert_eq!(unknown.status.code(), Some(2));
}

/// A pod that named the node's own namespace would have its interfaces made, and unmade, there.
#[test]
fn the_nodes_own_namespace_is_no_containers() {
    let scene = Scene::new();
    let config = json!({ "cniVersion": "1.0.0", "name": "red", "type": "bridge", "bridge": "br1" });
    let own = scene.path();
    for verb in ["ADD", "DEL"] {
        let refused = scene.call("bridge", verb, &config, &[("CNI_NETNS", &own), ("CNI_IFNAME", "lo")]).unwrap_err();
        assert!(refused["msg"].as_str().unwrap().contains("the node's own network namespace"), "{refused}");
    }
}
