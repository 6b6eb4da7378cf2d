//! The machine that a pool makes: its template, with what has to differ from the others' numbered. Pure.

use std::collections::BTreeMap;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineSpec, Volume};
use api::pool::v1beta1::VirtualMachinePool;
use kit::controller::owner;
use kube::ResourceExt;
use kube::core::ObjectMeta;
use origin::leave;

use super::{FINALIZER, REVISION};

/// The number at the end of a machine's name, if the name is one of those that `pool` gives.
pub fn index(pool: &str, name: &str) -> Option<u32> {
    let digits = name.strip_prefix(pool)?.strip_prefix('-')?;
    let number: u32 = digits.parse().ok()?;
    // `01` and `+1` are other names.
    (number.to_string() == digits).then_some(number)
}

/// The name of the machine with this number.
pub fn name(pool: &str, index: u32) -> String {
    format!("{pool}-{index}")
}

/// The machine with this number, as `revision` of the template says.
pub fn machine(pool: &VirtualMachinePool, index: u32, revision: &str) -> VirtualMachine {
    VirtualMachine {
        metadata: ObjectMeta {
            name: Some(name(&pool.name_any(), index)),
            namespace: pool.metadata.namespace.clone(),
            labels: Some(labels(pool, revision)),
            annotations: Some(annotations(pool)).filter(|all| !all.is_empty()),
            owner_references: Some(vec![owner::controlled_by(pool)]),
            finalizers: Some(vec![FINALIZER.to_owned()]),
            ..Default::default()
        },
        spec: spec(pool, index, revision),
        status: None,
    }
}

/// `vm` with what `pool` says now. What was decided when it was made, and what others added to its metadata, stays.
pub fn renewed(pool: &VirtualMachinePool, vm: &VirtualMachine, index: u32, revision: &str) -> VirtualMachine {
    let mut new = VirtualMachine { metadata: vm.metadata.clone(), spec: spec(pool, index, revision), status: None };
    new.labels_mut().extend(labels(pool, revision));
    new.annotations_mut().extend(annotations(pool));
    let given = vm.spec.template.metadata.as_ref().and_then(|metadata| metadata.annotations.as_ref());
    let decided = given.and_then(|all| all.get_key_value(api::kubevirt::constants::annotation::PCI_TOPOLOGY_VERSION));
    if let Some((key, value)) = decided {
        let annotations = new.spec.template.metadata.get_or_insert_default().annotations.get_or_insert_default();
        annotations.entry(key.clone()).or_insert_with(|| value.clone());
    }
    // What a volume's labels said when it was stored.
    let named = |of: Option<&String>| of.is_some_and(|volume| !volume.is_empty());
    if named(new.spec.instancetype.as_ref().and_then(|matcher| matcher.infer_from_volume.as_ref())) {
        new.spec.instancetype.clone_from(&vm.spec.instancetype);
    }
    if named(new.spec.preference.as_ref().and_then(|matcher| matcher.infer_from_volume.as_ref())) {
        new.spec.preference.clone_from(&vm.spec.preference);
    }
    if let (Some(old), Some(spec)) = (vm.spec.template.spec.as_deref(), new.spec.template.spec.as_deref_mut()) {
        if spec.architecture.is_none() {
            spec.architecture.clone_from(&old.architecture);
        }
        if spec.domain.machine.as_ref().is_none_or(|machine| machine.type_.as_deref().unwrap_or("").is_empty()) {
            spec.domain.machine.clone_from(&old.domain.machine);
        }
        if let Some(held) = &old.domain.firmware {
            let firmware = spec.domain.firmware.get_or_insert_default();
            firmware.uuid = held.uuid.clone().or(firmware.uuid.take());
            firmware.serial = held.serial.clone().or(firmware.serial.take());
        }
    }
    new
}

fn labels(pool: &VirtualMachinePool, revision: &str) -> BTreeMap<String, String> {
    let given = pool.spec.virtual_machine_template.metadata.as_ref().and_then(|metadata| metadata.labels.clone());
    let mut labels = given.unwrap_or_default();
    labels.insert(REVISION.to_owned(), revision.to_owned());
    labels
}

fn annotations(pool: &VirtualMachinePool) -> BTreeMap<String, String> {
    let given = pool.spec.virtual_machine_template.metadata.as_ref().and_then(|metadata| metadata.annotations.clone());
    let mut annotations = given.unwrap_or_default();
    // What may be copied is noted by virt-api alone.
    annotations.retain(|key, _| key != leave::COPIES_ALLOWED && !key.starts_with("kubectl.kubernetes.io/"));
    annotations
}

fn spec(pool: &VirtualMachinePool, index: u32, revision: &str) -> VirtualMachineSpec {
    let mut spec = pool.spec.virtual_machine_template.spec.as_deref().cloned().unwrap_or_default();
    let labels = spec.template.metadata.get_or_insert_default().labels.get_or_insert_default();
    labels.insert(REVISION.to_owned(), revision.to_owned());
    let number = |name: &mut String| {
        if !name.is_empty() {
            *name = format!("{name}-{index}");
        }
    };
    let mut own = Vec::new();
    for template in &mut spec.data_volume_templates {
        if let Some(name) = template.metadata.as_mut().and_then(|metadata| metadata.name.as_mut()) {
            own.push(name.clone());
            number(name);
        }
    }
    let generation = pool.spec.name_generation.clone().unwrap_or_default();
    let (secrets, maps) = (
        generation.append_index_to_secret_refs == Some(true),
        generation.append_index_to_config_map_refs == Some(true),
    );
    for volume in spec.template.spec.iter_mut().flat_map(|spec| &mut spec.volumes) {
        data(volume).into_iter().filter(|name| own.contains(name)).for_each(number);
        if secrets {
            self::secrets(volume).for_each(number);
        }
        if maps {
            volume.config_map.iter_mut().filter_map(|map| map.name.as_mut()).for_each(number);
        }
    }
    spec
}

/// The name of the data volume that a disk is on.
fn data(volume: &mut Volume) -> Option<&mut String> {
    let Volume { data_volume, persistent_volume_claim, .. } = volume;
    let claim = persistent_volume_claim.as_mut().map(|source| &mut source.claim_name);
    data_volume.as_mut().map(|source| &mut source.name).or(claim)
}

/// The names of the secrets that a volume is made of.
fn secrets(volume: &mut Volume) -> impl Iterator<Item = &mut String> {
    let Volume { secret, cloud_init_no_cloud, cloud_init_config_drive, .. } = volume;
    let cloud = cloud_init_no_cloud.iter_mut().flat_map(|source| {
        let source = &mut **source;
        [&mut source.secret_ref, &mut source.network_data_secret_ref]
    });
    let drive = cloud_init_config_drive.iter_mut().flat_map(|source| {
        let source = &mut **source;
        [&mut source.secret_ref, &mut source.network_data_secret_ref]
    });
    let named = cloud.chain(drive).flatten().map(|reference| &mut reference.name);
    secret.iter_mut().filter_map(|source| source.secret_name.as_mut()).chain(named)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn pool(generation: Value) -> VirtualMachinePool {
        let volumes = json!([
            { "name": "root", "dataVolume": { "name": "root" } },
            { "name": "data", "persistentVolumeClaim": { "claimName": "root" } },
            { "name": "shared", "persistentVolumeClaim": { "claimName": "shared" } },
            { "name": "map", "configMap": { "name": "map" } },
            { "name": "secret", "secret": { "secretName": "secret" } },
            { "name": "init", "cloudInitNoCloud": { "secretRef": { "name": "user" }, "networkDataSecretRef": { "name": "net" } } },
            { "name": "drive", "cloudInitConfigDrive": { "secretRef": { "name": "user" } } },
        ]);
        serde_json::from_value(json!({
            "metadata": { "name": "pool", "namespace": "ns", "uid": "p" },
            "spec": {
                "selector": { "matchLabels": { "app": "a" } }, "nameGeneration": generation,
                "virtualMachineTemplate": {
                    "metadata": {
                        "labels": { "app": "a" }, "annotations": { "note": "1", (leave::COPIES_ALLOWED): "victim/pvc" },
                    },
                    "spec": {
                        "runStrategy": "Always",
                        "dataVolumeTemplates": [{ "metadata": { "name": "root" }, "spec": {} }],
                        "template": { "spec": { "domain": { "devices": {} }, "volumes": volumes } },
                    },
                },
            },
        }))
        .unwrap()
    }

    #[test]
    fn names_have_a_number() {
        let check = |name: &str, expect: Option<u32>| assert_eq!(index("pool", name), expect, "{name}");
        check("pool-0", Some(0));
        check("pool-12", Some(12));
        for other in ["pool", "pool-", "pool-01", "pool-+1", "pool-x", "other-1", "pool-1-1"] {
            check(other, None);
        }
    }

    #[test]
    fn what_each_machine_has_of_its_own_is_numbered() {
        let names = |generation: Value| {
            let made = json!(machine(&pool(generation), 3, "pool-1").spec);
            assert_eq!(made["dataVolumeTemplates"][0]["metadata"]["name"], "root-3");
            let volumes = &made["template"]["spec"]["volumes"];
            assert_eq!(volumes[0]["dataVolume"]["name"], "root-3");
            assert_eq!(volumes[1]["persistentVolumeClaim"]["claimName"], "root-3");
            assert_eq!(volumes[2]["persistentVolumeClaim"]["claimName"], "shared");
            let at = |pointer: &str| volumes.pointer(pointer).unwrap().as_str().unwrap().to_owned();
            [
                at("/3/configMap/name"),
                at("/4/secret/secretName"),
                at("/5/cloudInitNoCloud/secretRef/name"),
                at("/5/cloudInitNoCloud/networkDataSecretRef/name"),
                at("/6/cloudInitConfigDrive/secretRef/name"),
            ]
        };
        assert_eq!(names(json!({})), ["map", "secret", "user", "net", "user"]);
        assert_eq!(names(json!({ "appendIndexToConfigMapRefs": true })), ["map-3", "secret", "user", "net", "user"]);
        let secrets = json!({ "appendIndexToSecretRefs": true });
        assert_eq!(names(secrets), ["map", "secret-3", "user-3", "net-3", "user-3"]);
    }

    #[test]
    fn a_machine_says_whose_it_is_and_what_it_was_made_from() {
        let made = machine(&pool(json!({})), 0, "pool-1");
        assert_eq!((made.name_any().as_str(), made.namespace().as_deref()), ("pool-0", Some("ns")));
        assert_eq!(made.labels(), &[("app".into(), "a".into()), (REVISION.into(), "pool-1".into())].into());
        assert_eq!(made.spec.template.metadata.unwrap().labels.unwrap()[REVISION], "pool-1");
        assert_eq!(made.metadata.finalizers.unwrap(), [FINALIZER]);
        // Nobody allows themselves copies.
        assert_eq!(made.metadata.annotations.unwrap(), [("note".into(), "1".into())].into());
    }

    #[test]
    fn what_was_decided_once_stays() {
        let mut old = machine(&pool(json!({})), 0, "pool-1");
        old.annotations_mut().insert("theirs".into(), "1".into());
        let spec = old.spec.template.spec.as_mut().unwrap();
        spec.architecture = Some("amd64".into());
        spec.domain.firmware = serde_json::from_value(json!({ "uuid": "u", "serial": "s" })).unwrap();
        spec.domain.machine = serde_json::from_value(json!({ "type": "q35" })).unwrap();
        old.spec.instancetype = serde_json::from_value(json!({ "name": "small" })).unwrap();
        let mut pool = pool(json!({}));
        let template = pool.spec.virtual_machine_template.spec.as_mut().unwrap();
        template.instancetype = serde_json::from_value(json!({ "inferFromVolume": "root" })).unwrap();
        let new = renewed(&pool, &old, 0, "pool-2");
        assert_eq!(json!(new.spec.instancetype), json!({ "name": "small" }));
        assert_eq!((new.annotations()["theirs"].as_str(), new.labels()[REVISION].as_str()), ("1", "pool-2"));
        let spec = new.spec.template.spec.unwrap();
        assert_eq!(spec.architecture.as_deref(), Some("amd64"));
        assert_eq!(json!(spec.domain.firmware), json!({ "uuid": "u", "serial": "s" }));
        assert_eq!(json!(spec.domain.machine), json!({ "type": "q35" }));
    }
}
