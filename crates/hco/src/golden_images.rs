//! The boot images that are fetched and kept current. Pure.
//!
//! ```text
//! the common ones, as their namesakes of the object change or switch them off + the object's own -> SSP
//! ```

use api::hco::{CronTemplate, CronTemplateStatus, WorkloadSources};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::core::ObjectMeta;
use serde_json::{Value, json};

use crate::tree::put;

/// On a template of the object: `"false"` switches the common image of that name off.
pub(crate) const ENABLE: &str = "dataimportcrontemplate.kubevirt.io/enable";
/// Fetched at once, whatever the storage class waits for.
const IMMEDIATE: &str = "cdi.kubevirt.io/storage.bind.immediate.requested";
/// For which architectures there is an image.
const ARCHITECTURES: &str = "ssp.kubevirt.io/dict.architectures";

/// A common image: name, DataSource, size, where it is.
struct Image {
    name: &'static str,
    source: &'static str,
    size: &'static str,
    url: &'static str,
}

const COMMON: [Image; 3] = [
    Image {
        name: "centos-stream9-image-cron",
        source: "centos-stream9",
        size: "10Gi",
        url: "docker://quay.io/containerdisks/centos-stream:9",
    },
    Image {
        name: "centos-stream10-image-cron",
        source: "centos-stream10",
        size: "10Gi",
        url: "docker://quay.io/containerdisks/centos-stream:10",
    },
    Image {
        name: "fedora-image-cron",
        source: "fedora",
        size: "5Gi",
        url: "docker://quay.io/containerdisks/fedora:latest",
    },
];

/// When images are looked for on this cluster: twice a day, at a moment of the day that is its own.
pub(crate) fn schedule(random: [u8; 2]) -> String {
    format!("{} {}/12 * * *", random[0] % 60, random[1] % 12)
}

fn common(image: &Image, schedule: &str) -> CronTemplate {
    let annotations = [(ARCHITECTURES.to_owned(), "amd64,arm64,s390x".to_owned())];
    let labels = [("instancetype.kubevirt.io/default-preference".to_owned(), preference(image).to_owned())];
    let mut labels: std::collections::BTreeMap<String, String> = labels.into();
    labels.insert("instancetype.kubevirt.io/default-instancetype".to_owned(), "u1.medium".to_owned());
    CronTemplate {
        metadata: ObjectMeta {
            name: Some(image.name.to_owned()),
            annotations: Some(annotations.into()),
            labels: Some(labels),
            ..ObjectMeta::default()
        },
        spec: Some(json!({
            "schedule": schedule,
            "managedDataSource": image.source,
            "template": { "spec": {
                "source": { "registry": { "url": image.url } },
                "storage": { "resources": { "requests": { "storage": image.size } } },
            } },
        })),
        status: None,
    }
}

fn preference(image: &Image) -> &'static str {
    match image.source {
        "centos-stream9" => "centos.stream9",
        "centos-stream10" => "centos.stream10",
        other => other,
    }
}

fn name(template: &CronTemplate) -> &str {
    template.metadata.name.as_deref().unwrap_or_default()
}

fn is_off(template: &CronTemplate) -> bool {
    let annotation = template.metadata.annotations.as_ref().and_then(|all| all.get(ENABLE));
    annotation.is_some_and(|text| text.eq_ignore_ascii_case("false"))
}

/// The images to fetch, with what the status says of each: of `architectures` the cluster has. One that has no image for any of them
/// is not fetched.
pub(crate) fn wanted(sources: &WorkloadSources, schedule: &str, architectures: &[String]) -> Vec<CronTemplate> {
    all(sources, schedule, architectures).into_iter().filter(|one| !is_withheld(one)).collect()
}

fn is_withheld(template: &CronTemplate) -> bool {
    template.status.as_ref().is_some_and(|status| !status.conditions.is_empty())
}

/// The same, and those that are not fetched because no node can run them.
pub(crate) fn all(sources: &WorkloadSources, schedule: &str, architectures: &[String]) -> Vec<CronTemplate> {
    let own = &sources.data_import_cron_templates;
    let mut all = Vec::new();
    if sources.enable_common_boot_image_import != Some(false) {
        for image in &COMMON {
            let usual = common(image, schedule);
            match own.iter().find(|one| name(one) == image.name) {
                None => all.push(finish(usual, sources, (true, false), architectures)),
                Some(changed) if is_off(changed) => {}
                Some(changed) => all.push(finish(merged(&usual, changed), sources, (true, true), architectures)),
            }
        }
    }
    let is_common = |one: &CronTemplate| {
        sources.enable_common_boot_image_import != Some(false) && COMMON.iter().any(|image| image.name == name(one))
    };
    for one in own.iter().filter(|one| !is_common(one) && !is_off(one) && one.spec.is_some()) {
        all.push(finish(one.clone(), sources, (false, false), architectures));
    }
    all
}

/// The object's template takes the place of the common one; a schedule that it does not have is the common one's.
fn merged(usual: &CronTemplate, changed: &CronTemplate) -> CronTemplate {
    let mut merged = changed.clone();
    let schedule = usual.spec.as_ref().map(|spec| spec["schedule"].clone()).unwrap_or_default();
    match &mut merged.spec {
        None => merged.spec.clone_from(&usual.spec),
        Some(spec) if spec["schedule"].as_str().unwrap_or_default().is_empty() => spec["schedule"] = schedule,
        Some(_) => {}
    }
    let both = |usual: &Option<std::collections::BTreeMap<String, String>>,
                own: &Option<std::collections::BTreeMap<String, String>>| {
        let mut all = usual.clone().unwrap_or_default();
        all.extend(own.clone().unwrap_or_default());
        Some(all)
    };
    merged.metadata.labels = both(&usual.metadata.labels, &changed.metadata.labels);
    merged.metadata.annotations = both(&usual.metadata.annotations, &changed.metadata.annotations);
    merged
}

fn finish(
    mut template: CronTemplate,
    sources: &WorkloadSources,
    (common, modified): (bool, bool),
    architectures: &[String],
) -> CronTemplate {
    if let Some(namespace) = sources.common_boot_image_namespace.as_ref().filter(|name| common && !name.is_empty()) {
        template.metadata.namespace = Some(namespace.clone());
    }
    let annotations = template.metadata.annotations.get_or_insert_default();
    annotations.remove(ENABLE);
    annotations.entry(IMMEDIATE.to_owned()).or_insert_with(|| "true".to_owned());
    let supported = annotations.get(ARCHITECTURES).cloned();
    if let Some(spec) = &mut template.spec {
        // What is fetched again and again would fill the storage, and goes when nobody wants it any more otherwise.
        put(spec, "retentionPolicy", json!("None"));
        put(spec, "importsToKeep", json!(1));
    }
    let mut status = CronTemplateStatus {
        common_template: common.then_some(true),
        modified: modified.then_some(true),
        ..CronTemplateStatus::default()
    };
    if sources.enable_multi_arch_boot_image_import == Some(true)
        && let Some(list) = supported
    {
        let here = |one: &&str| architectures.iter().any(|known| known == one);
        let both: Vec<&str> = list.split(',').map(str::trim).filter(here).collect();
        if both.is_empty() {
            status.conditions.push(not_deployed(&list));
        }
        template.metadata.annotations.get_or_insert_default().insert(ARCHITECTURES.to_owned(), both.join(","));
        status.original_supported_architectures = Some(list);
    }
    template.status = Some(status).filter(|status| *status != CronTemplateStatus::default());
    template
}

fn not_deployed(supported: &str) -> Condition {
    Condition {
        type_: "Deployed".to_owned(),
        status: "False".to_owned(),
        reason: "UnsupportedArchitectures".to_owned(),
        message: format!("The image is there for {supported}, and no node that runs machines is one of them"),
        // Of a state of the object, not of a moment: it is set when the status is written.
        last_transition_time: Time(Timestamp::UNIX_EPOCH),
        observed_generation: None,
    }
}

/// What is wrong with the templates of an object: path and sentence of each.
pub(crate) fn refused(sources: &Value) -> Vec<(String, String)> {
    let list = sources["dataImportCronTemplates"].as_array();
    let mut out = Vec::new();
    for (index, one) in list.into_iter().flatten().enumerate() {
        let path = format!("spec.workloadSources.dataImportCronTemplates[{index}]");
        let name = one.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default();
        let enable = one.pointer("/metadata/annotations").and_then(|all| all.get(ENABLE)).and_then(Value::as_str);
        if name.is_empty() {
            out.push((
                format!("{path}.metadata.name"),
                "a template needs a name: it is the DataImportCron's".to_owned(),
            ));
        }
        match enable.map(str::to_ascii_lowercase).as_deref() {
            None | Some("true") if one["spec"].is_null() => {
                let common = COMMON.iter().any(|image| image.name == name);
                if !common {
                    out.push((format!("{path}.spec"), format!("template {name:?} needs a spec: it is no common one")));
                }
            }
            None | Some("true" | "false") => {}
            Some(_) => {
                let field = format!("{path}.metadata.annotations[{ENABLE}]");
                out.push((field, "true or false is understood".to_owned()));
            }
        }
    }
    out
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
mod tests {
    use super::*;

    #[track_caller]
    fn names(sources: Value) -> Vec<String> {
        let sources: WorkloadSources = serde_json::from_value(sources).unwrap();
        wanted(&sources, "1 2/12 * * *", &["amd64".to_owned()]).iter().map(|one| name(one).to_owned()).collect()
    }

    fn own(name: &str, annotations: Value, spec: Value) -> Value {
        json!({ "metadata": { "name": name, "annotations": annotations }, "spec": spec })
    }

    #[test]
    fn common_images_are_fetched_unless_they_are_switched_off() {
        assert_eq!(names(json!({})).len(), 3);
        assert!(names(json!({ "enableCommonBootImageImport": false })).is_empty());
        let off = own("fedora-image-cron", json!({ (ENABLE): "false" }), Value::Null);
        assert_eq!(
            names(json!({ "dataImportCronTemplates": [off] })),
            ["centos-stream9-image-cron", "centos-stream10-image-cron"]
        );
    }

    #[test]
    fn a_namesake_changes_a_common_image_and_others_join_it() {
        let spec = json!({ "managedDataSource": "fedora", "template": { "spec": {} } });
        let sources = json!({ "dataImportCronTemplates": [
            own("fedora-image-cron", json!({}), spec.clone()), own("mine", json!({}), spec),
        ] });
        let sources: WorkloadSources = serde_json::from_value(sources).unwrap();
        let found = wanted(&sources, "1 2/12 * * *", &[]);
        assert_eq!(found.len(), 4);
        let changed = found.iter().find(|one| name(one) == "fedora-image-cron").unwrap();
        let spec = changed.spec.as_ref().unwrap();
        assert_eq!(
            (&spec["schedule"], &spec["retentionPolicy"], &spec["importsToKeep"]),
            (&json!("1 2/12 * * *"), &json!("None"), &json!(1))
        );
        assert_eq!(changed.status.as_ref().unwrap().modified, Some(true));
        assert_eq!(changed.metadata.annotations.as_ref().unwrap()[IMMEDIATE], "true");
        assert_eq!(found[3].status, None);
    }

    #[test]
    fn an_image_that_no_node_can_run_is_not_fetched_and_says_so() {
        let spec = json!({ "schedule": "", "managedDataSource": "x", "template": { "spec": {} } });
        let sources = json!({ "enableMultiArchBootImageImport": true, "dataImportCronTemplates": [
            own("mine", json!({ (ARCHITECTURES): "s390x" }), spec),
        ] });
        let sources: WorkloadSources = serde_json::from_value(sources).unwrap();
        let here = ["amd64".to_owned()];
        assert_eq!(wanted(&sources, "", &here).len(), 3);
        let all = all(&sources, "", &here);
        let status = all[3].status.as_ref().unwrap();
        assert_eq!(status.original_supported_architectures.as_deref(), Some("s390x"));
        assert_eq!(status.conditions[0].reason, "UnsupportedArchitectures");
        assert_eq!(all[0].metadata.annotations.as_ref().unwrap()[ARCHITECTURES], "amd64");
    }

    #[test]
    fn templates_are_checked_by_name() {
        let sources = json!({ "dataImportCronTemplates": [
            own("mine", json!({}), Value::Null),
            own("fedora-image-cron", json!({ (ENABLE): "maybe" }), Value::Null),
            own("fedora-image-cron", json!({ (ENABLE): "true" }), Value::Null),
            own("", json!({}), json!({})),
        ] });
        let fields: Vec<String> = refused(&sources).into_iter().map(|(field, _)| field).collect();
        let at = |rest: &str| format!("spec.workloadSources.dataImportCronTemplates{rest}");
        let expect = [at("[0].spec"), at(&format!("[1].metadata.annotations[{ENABLE}]")), at("[3].metadata.name")];
        assert_eq!(fields, expect);
    }

    #[test]
    fn a_cluster_has_a_moment_of_the_day_of_its_own() {
        assert_eq!(schedule([61, 13]), "1 1/12 * * *");
    }

    /// A machine whose disk is made of an image is to find what the image's labels name.
    #[test]
    fn what_common_images_name_is_among_the_common_instance_types() {
        let bundle = virt_operator::manifests::instancetypes::render(&json!({}));
        for image in wanted(&WorkloadSources::default(), "", &[]) {
            let labels = image.metadata.labels.unwrap();
            for (label, kind) in [
                ("default-instancetype", "VirtualMachineClusterInstancetype"),
                ("default-preference", "VirtualMachineClusterPreference"),
            ] {
                let name = &labels[&format!("instancetype.kubevirt.io/{label}")];
                let named = |one: &&Value| one["kind"] == kind && one["metadata"]["name"] == **name;
                assert!(bundle.iter().any(|one| named(&one)), "{kind} {name}");
            }
        }
    }
}
