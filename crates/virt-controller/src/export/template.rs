//! A template of machines as a source: the claims that its machines are made of, and the template as it is to be made elsewhere. Pure.
//!
//! Names in a template may have parameters in them. Those with a value are put in; a name with one that has none is nothing that is
//! here, and is left as it is.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

use super::source::{Seen, Source, Volume, reason};

/// Says what was applied last, which elsewhere nothing was.
pub(super) const APPLIED: &str = "kubectl.kubernetes.io/last-applied-configuration";

const TEMPLATES: &str = "/spec/virtualMachine/spec/dataVolumeTemplates";
const VOLUMES: &str = "/spec/virtualMachine/spec/template/spec/volumes";

/// Whether its controller has found it good.
pub fn is_ready(template: &Value) -> bool {
    let conditions = template.pointer("/status/conditions").and_then(Value::as_array).into_iter().flatten();
    conditions.into_iter().any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// `text` with the parameters' values; none when one has no value.
fn resolved(template: &Value, text: &str) -> Option<String> {
    let parameters = template.pointer("/spec/parameters").and_then(Value::as_array).into_iter().flatten();
    let said =
        parameters.filter_map(|one| Some((one["name"].as_str()?, one["value"].as_str().filter(|v| !v.is_empty())?)));
    let text = said.fold(text.to_owned(), |text, (name, value)| text.replace(&format!("${{{name}}}"), value));
    (!text.contains("${")).then_some(text)
}

/// The claim that a data volume's template copies, when it is in `namespace`.
fn copied(template: &Value, one: &Value, namespace: &str) -> Option<String> {
    let claim = one.pointer("/spec/source/pvc")?;
    let of = claim["namespace"].as_str().unwrap_or_default();
    if !of.is_empty() && of != namespace {
        return None;
    }
    resolved(template, claim["name"].as_str().filter(|name| !name.is_empty())?)
}

fn list<'a>(template: &'a Value, pointer: &str) -> impl Iterator<Item = &'a Value> {
    template.pointer(pointer).and_then(Value::as_array).into_iter().flatten()
}

/// Names of data volumes that each machine has of its own.
fn own(template: &Value) -> BTreeSet<&str> {
    list(template, TEMPLATES).filter_map(|one| one.pointer("/metadata/name")?.as_str()).collect()
}

/// The claims of `namespace` that machines of the template are made of.
pub fn claims(template: &Value, namespace: &str) -> Vec<String> {
    let own = own(template);
    let copied = list(template, TEMPLATES).filter_map(|one| copied(template, one, namespace));
    let named = list(template, VOLUMES).filter_map(|volume| {
        let claim = volume.pointer("/persistentVolumeClaim/claimName").or_else(|| volume.pointer("/dataVolume/name"));
        let name = claim?.as_str().filter(|name| !own.contains(name))?;
        resolved(template, name)
    });
    let mut seen = BTreeSet::new();
    copied.chain(named).filter(|claim| seen.insert(claim.clone())).collect()
}

/// What is known of the source: `seen` holds, for each of its [`claims`], what is known of it.
pub fn source((namespace, name): (&str, &str), template: Option<Value>, seen: Vec<Option<Seen>>) -> Source {
    let base = Source { reason: reason::INITIALIZING, ..Source::default() };
    let said = |words: &str| format!("VirtualMachineTemplate {namespace}/{name} {words}");
    let Some(template) = template else {
        return Source {
            reason: reason::TEMPLATE_NOT_FOUND,
            message: said("not found"),
            skipped: true,
            look_again: true,
            ..base
        };
    };
    if !is_ready(&template) {
        let message = said("is not ready");
        return Source { reason: reason::TEMPLATE_NOT_READY, message, skipped: true, look_again: true, ..base };
    }
    if seen.is_empty() {
        return Source {
            reason: reason::NO_VOLUMES,
            message: said("has no volumes"),
            free: true,
            skipped: true,
            ..base
        };
    }
    let filled = seen.iter().all(|seen| seen.as_ref().is_some_and(|seen| seen.filled));
    let volumes = seen.into_iter().flatten().map(Volume::from).collect();
    let base = Source { volumes, template: Some(template), ..base };
    if !filled {
        let message = format!("Not all volumes in VirtualMachineTemplate {namespace}/{name} are populated");
        return Source { reason: reason::NOT_POPULATED, message, look_again: true, ..base };
    }
    Source { free: true, ..base }
}

/// The template without what was true of it here alone: its machines are made of claims beside it.
pub fn elsewhere(template: &Value, namespace: &str) -> Value {
    let mut metadata = Map::new();
    for field in ["name", "labels", "annotations"] {
        metadata.extend(template["metadata"].get(field).map(|value| (field.to_owned(), value.clone())));
    }
    if let Some(annotations) = metadata.get_mut("annotations").and_then(Value::as_object_mut) {
        annotations.remove(APPLIED);
    }
    let own: BTreeSet<String> = own(template).into_iter().map(str::to_owned).collect();
    let mut out = json!({ "metadata": metadata, "spec": template["spec"] });
    for one in out.pointer_mut(TEMPLATES).and_then(Value::as_array_mut).into_iter().flatten() {
        let Some(claim) = copied(template, one, namespace) else { continue };
        one["spec"]["source"] = json!({ "pvc": { "name": claim } });
        if let Some(spec) = one["spec"].as_object_mut() {
            spec.remove("sourceRef");
        }
    }
    for volume in out.pointer_mut(VOLUMES).and_then(Value::as_array_mut).into_iter().flatten() {
        let name = volume.pointer("/dataVolume/name").and_then(Value::as_str).filter(|name| !own.contains(*name));
        if let Some(claim) = name.and_then(|name| resolved(template, name)) {
            *volume = json!({ "name": volume["name"], "persistentVolumeClaim": { "claimName": claim } });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    fn template() -> Value {
        json!({
            "metadata": {
                "name": "t", "namespace": "ns", "uid": "u", "labels": { "a": "b" },
                "annotations": { "kept": "yes", (APPLIED): "{}" },
            },
            "spec": {
                "parameters": [
                    { "name": "NAME" }, { "name": "IMAGE", "value": "golden" }, { "name": "EMPTY", "value": "" },
                ],
                "virtualMachine": { "metadata": { "name": "${NAME}" }, "spec": {
                    "dataVolumeTemplates": [
                        { "metadata": { "name": "${NAME}-root" }, "spec": { "source": { "pvc": { "name": "${IMAGE}", "namespace": "ns" } } } },
                        { "metadata": { "name": "${NAME}-far" }, "spec": { "source": { "pvc": { "name": "x", "namespace": "far" } } } },
                        { "metadata": { "name": "${NAME}-web" }, "spec": { "source": { "http": { "url": "http://x" } } } },
                        { "metadata": { "name": "${NAME}-odd" }, "spec": { "source": { "pvc": { "name": "${EMPTY}" } } } },
                    ],
                    "template": { "spec": { "volumes": [
                        { "name": "root", "dataVolume": { "name": "${NAME}-root" } },
                        { "name": "tools", "dataVolume": { "name": "${IMAGE}-tools" } },
                        { "name": "data", "persistentVolumeClaim": { "claimName": "data" } },
                        { "name": "own", "persistentVolumeClaim": { "claimName": "${NAME}-data" } },
                        { "name": "seed", "cloudInitNoCloud": { "userData": "" } },
                    ] } },
                } },
            },
            "status": { "conditions": [{ "type": "Ready", "status": "True" }] },
        })
    }

    #[test]
    fn claims_are_what_is_here_and_named() {
        assert_eq!(claims(&template(), "ns"), ["golden", "golden-tools", "data"]);
        assert_eq!(claims(&template(), "far"), ["x", "golden-tools", "data"]);
        assert!(claims(&json!({ "spec": {} }), "ns").is_empty());
    }

    #[test]
    fn machines_are_made_of_claims_beside_the_template() {
        let found = elsewhere(&template(), "ns");
        let metadata = json!({ "name": "t", "labels": { "a": "b" }, "annotations": { "kept": "yes" } });
        assert_eq!((&found["metadata"], found.get("status")), (&metadata, None));
        let source = |n: usize| found.pointer(TEMPLATES).unwrap()[n]["spec"]["source"].clone();
        assert_eq!(source(0), json!({ "pvc": { "name": "golden" } }));
        for kept in 1..4 {
            assert_eq!(source(kept), template().pointer(TEMPLATES).unwrap()[kept]["spec"]["source"]);
        }
        let volumes = found.pointer(VOLUMES).unwrap();
        assert_eq!(volumes[0], json!({ "name": "root", "dataVolume": { "name": "${NAME}-root" } }));
        assert_eq!(volumes[1], json!({ "name": "tools", "persistentVolumeClaim": { "claimName": "golden-tools" } }));
        assert_eq!(volumes[3]["persistentVolumeClaim"]["claimName"], "${NAME}-data");
    }

    #[test]
    fn a_template_is_waited_for_until_it_is_good_and_its_volumes_are_filled() {
        let claim = json!({ "metadata": { "name": "data" }, "status": { "phase": "Bound" } });
        let seen = |filled| Some(Seen { claim: serde_json::from_value(claim.clone()).unwrap(), filled, disk: true });
        #[track_caller]
        fn check(template: Option<Value>, seen: Vec<Option<Seen>>, served: bool, reason: &str, message: &str) {
            let source = source(("ns", "t"), template, seen);
            assert_eq!((source.is_served(), source.reason, source.message.as_str()), (served, reason, message));
        }
        check(None, vec![], false, "VMTemplateNotFound", "VirtualMachineTemplate ns/t not found");
        let unready = json!({ "spec": {} });
        check(Some(unready), vec![], false, "VMTemplateNotReady", "VirtualMachineTemplate ns/t is not ready");
        check(Some(template()), vec![], false, "VMNoVolumes", "VirtualMachineTemplate ns/t has no volumes");
        let unfilled = "Not all volumes in VirtualMachineTemplate ns/t are populated";
        check(Some(template()), vec![seen(true), None], false, "VolumesNotPopulated", unfilled);
        check(Some(template()), vec![seen(false)], false, "VolumesNotPopulated", unfilled);
        check(Some(template()), vec![seen(true)], true, "Initializing", "");
    }
}
