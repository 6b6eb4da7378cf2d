//! DataImportCrons: what is imported again and again, and when.

use api::cdi::v1beta1::{DataImportCron, DataImportCronSpec};
use kit::admission::{Cause, Request, Verdict};
use kit::cron::Schedule;

use super::{LABEL, NAME, datavolume, fixed, length, read, refuse, verdict};

/// Judges what is created or changed.
pub(crate) fn judge(request: &Request) -> Verdict {
    let found = || {
        let cron: DataImportCron = read(&request.object)?;
        if request.operation == "UPDATE" {
            let old: DataImportCron = read(&request.old_object)?;
            let changed = cron.spec != old.spec;
            return Ok(verdict(if changed { Err(fixed("DataImportCron")) } else { Ok(()) }));
        }
        let name = cron.metadata.name.as_deref().unwrap_or(&request.name);
        // Its name becomes a label, and with a digest the name of what is imported.
        Ok(verdict(length(name, LABEL).and_then(|()| spec(&cron.spec))))
    };
    found().unwrap_or_else(|refused: Verdict| refused)
}

fn spec(spec: &DataImportCronSpec) -> Result<(), Cause> {
    let template = &spec.template.spec;
    let source = template.source.as_deref().filter(|source| source.registry.is_some() || source.pvc.is_some());
    if source.is_none() {
        return refuse("spec.Template", "Missing registry source");
    }
    let set = template.source_ref.is_some()
        || template.content_type.as_ref().is_some_and(|content| !content.is_empty())
        || !template.checkpoints.is_empty()
        || template.final_checkpoint == Some(true);
    if set {
        let message = "Unsettable fields: SourceRef, ContentType, Checkpoints, FinalCheckpoint";
        return refuse("spec.Template", message);
    }
    datavolume::spec(template, "Template")?;
    // None at all is a cron that only a webhook sets off.
    if let Some(why) = Schedule::parse(&spec.schedule).err().filter(|_| !spec.schedule.is_empty()) {
        return refuse("spec.Schedule", format!("Illegal cron schedule: {why}"));
    }
    let keeps = |value: &Option<String>, known: [&str; 2]| value.as_deref().is_none_or(|value| known.contains(&value));
    if !keeps(&spec.garbage_collect, ["Never", "Outdated"]) {
        return refuse("spec.GarbageCollect", "Illegal GarbageCollect value");
    }
    if !keeps(&spec.retention_policy, ["None", "All"]) {
        return refuse("spec.RetentionPolicy", "Illegal RetentionPolicy value");
    }
    if spec.managed_data_source.is_empty() {
        return refuse("spec.ManagedDataSource", "Illegal ManagedDataSource value");
    }
    length(&spec.managed_data_source, NAME)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(change: Value, expect: &str) {
        let mut spec = json!({
            "schedule": "0 0 * * *", "managedDataSource": "d",
            "template": { "spec": {
                "source": { "registry": { "url": "docker://r/i" } },
                "storage": { "resources": { "requests": { "storage": "1Gi" } } },
            } },
        });
        json_patch::merge(&mut spec, &change);
        let object = json!({ "metadata": { "name": "c" }, "spec": spec });
        let said = match judge(&Request { operation: "CREATE".into(), object, ..Request::default() }) {
            Verdict::Invalid(causes) => causes[0].message.clone(),
            Verdict::Allow { .. } => String::new(),
            other => format!("{other:?}"),
        };
        assert_eq!(said, expect);
    }

    #[test]
    fn crons() {
        check(json!({}), "");
        check(json!({ "schedule": "" }), "");
        check(json!({ "schedule": "now" }), "Illegal cron schedule: expected exactly 5 fields, found 1: [now]");
        // CronJobs cannot say either of them, and so the controller cannot.
        check(json!({ "schedule": "0 0 L * *" }), "Illegal cron schedule: failed to parse int from L");
        check(json!({ "schedule": "0 0 * * 7" }), "Illegal cron schedule: end of range (7) above maximum (6): 7");
        for good in ["0 */12 * * *", "30 1 * * 1-5", "@daily", "0 0 1,15 jan-mar mon"] {
            check(json!({ "schedule": good }), "");
        }
        check(json!({ "garbageCollect": "x" }), "Illegal GarbageCollect value");
        check(json!({ "managedDataSource": "" }), "Illegal ManagedDataSource value");
        let source = json!({ "template": { "spec": { "source": { "registry": null, "blank": {} } } } });
        check(source, "Missing registry source");
        let content = json!({ "template": { "spec": { "contentType": "kubevirt" } } });
        check(content, "Unsettable fields: SourceRef, ContentType, Checkpoints, FinalCheckpoint");
        let size = json!({ "template": { "spec": { "storage": { "resources": null } } } });
        check(size, "Storage size is missing");
    }
}
