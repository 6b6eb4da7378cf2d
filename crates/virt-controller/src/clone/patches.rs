//! How a copy differs from the machine it is of: the operations of RFC 6902 that its restore applies. Pure.

use std::collections::BTreeMap;

use api::clone::v1beta1::VirtualMachineCloneSpec;
use api::kubevirt::v1::VirtualMachineSpec;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use regex::Regex;
use serde_json::{Value, json};

use crate::restore::plan::LAST;

const DOMAIN: &str = "/spec/template/spec/domain";

type Words = BTreeMap<String, String>;

/// One operation an entry, in the order in which they are applied: what makes a machine itself (addresses, serial number,
/// firmware UUID) goes or is replaced, labels and annotations are filtered, and what the user wrote comes last.
pub fn patches(metadata: &ObjectMeta, machine: &VirtualMachineSpec, wanted: &VirtualMachineCloneSpec) -> Vec<String> {
    let mut out = Vec::new();
    addresses(machine, &wanted.new_mac_addresses, &mut out);
    firmware(machine, wanted.new_sm_bios_serial.as_deref(), &mut out);
    let template = machine.template.metadata.clone().unwrap_or_default();
    let of_template = wanted.template.clone().unwrap_or_default();
    let filtered = [
        ("/metadata/labels", &metadata.labels, &wanted.label_filters),
        ("/metadata/annotations", &metadata.annotations, &wanted.annotation_filters),
        ("/spec/template/metadata/labels", &template.labels, &of_template.label_filters),
        ("/spec/template/metadata/annotations", &template.annotations, &of_template.annotation_filters),
    ];
    for (path, words, filters) in filtered {
        for key in words.iter().flat_map(|words| left_out(words, filters)) {
            out.push(remove(&format!("{path}/{}", escaped(key))));
        }
    }
    out.extend(wanted.patches.iter().cloned());
    out
}

fn remove(path: &str) -> String {
    json!({ "op": "remove", "path": path }).to_string()
}

/// In the place of what is there, if something is.
fn add(path: &str, value: &Value) -> String {
    json!({ "op": "add", "path": path, "value": value }).to_string()
}

/// Two guests of one address would take each other's packets.
fn addresses(machine: &VirtualMachineSpec, new: &Words, out: &mut Vec<String>) {
    let interfaces = machine.template.spec.iter().flat_map(|spec| &spec.domain.devices.interfaces);
    for (index, interface) in interfaces.enumerate() {
        let path = format!("{DOMAIN}/devices/interfaces/{index}/macAddress");
        match new.get(&interface.name).filter(|mac| !mac.is_empty()) {
            Some(mac) => out.push(add(&path, &json!(mac))),
            None if interface.mac_address.is_some() => out.push(remove(&path)),
            None => {}
        }
    }
}

fn firmware(machine: &VirtualMachineSpec, serial: Option<&str>, out: &mut Vec<String>) {
    let path = format!("{DOMAIN}/firmware");
    let held = machine.template.spec.as_ref().and_then(|spec| spec.domain.firmware.as_deref());
    let serial = serial.filter(|serial| !serial.is_empty());
    let Some(held) = held else {
        out.extend(serial.map(|serial| add(&path, &json!({ "serial": serial }))));
        return;
    };
    match serial {
        Some(serial) => out.push(add(&format!("{path}/serial"), &json!(serial))),
        None if held.serial.is_some() => out.push(remove(&format!("{path}/serial"))),
        None => {}
    }
    if held.uuid.is_some() {
        out.push(remove(&format!("{path}/uuid")));
    }
}

/// The keys that `filters` do not let through: those that none of them matches, or one that begins with `!` does. All are
/// let through where there are no filters.
fn left_out<'a>(words: &'a Words, filters: &[String]) -> Vec<&'a str> {
    if filters.is_empty() {
        return Vec::new();
    }
    // An asterisk alone is no expression. One that cannot be read matches nothing.
    let read = |text: &str| if text == "*" { Regex::new(".*").ok() } else { Regex::new(text).ok() };
    let (no, yes): (Vec<&String>, Vec<&String>) = filters.iter().partition(|filter| filter.starts_with('!'));
    let yes: Vec<Regex> = yes.into_iter().filter_map(|filter| read(filter)).collect();
    let no: Vec<Regex> = no.into_iter().filter_map(|filter| read(filter.trim_start_matches('!'))).collect();
    let matched = |filters: &[Regex], key: &str| filters.iter().any(|filter| filter.is_match(key));
    // What a restore remembers of itself is none of the filters' business.
    let keys = words.keys().map(String::as_str).filter(|key| *key != LAST);
    keys.filter(|key| !matched(&yes, key) || matched(&no, key)).collect()
}

/// A key as a step of a JSON pointer.
fn escaped(key: &str) -> String {
    key.replace('~', "~0").replace('/', "~1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(machine: Value, wanted: Value, expect: &[&str]) {
        let metadata: ObjectMeta = serde_json::from_value(json!({
            "labels": { "app": "a", "team/x": "b" }, "annotations": { "note": "n", (LAST): "r" },
        }))
        .unwrap();
        let machine = serde_json::from_value(json!({ "template": { "spec": { "domain": machine } } })).unwrap();
        let wanted = serde_json::from_value(wanted).unwrap();
        let found: Vec<String> = patches(&metadata, &machine, &wanted)
            .iter()
            .map(|text| serde_json::from_str::<Value>(text).unwrap())
            .map(|patch| {
                let value = patch.get("value").map(|value| format!(" {value}")).unwrap_or_default();
                let path = patch["path"].as_str().unwrap().replace(DOMAIN, "domain");
                format!("{} {path}{value}", patch["op"].as_str().unwrap())
            })
            .collect();
        assert_eq!(found, expect);
    }

    #[test]
    fn a_copy_is_a_machine_of_its_own() {
        let nics = json!([
            { "name": "a", "macAddress": "02:00:00:00:00:01" },
            { "name": "b" },
            { "name": "c", "macAddress": "02:00:00:00:00:03" },
        ]);
        let machine = json!({ "devices": { "interfaces": nics }, "firmware": { "uuid": "u", "serial": "s" } });
        let gone = [
            "remove domain/devices/interfaces/0/macAddress",
            "remove domain/devices/interfaces/2/macAddress",
            "remove domain/firmware/serial",
            "remove domain/firmware/uuid",
        ];
        check(machine.clone(), json!({}), &gone);
        let new = json!({ "newMacAddresses": { "b": "02:00:00:00:00:09" }, "newSMBiosSerial": "t" });
        let replaced = [
            "remove domain/devices/interfaces/0/macAddress",
            "add domain/devices/interfaces/1/macAddress \"02:00:00:00:00:09\"",
            "remove domain/devices/interfaces/2/macAddress",
            "add domain/firmware/serial \"t\"",
            "remove domain/firmware/uuid",
        ];
        check(machine, new, &replaced);
        let bare = json!({ "devices": {} });
        check(bare.clone(), json!({}), &[]);
        check(bare.clone(), json!({ "newSMBiosSerial": "t" }), &["add domain/firmware {\"serial\":\"t\"}"]);
        let own = json!({ "patches": ["{\"op\": \"add\", \"path\": \"/spec/x\", \"value\": 1}"] });
        check(bare, own, &["add /spec/x 1"]);
    }

    #[test]
    fn labels_and_annotations_are_filtered() {
        let bare = || json!({ "devices": {} });
        check(bare(), json!({ "labelFilters": ["*"] }), &[]);
        check(bare(), json!({ "labelFilters": ["*", "!team/x"] }), &["remove /metadata/labels/team~1x"]);
        check(bare(), json!({ "labelFilters": ["team/*"] }), &["remove /metadata/labels/app"]);
        let none = ["remove /metadata/labels/app", "remove /metadata/labels/team~1x"];
        check(bare(), json!({ "labelFilters": ["nothing"] }), &none);
        check(bare(), json!({ "annotationFilters": ["nothing"] }), &["remove /metadata/annotations/note"]);
    }
}
