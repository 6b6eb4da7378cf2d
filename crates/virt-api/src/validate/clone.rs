//! Clones: the name of the copy, and what cannot be a clone.

use api::clone::v1beta1::{VirtualMachineClone, VirtualMachineCloneSpec};
use kit::admission::{Cause, Request, Verdict};
use serde_json::{Value, json};

use super::{invalid, unsupported};

const MACHINE: &str = "VirtualMachine";
const SOURCES: [&str; 2] = [MACHINE, "VirtualMachineSnapshot"];
const POLICIES: [&str; 2] = ["RandomizeNames", "PrefixTargetName"];

/// `/vm-clone-mutate-create`: a copy that nobody has named gets a name.
pub fn mutate(request: &Request) -> Verdict {
    let mut wanted = request.object.clone();
    let source = wanted.pointer("/spec/source/name").and_then(Value::as_str).unwrap_or_default();
    // Every request has an identifier of its own.
    let suffix: String = request.uid.chars().filter(char::is_ascii_alphanumeric).take(5).collect();
    let name = json!(format!("clone-{source}-{suffix}").to_ascii_lowercase());
    let Some(spec) = wanted.get_mut("spec").and_then(Value::as_object_mut) else { return Verdict::allow() };
    let target = spec.entry("target").or_insert(Value::Null);
    if target.is_null() {
        *target = json!({ "apiGroup": "kubevirt.io", "kind": MACHINE });
    }
    if target["name"].as_str().unwrap_or_default().is_empty() {
        target["name"] = name;
    }
    Verdict::Patch(json!(json_patch::diff(&request.object, &wanted)))
}

/// `/vm-clone-validate-create`.
pub fn validate(request: &Request) -> Verdict {
    if super::deleting(&request.object) {
        return Verdict::allow();
    }
    match serde_json::from_value::<VirtualMachineClone>(request.object.clone()) {
        Ok(clone) => Verdict::of_causes(spec(&clone.spec)),
        Err(error) => {
            Verdict::Invalid(vec![invalid("spec".to_owned(), format!("the object cannot be decoded: {error}"))])
        }
    }
}

fn spec(spec: &VirtualMachineCloneSpec) -> Vec<Cause> {
    let mut causes = Vec::new();
    let template = spec.template.clone().unwrap_or_default();
    for (field, list) in [
        ("spec.annotations", &spec.annotation_filters),
        ("spec.labels", &spec.label_filters),
        ("spec.template.annotations", &template.annotation_filters),
        ("spec.template.labels", &template.label_filters),
    ] {
        filters(field, list, &mut causes);
    }
    ends(spec, &mut causes);
    for (interface, mac) in spec.new_mac_addresses.iter().filter(|(_, mac)| !mac.is_empty()) {
        if !super::networks::is_mac(mac) {
            let message = format!("interface {interface} has malformed MAC address ({mac}).");
            causes.push(invalid(format!("spec.newMacAddresses.{interface}"), message));
        }
    }
    for (index, patch) in spec.patches.iter().enumerate() {
        if serde_json::from_str::<Value>(patch).is_err() {
            let message = format!("patch is not valid JSON ({patch})");
            causes.push(invalid(format!("spec.patches[{index}]"), message));
        }
    }
    if let Some(policy) = spec.volume_name_policy.as_deref().filter(|policy| !POLICIES.contains(policy)) {
        let message = format!("VolumeNamePolicy {policy:?} is not supported");
        causes.push(unsupported("spec.volumeNamePolicy".to_owned(), message));
    }
    causes
}

/// Source and target.
fn ends(spec: &VirtualMachineCloneSpec, causes: &mut Vec<Cause>) {
    let source = &spec.source;
    if !SOURCES.contains(&source.kind.as_str()) {
        causes.push(invalid("spec.Source.Kind".to_owned(), "Source kind is not supported".to_owned()));
    }
    if spec.target.as_ref().is_some_and(|target| target.kind != MACHINE) {
        causes.push(invalid("spec.Target.Kind".to_owned(), "Target kind is not supported".to_owned()));
    }
    if source.api_group.as_deref().unwrap_or_default().is_empty() {
        causes.push(invalid("spec.Source.APIGroup".to_owned(), "Source's APIGroup cannot be empty".to_owned()));
    }
    if source.name.is_empty() {
        causes.push(invalid("spec.Source.Name".to_owned(), "Source's name cannot be empty".to_owned()));
    }
    let same = |target: &k8s_openapi::api::core::v1::TypedLocalObjectReference| {
        source.kind == MACHINE && target.kind == MACHINE && target.name == source.name && !source.name.is_empty()
    };
    if spec.target.as_ref().is_some_and(same) {
        let message = "Target name cannot be equal to source name when both are VirtualMachines";
        causes.push(invalid("spec.target.name".to_owned(), message.to_owned()));
    }
}

/// A filter begins with `!` or does not, and an asterisk ends it.
fn filters(field: &str, list: &[String], causes: &mut Vec<Cause>) {
    for filter in list {
        if filter == "!" {
            causes.push(invalid(field.to_owned(), "a negation character is not a valid filter".to_owned()));
            continue;
        }
        let mut wrong = |what: &str, word: char, rule: &str| {
            let message = format!(
                "{field} filter {filter} is invalid: cannot contain a {what} character ({word}); FilterRules: {rule}"
            );
            causes.push(invalid(field.to_owned(), message));
        };
        if filter.chars().skip(1).any(|letter| letter == '!') {
            wrong("negation", '!', "NegationChar can be only used at the beginning of the filter");
        }
        let last = filter.chars().count().saturating_sub(1);
        if filter.chars().take(last).any(|letter| letter == '*') {
            wrong("wildcard", '*', "WildcardChar can be only at the end of the filter");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(object: Value) -> Request {
        Request { uid: "AB-12c34".into(), namespace: "ns".into(), object, ..Default::default() }
    }

    #[test]
    fn a_copy_without_a_name_gets_one() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(target: Value, expect: Value) {
            let mut object = json!({ "spec": { "source": { "name": "vm" }, "target": target } });
            let Verdict::Patch(patch) = mutate(&request(object.clone())) else { panic!("no patch") };
            json_patch::patch(&mut object, &serde_json::from_value::<json_patch::Patch>(patch).unwrap()).unwrap();
            assert_eq!(object["spec"]["target"], expect);
        }
        let whole = |name: &str| json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": name });
        check(Value::Null, whole("clone-vm-ab12c"));
        check(whole(""), whole("clone-vm-ab12c"));
        check(whole("twin"), whole("twin"));
    }

    #[test]
    fn invalid_clones_are_refused_by_field() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(more: Value, expect: &[&str]) {
            let mut object = json!({ "spec": {
                "source": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "vm" },
                "target": { "apiGroup": "kubevirt.io", "kind": "VirtualMachine", "name": "twin" },
            } });
            json_patch::merge(&mut object, &json!({ "spec": more }));
            let found = match validate(&request(object)) {
                Verdict::Invalid(causes) => causes.into_iter().map(|c| format!("{}: {}", c.field, c.message)).collect(),
                _ => Vec::new(),
            };
            assert_eq!(found, expect);
        }
        check(json!({ "labelFilters": ["*", "!a/b", "c*"], "volumeNamePolicy": "PrefixTargetName" }), &[]);
        check(
            json!({ "labelFilters": ["!"], "template": { "annotationFilters": ["a!", "*a"] } }),
            &[
                "spec.labels: a negation character is not a valid filter",
                "spec.template.annotations: spec.template.annotations filter a! is invalid: cannot contain a negation \
                 character (!); FilterRules: NegationChar can be only used at the beginning of the filter",
                "spec.template.annotations: spec.template.annotations filter *a is invalid: cannot contain a wildcard \
                 character (*); FilterRules: WildcardChar can be only at the end of the filter",
            ],
        );
        check(
            json!({ "source": { "apiGroup": "", "kind": "Pod", "name": "" }, "target": { "kind": "Pod" } }),
            &[
                "spec.Source.Kind: Source kind is not supported",
                "spec.Target.Kind: Target kind is not supported",
                "spec.Source.APIGroup: Source's APIGroup cannot be empty",
                "spec.Source.Name: Source's name cannot be empty",
            ],
        );
        let same = "spec.target.name: Target name cannot be equal to source name when both are VirtualMachines";
        check(json!({ "target": { "name": "vm" } }), &[same]);
        check(
            json!({ "newMacAddresses": { "a": "02:00" }, "patches": ["{}", "no"], "volumeNamePolicy": "Mine" }),
            &[
                "spec.newMacAddresses.a: interface a has malformed MAC address (02:00).",
                "spec.patches[1]: patch is not valid JSON (no)",
                "spec.volumeNamePolicy: VolumeNamePolicy \"Mine\" is not supported",
            ],
        );
    }
}
