//! Every rule is broken once.

use std::path::Path;

use serde_json::json;

use super::super::{annotations, catalog as made, csv as version, is_of_bundle};
use super::*;

fn manifests() -> Vec<Value> {
    let documents = crate::product::compose(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
    let mut all = vec![version::render(&documents).unwrap()];
    all.extend(documents.iter().filter(|document| is_of_bundle(document, &documents)).map(|one| one.value.clone()));
    all
}

/// The bundle with `change` made to its ClusterServiceVersion is refused with a sentence that holds `expect`.
#[track_caller]
fn check(change: impl Fn(&mut Value), expect: &str) {
    let mut all = manifests();
    change(&mut all[0]);
    refused(&bundle(&all, &json!({ "annotations": annotations() })), expect);
}

#[track_caller]
fn refused(found: &[String], expect: &str) {
    assert!(found.iter().any(|finding| finding.contains(expect)), "{expect}: {found:?}");
}

#[test]
fn the_bundle_is_without_fault() {
    assert_eq!(bundle(&manifests(), &json!({ "annotations": annotations() })), Vec::<String>::new());
}

#[test]
fn faults_of_the_version_are_found() {
    check(|csv| csv["metadata"]["name"] = json!("A"), "is no name");
    check(|csv| csv["metadata"]["name"] = json!("a.v9.9.9"), "does not end with");
    check(|csv| csv["spec"]["version"] = json!("1"), "no semantic version");
    check(|csv| csv["spec"]["replaces"] = json!("A_"), "spec.replaces");
    check(|csv| csv["spec"]["minKubeVersion"] = json!(null), "minKubeVersion");
    check(|csv| csv["apiVersion"] = json!("v1"), "apiVersion");
    check(|csv| csv["spec"]["displayName"] = json!(""), "displayName");
    check(|csv| csv["spec"]["installModes"] = json!([]), "install modes not found");
    check(|csv| csv["spec"]["installModes"][0]["type"] = json!("AllNamespaces"), "duplicate install modes");
    check(|csv| csv["spec"]["installModes"][0]["type"] = json!("Some"), "is unknown");
    check(|csv| csv["spec"]["installModes"][3]["supported"] = json!(false), "none of InstallModeTypes");
    check(|csv| csv["spec"]["provider"] = json!({}), "provider");
    check(|csv| csv["spec"]["maintainers"] = json!([]), "maintainers are missing");
    check(|csv| csv["spec"]["maintainers"][0]["email"] = json!("me"), "which has no name and address");
    check(|csv| csv["spec"]["links"][0]["url"] = json!("here"), "which has no name and URL");
    check(|csv| csv["spec"]["icon"] = json!([]), "not exactly one");
    check(|csv| csv["spec"]["icon"][0]["mediatype"] = json!("text/plain"), "of type");
    check(|csv| csv["spec"]["icon"][0]["base64data"] = json!("?"), "no picture");
    check(|csv| csv["metadata"]["annotations"]["capabilities"] = json!("All"), "capabilities");
    check(|csv| csv["metadata"]["annotations"]["categories"] = json!("Networking, Toys"), "Toys");
    check(|csv| csv["metadata"]["annotations"]["containerimage"] = json!("x"), "should be containerImage");
    check(|csv| csv["metadata"]["annotations"]["alm-examples"] = json!("{"), "is no list");
    check(|csv| csv["metadata"]["annotations"]["alm-examples"] = json!("[]"), "has no example");
    let strange = json!([{ "apiVersion": "v1", "kind": "Pod" }]).to_string();
    check(|csv| csv["metadata"]["annotations"]["alm-examples"] = json!(strange), "must have a provided API");
    check(|csv| csv["spec"]["relatedImages"][0]["image"] = json!("component"), "relatedImages");
    check(|csv| csv["spec"]["install"]["spec"]["deployments"] = json!([]), "deploys nothing");
    let container = "/spec/install/spec/deployments/0/spec/template/spec/containers/0/resources";
    check(|csv| *csv.pointer_mut(container).unwrap() = json!({}), "requests no resources");
    let account = "/spec/install/spec/deployments/0/spec/template/spec/serviceAccountName";
    check(|csv| *csv.pointer_mut(account).unwrap() = json!("nobody"), "nothing is granted");
    check(|csv| csv["spec"]["customresourcedefinitions"]["owned"] = json!([]), "not defined in CSV");
    check(|csv| csv["spec"]["customresourcedefinitions"]["owned"][0]["name"] = json!("a.b"), "not found in bundle");
    check(|csv| csv["kind"] = json!("Deployment"), "there is no ClusterServiceVersion");
}

#[test]
fn faults_of_other_objects_are_found() {
    let with = |object: Value, expect: &str| {
        let mut all = manifests();
        all.push(object);
        refused(&bundle(&all, &json!({ "annotations": annotations() })), expect);
    };
    let named = |kind: &str, name: &str| json!({ "kind": kind, "metadata": { "name": name } });
    with(named("Deployment", "a"), "is not supported");
    with(named("ServiceAccount", "ssp-operator"), "is made by OLM");
    let budget = |spec: Value| json!({ "kind": "PodDisruptionBudget", "metadata": { "name": "b" }, "spec": spec });
    with(budget(json!({ "maxUnavailable": 0 })), "maxUnavailable");
    with(budget(json!({ "minAvailable": "100%" })), "minAvailable");
    with(json!({ "kind": "PriorityClass", "metadata": { "name": "p" }, "globalDefault": true }), "globalDefault");
    let twice = manifests().into_iter().find(|one| one["kind"] == "CustomResourceDefinition").unwrap();
    with(twice, "duplicate CRD");
    with(manifests().remove(0), "more than one");
}

#[test]
fn faults_of_the_metadata_are_found() {
    let without = |name: &str, value: Value, expect: &str| {
        let mut metadata = json!({ "annotations": annotations() });
        metadata["annotations"][format!("operators.operatorframework.io.bundle.{name}")] = value;
        refused(&bundle(&manifests(), &metadata), expect);
    };
    without("package.v1", json!(""), "package.v1 is missing");
    without("mediatype.v1", json!("helm"), "mediatype.v1 is helm");
    without("channel.default.v1", json!("other"), "none of its channels");
}

#[test]
fn faults_of_the_catalog_are_found() {
    let blobs = made::render(&manifests()[0]).unwrap();
    assert_eq!(catalog(&blobs), Vec::<String>::new());
    let with = |change: &dyn Fn(&mut Vec<Value>), expect: &str| {
        let mut changed = blobs.clone();
        change(&mut changed);
        refused(&catalog(&changed), expect);
    };
    with(&|blobs| blobs[1]["schema"] = json!(null), "missing root schema");
    with(&|blobs| drop(blobs.remove(0)), "holds 0 packages");
    with(&|blobs| blobs[0]["name"] = json!(""), "package name");
    with(&|blobs| blobs[0]["defaultChannel"] = json!("x"), "default channel");
    with(&|blobs| blobs[1]["entries"] = json!([]), "no channel head");
    with(&|blobs| blobs[1]["entries"] = json!([{ "name": "a" }, { "name": "b" }]), "multiple channel heads");
    with(&|blobs| blobs[1]["entries"] = json!([{ "name": "a" }]), "is in no channel");
    with(&|blobs| blobs[2]["image"] = json!("bundle"), "is none");
    with(&|blobs| blobs[2]["properties"] = json!([]), "exactly one property");
    with(&|blobs| blobs.push(blobs[2].clone()), "twice");
}
