//! What is transferred, as it is made anew where it goes. Pure.

use api::cdi::constants::annotation;
use api::cdi::v1beta1::DataVolume;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Key;
use serde_json::{Value, json};

/// The claim as it is made where it goes.
pub fn arrived(source: &str, into: &Key, of_volume: bool) -> Result<PersistentVolumeClaim, serde_json::Error> {
    let mut claim: Value = serde_json::from_str(source)?;
    renew(&mut claim, into);
    if let Some(spec) = claim["spec"].as_object_mut() {
        // It comes filled.
        spec.remove("dataSource");
        spec.remove("dataSourceRef");
    }
    if let Some(annotations) = claim["metadata"]["annotations"].as_object_mut() {
        annotations.retain(|key, _| !key.starts_with("pv.kubernetes.io/") && !key.starts_with("volume."));
    }
    if of_volume {
        claim["metadata"]["annotations"][annotation::POPULATED_FOR] = json!(into.name);
    }
    serde_json::from_value(claim)
}

/// The DataVolume as it is made where it goes.
pub fn moved(source: &str, into: &Key) -> Result<DataVolume, serde_json::Error> {
    let mut volume: Value = serde_json::from_str(source)?;
    renew(&mut volume, into);
    serde_json::from_value(volume)
}

/// An object as a new one of another name.
fn renew(object: &mut Value, into: &Key) {
    object["status"] = Value::Null;
    let metadata = &object["metadata"];
    let annotations = if metadata["annotations"].is_object() { metadata["annotations"].clone() } else { json!({}) };
    object["metadata"] = json!({ "name": into.name, "namespace": into.namespace, "labels": metadata["labels"], "annotations": annotations });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_arrives_filled_and_unbound() {
        let claim = json!({
            "metadata": { "name": "a", "namespace": "x", "uid": "u", "resourceVersion": "7", "labels": { "keep": "1" }, "finalizers": ["f"],
                "annotations": { "pv.kubernetes.io/bind-completed": "yes", "keep": "2" } },
            "spec": { "volumeName": "v", "dataSourceRef": { "kind": "VolumeImportSource", "name": "i" } },
            "status": { "phase": "Bound" },
        });
        let found = serde_json::to_value(arrived(&claim.to_string(), &Key::new("y", "b"), true).unwrap()).unwrap();
        let annotations = json!({ "keep": "2", annotation::POPULATED_FOR: "b" });
        assert_eq!(
            found["metadata"],
            json!({ "name": "b", "namespace": "y", "labels": { "keep": "1" }, "annotations": annotations })
        );
        assert_eq!(found["spec"], json!({ "volumeName": "v" }));
    }
}
