//! The interfaces of a VirtualMachine: which have an address, and which need one. Pure.

use std::collections::{BTreeMap, BTreeSet};

use kit::admission::Cause;
use serde_json::{Value, json};

use super::mac::Mac;

/// Where interfaces are in a VirtualMachine.
const INTERFACES: &str = "/spec/template/spec/domain/devices/interfaces";
/// On a VirtualMachine: when its addresses were chosen last.
pub(super) const TRANSACTION: &str = "kubemacpool.io/transaction-timestamp";
/// More interfaces than a guest can have.
const MOST: usize = 256;

/// What becomes of a VirtualMachine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Plan {
    /// Addresses that its owner chose.
    pub(super) given: Vec<Mac>,
    /// Interfaces that keep the address they have, by their index.
    pub(super) kept: Vec<(usize, Mac)>,
    /// Interfaces that need one.
    pub(super) wanted: Vec<usize>,
}

/// The plan for `vm`, which was `old` before.
///
/// # Errors
/// What its owner has to change.
pub(super) fn plan(vm: &Value, old: &Value) -> Result<Plan, Vec<Cause>> {
    let list = interfaces(vm);
    let refuse = |reason: &'static str, field: String, message: String| Cause { reason, field, message };
    if list.len() > MOST {
        let message = format!("{} interfaces are asked for, and {MOST} are the most", list.len());
        return Err(vec![refuse("FieldValueTooMany", path(None), message)]);
    }
    let before: BTreeMap<&str, Mac> =
        interfaces(old).iter().filter_map(|one| Some((name(one), address(one)?))).collect();
    let (mut names, mut macs, mut causes, mut plan) = (BTreeSet::new(), BTreeSet::new(), Vec::new(), Plan::default());
    for (index, one) in list.iter().enumerate() {
        if !names.insert(name(one)) {
            let message =
                format!("interface name {:?} is there twice: every interface has a name of its own", name(one));
            causes.push(refuse("FieldValueDuplicate", format!("{}.name", path(Some(index))), message));
        }
        let field = format!("{}.macAddress", path(Some(index)));
        let text = one["macAddress"].as_str().unwrap_or_default();
        let mac = match (text, Mac::parse(text)) {
            ("", _) if !takes_address(vm, one) => continue,
            ("", _) => match before.get(name(one)) {
                Some(mac) => {
                    plan.kept.push((index, *mac));
                    *mac
                }
                None => {
                    plan.wanted.push(index);
                    continue;
                }
            },
            (_, Some(mac)) => {
                plan.given.push(mac);
                mac
            }
            (text, None) => {
                let message = format!("{text:?} is not a MAC address such as 02:00:00:00:00:01");
                causes.push(refuse("FieldValueInvalid", field, message));
                continue;
            }
        };
        if !macs.insert(mac) {
            let message =
                format!("{mac} is the address of another interface of this machine: give each its own, or none");
            causes.push(refuse("FieldValueDuplicate", field, message));
        }
    }
    if causes.is_empty() { Ok(plan) } else { Err(causes) }
}

/// The patch that gives interfaces of `vm` their addresses; none when there are none to give.
pub(super) fn patch(vm: &Value, addresses: &[(usize, Mac)], now: &str) -> Option<Value> {
    if addresses.is_empty() {
        return None;
    }
    let mut patch: Vec<Value> = addresses
        .iter()
        .map(|(index, mac)| json!({ "op": "add", "path": format!("{INTERFACES}/{index}/macAddress"), "value": mac.to_string() }))
        .collect();
    let annotations = vm.pointer("/metadata/annotations").filter(|all| all.is_object());
    let mut annotations = annotations.cloned().unwrap_or_else(|| json!({}));
    annotations[TRANSACTION] = json!(now);
    patch.push(json!({ "op": "add", "path": "/metadata/annotations", "value": annotations }));
    Some(Value::Array(patch))
}

/// Every address of `vm`.
pub(super) fn addresses(vm: &Value) -> Vec<Mac> {
    interfaces(vm).iter().filter_map(address).collect()
}

fn interfaces(vm: &Value) -> &[Value] {
    vm.pointer(INTERFACES).and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default()
}

fn path(index: Option<usize>) -> String {
    let all = "spec.template.spec.domain.devices.interfaces";
    index.map_or_else(|| all.to_owned(), |index| format!("{all}[{index}]"))
}

fn name(interface: &Value) -> &str {
    interface["name"].as_str().unwrap_or_default()
}

fn address(interface: &Value) -> Option<Mac> {
    Mac::parse(interface["macAddress"].as_str()?)
}

/// An interface of the pod's network or of one beside it, that is not to be taken away.
fn takes_address(vm: &Value, interface: &Value) -> bool {
    let networks = vm.pointer("/spec/template/spec/networks").and_then(Value::as_array);
    let network = networks.into_iter().flatten().find(|network| network["name"] == interface["name"]);
    let known = network.is_some_and(|network| network["pod"].is_object() || network["multus"].is_object());
    known && interface["state"] != "absent"
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn mac(text: &str) -> Mac {
        Mac::parse(text).unwrap()
    }

    /// A machine with these interfaces: name and address of each.
    fn vm(interfaces: &[(&str, &str)]) -> Value {
        let one = |(name, mac): &(&str, &str)| match *mac {
            "" => json!({ "name": name, "masquerade": {} }),
            mac => json!({ "name": name, "macAddress": mac }),
        };
        let list: Vec<Value> = interfaces.iter().map(one).collect();
        let networks: Vec<Value> =
            interfaces.iter().map(|(name, _)| json!({ "name": name, "multus": { "networkName": "n" } })).collect();
        json!({ "spec": { "template": { "spec": { "domain": { "devices": { "interfaces": list } }, "networks": networks } } } })
    }

    #[track_caller]
    fn check(new: &[(&str, &str)], old: &[(&str, &str)], given: &[&str], kept: &[(usize, &str)], wanted: &[usize]) {
        let found = plan(&vm(new), &vm(old)).unwrap();
        let expect = Plan {
            given: given.iter().map(|text| mac(text)).collect(),
            kept: kept.iter().map(|(index, text)| (*index, mac(text))).collect(),
            wanted: wanted.to_vec(),
        };
        assert_eq!(found, expect);
    }

    #[test]
    fn interfaces_without_an_address_get_one_and_keep_it() {
        let (one, two) = ("02:00:00:00:00:01", "02:00:00:00:00:02");
        check(&[("a", ""), ("b", one)], &[], &[one], &[], &[0]);
        // Whoever applies the manifest again, without addresses.
        check(&[("a", ""), ("c", "")], &[("a", one), ("b", two)], &[], &[(0, one)], &[1]);
        check(&[], &[("a", one)], &[], &[], &[]);
    }

    #[test]
    fn interfaces_of_no_network_and_those_that_go_get_none() {
        let mut machine = vm(&[("a", ""), ("b", "")]);
        machine["spec"]["template"]["spec"]["networks"][0] = json!({ "name": "other", "pod": {} });
        machine["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][1]["state"] = json!("absent");
        assert_eq!(plan(&machine, &Value::Null).unwrap(), Plan::default());
    }

    #[track_caller]
    fn refused(new: &[(&str, &str)], old: &[(&str, &str)], field: &str, message: &str) {
        let causes = plan(&vm(new), &vm(old)).unwrap_err();
        let all = "spec.template.spec.domain.devices.interfaces";
        assert!(
            causes.iter().any(|cause| cause.field == format!("{all}{field}") && cause.message.contains(message)),
            "{causes:?}"
        );
    }

    #[test]
    fn names_and_addresses_are_there_once() {
        let one = "02:00:00:00:00:01";
        refused(&[("a", ""), ("a", "")], &[], "[1].name", "twice");
        refused(&[("a", one), ("b", "02-00-00-00-00-01")], &[], "[1].macAddress", "another interface");
        refused(&[("a", ""), ("b", one)], &[("a", one)], "[1].macAddress", "another interface");
        refused(&[("a", "nonsense")], &[], "[0].macAddress", "not a MAC address");
        let many: Vec<(String, &str)> = (0..257).map(|index| (format!("n{index}"), "")).collect();
        let many: Vec<(&str, &str)> = many.iter().map(|(name, mac)| (name.as_str(), *mac)).collect();
        refused(&many, &[], "", "257 interfaces");
    }

    #[test]
    fn the_patch_gives_addresses_and_says_when() {
        let mut machine = vm(&[("a", "")]);
        machine["metadata"] = json!({ "annotations": { "b": "c" } });
        let patch = patch(&machine, &[(0, mac("02:00:00:00:00:01"))], "now").unwrap();
        assert_eq!(patch[0]["path"], "/spec/template/spec/domain/devices/interfaces/0/macAddress");
        assert_eq!(patch[1]["value"], json!({ "b": "c", TRANSACTION: "now" }));
        assert_eq!(super::patch(&machine, &[], "now"), None);
    }

    proptest! {
        #[test]
        fn no_object_makes_it_fail(names in prop::collection::vec("[a-c]{0,2}", 0..4), text in ".{0,20}") {
            let list: Vec<Value> = names.iter().map(|name| json!({ "name": name, "macAddress": text })).collect();
            let machine = json!({ "spec": { "template": { "spec": { "domain": { "devices": { "interfaces": list } }, "networks": text } } } });
            let _ = plan(&machine, &json!(names));
        }
    }
}
