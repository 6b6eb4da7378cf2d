//! The pod a guest is moved into: the pod it would be started in today, on another node. Pure.

use std::collections::BTreeMap;

use api::kubevirt::constants::{annotation, label};
use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use k8s_openapi::api::core::v1::{Pod, PodAffinityTerm};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kube::ResourceExt;

use super::same_images;
use crate::error::RenderError;
use crate::facts::claims::Claims;
use crate::settings::Settings;
use crate::vmi::pod;

/// The target pod of `migration`. Its node must have the labels `required` (what the guest's processor needs) beside
/// those the migration asks for; where those contradict what the guest asks for, the guest's hold. Its disks lie on the
/// images that `source` runs, the pod that has the guest.
///
/// # Errors
/// When a part of the VMI does not fit into a pod.
pub fn render(
    migration: &Migration,
    (vmi, source): (&VirtualMachineInstance, Option<&Pod>),
    claims: &Claims,
    settings: &Settings,
    emulation: bool,
    required: &BTreeMap<String, String>,
) -> Result<Pod, RenderError> {
    let mut target = pod::render(vmi, claims, settings, emulation)?;
    let uid = migration.uid().unwrap_or_default();
    target.metadata.name = Some(pod::name_of(&vmi.name_any(), &uid));
    target.labels_mut().insert(label::MIGRATION_JOB.to_owned(), uid);
    target.annotations_mut().insert(annotation::MIGRATION_JOB_NAME.to_owned(), migration.name_any());
    if let Some(source) = source {
        same_images::pin(&mut target, source);
    }
    let spec = target.spec.get_or_insert_default();
    let selector = spec.node_selector.get_or_insert_default();
    for (key, value) in &migration.spec.added_node_selector {
        selector.entry(key.clone()).or_insert_with(|| value.clone());
    }
    selector.extend(required.clone());
    let elsewhere = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some([(label::CREATED_BY.to_owned(), vmi.uid().unwrap_or_default())].into()),
            match_expressions: None,
        }),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..Default::default()
    };
    let apart = spec.affinity.get_or_insert_default().pod_anti_affinity.get_or_insert_default();
    apart.required_during_scheduling_ignored_during_execution.get_or_insert_default().push(elsewhere);
    Ok(target)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_same_pod_elsewhere() {
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "metadata": { "name": "vm", "namespace": "ns", "uid": "guest", "labels": {
                "app": "x", "kubevirt.io/nodeName": "n1", "kubevirt.io/migrationTargetNodeName": "n9",
            } },
            "spec": {
                "domain": { "devices": {} }, "priorityClassName": "high", "nodeSelector": { "zone": "a" },
                "affinity": { "podAntiAffinity": { "requiredDuringSchedulingIgnoredDuringExecution": [
                    { "topologyKey": "rack" },
                ] } },
            },
        }))
        .unwrap();
        let migration: Migration = serde_json::from_value(json!({
            "metadata": { "name": "move", "uid": "job" },
            "spec": { "vmiName": "vm", "addedNodeSelector": { "kubernetes.io/hostname": "n2", "zone": "b" } },
        }))
        .unwrap();
        let settings = Settings::of(None, "launcher");
        let required = [("cpu".to_owned(), "good".to_owned())].into();
        let claims = Claims::new();
        let source = pod::render(&vmi, &claims, &settings, true).unwrap();
        let target = render(&migration, (&vmi, None), &claims, &settings, true, &required).unwrap();
        assert_ne!(target.metadata.name, source.metadata.name);
        assert_eq!(
            (&target.labels()["kubevirt.io/migrationJobUID"], &target.labels()["app"]),
            (&"job".into(), &"x".into())
        );
        assert!(!target.labels().contains_key("kubevirt.io/migrationTargetNodeName"));
        assert_eq!(target.annotations()["kubevirt.io/migrationJobName"], "move");
        let spec = target.spec.unwrap();
        let selector = spec.node_selector.unwrap();
        let found = ["kubernetes.io/hostname", "zone", "cpu"].map(|key| selector[key].as_str());
        assert_eq!(found, ["n2", "a", "good"]);
        assert_eq!(spec.priority_class_name.as_deref(), Some("high"));
        let terms =
            spec.affinity.unwrap().pod_anti_affinity.unwrap().required_during_scheduling_ignored_during_execution;
        let terms: Vec<_> = terms.unwrap().into_iter().map(|term| term.topology_key).collect();
        assert_eq!(terms, ["rack", "kubernetes.io/hostname"]);
        assert_eq!(spec.containers, source.spec.unwrap().containers);
    }
}
