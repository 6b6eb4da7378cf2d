//! Steps from what is there to what is wanted of boot sources.

use crate::object::Spec;

use super::*;

fn architectures(several: bool, all: &[Architecture]) -> Architectures {
    Architectures { several, all: all.to_vec() }
}

fn one() -> Architectures {
    architectures(false, &[Architecture::Amd64])
}

fn templates(crons: Value) -> CommonTemplates {
    let spec = json!({ "commonTemplates": { "namespace": "ns", "dataImportCronTemplates": crons } });
    serde_json::from_value::<Spec>(spec).unwrap().common_templates
}

fn cron(name: &str, source: &str) -> Value {
    json!({
        "metadata": { "name": name, "annotations": { "mine": "kept" } },
        "spec": {
            "managedDataSource": source, "schedule": "0 0 * * *",
            "template": { "spec": { "source": { "registry": { "url": "docker://r/x" } } } },
        },
    })
}

/// DataSources as they are seen, of manifests.
fn read<T: serde::de::DeserializeOwned>(manifests: &[Value]) -> Vec<T> {
    manifests.iter().map(|manifest| serde_json::from_value(manifest.clone()).unwrap()).collect()
}

/// What is done for `wanted` when `sources` and `crons` are there, and `claims`; only about what is named `name`.
fn steps(wanted: &Wanted, name: &str, sources: &[Value], crons: &[Value], claims: &[&str]) -> Vec<Step> {
    let claims = claims.iter().map(|claim| (*claim).to_owned()).collect();
    let seen = Seen { sources: &read(sources), crons: &read(crons), claims: &claims };
    let about = |step: &Step| {
        let (Step::Create(object) | Step::Merge(object, _) | Step::Delete(object)) = step;
        text(object, "/metadata/name").starts_with(name)
    };
    plan(wanted, &seen, &BTreeMap::new()).into_iter().filter(about).collect()
}

fn made(steps: &[Step]) -> Vec<Value> {
    let made = steps.iter().map(|step| match step {
        Step::Create(object) => object.clone(),
        other => panic!("{other:?}"),
    });
    made.collect()
}

#[test]
fn each_source_of_templates_leads_to_the_claim_of_its_name() {
    let wanted = wanted(&templates(json!([])), &one(), &BTreeMap::new());
    assert_eq!(wanted.boots.len(), 14);
    let made = made(&steps(&wanted, "rhel9", &[], &[], &[]));
    assert_eq!(made[0]["spec"], json!({ "source": { "pvc": { "name": "rhel9", "namespace": "kubevirt-os-images" } } }));
    assert_eq!(
        made[0]["metadata"]["labels"],
        json!({
            "app.kubernetes.io/name": "data-sources", "app.kubernetes.io/component": "templating",
            "app.kubernetes.io/managed-by": "ssp-operator",
        })
    );
    assert_eq!(steps(&wanted, "rhel9", &made, &[], &["rhel9"]), []);
}

#[test]
fn a_cron_keeps_a_source_unless_somebody_uploaded_it() {
    let wanted = wanted(&templates(json!([cron("fedora-cron", "fedora")])), &one(), &BTreeMap::new());
    // Nothing is there: the source is the cron's.
    let first = made(&steps(&wanted, "fedora", &[], &[], &[]));
    assert_eq!(first[0]["metadata"]["labels"][DATA_IMPORT_CRON], "fedora-cron");
    assert_eq!(
        (&first[1]["kind"], &first[1]["metadata"]["annotations"]["mine"]),
        (&json!("DataImportCron"), &json!("kept"))
    );

    // CDI leads it elsewhere, and nobody leads it back.
    let mut imported = first[0].clone();
    imported["spec"]["source"] = json!({ "snapshot": { "name": "fedora-1234", "namespace": "kubevirt-os-images" } });
    assert_eq!(steps(&wanted, "fedora", &[imported.clone()], &first[1..], &["fedora"]), []);

    // The label is taken off, and no claim of the name is there: it comes back.
    imported["metadata"]["labels"].as_object_mut().unwrap().remove(DATA_IMPORT_CRON);
    let label = json!({ "metadata": { "labels": { (DATA_IMPORT_CRON): "fedora-cron" } } });
    let source = place("DataSource", IMAGES, "fedora");
    assert_eq!(steps(&wanted, "fedora", &[imported.clone()], &first[1..], &[]), [Step::Merge(source.clone(), label)]);

    // The same, and somebody uploaded the claim: the source is theirs, and the cron goes.
    let own = json!({ "spec": { "source": {
        "snapshot": null, "pvc": { "name": "fedora", "namespace": "kubevirt-os-images" },
    } } });
    let cron = place("DataImportCron", IMAGES, "fedora-cron");
    let expect = [Step::Merge(source, own), Step::Delete(cron)];
    assert_eq!(steps(&wanted, "fedora", &[imported], &first[1..], &["fedora"]), expect);

    // And from the start.
    let uploaded = made(&steps(&wanted, "fedora", &[], &[], &["fedora"]));
    assert_eq!((uploaded.len(), &uploaded[0]["metadata"]["labels"][DATA_IMPORT_CRON]), (1, &Value::Null));
}

#[test]
fn without_its_cron_a_source_leads_to_its_claim_again() {
    let with = wanted(&templates(json!([cron("fedora-cron", "fedora")])), &one(), &BTreeMap::new());
    let first = made(&steps(&with, "fedora", &[], &[], &[]));
    let without = wanted(&templates(json!([])), &one(), &BTreeMap::new());
    let off = json!({ "metadata": { "labels": { (DATA_IMPORT_CRON): null } } });
    let expect = [
        Step::Merge(place("DataSource", IMAGES, "fedora"), off),
        Step::Delete(place("DataImportCron", IMAGES, "fedora-cron")),
    ];
    assert_eq!(steps(&without, "fedora", &first[..1], &first[1..], &[]), expect);
}

#[test]
fn a_cron_of_another_spec_is_made_anew() {
    let wanted = |cron: Value| wanted(&templates(json!([cron])), &one(), &BTreeMap::new());
    let before = wanted(cron("fedora-cron", "fedora"));
    let first = made(&steps(&before, "fedora", &[], &[], &[]));
    let mut changed = cron("fedora-cron", "fedora");
    changed["spec"]["schedule"] = json!("1 1 * * *");
    let goes = Step::Delete(place("DataImportCron", IMAGES, "fedora-cron"));
    assert_eq!(steps(&wanted(changed), "fedora-cron", &first[..1], &first[1..], &[]), std::slice::from_ref(&goes));
    // Whoever edits it does the same.
    let mut edited = first[1].clone();
    edited["spec"]["schedule"] = json!("2 2 * * *");
    assert_eq!(steps(&before, "fedora-cron", &first[..1], &[edited], &[]), [goes]);
    // What CDI notes on it is not ours.
    let mut noted = first[1].clone();
    noted["metadata"]["annotations"]["cdi.kubevirt.io/storage.import.lastCronTime"] = json!("now");
    noted["spec"]["garbageCollect"] = json!("Outdated");
    assert_eq!(steps(&before, "fedora-cron", &first[..1], &[noted.clone()], &[]), []);
    let label =
        json!({ "metadata": { "labels": { "app.kubernetes.io/managed-by": "ssp-operator" }, "annotations": {} } });
    noted["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("eve");
    let back = Step::Merge(place("DataImportCron", IMAGES, "fedora-cron"), label);
    assert_eq!(steps(&before, "fedora-cron", &first[..1], &[noted.clone()], &[]), [back]);
    // While it goes, nothing is done.
    noted["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    assert_eq!(steps(&before, "fedora-cron", &first[..1], &[noted], &[]), []);
}

#[test]
fn a_cron_elsewhere_keeps_no_source_here() {
    let mut elsewhere = cron("fedora-cron", "fedora");
    elsewhere["metadata"]["namespace"] = json!("tenant");
    let wanted = wanted(&templates(json!([elsewhere])), &one(), &BTreeMap::new());
    let made = made(&steps(&wanted, "fedora", &[], &[], &["fedora"]));
    assert_eq!(made[0]["metadata"]["labels"][DATA_IMPORT_CRON], Value::Null);
    assert_eq!((&made[1]["kind"], &made[1]["metadata"]["namespace"]), (&json!("DataImportCron"), &json!("tenant")));
}

#[test]
fn sources_that_no_template_has_any_more_go_and_those_of_others_stay() {
    let wanted = wanted(&templates(json!([])), &one(), &BTreeMap::new());
    let source = |name: &str, by: &str| {
        let mut source = place("DataSource", IMAGES, name);
        source["metadata"]["labels"] = json!({ "app.kubernetes.io/managed-by": by });
        source["spec"] = json!({ "source": { "pvc": { "name": name, "namespace": IMAGES } } });
        source
    };
    let there = [source("old-ours", "ssp-operator"), source("old-theirs", "cdi-controller")];
    assert_eq!(steps(&wanted, "old", &there, &[], &[]), [Step::Delete(place("DataSource", IMAGES, "old-ours"))]);
}

#[test]
fn on_several_architectures_each_has_its_source_and_the_plain_name_leads_to_the_default() {
    let both = architectures(true, &[Architecture::Arm64, Architecture::Amd64]);
    let mut listed = cron("stream10-cron", "stream10");
    listed["metadata"]["annotations"][CRON_ARCHITECTURES] = json!("amd64, arm64,s390x");
    let plain = cron("ubuntu-cron", "ubuntu");
    let wanted = wanted(&templates(json!([listed, plain])), &both, &BTreeMap::new());
    let boot = |name: &str| wanted.boots.iter().find(|boot| boot.name == name).cloned();
    assert_eq!(boot("fedora-arm64").unwrap().architecture, Some(Architecture::Arm64));
    assert_eq!(boot("fedora").unwrap().leads_to.as_deref(), Some("fedora-arm64"));
    assert_eq!(boot("stream10").unwrap().leads_to.as_deref(), Some("stream10-arm64"));
    assert_eq!(boot("win10-arm64"), None);
    // A cron that names no architectures keeps the plain one, as on clusters of one.
    let ubuntu = boot("ubuntu").unwrap();
    assert_eq!((ubuntu.cron.as_deref(), ubuntu.leads_to), (Some("ubuntu-cron"), None));
    let crons: Vec<&str> = wanted.crons.iter().map(|cron| text(cron, "/metadata/name")).collect();
    assert_eq!(crons, ["stream10-cron-arm64", "stream10-cron-amd64", "ubuntu-cron"]);
    let cron = &wanted.crons[1];
    assert_eq!(cron["spec"]["managedDataSource"], "stream10-amd64");
    let registry = json!({ "url": "docker://r/x", "platform": { "architecture": "amd64" } });
    assert_eq!(cron["spec"]["template"]["spec"]["source"]["registry"], registry);
    assert_eq!(cron["metadata"]["annotations"].get(CRON_ARCHITECTURES), None);
    let labels = &cron["metadata"]["labels"];
    assert_eq!((&labels[ARCHITECTURE], &labels[PLAIN_SOURCE]), (&json!("amd64"), &json!("stream10")));
    let made = made(&steps(&wanted, "fedora", &[], &[], &[]));
    let leads = made.iter().find(|source| source["metadata"]["name"] == "fedora").unwrap();
    assert_eq!(leads["spec"]["source"], json!({ "dataSource": { "name": "fedora-arm64", "namespace": IMAGES } }));
    assert_eq!(steps(&wanted, "fedora", &made, &[], &[]), []);
}
