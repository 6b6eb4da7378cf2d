//! CDI's types against the schemas that users apply: an object with every field that a schema has is read and written again whole.

use api::cdi::v1beta1::{
    CDI, CDIConfig, DataImportCron, DataSource, DataVolume, ObjectTransfer, StorageProfile, VolumeCloneSource,
    VolumeImportSource, VolumeUploadSource,
};
use serde_json::{Value, json};

use crate::round_trip;

/// An object in which nothing is missing.
fn whole(schema: &Value) -> Value {
    if let Some(first) = schema["enum"].as_array().and_then(|all| all.first()) {
        return first.clone();
    }
    match schema["type"].as_str() {
        Some("object") => match (&schema["properties"], &schema["additionalProperties"]) {
            (Value::Object(fields), _) => fields.iter().map(|(name, field)| (name.clone(), whole(field))).collect(),
            (_, field @ Value::Object(_)) => json!({ "key": whole(field) }),
            _ => json!({}),
        },
        Some("array") => json!([whole(&schema["items"])]),
        Some("boolean") => json!(true),
        Some("integer") => json!(7),
        Some("string") if schema["format"] == "date-time" => json!("2026-01-01T00:00:00Z"),
        // A quantity, or a port.
        None if schema["x-kubernetes-int-or-string"] == true => json!("1"),
        _ => json!("text"),
    }
}

#[track_caller]
fn check<T: serde::Serialize + serde::de::DeserializeOwned>(plural: &str) {
    let path = format!("../../deploy/crds/{plural}.cdi.kubevirt.io.yaml");
    let crd: Value = serde_saphyr::from_str(&std::fs::read_to_string(path).unwrap()).unwrap();
    let versions = crd["spec"]["versions"].as_array().unwrap();
    let version = versions.iter().find(|version| version["name"] == "v1beta1").unwrap();
    let mut object = whole(&version["schema"]["openAPIV3Schema"]);
    object["apiVersion"] = json!("cdi.kubevirt.io/v1beta1");
    object["kind"] = crd["spec"]["names"]["kind"].clone();
    round_trip::<T>(&object);
}

#[test]
fn no_field_of_a_schema_is_missing() {
    check::<DataVolume>("datavolumes");
    check::<DataSource>("datasources");
    check::<DataImportCron>("dataimportcrons");
    check::<StorageProfile>("storageprofiles");
    check::<CDIConfig>("cdiconfigs");
    check::<CDI>("cdis");
    check::<ObjectTransfer>("objecttransfers");
    check::<VolumeImportSource>("volumeimportsources");
    check::<VolumeUploadSource>("volumeuploadsources");
    check::<VolumeCloneSource>("volumeclonesources");
}
