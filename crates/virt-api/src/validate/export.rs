//! Exports: of what they may be; and that they stay what they were made as.

use api::export::v1::{VirtualMachineExport, VirtualMachineExportSpec};
use kit::admission::{Cause, Request, Verdict};

use super::{invalid, names, strict};

/// `/virtualmachineexports-validate`.
pub fn export(request: &Request) -> Verdict {
    let new: VirtualMachineExport = match strict::decode(&request.object) {
        Ok(export) => export,
        Err(causes) => return Verdict::Invalid(causes),
    };
    let old = serde_json::from_value::<VirtualMachineExport>(request.old_object.clone()).ok();
    Verdict::of_causes(match old.filter(|_| request.operation == "UPDATE") {
        Some(old) if old.spec == new.spec => Vec::new(),
        Some(_) => vec![invalid("spec".to_owned(), "spec in immutable after creation".to_owned())],
        None => spec(&new.spec),
    })
}

fn spec(spec: &VirtualMachineExportSpec) -> Vec<Cause> {
    let source = &spec.source;
    let group = source.api_group.as_deref().unwrap_or_default();
    let (named, grouped) = match source.kind.as_str() {
        "PersistentVolumeClaim" => {
            ("PVC", group.is_empty().then_some(()).ok_or("PVC API group must be missing or blank"))
        }
        "VirtualMachineSnapshot" => {
            let ours = (group == "snapshot.kubevirt.io").then_some(());
            ("VMSnapshot", ours.ok_or("VMSnapshot API group must be snapshot.kubevirt.io"))
        }
        "VirtualMachine" => {
            let ours = (group == "kubevirt.io").then_some(());
            ("Virtual Machine", ours.ok_or("VM API group must be kubevirt.io"))
        }
        "VirtualMachineTemplate" => {
            let ours = (group == "template.kubevirt.io").then_some(());
            ("VMTemplate", ours.ok_or("VMTemplate API group must be template.kubevirt.io"))
        }
        "VirtualMachineBackup" => {
            let ours = (group == "backup.kubevirt.io").then_some(());
            ("VMBackup", ours.ok_or("VMBackup API group must be backup.kubevirt.io"))
        }
        _ => return vec![invalid("spec.source.kind".to_owned(), "invalid kind".to_owned())],
    };
    let mut causes = Vec::new();
    if source.name.is_empty() {
        causes.push(invalid("spec.source.name".to_owned(), format!("{named} name must not be empty")));
    } else if source.name.len() > 253 || !source.name.split('.').all(names::is_label) {
        // The controller asks the API server for this name: what is no name would be a path of another request.
        let message = format!(
            "{:?} is not the name of an object: it has at most 253 lower case letters, digits, \"-\" and \".\"",
            source.name
        );
        causes.push(invalid("spec.source.name".to_owned(), message));
    }
    causes.extend(grouped.err().map(|why| invalid("spec.source.APIGroup".to_owned(), why.to_owned())));
    if let Some(text) = spec.ttl_duration.as_deref().filter(|text| kit::duration::parse(text).is_none()) {
        let message = format!("{text:?} is not a duration: write hours, minutes and seconds, such as 1h30m");
        causes.push(invalid("spec.ttlDuration".to_owned(), message));
    }
    causes
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn judged(operation: &str, object: Value, old: Value) -> Vec<(String, String)> {
        let wrap =
            |spec: Value| if spec.is_null() { spec } else { json!({ "metadata": { "name": "e" }, "spec": spec }) };
        let request: Request = serde_json::from_value(json!({
            "uid": "u", "operation": operation, "object": wrap(object), "oldObject": wrap(old),
        }))
        .unwrap();
        match export(&request) {
            Verdict::Invalid(causes) => causes.into_iter().map(|cause| (cause.field, cause.message)).collect(),
            _ => Vec::new(),
        }
    }

    #[test]
    fn of_what_an_export_may_be() {
        #[track_caller]
        fn check(source: Value, expect: &[(&str, &str)]) {
            let found = judged("CREATE", json!({ "source": source }), Value::Null);
            let found: Vec<_> = found.iter().map(|(field, message)| (field.as_str(), message.as_str())).collect();
            assert_eq!(found, expect);
        }
        let source = |group: &str, kind: &str, name: &str| json!({ "apiGroup": group, "kind": kind, "name": name });
        check(json!({ "kind": "PersistentVolumeClaim", "name": "a" }), &[]);
        check(source("", "PersistentVolumeClaim", "a"), &[]);
        check(source("kubevirt.io", "VirtualMachine", "a"), &[]);
        check(source("snapshot.kubevirt.io", "VirtualMachineSnapshot", "a"), &[]);
        let group = "spec.source.APIGroup";
        check(source("v1", "PersistentVolumeClaim", "a"), &[(group, "PVC API group must be missing or blank")]);
        check(source("", "VirtualMachine", "a"), &[(group, "VM API group must be kubevirt.io")]);
        let expect = [
            ("spec.source.name", "VMSnapshot name must not be empty"),
            (group, "VMSnapshot API group must be snapshot.kubevirt.io"),
        ];
        check(source("kubevirt.io", "VirtualMachineSnapshot", ""), &expect);
        check(source("template.kubevirt.io", "VirtualMachineTemplate", "a"), &[]);
        let template = [(group, "VMTemplate API group must be template.kubevirt.io")];
        check(source("kubevirt.io", "VirtualMachineTemplate", "a"), &template);
        check(source("backup.kubevirt.io", "VirtualMachineBackup", "a"), &[]);
        let backup = [(group, "VMBackup API group must be backup.kubevirt.io")];
        check(source("kubevirt.io", "VirtualMachineBackup", "a"), &backup);
        for name in ["a/status", "..", "a?watch=1", "A"] {
            let message = format!(
                "{name:?} is not the name of an object: it has at most 253 lower case letters, digits, \"-\" and \".\""
            );
            check(source("", "PersistentVolumeClaim", name), &[("spec.source.name", &message)]);
        }
        check(source("", "Pod", "a"), &[("spec.source.kind", "invalid kind")]);
    }

    #[test]
    fn an_export_stays_what_it_is() {
        let of = |name: &str, ttl: &str| json!({ "source": { "kind": "PersistentVolumeClaim", "name": name }, "ttlDuration": ttl });
        assert_eq!(judged("UPDATE", of("a", "1h"), of("a", "1h")), []);
        let expect = ("spec".to_owned(), "spec in immutable after creation".to_owned());
        assert_eq!(judged("UPDATE", of("b", "1h"), of("a", "1h")), [expect]);
        let found = judged("CREATE", of("a", "soon"), Value::Null);
        assert_eq!(found[0].0, "spec.ttlDuration");
    }
}
