//! What of an SSP object cannot be done, and what is not done. Pure.

use std::collections::BTreeSet;

use kit::admission::Cause;
use kit::tls::Policy;

use super::architectures::Architectures;
use crate::object::Spec;
use crate::security;
use crate::templates::system::Architecture;
use crate::words::IMAGES;

/// Why nothing is deployed for `spec`; nothing when it is.
pub fn refusals(spec: &Spec) -> Vec<Cause> {
    let mut causes = Vec::new();
    let mut refuse = |reason, field: String, message: String| causes.push(Cause { reason, field, message });
    if spec.common_templates.namespace.is_empty() {
        let message = "name the namespace of the templates".to_owned();
        refuse("FieldValueRequired", "spec.commonTemplates.namespace".to_owned(), message);
    }
    if spec.enable_multiple_architectures == Some(true) && !Architectures::of(spec, Architecture::Amd64).several {
        let message = "name the architectures of the nodes that machines run on: amd64, arm64 or s390x".to_owned();
        refuse("FieldValueRequired", "spec.cluster.workloadArchitectures".to_owned(), message);
    }
    let (mut names, mut sources) = (BTreeSet::new(), BTreeSet::new());
    for (at, cron) in spec.common_templates.data_import_cron_templates.iter().enumerate() {
        let field = |name: &str| format!("spec.commonTemplates.dataImportCronTemplates[{at}].{name}");
        let namespace = if cron.metadata.namespace.is_empty() { IMAGES } else { cron.metadata.namespace.as_str() };
        let name = cron.metadata.name.as_str();
        let source = cron.spec["managedDataSource"].as_str().unwrap_or_default();
        if name.is_empty() {
            refuse("FieldValueRequired", field("metadata.name"), "name the DataImportCron".to_owned());
        } else if !names.insert((namespace, name)) {
            let message = format!("another one is named {namespace}/{name}: name each once");
            refuse("FieldValueDuplicate", field("metadata.name"), message);
        }
        if source.is_empty() {
            let message = "name the DataSource that is kept up to date".to_owned();
            refuse("FieldValueRequired", field("spec.managedDataSource"), message);
        } else if !sources.insert((namespace, source)) {
            let message = format!("another one keeps {namespace}/{source}: keep each by one");
            refuse("FieldValueDuplicate", field("spec.managedDataSource"), message);
        }
        if !cron.metadata.finalizers.is_empty() {
            let message = "leave it empty: nobody would take these finalizers off".to_owned();
            refuse("FieldValueNotSupported", field("metadata.finalizers"), message);
        }
    }
    causes
}

/// What of `spec` is not done, in a sentence each.
pub fn remarks(spec: &Spec) -> Vec<String> {
    let mut out = Vec::new();
    let cluster = spec.cluster.clone().unwrap_or_default();
    for (field, words) in [
        ("controlPlaneArchitectures", &cluster.control_plane_architectures),
        ("workloadArchitectures", &cluster.workload_architectures),
    ] {
        let unknown = words.iter().filter(|word| Architecture::of(word).is_none());
        out.extend(unknown.map(|word| format!("spec.cluster.{field}: there are no templates for {word}")));
    }
    let (least, ciphers) = security::asked(spec.tls_security_profile.as_ref());
    let (_, problems) = Policy::new(least, ciphers);
    out.extend(problems.into_iter().map(|problem| format!("spec.tlsSecurityProfile: {problem}")));
    out
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(spec: Value, expect: &[(&str, &str)]) {
        let spec: Spec = serde_json::from_value(spec).unwrap();
        let found = refusals(&spec);
        let found: Vec<(&str, &str)> =
            found.iter().map(|cause| (cause.field.as_str(), cause.message.as_str())).collect();
        assert_eq!(found, expect);
    }

    fn crons(crons: Value) -> Value {
        json!({ "commonTemplates": { "namespace": "ns", "dataImportCronTemplates": crons } })
    }

    #[test]
    fn what_cannot_be_done_is_refused_with_the_remedy() {
        check(json!({ "commonTemplates": { "namespace": "ns" } }), &[]);
        check(json!({}), &[("spec.commonTemplates.namespace", "name the namespace of the templates")]);
        let several = json!({ "commonTemplates": { "namespace": "ns" }, "enableMultipleArchitectures": true });
        let expect = "name the architectures of the nodes that machines run on: amd64, arm64 or s390x";
        check(several, &[("spec.cluster.workloadArchitectures", expect)]);
        let cron = |name: &str, namespace: &str, source: &str| json!({ "metadata": { "name": name, "namespace": namespace }, "spec": { "managedDataSource": source } });
        check(crons(json!([cron("a", "", "x"), cron("a", "other", "x")])), &[]);
        let (name, source) = (
            "spec.commonTemplates.dataImportCronTemplates[1].metadata.name",
            "spec.commonTemplates.dataImportCronTemplates[1].spec.managedDataSource",
        );
        let twice = "another one is named kubevirt-os-images/a: name each once";
        check(crons(json!([cron("a", "", "x"), cron("a", "kubevirt-os-images", "y")])), &[(name, twice)]);
        let kept = "another one keeps kubevirt-os-images/x: keep each by one";
        check(crons(json!([cron("a", "", "x"), cron("b", "", "x")])), &[(source, kept)]);
        let held = json!([{ "metadata": { "finalizers": ["a"] }, "spec": {} }]);
        let field = |name: &str| format!("spec.commonTemplates.dataImportCronTemplates[0].{name}");
        check(
            crons(held),
            &[
                (&field("metadata.name"), "name the DataImportCron"),
                (&field("spec.managedDataSource"), "name the DataSource that is kept up to date"),
                (&field("metadata.finalizers"), "leave it empty: nobody would take these finalizers off"),
            ],
        );
    }

    #[test]
    fn what_is_not_done_is_said() {
        let spec = json!({
            "cluster": { "workloadArchitectures": ["amd64", "riscv64"] }, "tlsSecurityProfile": { "type": "Old", "old": {} },
        });
        let found = remarks(&serde_json::from_value(spec).unwrap());
        assert_eq!(found[0], "spec.cluster.workloadArchitectures: there are no templates for riscv64");
        assert!(found[1].starts_with("spec.tlsSecurityProfile: "), "{found:?}");
    }
}
