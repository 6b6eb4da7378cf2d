//! Templates of data volumes: each has a name, one size, and one way to get its contents, and is used by a volume.

use api::cdi::v1beta1::{DataVolumeSource, DataVolumeSpec};
use api::kubevirt::v1::VirtualMachine;
use kit::admission::Cause;
use serde_json::Value;

use super::{duplicate, invalid, required};

pub(super) fn check(vm: &VirtualMachine, causes: &mut Vec<Cause>) {
    let spec = vm.spec.template.spec.as_deref();
    let volumes = spec.map(|spec| spec.volumes.as_slice()).unwrap_or_default();
    let used = |name: &str| volumes.iter().any(|volume| volume.own_claim() == Some(name));
    let own = vm.metadata.namespace.as_deref().unwrap_or_default();
    let mut seen: Vec<&str> = Vec::new();
    for (index, template) in vm.spec.data_volume_templates.iter().enumerate() {
        let field = format!("spec.dataVolumeTemplates[{index}]");
        let metadata = template.metadata.as_ref();
        let name = metadata.and_then(|metadata| metadata.name.as_deref()).unwrap_or_default();
        if name.is_empty() {
            causes.push(required(
                format!("{field}.name"),
                "'name' field must not be empty for DataVolumeTemplate entry in 'spec.dataVolumeTemplates'".to_owned(),
            ));
            continue;
        }
        if seen.contains(&name) {
            causes.push(duplicate(
                format!("{field}.name"),
                format!("{field}.name: two templates are called {name:?}: choose another name for one of them"),
            ));
        }
        seen.push(name);
        let elsewhere = metadata.and_then(|metadata| metadata.namespace.as_deref());
        if let Some(elsewhere) = elsewhere.filter(|named| !named.is_empty() && !own.is_empty() && *named != own) {
            let message = format!("Embedded DataVolume namespace {elsewhere} differs from VM namespace {own}");
            causes.push(invalid(field.clone(), message));
        }
        causes.extend(contents(&template.spec).into_iter().map(|message| invalid(field.clone(), message.to_owned())));
        if !used(name) {
            causes.push(required(
                format!("spec.dataVolumeTemplates[{index}]"),
                format!("DataVolumeTemplate entry {name} must be referenced in the VMI template's 'volumes' list"),
            ));
        }
    }
}

/// What is wrong with how a data volume gets its contents and its size.
fn contents(spec: &DataVolumeSpec) -> Vec<&'static str> {
    let mut wrong = Vec::new();
    let (claim, storage) = (spec.pvc.as_ref(), spec.storage.as_ref());
    let of_claim = claim.is_some_and(|claim| claim.data_source.is_some() || claim.data_source_ref.is_some());
    let of_storage = storage.is_some_and(|storage| storage.data_source.is_some() || storage.data_source_ref.is_some());
    match (spec.source.as_ref(), spec.source_ref.is_some(), of_claim || of_storage) {
        (Some(_), _, true) | (_, true, true) => {
            wrong.push("External population is incompatible with Source and SourceRef");
        }
        (Some(_), true, false) => {
            wrong.push("DataVolumeTemplate should have either Source or SourceRef, not both");
        }
        (Some(source), false, false) => wrong.extend(sources(source)),
        (None, false, false) => {
            wrong.push("Data volume should have either Source, SourceRef, or be externally populated");
        }
        (None, ..) => {}
    }
    match (claim.is_some(), storage.is_some()) {
        (true, true) => wrong.push("Duplicate storage definition, both target storage and target pvc defined"),
        (false, false) => wrong.push("Missing Data volume PVC or Storage"),
        _ => {}
    }
    wrong
}

/// There is one source.
fn sources(source: &DataVolumeSource) -> Option<&'static str> {
    let all = serde_json::to_value(source).unwrap_or_default();
    match all.as_object().map_or(0, |all| all.values().filter(|one| **one != Value::Null).count()) {
        0 => Some("Missing dataVolume valid source"),
        1 => None,
        _ => Some("Multiple dataVolume sources"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn there_is_one_size_and_one_way_to_get_the_contents() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(more: Value, expect: &[&str]) {
            let mut spec = json!({ "storage": {} });
            json_patch::merge(&mut spec, &more);
            assert_eq!(contents(&serde_json::from_value(spec).unwrap()), expect);
        }
        let blank = || json!({ "blank": {} });
        let populator = || json!({ "apiGroup": "x", "kind": "Filler", "name": "f" });
        check(json!({ "source": blank() }), &[]);
        check(json!({ "sourceRef": { "kind": "DataSource", "name": "a" } }), &[]);
        check(json!({ "storage": { "dataSourceRef": populator() } }), &[]);
        check(json!({ "storage": null, "pvc": { "dataSource": populator() } }), &[]);
        let both = "External population is incompatible with Source and SourceRef";
        check(json!({ "source": blank(), "storage": { "dataSourceRef": populator() } }), &[both]);
        check(json!({ "source": {} }), &["Missing dataVolume valid source"]);
        check(json!({ "source": { "blank": {}, "upload": {} } }), &["Multiple dataVolume sources"]);
        check(json!({}), &["Data volume should have either Source, SourceRef, or be externally populated"]);
        let twice = "Duplicate storage definition, both target storage and target pvc defined";
        check(json!({ "source": blank(), "pvc": {} }), &[twice]);
        check(json!({ "source": blank(), "storage": null }), &["Missing Data volume PVC or Storage"]);
    }
}
