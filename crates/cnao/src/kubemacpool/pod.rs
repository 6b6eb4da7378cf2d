//! Pods: which of the networks they ask Multus for want an address, and how they get it. Pure.

use kit::admission::Cause;
use serde_json::{Value, json};

use super::mac::Mac;
use super::wanted::{Slot, duplicates, escaped, is_name, malformed, too_many};

/// The annotation by which a pod asks for networks.
pub(super) const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
const FIELD: &str = "metadata.annotations[k8s.v1.cni.cncf.io/networks]";
/// Key of the address in an element.
const MAC: &str = "mac";

/// What a request about a pod wants.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Wanted {
    /// The elements of the annotation.
    networks: Vec<Value>,
    /// Those whose address is to be reserved.
    pub slots: Vec<Slot>,
}

/// The elements of an annotation; none when it is not in JSON: names in the short form carry no addresses.
fn elements(text: &str) -> Option<Result<Vec<Value>, serde_json::Error>> {
    text.contains(['[', '{', '"']).then(|| serde_json::from_str(text))
}

/// The addresses that an annotation asks for.
pub(super) fn addresses(annotation: &str) -> Vec<Mac> {
    let all = elements(annotation).and_then(Result::ok).unwrap_or_default();
    all.iter().filter_map(|one| one.get(MAC)?.as_str()?.parse().ok()).collect()
}

/// What the request wants that creates `pod`; none when it asks for no networks.
///
/// # Errors
/// What is wrong with the annotation.
pub(super) fn wanted(pod: &Value) -> Result<Option<Wanted>, Vec<Cause>> {
    let annotation = pod.pointer("/metadata/annotations").and_then(|all| all.get(NETWORKS)).and_then(Value::as_str);
    let networks = match annotation.and_then(elements) {
        None => return Ok(None),
        Some(Ok(networks)) => networks,
        Some(Err(error)) => {
            let message = format!(
                "{FIELD} is no list of networks in JSON: {error}: correct it, or name networks as in net1,net2"
            );
            return Err(vec![Cause { reason: "FieldValueInvalid", field: FIELD.to_owned(), message }]);
        }
    };
    if let Some(cause) = too_many(FIELD, networks.len()) {
        return Err(vec![cause]);
    }
    let (mut slots, mut causes, mut used) = (Vec::new(), Vec::new(), Vec::new());
    for (at, network) in networks.iter().enumerate() {
        let slot = |given| Slot { at, interface: at.to_string(), given };
        let field = format!("{FIELD}[{at}].{MAC}");
        let Some(network) = network.as_object() else {
            let message = format!("{FIELD}[{at}] is no object: write the name of a network as {{\"name\": \"net1\"}}");
            causes.push(Cause { reason: "FieldValueInvalid", field: format!("{FIELD}[{at}]"), message });
            continue;
        };
        // Its addresses are of another kind, and longer.
        if network.get("infiniband-guid").and_then(Value::as_str).is_some_and(|guid| !guid.is_empty()) {
            continue;
        }
        match network.get(MAC) {
            None | Some(Value::Null) => slots.push(slot(None)),
            Some(Value::String(text)) if text.is_empty() => slots.push(slot(None)),
            Some(Value::String(text)) => match text.parse::<Mac>() {
                Ok(mac) => {
                    slots.push(slot(Some(mac)));
                    used.push((field, mac));
                }
                Err(_) => causes.push(malformed(field, text)),
            },
            Some(other) => causes.push(malformed(field, &other.to_string())),
        }
    }
    causes.extend(duplicates(used.into_iter(), "MAC address", "give each network its own, or leave it out to get one"));
    if causes.is_empty() { Ok(Some(Wanted { networks, slots })) } else { Err(causes) }
}

/// The virtual machine instance that controls `pod`, by name.
pub(super) fn instance(pod: &Value) -> Option<&str> {
    let owners = pod.pointer("/metadata/ownerReferences")?.as_array()?;
    let ours = |owner: &&Value| {
        owner["kind"] == "VirtualMachineInstance"
            && owner["controller"] == json!(true)
            && owner["apiVersion"].as_str().is_some_and(|version| version.starts_with("kubevirt.io/"))
    };
    owners.iter().find(ours)?["name"].as_str().filter(|name| is_name(name))
}

/// The operations that write the addresses that were `granted` into the annotation.
pub(super) fn patch(wanted: &Wanted, granted: &[Mac]) -> Vec<Value> {
    let chosen = wanted.slots.iter().zip(granted).filter(|(slot, _)| slot.given.is_none());
    let mut networks = wanted.networks.clone();
    let mut changed = false;
    for (slot, mac) in chosen {
        networks[slot.at][MAC] = json!(mac.to_string());
        changed = true;
    }
    let path = format!("/metadata/annotations/{}", escaped(NETWORKS));
    let operation = json!({ "op": "replace", "path": path, "value": json!(networks).to_string() });
    changed.then_some(operation).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod(annotation: &str) -> Value {
        json!({ "metadata": { "annotations": { NETWORKS: annotation } } })
    }

    /// The annotation after every address that is wanted was given, counting from 02:00:00:00:00:01.
    #[track_caller]
    fn check(annotation: &str, expect: Result<&str, &str>) {
        let found = wanted(&pod(annotation)).map(|wanted| {
            let Some(wanted) = wanted else { return annotation.to_owned() };
            let mac = |(at, slot): (usize, &Slot)| {
                slot.given.unwrap_or(format!("02:00:00:00:00:{:02x}", at + 1).parse().unwrap())
            };
            let granted: Vec<Mac> = wanted.slots.iter().enumerate().map(mac).collect();
            let patch = patch(&wanted, &granted);
            patch.first().map_or(annotation.to_owned(), |operation| operation["value"].as_str().unwrap().to_owned())
        });
        let found = found.map_err(|causes| causes[0].message.clone());
        assert_eq!(found.as_deref().map_err(String::as_str), expect);
    }

    #[test]
    fn networks_in_json_get_addresses_and_keep_the_rest() {
        check(r#"[{"name":"a"}]"#, Ok(r#"[{"mac":"02:00:00:00:00:01","name":"a"}]"#));
        let kept = r#"[{"cni-args":{"x":[1]},"mac":"02:00:00:00:00:09","name":"a"},{"mac":"","name":"b"}]"#;
        let filled =
            r#"[{"cni-args":{"x":[1]},"mac":"02:00:00:00:00:09","name":"a"},{"mac":"02:00:00:00:00:02","name":"b"}]"#;
        check(kept, Ok(filled));
        check(
            r#"[{"infiniband-guid":"c2:11:22:33:44:55:66:77","name":"a"}]"#,
            Ok(r#"[{"infiniband-guid":"c2:11:22:33:44:55:66:77","name":"a"}]"#),
        );
        for untouched in ["", "net1, ns/net2@eth1", "[]", r#"[{"mac":"02:00:00:00:00:09","name":"a"}]"#] {
            check(untouched, Ok(untouched));
        }
    }

    #[test]
    fn what_multus_cannot_read_is_refused() {
        let message = |text: &str| wanted(&pod(text)).unwrap_err()[0].message.clone();
        assert!(
            message("[{").starts_with(&format!("{FIELD} is no list of networks in JSON: EOF")),
            "{}",
            message("[{")
        );
        assert!(message(r#"{"name":"a"}"#).contains("invalid type: map, expected a sequence"));
        assert!(message(&"[".repeat(200_000)).contains("recursion limit"));
        check(
            r#"["a"]"#,
            Err(&format!("{FIELD}[0] is no object: write the name of a network as {{\"name\": \"net1\"}}")),
        );
        assert!(
            message(r#"[{"name":"a","mac":"02:zz"}]"#).starts_with(&format!("{FIELD}[0].mac is \"02:zz\": not a MAC"))
        );
        assert!(message(r#"[{"name":"a","mac":7}]"#).starts_with(&format!("{FIELD}[0].mac is \"7\": not a MAC")));
        let twice = r#"[{"name":"a","mac":"02:00:00:00:00:01"},{"name":"b","mac":"02-00-00-00-00-01"}]"#;
        assert!(
            message(twice).starts_with(&format!(
                "{FIELD}[1].mac is 02:00:00:00:00:01, which is the MAC address of {FIELD}[0].mac"
            ))
        );
        let many = json!(vec![json!({ "name": "a" }); 10_000]).to_string();
        assert!(message(&many).contains("has 10000 interfaces: at most 256"));
    }

    #[test]
    fn a_launcher_is_known_by_its_controller() {
        let owned = |owner: Value| json!({ "metadata": { "ownerReferences": [owner] } });
        let owner = json!({ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "name": "vm", "controller": true });
        assert_eq!(instance(&owned(owner.clone())), Some("vm"));
        for (key, value) in [
            ("apiVersion", json!("apps/v1")),
            ("kind", json!("ReplicaSet")),
            ("controller", json!(false)),
            ("name", json!(1)),
            ("name", json!("../../other/virtualmachines/vm")),
        ] {
            let mut other = owner.clone();
            other[key] = value;
            assert_eq!(instance(&owned(other)), None);
        }
        assert_eq!(instance(&json!({ "metadata": { "ownerReferences": 3 } })), None);
    }

    proptest! {
        #[test]
        fn no_annotation_makes_it_panic(text in r#"[\[\]{}",:a-z0-9@/ -]{0,60}"#) {
            if let Ok(Some(wanted)) = wanted(&pod(&text)) {
                let granted = vec!["02:00:00:00:00:01".parse().unwrap(); wanted.slots.len()];
                patch(&wanted, &granted);
            }
            addresses(&text);
        }
    }
}
