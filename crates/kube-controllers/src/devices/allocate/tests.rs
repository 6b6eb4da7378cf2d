//! Which devices a claim gets, by data.

use std::sync::Arc;

use serde_json::{Value, json};

use super::super::kinds::{ClassSpec, ResourceClaim, ResourceSlice};
use super::*;

fn slices() -> Vec<Arc<ResourceSlice>> {
    let device = |name: &str, model: &str, numa: i64| json!({"name": name, "attributes": {"model": {"string": model}, "topology.example.com/numa": {"int": numa}}});
    let on = |name: &str, devices: Value| {
        json!({"metadata": {"name": name}, "spec": {"driver": "gpu.example.com", "nodeName": name,
            "pool": {"name": name, "generation": 1, "resourceSliceCount": 1}, "devices": devices}})
    };
    let tainted = json!({"name": "t", "attributes": {"model": {"string": "t4"}},
        "taints": [{"key": "sick", "effect": "NoSchedule"}]});
    let slices = [
        on("n", json!([device("a", "a100", 0), device("b", "a100", 1), device("c", "h100", 1), tainted])),
        json!({"metadata": {"name": "net"}, "spec": {"driver": "nic.example.com", "nodeSelector": {"nodeSelectorTerms": [
            {"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]},
            "pool": {"name": "net", "generation": 1, "resourceSliceCount": 1},
            "devices": [{"name": "x", "attributes": {"topology.example.com/numa": {"int": 1}}}]}}),
    ];
    slices.into_iter().map(|slice| Arc::new(serde_json::from_value(slice).unwrap())).collect()
}

fn class(name: &str) -> Option<ClassSpec> {
    let driver = match name {
        "gpu" => "gpu.example.com",
        "nic" => "nic.example.com",
        _ => return None,
    };
    let config = json!([{"opaque": {"driver": driver, "parameters": {"from": "class"}}}]);
    let selectors = json!([{"cel": {"expression": format!("device.driver == '{driver}'")}}]);
    Some(serde_json::from_value(json!({"selectors": selectors, "config": config})).unwrap())
}

fn claim(name: &str, devices: Value) -> Arc<ResourceClaim> {
    Arc::new(serde_json::from_value(json!({"metadata": {"name": name}, "spec": {"devices": devices}})).unwrap())
}

fn allocated(claims: &[Value], taken: &[&str]) -> Result<Vec<Allocation>, String> {
    let inventory = Inventory::of(&slices());
    let claims = claims.iter().enumerate().map(|(i, devices)| claim(&format!("c{i}"), devices.clone())).collect();
    let order = Order::of(claims, &class, &inventory)?;
    let taken = taken.iter().map(|name| ("gpu.example.com".to_owned(), "n".to_owned(), (*name).to_owned())).collect();
    let node = serde_json::from_value(json!({"metadata": {"name": "n", "labels": {"rack": "1"}}})).unwrap();
    allocate(&order, &inventory, &taken, &node, &Cell::new(0))
}

/// `request=device` of each claim, or what is said.
#[track_caller]
fn check(claims: &[Value], taken: &[&str], expect: Result<&[&str], &str>) {
    let got = allocated(claims, taken).map(|all| {
        let one = |allocation: &Allocation| {
            let results = allocation.devices.results.iter().map(|r| format!("{}={}", r.request, r.device));
            results.collect::<Vec<_>>().join(" ")
        };
        all.iter().map(one).collect::<Vec<_>>()
    });
    match (got, expect) {
        (Ok(got), Ok(expect)) => assert_eq!(got, expect),
        (Err(got), Err(expect)) => assert!(got.contains(expect), "{got}"),
        (got, expect) => panic!("{got:?}, not {expect:?}"),
    }
}

fn exactly(name: &str, wish: Value) -> Value {
    let mut exactly = json!({"deviceClassName": "gpu"});
    exactly.as_object_mut().unwrap().extend(wish.as_object().unwrap().clone());
    json!({"name": name, "exactly": exactly})
}

fn model(model: &str) -> Value {
    json!([{"cel": {"expression": format!("device.attributes['gpu.example.com'].model == '{model}'")}}])
}

#[test]
fn a_number_of_devices() {
    let one = json!({"requests": [exactly("r", json!({}))]});
    check(std::slice::from_ref(&one), &[], Ok(&["r=a"]));
    check(std::slice::from_ref(&one), &["a"], Ok(&["r=b"]));
    check(&[one.clone(), one.clone()], &["a"], Ok(&["r=b", "r=c"]));
    check(&[json!({"requests": [exactly("r", json!({"count": 3}))]})], &[], Ok(&["r=a r=b r=c"]));
    check(
        &[one.clone(), one],
        &["a", "b"],
        Err(
            "cannot allocate resourceclaim \"c1\": request \"r\" wants 1 device(s) of class \"gpu\": 4 suit, 2 of them free, 3 with no taint",
        ),
    );
}

#[test]
fn selectors_and_what_comes_later() {
    let h100 = json!({"requests": [exactly("r", json!({"selectors": model("h100")}))]});
    check(std::slice::from_ref(&h100), &[], Ok(&["r=c"]));
    // The first request gives way to the second.
    let both = json!({"requests": [exactly("r", json!({})), exactly("s", json!({"selectors": model("a100")}))]});
    check(&[both], &["b", "c"], Err("request \"s\" wants 1"));
    let both = json!({"requests": [exactly("r", json!({})), exactly("s", json!({"selectors": model("a100")}))]});
    check(&[both], &["b"], Ok(&["r=c s=a"]));
    let broken = json!([{"cel": {"expression": "device.attributes['gpu.example.com'].size > 1"}}]);
    check(
        &[json!({"requests": [exactly("r", json!({"selectors": broken}))]})],
        &[],
        Err("a selector fails on device gpu.example.com/n/a: no such key: size"),
    );
}

#[test]
fn all_devices() {
    let all = |wish: Value| {
        let mut wish = wish;
        wish["allocationMode"] = "All".into();
        json!({"requests": [exactly("r", wish)]})
    };
    check(&[all(json!({"selectors": model("a100")}))], &[], Ok(&["r=a r=b"]));
    check(&[all(json!({"selectors": model("a100")}))], &["b"], Err("wants all 2 devices of class \"gpu\""));
    check(&[all(json!({"selectors": model("none")}))], &[], Err("and there are none"));
}

#[test]
fn the_first_available_counts() {
    let list = json!({"requests": [{"name": "r", "firstAvailable": [
        {"name": "best", "deviceClassName": "gpu", "selectors": model("h100")},
        {"name": "good", "deviceClassName": "gpu", "selectors": model("a100"), "count": 2}]}]});
    check(std::slice::from_ref(&list), &[], Ok(&["r/best=c"]));
    check(std::slice::from_ref(&list), &["c"], Ok(&["r/good=a r/good=b"]));
    check(&[list], &["a", "c"], Err("request \"r/best\""));
}

#[test]
fn devices_that_belong_together() {
    let near = json!({"requests": [exactly("gpu", json!({})), {"name": "nic", "exactly": {"deviceClassName": "nic"}}],
        "constraints": [{"matchAttribute": "topology.example.com/numa"}]});
    check(std::slice::from_ref(&near), &[], Ok(&["gpu=b nic=x"]));
    check(&[near], &["b", "c"], Err("request \"nic\" wants 1"));
    let unknown =
        json!({"requests": [exactly("r", json!({}))], "constraints": [{"matchAttribute": "x.example.com/y"}]});
    check(&[unknown], &[], Err("request \"r\" wants 1"));
}

#[test]
fn taints_are_tolerated_or_avoided() {
    let t4 = json!({"selectors": model("t4")});
    check(&[json!({"requests": [exactly("r", t4.clone())]})], &[], Err("1 suit, 1 of them free, 0 with no taint"));
    let mut tolerant = t4;
    tolerant["tolerations"] = json!([{"key": "sick", "operator": "Exists"}]);
    check(&[json!({"requests": [exactly("r", tolerant)]})], &[], Ok(&["r=t"]));
}

#[test]
fn administrators_look_at_what_others_have() {
    let admin = json!({"requests": [exactly("r", json!({"adminAccess": true, "selectors": model("h100")}))]});
    check(&[admin.clone(), admin], &["c"], Ok(&["r=c", "r=c"]));
}

#[test]
fn missing_classes_and_excessive_counts_are_named() {
    let missing = json!({"requests": [{"name": "r", "exactly": {"deviceClassName": "fpga"}}]});
    check(&[missing], &[], Err("resourceclaim \"c0\": request \"r\": deviceclass \"fpga\" does not exist"));
    let many = json!({"requests": [exactly("r", json!({"count": 33}))]});
    check(&[many], &[], Err("a claim has at most 32 devices, not 33"));
    check(&[json!({})], &[], Ok(&[""]));
}

/// So many devices, and a node that reaches them.
fn everywhere(many: i64) -> Inventory {
    let devices: Vec<_> =
        (0..many).map(|i| json!({"name": format!("d{i}"), "attributes": {"n": {"int": i}}})).collect();
    let slice = json!({"metadata": {"name": "s"}, "spec": {"driver": "gpu.example.com", "allNodes": true,
        "devices": devices, "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1}}});
    Inventory::of(&[Arc::new(serde_json::from_value(slice).unwrap())])
}

#[test]
fn a_search_ends() {
    let inventory = everywhere(30);
    let odd = json!([{"cel": {"expression": "device.attributes['gpu.example.com'].n > 13"}}]);
    let devices =
        json!({"requests": [exactly("r", json!({"count": 15})), exactly("s", json!({"count": 16, "selectors": odd}))]});
    let order = Order::of(vec![claim("c", devices)], &class, &inventory).unwrap();
    let spent = Cell::new(0);
    for _ in 0..20 {
        let said = allocate(&order, &inventory, &HashSet::new(), &Node::default(), &spent).unwrap_err();
        assert!(said.contains("gave up after"), "{said}");
    }
    assert!((ALL_STEPS..ALL_STEPS + 100).contains(&spent.get()), "{}", spent.get());
}

#[test]
fn too_few_devices_are_no_search() {
    let inventory = everywhere(15);
    let one = |i: usize| exactly(&format!("r{i}"), json!({}));
    for requests in [vec![exactly("r", json!({"count": 16}))], (0..16).map(one).collect()] {
        let order = Order::of(vec![claim("c", json!({"requests": requests}))], &class, &inventory).unwrap();
        let spent = Cell::new(0);
        let said = allocate(&order, &inventory, &HashSet::new(), &Node::default(), &spent).unwrap_err();
        assert!(said.contains("device(s) of class \"gpu\": 15 suit, 15 of them free"), "{said}");
        assert_eq!(spent.get(), 0);
    }
}

#[test]
fn requests_of_a_pod_are_bounded() {
    let many: Vec<Value> = (0..257).map(|_| json!({})).collect();
    check(&many, &[], Err("the pod has 257 resourceclaims with 0 requests, and may have 256 of each"));
    let list: Vec<Value> = (0..8).map(|i| json!({"name": format!("w{i}"), "deviceClassName": "gpu"})).collect();
    let requests: Vec<Value> = (0..32).map(|i| json!({"name": format!("r{i}"), "firstAvailable": list})).collect();
    let claim = json!({ "requests": requests });
    check(&[claim.clone(), claim], &[], Err("the pod has 2 resourceclaims with 512 requests"));
    let long = |i: usize| {
        let expression = format!("device.driver != '{i}{}'", "x".repeat(10_000));
        json!({"requests": [exactly("r", json!({"selectors": [{"cel": {"expression": expression}}]}))]})
    };
    let longer: Vec<Value> = (0..20).map(long).collect();
    check(&longer, &[], Err("the selectors of the pod's claims are longer than 131072 bytes together"));
}

#[test]
fn an_allocation_has_node_selector_and_configuration() {
    let config = json!([{"requests": ["gpu"], "opaque": {"driver": "gpu.example.com", "parameters": {"from": "claim"}}},
        {"requests": ["other"], "opaque": {"driver": "gpu.example.com", "parameters": {}}}]);
    let devices = json!({"requests": [exactly("gpu", json!({}))], "config": config});
    let nic = json!({"requests": [{"name": "nic", "exactly": {"deviceClassName": "nic"}}]});
    let got = serde_json::to_value(allocated(&[devices, nic], &[]).unwrap()).unwrap();
    let told = got[0]["devices"]["config"].as_array().unwrap();
    assert_eq!(told.len(), 2, "{told:?}");
    assert_eq!((&told[0]["source"], &told[0]["requests"]), (&json!("FromClass"), &json!(["gpu"])));
    assert_eq!((&told[1]["source"], &told[1]["opaque"]["parameters"]["from"]), (&json!("FromClaim"), &json!("claim")));
    let own =
        json!({"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}]});
    assert_eq!(got[0]["nodeSelector"], own);
    let rack = json!({"nodeSelectorTerms": [{"matchExpressions": [{"key": "rack", "operator": "Exists"}]}]});
    assert_eq!(got[1]["nodeSelector"], rack);
}
