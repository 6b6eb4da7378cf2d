//! The machine of a template that is made of another: what is that one's alone is left out, and its disks are copies. Pure.

use api::snapshot::v1beta1::VirtualMachineSnapshotContent;
use api::template::{Parameter, Spec};
use serde_json::{Value, json};

use crate::facts::persistent_state::is_kept;

/// The parameter that names the machine.
const NAME: &str = "NAME";

/// The template of the machine that `content` holds, with a parameter for its name. `copies` are the volumes of which there is a copy,
/// and the names of the copies' claims in `namespace`.
///
/// # Errors
/// When the snapshot holds no machine, or one that keeps what no other may have.
pub fn parameterized<'a>(
    content: &VirtualMachineSnapshotContent,
    namespace: &str,
    copies: impl Iterator<Item = (&'a str, String)>,
) -> Result<Spec, String> {
    let machine = content.spec.source.virtual_machine.as_deref().and_then(|machine| machine.spec.as_deref());
    let machine = machine.ok_or("the snapshot holds no machine")?;
    if machine.template.spec.as_deref().is_some_and(is_kept) {
        let why =
            "the machine keeps the state of a TPM or the variables of EFI, which are its identity: no other gets them";
        return Err(why.to_owned());
    }
    let mut spec = serde_json::to_value(machine).map_err(|error| format!("the machine cannot be read: {error}"))?;
    forget_identity(&mut spec);
    for (volume, claim) in copies {
        replace(&mut spec, volume, namespace, &claim);
    }
    Ok(Spec {
        parameters: vec![Parameter { name: NAME.to_owned(), required: true, ..Parameter::default() }],
        virtual_machine: json!({ "metadata": { "name": format!("${{{NAME}}}") }, "spec": spec }),
        ..Spec::default()
    })
}

/// Addresses and numbers by which a machine is told from others, and revisions that are made for it alone.
fn forget_identity(spec: &mut Value) {
    for field in ["instancetype", "preference"] {
        if let Some(reference) = spec.get_mut(field).and_then(Value::as_object_mut) {
            reference.remove("revisionName");
        }
    }
    let domain = "/template/spec/domain";
    if let Some(firmware) = spec.pointer_mut(&format!("{domain}/firmware")).and_then(Value::as_object_mut) {
        firmware.remove("uuid");
        firmware.remove("serial");
    }
    let interfaces = spec.pointer_mut(&format!("{domain}/devices/interfaces")).and_then(Value::as_array_mut);
    for interface in interfaces.into_iter().flatten().filter_map(Value::as_object_mut) {
        interface.remove("macAddress");
    }
}

/// Puts a DataVolume of the new machine in the place of a volume, which is a copy of the claim.
fn replace(spec: &mut Value, volume: &str, namespace: &str, claim: &str) {
    let mut stem = volume.to_owned();
    let volumes = spec.pointer_mut("/template/spec/volumes").and_then(Value::as_array_mut);
    for held in volumes.into_iter().flatten().filter(|held| held["name"] == volume) {
        if let Some(name) = held["dataVolume"]["name"].as_str() {
            stem = name.to_owned();
        }
        *held = json!({ "name": volume, "dataVolume": { "name": format!("{stem}-${{{NAME}}}") } });
    }
    let wanted = json!({
        "metadata": { "name": format!("{stem}-${{{NAME}}}") },
        "spec": { "source": { "pvc": { "namespace": namespace, "name": claim } }, "storage": {} },
    });
    let templates = spec.as_object_mut().map(|spec| spec.entry("dataVolumeTemplates").or_insert_with(|| json!([])));
    let Some(templates) = templates.and_then(Value::as_array_mut) else { return };
    match templates.iter_mut().find(|template| template["metadata"]["name"] == stem) {
        Some(template) => *template = wanted,
        None => templates.push(wanted),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(machine: Value, copies: &[(&str, &str)], expect: Result<Value, &str>) {
        let content = json!({ "metadata": {}, "spec": { "source": { "virtualMachine": { "spec": machine } } } });
        let content: VirtualMachineSnapshotContent = serde_json::from_value(content).unwrap();
        let copies = copies.iter().map(|(volume, claim)| (*volume, (*claim).to_owned()));
        match (parameterized(&content, "ns", copies), expect) {
            (Ok(found), Ok(expect)) => {
                assert_eq!(found.virtual_machine["metadata"]["name"], "${NAME}");
                assert!(found.parameters[0].required && found.parameters[0].name == "NAME");
                assert_eq!(found.virtual_machine["spec"], expect);
            }
            (Err(found), Err(expect)) => assert!(found.contains(expect), "{found}"),
            (found, expect) => panic!("{found:?}, not {expect:?}"),
        }
    }

    fn with(devices: Value, domain: Value, volumes: Value) -> Value {
        let mut all = json!({ "devices": devices });
        for (key, value) in domain.as_object().into_iter().flatten() {
            all[key] = value.clone();
        }
        json!({ "runStrategy": "Always", "template": { "spec": { "domain": all, "volumes": volumes } } })
    }

    #[test]
    fn what_is_the_machines_alone_is_left_out() {
        let machine = with(
            json!({ "interfaces": [{ "name": "a", "masquerade": {}, "macAddress": "02:00:00:00:00:01" }] }),
            json!({ "firmware": { "uuid": "u", "serial": "s" } }),
            json!([]),
        );
        let mut expect =
            with(json!({ "interfaces": [{ "name": "a", "masquerade": {} }] }), json!({ "firmware": {} }), json!([]));
        expect["template"]["spec"].as_object_mut().unwrap().remove("volumes");
        check(machine, &[], Ok(expect));
    }

    #[test]
    fn disks_are_copies_of_copies() {
        let volumes = json!([
            { "name": "root", "dataVolume": { "name": "vm-root" } },
            { "name": "data", "persistentVolumeClaim": { "claimName": "mine" } },
            { "name": "seed", "cloudInitNoCloud": { "userData": "x" } },
        ]);
        let mut machine = with(json!({}), json!({}), volumes);
        machine["dataVolumeTemplates"] =
            json!([{ "metadata": { "name": "vm-root" }, "spec": { "source": { "blank": {} }, "storage": {} } }]);
        let volumes = json!([
            { "name": "root", "dataVolume": { "name": "vm-root-${NAME}" } },
            { "name": "data", "dataVolume": { "name": "data-${NAME}" } },
            { "name": "seed", "cloudInitNoCloud": { "userData": "x" } },
        ]);
        let mut expect = with(json!({}), json!({}), volumes);
        let copy = |name: &str, claim: &str| {
            json!({
                "metadata": { "name": name },
                "spec": { "source": { "pvc": { "namespace": "ns", "name": claim } }, "storage": {} },
            })
        };
        expect["dataVolumeTemplates"] = json!([copy("vm-root-${NAME}", "t-1"), copy("data-${NAME}", "t-2")]);
        check(machine, &[("root", "t-1"), ("data", "t-2")], Ok(expect));
    }

    #[test]
    fn a_machine_with_an_identity_on_disk_makes_no_template() {
        let devices = json!({ "tpm": { "persistent": true } });
        check(with(devices, json!({}), json!([])), &[], Err("identity"));
    }
}
