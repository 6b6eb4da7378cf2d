//! DataVolumes: the claim that is asked for, and where its content comes from.

use api::cdi::constants::annotation;
use api::cdi::v1beta1::{DataVolume, DataVolumeSpec};
use api::unserved::{self, DATA_VOLUME};
use k8s_openapi::api::core::v1::{
    PersistentVolumeClaim, TypedLocalObjectReference, TypedObjectReference, VolumeResourceRequirements,
};
use kit::admission::{Cause, Request, Verdict};
use meta::quantity::Amount;

use super::{NAME, fixed, invalid, length, refuse, source, verdict};

/// What was looked up for a DataVolume that is created.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// A claim of the DataVolume's own name.
    pub target: Option<PersistentVolumeClaim>,
    /// Whether claims that are there may be taken over by a DataVolume that does not say so.
    pub adopt: bool,
    /// The claim that is cloned.
    pub source: Option<PersistentVolumeClaim>,
    /// Size of the snapshot that is cloned.
    pub snapshot: Option<String>,
    /// What is wrong with the DataSource that is referred to.
    pub reference: Option<Cause>,
}

/// Judges what is created or changed.
pub(crate) fn judge(request: &Request, volume: &DataVolume, old: Option<&DataVolume>, seen: &Seen) -> Verdict {
    if let Some(old) = old {
        return verdict(if changed(&volume.spec, &old.spec) { Err(fixed("DataVolume")) } else { Ok(()) });
    }
    let name = volume.metadata.name.as_deref().unwrap_or(&request.name);
    let found = length(name, NAME)
        .and_then(|()| target(volume, name, seen))
        .and_then(|()| spec(&volume.spec, "spec"))
        .and_then(|()| clone(&volume.spec, "spec", seen));
    match found {
        Ok(()) => Verdict::Allow { warnings: ignored(volume) },
        Err(cause) => Verdict::Invalid(vec![cause]),
    }
}

/// What is said and not acted on.
fn ignored(volume: &DataVolume) -> Vec<String> {
    let found = unserved::found(DATA_VOLUME, &serde_json::json!({ "spec": volume.spec }), "");
    found.into_iter().map(|one| one.message).collect()
}

/// The checkpoints of a multistage import arrive one after the other; nothing else of a DataVolume changes.
fn changed(new: &DataVolumeSpec, old: &DataVolumeSpec) -> bool {
    let (mut new, mut old) = (new.clone(), old.clone());
    let multistage = new.source.as_ref().is_some_and(|source| source.vddk.is_some() || source.imageio.is_some());
    if multistage && !new.checkpoints.is_empty() {
        for spec in [&mut new, &mut old] {
            spec.checkpoints.clear();
            spec.final_checkpoint = None;
        }
    }
    new != old
}

fn target(volume: &DataVolume, name: &str, seen: &Seen) -> Result<(), Cause> {
    let Some(claim) = &seen.target else { return Ok(()) };
    let annotations = claim.metadata.annotations.clone().unwrap_or_default();
    let ours = annotations.get(annotation::POPULATED_FOR).is_some_and(|populated| populated == name);
    let owners = claim.metadata.owner_references.iter().flatten();
    let owned = owners.into_iter().any(|owner| owner.controller == Some(true) && owner.kind == "DataVolume");
    let said = volume.metadata.annotations.iter().flatten().find(|(key, _)| *key == annotation::ALLOW_CLAIM_ADOPTION);
    let adopt = said.map_or(seen.adopt, |(_, value)| value == "true");
    if ours || owned || adopt {
        return Ok(());
    }
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    Err(Cause {
        reason: "FieldValueDuplicate",
        field: "DataVolume.Name".to_owned(),
        message: format!("Destination PVC {namespace}/{name} already exists"),
    })
}

/// What is wrong with a specification by itself.
pub(crate) fn spec(spec: &DataVolumeSpec, field: &str) -> Result<(), Cause> {
    let (populated, class) = match (&spec.pvc, &spec.storage) {
        (None, None) => return refuse(format!("{field}.PVC"), "Missing Data volume PVC"),
        (Some(_), Some(_)) => {
            let message = "Duplicate storage definition, both target storage and target pvc defined";
            return refuse(format!("{field}.PVC.Storage"), message);
        }
        (Some(pvc), None) => {
            size(spec, pvc.resources.as_ref(), "PVC", field)?;
            ((&pvc.data_source, &pvc.data_source_ref), &pvc.storage_class_name)
        }
        (None, Some(storage)) => {
            size(spec, storage.resources.as_ref(), "Storage", field)?;
            ((&storage.data_source, &storage.data_source_ref), &storage.storage_class_name)
        }
    };
    length(class.as_deref().unwrap_or_default(), NAME)?;
    access_modes(spec, field)?;
    if let (Some(_), _) | (_, Some(_)) = populated {
        return population(spec, populated.0.as_ref(), populated.1.as_ref(), field);
    }
    let Some(source) = &spec.source else { return reference(spec, field) };
    if spec.source_ref.is_some() {
        return reference(spec, field);
    }
    source::one(source, "Data volume", field)?;
    source::content_type(spec.content_type.as_deref(), field)?;
    source::import(source, spec.content_type.as_deref(), field)?;
    if source.pvc.as_ref().is_some_and(|pvc| pvc.namespace.is_empty() || pvc.name.is_empty()) {
        let field = format!("{field}.source.PVC");
        return refuse(field.clone(), format!("{field} source PVC is not valid"));
    }
    if source.snapshot.as_ref().is_some_and(|snapshot| snapshot.namespace.is_empty() || snapshot.name.is_empty()) {
        let field = format!("{field}.source.Snapshot");
        return refuse(field.clone(), format!("{field} source snapshot is not valid"));
    }
    Ok(())
}

fn reference(spec: &DataVolumeSpec, field: &str) -> Result<(), Cause> {
    let reference = match (&spec.source, &spec.source_ref) {
        (None, Some(reference)) => reference,
        _ => {
            let message = "Data volume should have either Source or SourceRef, or be externally populated";
            return refuse(format!("{field}.source"), message);
        }
    };
    let field = format!("{field}.sourceRef");
    match reference.kind.as_str() {
        "" => refuse(format!("{field}.Kind"), "Missing sourceRef kind"),
        "DataSource" if reference.name.is_empty() => refuse(format!("{field}.Name"), "Missing sourceRef name"),
        "DataSource" => Ok(()),
        kind => {
            let message = format!("Unsupported sourceRef kind {kind}, currently only DataSource is supported");
            refuse(format!("{field}.Kind"), message)
        }
    }
}

fn size(
    spec: &DataVolumeSpec,
    resources: Option<&VolumeResourceRequirements>,
    name: &str,
    field: &str,
) -> Result<(), Cause> {
    let field = format!("{field}.{name}.resources.requests.size");
    let cloned = spec.source_ref.is_some()
        || spec.source.as_ref().is_some_and(|source| source.pvc.is_some() || source.snapshot.is_some());
    match requested(resources) {
        Some(text) => match text.parse::<Amount>() {
            Ok(size) if size.value() > 0 => Ok(()),
            _ => refuse(field, format!("{name} size can't be equal or less than zero")),
        },
        // The size of a clone is that of its source, where the claim may be completed.
        None if name == "Storage" && cloned => Ok(()),
        None => refuse(field, format!("{name} size is missing")),
    }
}

fn requested(resources: Option<&VolumeResourceRequirements>) -> Option<&str> {
    resources?.requests.as_ref()?.get("storage").map(|quantity| quantity.0.as_str())
}

fn access_modes(spec: &DataVolumeSpec, field: &str) -> Result<(), Cause> {
    let field = format!("{field}.PVC.accessModes");
    let modes = match (&spec.pvc, &spec.storage) {
        (Some(pvc), _) => {
            let modes = pvc.access_modes.clone().unwrap_or_default();
            match modes.len() {
                0 => return refuse(field, "Required value: at least 1 access mode is required"),
                1 => modes,
                _ => return refuse(field, "PVC multiple accessModes"),
            }
        }
        (None, Some(storage)) => storage.access_modes.clone(),
        (None, None) => Vec::new(),
    };
    let known = ["ReadOnlyMany", "ReadWriteMany", "ReadWriteOnce", "ReadWriteOncePod"];
    match modes.iter().find(|mode| !known.contains(&mode.as_str())) {
        Some(mode) => {
            let known = known.map(|known| format!("\"{known}\"")).join(", ");
            refuse(field, format!("Unsupported value: \"{mode}\": supported values: {known}"))
        }
        None => Ok(()),
    }
}

/// A claim that somebody else's populator fills.
fn population(
    spec: &DataVolumeSpec,
    source: Option<&TypedLocalObjectReference>,
    reference: Option<&TypedObjectReference>,
    field: &str,
) -> Result<(), Cause> {
    if spec.source.is_some() || spec.source_ref.is_some() {
        return refuse(format!("{field}.source"), "External population is incompatible with Source and SourceRef");
    }
    let group = |group: &Option<String>| group.clone().unwrap_or_default();
    if let (Some(source), Some(reference)) = (source, reference)
        && (group(&source.api_group), &source.kind, &source.name)
            != (group(&reference.api_group), &reference.kind, &reference.name)
    {
        return refuse("", "DataSourceRef and DataSource must match");
    }
    if let Some(source) = source {
        named("DataSource", &source.name, &source.kind, &group(&source.api_group), &format!("{field}.dataSource"))?;
    }
    if let Some(reference) = reference {
        let field = format!("{field}.dataSourceRef");
        if reference.namespace.as_ref().is_some_and(|namespace| !namespace.is_empty()) {
            return refuse(format!("{field}.namespace"), "Invalid value: DataSourceRef namespace not supported");
        }
        named("DataSourceRef", &reference.name, &reference.kind, &group(&reference.api_group), &field)?;
    }
    Ok(())
}

fn named(what: &str, name: &str, kind: &str, group: &str, field: &str) -> Result<(), Cause> {
    if name.is_empty() {
        return refuse(format!("{field}.name"), format!("Required value: {what} name"));
    }
    if kind.is_empty() {
        return refuse(format!("{field}.kind"), format!("Required value: {what} kind"));
    }
    if group.is_empty() && kind != "PersistentVolumeClaim" {
        let message = format!("Required value: {what} apiGroup when kind is not 'PersistentVolumeClaim'");
        return refuse(format!("{field}.apiGroup"), message);
    }
    Ok(())
}

/// What is cloned fits into what is asked for. A source that is not there yet is waited for.
fn clone(spec: &DataVolumeSpec, field: &str, seen: &Seen) -> Result<(), Cause> {
    if let Some(cause) = &seen.reference {
        return Err(cause.clone());
    }
    let part = match &spec.source {
        Some(source) if source.pvc.is_some() => "source.PVC",
        Some(source) if source.snapshot.is_some() => "source.Snapshot",
        None if spec.source_ref.is_some() => "sourceRef",
        _ => return Ok(()),
    };
    let field = format!("{field}.{part}");
    let resources = match (&spec.pvc, &spec.storage) {
        (Some(pvc), _) => pvc.resources.as_ref(),
        (None, Some(storage)) => storage.resources.as_ref(),
        (None, None) => None,
    };
    let wanted = requested(resources).and_then(|text| text.parse::<Amount>().ok());
    let smaller = |held: &str| {
        let held = held.parse::<Amount>().ok();
        held.zip(wanted).is_some_and(|(held, wanted)| wanted.value() < held.value())
    };
    if let Some(claim) = &seen.source {
        let annotations = claim.metadata.annotations.as_ref();
        let content = annotations.and_then(|all| all.get(annotation::CONTENT_TYPE)).map(String::as_str);
        let word = |content: Option<&str>| content.filter(|c| !c.is_empty()).unwrap_or("kubevirt").to_owned();
        let (held, asked) = (word(content), word(spec.content_type.as_deref()));
        if held != asked {
            let message = format!("Source contentType ({held}) and target contentType ({asked}) do not match");
            return Err(invalid(field, message));
        }
        let claimed = claim.spec.as_ref();
        let block = |mode: Option<&String>| mode.is_some_and(|mode| mode == "Block");
        let same = spec.pvc.as_ref().is_none_or(|pvc| {
            block(pvc.volume_mode.as_ref()) == block(claimed.and_then(|claim| claim.volume_mode.as_ref()))
        });
        // Between modes a file system's overhead decides, and it is part of what was asked for in `storage`'s name: only the
        // controller knows it.
        let comparable = spec.pvc.is_some() || block(claimed.and_then(|claim| claim.volume_mode.as_ref()));
        if same && comparable && requested(claimed.and_then(|claim| claim.resources.as_ref())).is_some_and(smaller) {
            return Err(invalid(field, "target resources requests storage size is smaller than the source"));
        }
    }
    if spec.pvc.is_some() && seen.snapshot.as_deref().is_some_and(smaller) {
        return Err(invalid(field, "target resources requests storage size is smaller than the source"));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn volume(spec: &Value) -> DataVolume {
        serde_json::from_value(json!({ "metadata": { "name": "v", "namespace": "ns" }, "spec": spec })).unwrap()
    }

    fn said(verdict: Verdict) -> String {
        match verdict {
            Verdict::Invalid(causes) => format!("{}: {}", causes[0].field, causes[0].message),
            Verdict::Allow { .. } => String::new(),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, expect: &str) {
        assert_eq!(said(judge(&Request::default(), &volume(&spec), None, &Seen::default())), expect);
    }

    fn pvc(fields: &Value) -> Value {
        let mut pvc = json!({ "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Gi" } } });
        json_patch::merge(&mut pvc, fields);
        json!({ "pvc": pvc, "source": { "blank": {} } })
    }

    #[test]
    fn claims() {
        check(pvc(&json!({})), "");
        check(json!({ "source": { "blank": {} } }), "spec.PVC: Missing Data volume PVC");
        let mut both = pvc(&json!({}));
        both["storage"] = json!({});
        let message = "spec.PVC.Storage: Duplicate storage definition, both target storage and target pvc defined";
        check(both, message);
        let missing = "spec.PVC.resources.requests.size: PVC size is missing";
        check(pvc(&json!({ "resources": { "requests": null } })), missing);
        let zero = "spec.PVC.resources.requests.size: PVC size can't be equal or less than zero";
        check(pvc(&json!({ "resources": { "requests": { "storage": "0" } } })), zero);
        check(pvc(&json!({ "resources": { "requests": { "storage": "-1Gi" } } })), zero);
        let none = "spec.PVC.accessModes: Required value: at least 1 access mode is required";
        check(pvc(&json!({ "accessModes": [] })), none);
        let many = "spec.PVC.accessModes: PVC multiple accessModes";
        check(pvc(&json!({ "accessModes": ["ReadWriteOnce", "ReadWriteMany"] })), many);
        let unknown = "spec.PVC.accessModes: Unsupported value: \"X\": supported values: \"ReadOnlyMany\", \
                       \"ReadWriteMany\", \"ReadWriteOnce\", \"ReadWriteOncePod\"";
        check(pvc(&json!({ "accessModes": ["X"] })), unknown);
        check(json!({ "storage": {}, "source": { "pvc": { "namespace": "n", "name": "s" } } }), "");
        let size = "spec.Storage.resources.requests.size: Storage size is missing";
        check(json!({ "storage": {}, "source": { "upload": {} } }), size);
    }

    #[test]
    fn references() {
        let storage = json!({ "resources": { "requests": { "storage": "1Gi" } } });
        let of = |more: Value| {
            let mut spec = json!({ "storage": storage });
            json_patch::merge(&mut spec, &more);
            spec
        };
        let either = "spec.source: Data volume should have either Source or SourceRef, or be externally populated";
        check(of(json!({})), either);
        check(of(json!({ "source": { "blank": {} }, "sourceRef": { "kind": "DataSource", "name": "d" } })), either);
        check(of(json!({ "sourceRef": { "kind": "", "name": "d" } })), "spec.sourceRef.Kind: Missing sourceRef kind");
        let unsupported = "spec.sourceRef.Kind: Unsupported sourceRef kind X, currently only DataSource is supported";
        check(of(json!({ "sourceRef": { "kind": "X", "name": "d" } })), unsupported);
        let name = "spec.sourceRef.Name: Missing sourceRef name";
        check(of(json!({ "sourceRef": { "kind": "DataSource", "name": "" } })), name);
        let populated = json!({ "storage": { "dataSourceRef": { "apiGroup": "g", "kind": "K", "name": "n" } } });
        check(of(populated.clone()), "");
        let mut both = populated;
        both["source"] = json!({ "blank": {} });
        check(of(both), "spec.source: External population is incompatible with Source and SourceRef");
        let group = "spec.dataSource.apiGroup: Required value: DataSource apiGroup when kind is not \
                     'PersistentVolumeClaim'";
        check(of(json!({ "storage": { "dataSource": { "kind": "K", "name": "n" } } })), group);
        let invalid = "spec.source.PVC: spec.source.PVC source PVC is not valid";
        check(of(json!({ "source": { "pvc": { "namespace": "", "name": "s" } } })), invalid);
    }

    #[test]
    fn a_claim_of_the_same_name_is_taken_over_only_when_that_is_wanted() {
        let claim = |annotations: Value| {
            let metadata = json!({ "name": "v", "namespace": "ns", "annotations": annotations });
            Some(serde_json::from_value(json!({ "metadata": metadata })).unwrap())
        };
        let check = |annotations: Value, own: Value, adopt: bool, expect: &str| {
            let seen = Seen { target: claim(annotations), adopt, ..Seen::default() };
            let mut volume = volume(&pvc(&json!({})));
            volume.metadata.annotations = serde_json::from_value(own).unwrap();
            assert_eq!(said(judge(&Request::default(), &volume, None, &seen)), expect);
        };
        let taken = "DataVolume.Name: Destination PVC ns/v already exists";
        check(json!({}), json!({}), false, taken);
        check(json!({}), json!({}), true, "");
        check(json!({}), json!({ "cdi.kubevirt.io/allowClaimAdoption": "true" }), false, "");
        check(json!({}), json!({ "cdi.kubevirt.io/allowClaimAdoption": "false" }), true, taken);
        check(json!({ "cdi.kubevirt.io/storage.populatedFor": "v" }), json!({}), false, "");
    }

    #[test]
    fn a_clone_is_no_smaller_than_its_source() {
        let source = |mode: &str| {
            let spec = json!({ "volumeMode": mode, "resources": { "requests": { "storage": "2Gi" } } });
            Some(serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap())
        };
        let mut spec = pvc(&json!({ "volumeMode": "Filesystem" }));
        spec["source"] = json!({ "pvc": { "namespace": "ns", "name": "s" } });
        let check = |seen: Seen, expect: &str| {
            assert_eq!(said(judge(&Request::default(), &volume(&spec), None, &seen)), expect);
        };
        let small = "spec.source.PVC: target resources requests storage size is smaller than the source";
        check(Seen { source: source("Filesystem"), ..Seen::default() }, small);
        check(Seen { source: source("Block"), ..Seen::default() }, "");
        check(Seen { snapshot: Some("1Gi".into()), ..Seen::default() }, "");
        check(Seen { snapshot: Some("3Gi".into()), ..Seen::default() }, small);
        // What is asked for in `storage` gets the overhead of its file system in addition, as the source did.
        let mut spec = json!({ "storage": { "resources": { "requests": { "storage": "1Gi" } } } });
        spec["source"] = json!({ "pvc": { "namespace": "ns", "name": "s" } });
        let check = |seen: Seen, expect: &str| {
            assert_eq!(said(judge(&Request::default(), &volume(&spec), None, &seen)), expect);
        };
        check(Seen { source: source("Filesystem"), ..Seen::default() }, "");
        check(Seen { source: source("Block"), ..Seen::default() }, small);
        check(Seen { snapshot: Some("3Gi".into()), ..Seen::default() }, "");
    }

    #[test]
    fn nothing_changes_but_checkpoints() {
        let check = |new: Value, old: Value, expect: &str| {
            assert_eq!(said(judge(&Request::default(), &volume(&new), Some(&volume(&old)), &Seen::default())), expect);
        };
        let fixed = "DataVolume.Spec: Cannot update DataVolume Spec";
        check(pvc(&json!({})), pvc(&json!({})), "");
        check(pvc(&json!({ "volumeMode": "Block" })), pvc(&json!({})), fixed);
        let mut first = pvc(&json!({}));
        first["source"] = json!({ "vddk": { "uuid": "1" } });
        first["checkpoints"] = json!([{ "current": "a", "previous": "" }]);
        let mut second = first.clone();
        second["checkpoints"] = json!([{ "current": "a", "previous": "" }, { "current": "b", "previous": "a" }]);
        check(second, first, "");
    }
}
