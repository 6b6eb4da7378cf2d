//! The data volumes of a virtual machine: those that its templates ask for, and whether it can be started on those that it
//! names. Pure.
//!
//! | data volume | the machine |
//! |---|---|
//! | Succeeded | is started |
//! | WaitForFirstConsumer, PendingPopulation | is started: its pod is the consumer that is waited for |
//! | Failed | is not started: `DataVolumeError` |
//! | none, though the claim is there | is started: the data volume was cleaned up |
//! | any other | is not started yet: `Provisioning` |

use std::collections::BTreeMap;

use api::cdi::constants::phase as data_phase;
use api::cdi::v1beta1::DataVolume;
use api::kubevirt::constants::label;
use api::kubevirt::hotplug::is_hotplug;
use api::kubevirt::v1::{DataVolumeTemplateSpec, VirtualMachine};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kube::ResourceExt;
use kube::core::ObjectMeta;

/// The data volumes of a machine's namespace that it names and that exist.
pub type DataVolumes = BTreeMap<String, DataVolume>;

/// What its data volumes mean for a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Readiness {
    /// The first that is being filled, or that is still to come.
    pub filling: Option<String>,
    /// The first that failed.
    pub failed: Option<String>,
    /// The first that waits for a pod that uses it.
    pub waiting: Option<String>,
}

impl Readiness {
    /// Nothing keeps the machine from being started.
    pub fn is_ready(&self) -> bool {
        self.filling.is_none() && self.failed.is_none()
    }
}

/// The name of a template's data volume.
fn named(template: &DataVolumeTemplateSpec) -> &str {
    template.metadata.as_ref().and_then(|metadata| metadata.name.as_deref()).unwrap_or_default()
}

/// Names of the data volumes that `vm` is started on or makes.
pub fn names(vm: &VirtualMachine) -> impl Iterator<Item = &str> {
    let templates = vm.spec.data_volume_templates.iter().map(named);
    templates.chain(volumes(vm)).filter(|name| !name.is_empty())
}

/// Names of the data volumes among its volumes. What comes and goes is waited for by who brings it.
fn volumes(vm: &VirtualMachine) -> impl Iterator<Item = &str> {
    let spec = vm.spec.template.spec.as_deref();
    let volumes = spec.map(|spec| spec.volumes.as_slice()).unwrap_or_default();
    volumes
        .iter()
        .filter(|volume| !is_hotplug(volume))
        .filter_map(|volume| Some(volume.data_volume.as_ref()?.name.as_str()))
}

/// The data volumes that are to be made for `vm`. Where there is a claim of the name, one was made, and cleaned up.
pub fn missing(vm: &VirtualMachine, data: &DataVolumes, has_claim: impl Fn(&str) -> bool) -> Vec<DataVolume> {
    let templates = vm.spec.data_volume_templates.iter();
    let absent = templates.filter(|template| !data.contains_key(named(template)) && !has_claim(named(template)));
    absent.map(|template| made(vm, template)).collect()
}

/// The data volume of `template`.
pub fn made(vm: &VirtualMachine, template: &DataVolumeTemplateSpec) -> DataVolume {
    let given = template.metadata.clone().unwrap_or_default();
    let mut labels = given.labels.unwrap_or_default();
    labels.insert(label::CREATED_BY.to_owned(), vm.uid().unwrap_or_default());
    let mut spec = template.spec.clone();
    if spec.priority_class_name.as_deref().unwrap_or_default().is_empty() {
        let machine = vm.spec.template.spec.as_deref();
        spec.priority_class_name = machine.and_then(|spec| spec.priority_class_name.clone());
    }
    DataVolume {
        metadata: ObjectMeta {
            name: given.name,
            namespace: vm.namespace(),
            labels: Some(labels),
            annotations: given.annotations,
            owner_references: Some(vec![OwnerReference {
                api_version: "kubevirt.io/v1".to_owned(),
                kind: "VirtualMachine".to_owned(),
                name: vm.name_any(),
                uid: vm.uid().unwrap_or_default(),
                controller: Some(true),
                block_owner_deletion: Some(true),
            }]),
            ..Default::default()
        },
        spec,
        ..Default::default()
    }
}

/// What `data` means for `vm`.
pub fn readiness(vm: &VirtualMachine, data: &DataVolumes, has_claim: impl Fn(&str) -> bool) -> Readiness {
    let mut out = Readiness::default();
    for name in names(vm) {
        let phase = data.get(name).map(phase_of);
        let place = match phase {
            Some(data_phase::SUCCEEDED) => continue,
            Some(data_phase::FAILED) => &mut out.failed,
            Some(data_phase::WAIT_FOR_FIRST_CONSUMER | data_phase::PENDING_POPULATION) => &mut out.waiting,
            // A claim that nothing fills is waited for by the instance, who says so.
            None if has_claim(name) || !is_template(vm, name) => continue,
            _ => &mut out.filling,
        };
        place.get_or_insert_with(|| name.to_owned());
    }
    out
}

fn is_template(vm: &VirtualMachine, name: &str) -> bool {
    vm.spec.data_volume_templates.iter().any(|template| named(template) == name)
}

/// The phase of a data volume; empty when it has none yet.
pub fn phase_of(data: &DataVolume) -> &str {
    data.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn vm() -> VirtualMachine {
        serde_json::from_value(json!({
            "metadata": { "name": "vm", "namespace": "ns", "uid": "u" },
            "spec": {
                "dataVolumeTemplates": [{
                    "metadata": { "name": "root", "labels": { "a": "b" }, "annotations": { "c": "d" } },
                    "spec": { "source": { "pvc": { "name": "golden", "namespace": "images" } }, "storage": {} },
                }],
                "template": { "spec": { "priorityClassName": "high", "volumes": [
                    { "name": "a", "dataVolume": { "name": "root" } },
                    { "name": "b", "dataVolume": { "name": "other" } },
                    { "name": "c", "dataVolume": { "name": "later", "hotpluggable": true } },
                ] } },
            },
        }))
        .unwrap()
    }

    /// `root=Succeeded other=` are data volumes and their phases.
    #[track_caller]
    fn check(data: &str, claims: &str, expect: (&str, &str, &str)) {
        let volume = |word: &str| {
            let (name, phase) = word.split_once('=').unwrap();
            let made: DataVolume =
                serde_json::from_value(json!({ "metadata": { "name": name }, "status": { "phase": phase } })).unwrap();
            (name.to_owned(), made)
        };
        let data: DataVolumes = data.split_whitespace().map(volume).collect();
        let found = readiness(&vm(), &data, |name| claims.split_whitespace().any(|claim| claim == name));
        let word = |name: &Option<String>| name.clone().unwrap_or_default();
        let found = (word(&found.filling), word(&found.failed), word(&found.waiting));
        assert_eq!((found.0.as_str(), found.1.as_str(), found.2.as_str()), expect);
    }

    #[test]
    fn a_machine_is_started_on_what_is_there() {
        check("root=Succeeded other=Succeeded", "", ("", "", ""));
        check("", "", ("root", "", ""));
        check("root=", "", ("root", "", ""));
        check("root=ImportInProgress other=Failed", "", ("root", "other", ""));
        check("root=WaitForFirstConsumer", "", ("", "", "root"));
        check("root=PendingPopulation other=UploadReady", "", ("other", "", "root"));
        // Cleaned up after it was filled, or never a data volume at all.
        check("", "root other", ("", "", ""));
    }

    #[test]
    fn a_template_becomes_a_data_volume_of_the_machine() {
        let data = DataVolumes::new();
        let made = missing(&vm(), &data, |_| false);
        let found: Value = serde_json::to_value(&made[0].metadata).unwrap();
        let expect = json!({
            "name": "root", "namespace": "ns", "annotations": { "c": "d" },
            "labels": { "a": "b", "kubevirt.io/created-by": "u" },
            "ownerReferences": [{
                "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "u", "controller": true,
                "blockOwnerDeletion": true,
            }],
        });
        assert_eq!(found, expect);
        assert_eq!(made[0].spec.priority_class_name.as_deref(), Some("high"));
        assert!(missing(&vm(), &data, |name| name == "root").is_empty());
        assert!(missing(&vm(), &[("root".to_owned(), made[0].clone())].into(), |_| false).is_empty());
    }
}
