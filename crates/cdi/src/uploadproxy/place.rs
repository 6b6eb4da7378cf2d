//! Where the upload into a claim goes, by the claim. Pure.

use api::cdi::constants::annotation;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kube::ResourceExt;

use crate::controller::names;

/// What there is to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Next {
    /// Another claim is filled in place of this one.
    Follow(String),
    /// The server is not there yet.
    Wait,
    /// It is.
    Send(Place),
    /// It will never be.
    Refuse(String),
}

/// An upload server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    /// The name of its Service, with the namespace.
    pub(super) host: String,
    /// The claim is to be filled with the files of an archive.
    pub(super) archive: bool,
}

/// What the annotations of `claim` say.
pub(super) fn next(claim: &PersistentVolumeClaim) -> Next {
    let name = claim.name_any();
    let annotation_of = |key: &str| claim.annotations().get(key).map(String::as_str);
    // The annotation is anybody's who may change the claim: it is followed to the claim that a populator fills, and nowhere else.
    if let Some(prime) = annotation_of(annotation::PVC_PRIME).filter(|prime| is_prime(prime)) {
        return Next::Follow(prime.to_owned());
    }
    let populated = claim
        .spec
        .as_ref()
        .is_some_and(|spec| spec.data_source_ref.as_ref().is_some_and(|from| from.kind == "VolumeUploadSource"));
    if annotation_of(annotation::UPLOAD).is_none() {
        let bound = claim.status.as_ref().and_then(|status| status.phase.as_deref()) == Some("Bound");
        return match (populated, bound) {
            (true, false) => Next::Wait,
            (true, true) => finished(&name),
            (false, _) => Next::Refuse(format!("PVC {name} is not an upload target")),
        };
    }
    if annotation_of(annotation::POD_PHASE) == Some("Succeeded") {
        return finished(&name);
    }
    if annotation_of(annotation::POD_READY) != Some("true") {
        return Next::Wait;
    }
    let archive = match annotation_of(annotation::CONTENT_TYPE) {
        None | Some("" | "kubevirt") => false,
        Some("archive") => true,
        Some(other) => {
            return Next::Refuse(format!(
                "rejecting upload request for PVC {name} - upload content-type {other} is invalid: it is kubevirt or archive"
            ));
        }
    };
    let namespace = claim.namespace().unwrap_or_default();
    let host = format!("{}.{namespace}.svc", names::service("cdi-upload", &name));
    Next::Send(Place { host, archive })
}

/// Whether a claim that a populator fills may be called so.
fn is_prime(name: &str) -> bool {
    let uid = name.strip_prefix("prime-").unwrap_or_default();
    !uid.is_empty() && uid.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '-')
}

fn finished(name: &str) -> Next {
    Next::Refuse(format!("rejecting Upload Request for PVC {name} that already finished uploading"))
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(annotations: Value, rest: Value, expect: &str) {
        let mut claim = json!({ "metadata": { "name": "disk", "namespace": "ns" } });
        let annotation_of = annotations.as_object().unwrap();
        claim["metadata"]["annotations"] =
            annotation_of.iter().map(|(key, value)| (format!("cdi.kubevirt.io/{key}"), value.clone())).collect();
        claim.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        let found = format!("{:?}", next(&serde_json::from_value(claim).unwrap()));
        assert!(found.contains(expect), "{found}");
    }

    #[test]
    fn an_upload_goes_to_the_server_of_its_claim_once_that_is_ready() {
        let target = "storage.upload.target";
        check(
            json!({ target: "", "storage.pod.ready": "true" }),
            json!({}),
            "host: \"cdi-upload-disk.ns.svc\", archive: false",
        );
        let archive = json!({ target: "", "storage.pod.ready": "true", "storage.contentType": "archive" });
        check(archive, json!({}), "archive: true");
        let strange = json!({ target: "", "storage.pod.ready": "true", "storage.contentType": "<script>" });
        check(strange, json!({}), "PVC disk - upload content-type <script> is invalid");
        check(json!({ target: "", "storage.pod.ready": "false" }), json!({}), "Wait");
        check(json!({ target: "" }), json!({}), "Wait");
        check(json!({ target: "", "storage.pod.phase": "Succeeded" }), json!({}), "already finished uploading");
        check(json!({}), json!({}), "PVC disk is not an upload target");
        let from = json!({ "apiGroup": "cdi.kubevirt.io", "kind": "VolumeUploadSource", "name": "x" });
        check(json!({}), json!({ "spec": { "dataSourceRef": from } }), "Wait");
        let bound = json!({ "spec": { "dataSourceRef": from }, "status": { "phase": "Bound" } });
        check(json!({}), bound, "already finished uploading");
        check(json!({ "storage.populator.pvcPrime": "prime-1" }), json!({}), "Follow(\"prime-1\")");
        for elsewhere in ["other", "prime-", "prime-/../../../victim/persistentvolumeclaims/disk"] {
            check(json!({ "storage.populator.pvcPrime": elsewhere }), json!({}), "is not an upload target");
        }
    }
}
