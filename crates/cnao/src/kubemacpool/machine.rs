//! Virtual machines: which of their interfaces want an address, and how they get it. Pure.

use std::collections::{BTreeSet, HashMap, HashSet};

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceSpec};
use kit::admission::Cause;
use serde_json::{Value, json};

use super::mac::Mac;
use super::wanted::{Slot, duplicates, malformed, name_too_long, too_many};

/// The interfaces of a virtual machine, as a pointer.
const INTERFACES: &str = "/spec/template/spec/domain/devices/interfaces";
/// The same, as users write fields.
const FIELD: &str = "spec.template.spec.domain.devices.interfaces";

/// What a request about a virtual machine wants.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Wanted {
    /// Interfaces whose address is to be reserved.
    pub slots: Vec<Slot>,
    /// Interfaces that keep the address they have, which the request leaves out.
    pub kept: Vec<(usize, String)>,
}

struct Interface<'a> {
    name: &'a str,
    /// Empty when there is none.
    mac: &'a str,
}

/// Those of `machine`; none where what is there is no list of interfaces, which the API server refuses by itself.
fn interfaces(machine: &Value) -> Option<Vec<Interface<'_>>> {
    let all = machine.pointer(INTERFACES)?.as_array()?;
    all.iter().map(|one| Some(Interface { name: string(one, "name")?, mac: string(one, "macAddress")? })).collect()
}

fn string<'a>(one: &'a Value, key: &str) -> Option<&'a str> {
    match one.as_object()?.get(key) {
        None | Some(Value::Null) => Some(""),
        Some(value) => value.as_str(),
    }
}

/// The addresses of a virtual machine, as it says.
pub(super) fn addresses(machine: &VirtualMachine) -> Vec<Mac> {
    machine.spec.template.spec.as_deref().map(specified).unwrap_or_default()
}

/// The addresses of an instance, as it is to have them and as it has them.
pub(super) fn running_addresses(instance: &VirtualMachineInstance) -> Vec<Mac> {
    let reported = instance.status.iter().flat_map(|status| &status.interfaces);
    let reported = reported.filter_map(|one| one.mac.as_deref()?.parse().ok());
    let all: BTreeSet<Mac> = specified(&instance.spec).into_iter().chain(reported).collect();
    all.into_iter().collect()
}

fn specified(spec: &VirtualMachineInstanceSpec) -> Vec<Mac> {
    let all: BTreeSet<Mac> =
        spec.domain.devices.interfaces.iter().filter_map(|one| one.mac_address.as_deref()?.parse().ok()).collect();
    all.into_iter().collect()
}

/// What the request wants that makes `machine` of `old`; of none, it creates it.
///
/// # Errors
/// What is wrong with the interfaces. An update that leaves them as they are is not judged: whoever has to change something
/// else is not to be hindered.
pub(super) fn wanted(machine: &Value, old: Option<&Value>) -> Result<Wanted, Vec<Cause>> {
    let Some(new) = interfaces(machine) else { return Ok(Wanted::default()) };
    let old = old.map(|old| interfaces(old).unwrap_or_default());
    let pairs =
        |all: &[Interface<'_>]| all.iter().map(|one| (one.name.to_owned(), one.mac.to_owned())).collect::<Vec<_>>();
    if old.as_ref().is_some_and(|old| pairs(old) == pairs(&new)) {
        return Ok(Wanted::default());
    }
    let old = old.unwrap_or_default();
    let before: HashMap<&str, &str> = old.iter().map(|one| (one.name, one.mac)).collect();
    let held: HashSet<Mac> = old.iter().filter_map(|one| one.mac.parse().ok()).collect();
    let networks = networks(machine);
    let (mut wanted, mut causes) = (Wanted::default(), Vec::new());
    causes.extend(too_many(FIELD, new.len()));
    if !causes.is_empty() {
        return Err(causes);
    }
    let mut used = Vec::new();
    for (at, one) in new.iter().enumerate() {
        let field = format!("{FIELD}[{at}].macAddress");
        causes.extend(name_too_long(format!("{FIELD}[{at}].name"), one.name));
        let slot = |given| Slot { at, interface: one.name.to_owned(), given };
        match (one.mac, before.get(one.name)) {
            ("", Some(&"")) => {}
            ("", Some(&mac)) => {
                wanted.kept.push((at, mac.to_owned()));
                used.extend(mac.parse::<Mac>().ok().map(|mac| (field, mac)));
            }
            ("", None) if networks.contains(one.name) => wanted.slots.push(slot(None)),
            ("", None) => {}
            (text, before) => match text.parse::<Mac>() {
                Ok(mac) => {
                    if !held.contains(&mac) {
                        wanted.slots.push(slot(Some(mac)));
                    }
                    used.push((field, mac));
                }
                Err(_) if before == Some(&text) => {}
                Err(_) => causes.push(malformed(field, text)),
            },
        }
    }
    let names = new.iter().enumerate().map(|(at, one)| (format!("{FIELD}[{at}].name"), one.name));
    causes.extend(duplicates(names, "name", "give each interface a name of its own"));
    causes.extend(duplicates(
        used.into_iter(),
        "MAC address",
        "give each interface its own, or leave it out to get one",
    ));
    if causes.is_empty() { Ok(wanted) } else { Err(causes) }
}

/// The networks whose interfaces get addresses: the pod's and those of Multus.
fn networks(machine: &Value) -> HashSet<&str> {
    let all = machine.pointer("/spec/template/spec/networks").and_then(Value::as_array);
    let has_source = |network: &&Value| ["pod", "multus"].iter().any(|source| network[*source].is_object());
    let all = all.into_iter().flatten().filter(has_source);
    all.filter_map(|network| network["name"].as_str()).collect()
}

/// The operations that give `machine` the addresses it keeps and those that were `granted`.
pub(super) fn patch(wanted: &Wanted, granted: &[Mac]) -> Vec<Value> {
    let kept = wanted.kept.iter().map(|(at, mac)| (*at, mac.clone()));
    let chosen = wanted.slots.iter().zip(granted).filter(|(slot, _)| slot.given.is_none());
    let chosen = chosen.map(|(slot, mac)| (slot.at, mac.to_string()));
    let operation = |(at, mac): (usize, String)| json!({ "op": "add", "path": format!("{INTERFACES}/{at}/macAddress"), "value": mac });
    kept.chain(chosen).map(operation).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Interfaces as `name`, or `name=address`, each on a network of its kind: `p…` the pod's, `m…` Multus', others none.
    fn machine(interfaces: &[&str]) -> Value {
        let (mut all, mut networks) = (Vec::new(), Vec::new());
        for text in interfaces {
            let (name, mac) = text.split_once('=').unwrap_or((text, ""));
            let mut one = json!({ "name": name, "bridge": {} });
            if !mac.is_empty() {
                one["macAddress"] = json!(mac);
            }
            all.push(one);
            match name.as_bytes().first() {
                Some(b'p') => networks.push(json!({ "name": name, "pod": {} })),
                Some(b'm') => networks.push(json!({ "name": name, "multus": { "networkName": "n" } })),
                _ => {}
            }
        }
        let domain = json!({ "devices": { "interfaces": all } });
        json!({ "metadata": {}, "spec": { "template": { "spec": { "domain": domain, "networks": networks } } } })
    }

    /// What is wanted, as `at`, `at=address` where it is given, and `at~address` where it is kept.
    #[track_caller]
    fn check(old: Option<&[&str]>, new: &[&str], expect: Result<&[&str], &[&str]>) {
        let found = wanted(&machine(new), old.map(machine).as_ref());
        let found = found.map(|wanted| {
            let slot = |slot: &Slot| slot.given.map_or(slot.at.to_string(), |mac| format!("{}={mac}", slot.at));
            let kept = wanted.kept.iter().map(|(at, mac)| format!("{at}~{mac}"));
            wanted.slots.iter().map(slot).chain(kept).collect::<Vec<_>>()
        });
        let found = found.map_err(|causes| causes.into_iter().map(|cause| cause.message).collect::<Vec<_>>());
        let owned = |texts: &[&str]| texts.iter().map(|text| (*text).to_owned()).collect::<Vec<_>>();
        assert_eq!(found, expect.map(owned).map_err(owned));
    }

    const ONE: &str = "02:00:00:00:00:01";

    #[test]
    fn interfaces_of_the_pod_network_and_of_multus_get_addresses() {
        check(None, &["p", "m", "other"], Ok(&["0", "1"]));
        check(None, &["p=02:00:00:00:00:01", "m"], Ok(&["0=02:00:00:00:00:01", "1"]));
        check(None, &["other=02-00-00-00-00-0A"], Ok(&["0=02:00:00:00:00:0a"]));
        check(None, &[], Ok(&[]));
    }

    #[test]
    fn an_update_keeps_the_address_of_each_name() {
        let old: &[&str] = &["p=02:00:00:00:00:01", "m=02:00:00:00:00:02"];
        check(Some(old), old, Ok(&[]));
        check(Some(old), &["m", "p"], Ok(&["0~02:00:00:00:00:02", "1~02:00:00:00:00:01"]));
        check(Some(old), &["p", "m2", "m"], Ok(&["1", "0~02:00:00:00:00:01", "2~02:00:00:00:00:02"]));
        check(Some(old), &["p=02:00:00:00:00:07"], Ok(&["0=02:00:00:00:00:07"]));
        // It has the address already, whichever interface it goes to.
        check(Some(old), &["p2=02:00:00:00:00:01"], Ok(&[]));
        // It had none, and is not given one behind the back of whoever changes something else.
        check(Some(&["p"]), &["p", "m"], Ok(&["1"]));
    }

    #[test]
    fn one_machine_has_no_address_and_no_name_twice() {
        let field = |at: usize, key: &str| format!("{FIELD}[{at}].{key}");
        let twice = format!(
            "{} is {ONE}, which is the MAC address of {}, too: give each interface its own, or leave it out to get one",
            field(1, "macAddress"),
            field(0, "macAddress")
        );
        check(None, &["p=02:00:00:00:00:01", "m=02-00-00-00-00-01"], Err(&[&twice]));
        check(Some(&["p=02:00:00:00:00:01"]), &["p", "m=02:00:00:00:00:01"], Err(&[&twice]));
        let names = format!(
            "{} is p, which is the name of {}, too: give each interface a name of its own",
            field(1, "name"),
            field(0, "name")
        );
        check(None, &["p", "p"], Err(&[&names]));
        // As it was before: it is not the fault of this request.
        check(Some(&["p", "p"]), &["p", "p"], Ok(&[]));
    }

    #[test]
    fn what_is_no_address_is_refused_by_its_field() {
        let found = wanted(&machine(&["p", "m=02:zz"]), None).unwrap_err();
        assert_eq!(
            (found[0].reason, found[0].field.as_str()),
            ("FieldValueInvalid", &*format!("{FIELD}[1].macAddress"))
        );
        assert!(found[0].message.contains("is \"02:zz\": not a MAC address"), "{}", found[0].message);
        let long = format!("m={}", "f".repeat(1 << 20));
        assert!(wanted(&machine(&[&long]), None).unwrap_err()[0].message.len() < 300);
        // It was stored before the pool was there.
        check(Some(&["p=zz"]), &["p=zz", "m"], Ok(&["1"]));
    }

    #[test]
    fn more_interfaces_than_any_machine_has_are_refused() {
        let names: Vec<String> = (0..10_000).map(|at| format!("m{at}")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let found = wanted(&machine(&names), None).unwrap_err();
        assert_eq!((found.len(), found[0].field.as_str()), (1, FIELD));
        assert!(found[0].message.contains("has 10000 interfaces: at most 256"), "{}", found[0].message);
        let found = wanted(&machine(&[&"m".repeat(254)]), None).unwrap_err();
        assert_eq!(found[0].field, format!("{FIELD}[0].name"));
    }

    #[test]
    fn what_is_no_list_of_interfaces_is_left_to_the_api_server() {
        let place = |interfaces: Value| json!({ "spec": { "template": { "spec": { "domain": { "devices": { "interfaces": interfaces } } } } } });
        let odd = [
            json!(null),
            json!({}),
            json!({ "spec": [] }),
            place(json!("x")),
            place(json!([1])),
            place(json!([{ "name": 1 }])),
        ];
        for machine in odd.into_iter().chain([place(json!([{ "name": "p", "macAddress": [] }])), place(json!([null]))])
        {
            assert_eq!(wanted(&machine, None), Ok(Wanted::default()), "{machine}");
        }
        let mut machine = machine(&["p"]);
        machine["spec"]["template"]["spec"]["networks"] = json!([1, { "name": "p", "pod": null }, { "pod": {} }]);
        assert_eq!(wanted(&machine, None), Ok(Wanted::default()));
    }

    #[test]
    fn the_patch_writes_what_is_chosen_and_what_is_kept() {
        let old = machine(&["p=02:00:00:00:00:01"]);
        let new = machine(&["m1=02:00:00:00:00:02", "p", "m2"]);
        let wanted = wanted(&new, Some(&old)).unwrap();
        let granted = ["02:00:00:00:00:02", "02:00:00:00:00:03"].map(|mac| mac.parse().unwrap());
        let at = |at: usize, mac: &str| json!({ "op": "add", "path": format!("{INTERFACES}/{at}/macAddress"), "value": mac });
        assert_eq!(patch(&wanted, &granted), [at(1, "02:00:00:00:00:01"), at(2, "02:00:00:00:00:03")]);
    }
}
