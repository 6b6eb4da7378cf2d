//! VolumeImportSources and VolumeUploadSources.

use api::cdi::v1beta1::{
    DataVolumeSource, ImportSourceType, VolumeImportSource, VolumeImportSourceSpec, VolumeUploadSource,
};
use kit::admission::{Cause, Request, Verdict};

use super::{LABEL, deny, fixed, length, read, refuse, source, verdict};

/// Judges what is created or changed.
pub(crate) fn judge(request: &Request) -> Verdict {
    let found = match request.object["kind"].as_str().unwrap_or_default() {
        "VolumeImportSource" => import(request),
        "VolumeUploadSource" => upload(request),
        other => return deny(format!("unexpected resource: {other}")),
    };
    found.unwrap_or_else(|refused| refused)
}

fn upload(request: &Request) -> Result<Verdict, Verdict> {
    let new: VolumeUploadSource = read(&request.object)?;
    if request.operation == "UPDATE" && read::<VolumeUploadSource>(&request.old_object)?.spec != new.spec {
        return Ok(Verdict::Invalid(vec![fixed("VolumeUploadSource")]));
    }
    let name = new.metadata.name.as_deref().unwrap_or(&request.name);
    let content = new.spec.content_type.as_deref();
    Ok(verdict(length(name, LABEL).and_then(|()| source::content_type(content, "spec"))))
}

fn import(request: &Request) -> Result<Verdict, Verdict> {
    let new: VolumeImportSource = read(&request.object)?;
    if request.operation == "UPDATE" {
        let old: VolumeImportSource = read(&request.old_object)?;
        if changed(&new.spec, &old.spec) {
            return Ok(Verdict::Invalid(vec![fixed("VolumeImportSource")]));
        }
    }
    let name = new.metadata.name.as_deref().unwrap_or(&request.name);
    Ok(verdict(length(name, LABEL).and_then(|()| spec(&new.spec))))
}

fn multistage(spec: &VolumeImportSourceSpec) -> bool {
    let source = spec.source.as_ref();
    !spec.checkpoints.is_empty() && source.is_some_and(|source| source.vddk.is_some() || source.imageio.is_some())
}

fn changed(new: &VolumeImportSourceSpec, old: &VolumeImportSourceSpec) -> bool {
    let (mut new, mut old) = (new.clone(), old.clone());
    if multistage(&new) {
        for spec in [&mut new, &mut old] {
            spec.checkpoints.clear();
            spec.final_checkpoint = None;
        }
    }
    new != old
}

fn spec(spec: &VolumeImportSourceSpec) -> Result<(), Cause> {
    let content = spec.content_type.as_deref();
    source::content_type(content, "spec")?;
    let source = of(spec.source.as_deref().cloned().unwrap_or_default());
    source::one(&source, "VolumeImport", "spec")?;
    if multistage(spec) && spec.target_claim.as_ref().is_none_or(String::is_empty) {
        return refuse("spec.targetClaim", "Unable to do multi-stage import without specifying a target claim");
    }
    source::import(&source, content, "spec")
}

fn of(source: ImportSourceType) -> DataVolumeSource {
    DataVolumeSource {
        blank: source.blank,
        gcs: source.gcs,
        http: source.http,
        imageio: source.imageio,
        registry: source.registry,
        s3: source.s3,
        vddk: source.vddk,
        ..DataVolumeSource::default()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    fn check(kind: &str, spec: Value, old: Option<Value>, expect: &str) {
        let object = |spec: Value| json!({ "kind": kind, "metadata": { "name": "n" }, "spec": spec });
        let operation = if old.is_some() { "UPDATE" } else { "CREATE" }.to_owned();
        let old_object = old.map(object).unwrap_or_default();
        let request = Request { operation, object: object(spec), old_object, ..Request::default() };
        let said = match judge(&request) {
            Verdict::Invalid(causes) => causes[0].message.clone(),
            Verdict::Allow { .. } => String::new(),
            other => format!("{other:?}"),
        };
        assert_eq!(said, expect);
    }

    #[test]
    fn populators() {
        check("VolumeUploadSource", json!({}), None, "");
        let content = "ContentType not one of: kubevirt, archive";
        check("VolumeUploadSource", json!({ "contentType": "x" }), None, content);
        let fixed = "Cannot update VolumeUploadSource Spec";
        check("VolumeUploadSource", json!({ "preallocation": true }), Some(json!({})), fixed);
        let http = json!({ "source": { "http": { "url": "http://a/b" } } });
        check("VolumeImportSource", http.clone(), None, "");
        check("VolumeImportSource", http, Some(json!({})), "Cannot update VolumeImportSource Spec");
        check("VolumeImportSource", json!({}), None, "Missing VolumeImport source");
        let vddk = json!({
            "vddk": { "url": "http://a", "uuid": "u", "backingFile": "f", "thumbprint": "t", "secretRef": "s" },
        });
        let stages = json!({ "source": vddk, "checkpoints": [{ "current": "a", "previous": "" }] });
        let claim = "Unable to do multi-stage import without specifying a target claim";
        check("VolumeImportSource", stages, None, claim);
    }
}
