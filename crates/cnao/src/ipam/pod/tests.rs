//! Launchers, and users who write into the annotations of machines and pods what is not for them.

use super::*;
use crate::ipam::claim::{ClaimSpec, Kind, Owner, Wanted};
use crate::ipam::plan::Primary;

fn wanted(name: &str, interface: &str) -> Wanted {
    let spec = ClaimSpec { interface: interface.into(), network: "net".into() };
    Wanted { name: name.into(), network: "blue".into(), spec }
}

fn plan(primary: bool) -> Plan {
    let owner = Owner { kind: Kind::VirtualMachine, name: "vm".into(), uid: "m".into() };
    let secondary = vec![(Key::new("other", "nad"), wanted("vm.blue", "podblue"))];
    let primary = primary.then(|| Primary {
        wanted: wanted("vm.default", "ovn-udn1"),
        mac: Some("02:00:00:00:00:01".into()),
        ips: vec!["10.1.0.7/16".into()],
    });
    Plan { owner, secondary, primary, problems: Vec::new(), remarks: Vec::new() }
}

fn run(annotations: &Value, primary: bool, is_new: bool) -> Result<Change, String> {
    let uids = BTreeMap::from([("vm.blue".to_owned(), "u1".to_owned())]);
    let around = Around { namespace: "ns", uids: &uids, default: "ovn", is_new };
    change(&json!({ "metadata": { "annotations": annotations } }), &plan(primary), around)
}

#[track_caller]
fn check(networks: &str, expect: &str) {
    let found = run(&json!({ NETWORKS: networks }), false, true).unwrap();
    let Change::Write(all) = found else { panic!("{found:?}") };
    assert_eq!(serde_json::from_str::<Value>(&all[NETWORKS]).unwrap(), serde_json::from_str::<Value>(expect).unwrap());
}

#[test]
fn an_element_names_the_claim_of_its_network() {
    check(
        r#"[{"name": "nad", "namespace": "other", "interface": "podblue", "mac": "02:00:00:00:00:01"}, {"name": "nad", "interface": "podblue"}]"#,
        r#"[{"name": "nad", "namespace": "other", "interface": "podblue", "mac": "02:00:00:00:00:01",
             "ipam-claim-reference": "vm.blue", "ipam-claim-uid": "u1"}, {"name": "nad", "interface": "podblue"}]"#,
    );
    for nothing in
        ["", "nad, other/nad@podblue", "[]", r#"[{"name": "nad", "namespace": "other", "interface": "net1"}]"#]
    {
        assert_eq!(run(&json!({ NETWORKS: nothing }), false, true), Ok(Change::Nothing), "{nothing}");
    }
    let done = r#"[{"interface":"podblue","ipam-claim-reference":"vm.blue","ipam-claim-uid":"u1","name":"nad","namespace":"other"}]"#;
    assert_eq!(run(&json!({ NETWORKS: done }), false, false), Ok(Change::Done));
}

/// A user writes annotations on a machine, and its pods get them; or on a pod.
#[test]
fn a_pod_that_names_another_claim_is_refused() {
    let element = |more: &str| format!(r#"[{{"name": "nad", "namespace": "other", "interface": "podblue", {more}}}]"#);
    for more in [
        r#""ipam-claim-reference": "victim.blue""#,
        r#""ipam-claim-reference": 7"#,
        r#""ipam-claim-reference": "vm.blue", "IPAM-Claim-Reference": "victim.blue""#,
        r#""ipam\u002dclaim\u002dreference": "victim.blue""#,
        r#""ipam-claim-reference": "vm.blue", "ipam-claim-uid": "another""#,
    ] {
        let refused = run(&json!({ NETWORKS: element(more) }), false, true).unwrap_err();
        assert!(refused.contains("is not that of this machine's network"), "{more}: {refused}");
    }
    let elsewhere = r#"[{"name": "nad", "interface": "net1", "ipam-claim-reference": "vm.blue"}]"#;
    assert!(run(&json!({ NETWORKS: elsewhere }), false, true).is_err());
    assert!(run(&json!({ PRIMARY_CLAIM: "victim.default" }), false, true).is_err());
    assert!(run(&json!({ PRIMARY_CLAIM: "victim.default" }), true, false).is_err());
    let default = r#"[{"name": "default", "ipam-claim-reference": "victim.default"}]"#;
    assert!(run(&json!({ DEFAULT_NETWORK: default }), false, true).is_err());
    for bad in ["[{", "{}", "[1]"] {
        assert!(run(&json!({ NETWORKS: bad }), false, true).unwrap_err().contains("not a JSON list of networks"));
    }
    let many = json!(vec![json!({ "name": "a" }); 300]).to_string();
    assert!(run(&json!({ NETWORKS: many }), false, true).unwrap_err().contains("300 networks"));
}

#[test]
fn the_primary_network_is_named_in_both_annotations() {
    let Change::Write(all) = run(&json!({}), true, true).unwrap() else { panic!() };
    assert_eq!(all[PRIMARY_CLAIM], "vm.default");
    let expect = json!([{
        "name": "default", "namespace": "ovn", "ipam-claim-reference": "vm.default", "mac": "02:00:00:00:00:01", "ips": ["10.1.0.7/16"],
    }]);
    assert_eq!(serde_json::from_str::<Value>(&all[DEFAULT_NETWORK]).unwrap(), expect);
    let refused = run(&json!({ DEFAULT_NETWORK: "ns/mine" }), true, true).unwrap_err();
    let sentence =
        "multus default network annotation \"v1.multus-cni.io/default-network\" is not allowed on pod creation";
    assert_eq!(refused, sentence);
    let again = json!({ DEFAULT_NETWORK: all[DEFAULT_NETWORK], PRIMARY_CLAIM: "vm.default" });
    assert_eq!(run(&again, true, false), Ok(Change::Done));
}

#[test]
fn any_claim_that_is_named_is_found() {
    let of = |annotations: Value| named(&json!({ "metadata": { "annotations": annotations } }));
    assert_eq!(of(json!({ NETWORKS: "a,b" })), Ok(None));
    assert_eq!(of(json!({ NETWORKS: r#"[{"name": "a"}]"# })), Ok(None));
    assert_eq!(of(json!({ NETWORKS: r#"[{"Ipam-Claim-Reference": "x"}]"# })), Ok(Some("x".to_owned())));
    assert_eq!(of(json!({ DEFAULT_NETWORK: r#"[{"ipam-claim-reference": "x"}]"# })), Ok(Some("x".to_owned())));
    assert_eq!(of(json!({ PRIMARY_CLAIM: "x" })), Ok(Some("x".to_owned())));
    assert!(of(json!({ NETWORKS: "{" })).is_err());
}
