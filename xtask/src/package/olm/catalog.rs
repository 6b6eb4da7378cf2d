//! The file-based catalog: the package, its channel, and the bundle. Pure.

use anyhow::{Context, Result};
use serde_json::{Value, json};

use super::csv::{ICON, icon};
use super::{CHANNEL, PACKAGE};
use crate::product::{REGISTRY, VERSION};

/// The blobs.
///
/// # Errors
/// When the ClusterServiceVersion lacks a part.
pub(super) fn render(csv: &Value) -> Result<Vec<Value>> {
    let name = csv["metadata"]["name"].as_str().context("the ClusterServiceVersion has no name")?;
    let mut properties =
        vec![json!({ "type": "olm.package", "value": { "packageName": PACKAGE, "version": VERSION } })];
    for owned in csv["spec"]["customresourcedefinitions"]["owned"].as_array().into_iter().flatten() {
        let (_, group) =
            owned["name"].as_str().and_then(|name| name.split_once('.')).context("a name without group")?;
        let value = json!({ "group": group, "kind": owned["kind"], "version": owned["version"] });
        properties.push(json!({ "type": "olm.gvk", "value": value }));
    }
    let mut metadata = json!({});
    for field in ["annotations", "labels"] {
        metadata[field] = csv["metadata"][field].clone();
    }
    for field in
        ["apiServiceDefinitions", "description", "displayName", "installModes", "keywords", "links", "maintainers"]
    {
        metadata[field] = csv["spec"][field].clone();
    }
    for (field, of) in
        [("crdDescriptions", "customresourcedefinitions"), ("maturity", "maturity"), ("provider", "provider")]
    {
        metadata[field] = csv["spec"][of].clone();
    }
    metadata["minKubeVersion"] = csv["spec"]["minKubeVersion"].clone();
    if let Some(fields) = metadata.as_object_mut() {
        fields.retain(|_, value| !value.is_null());
    }
    properties.push(json!({ "type": "olm.csv.metadata", "value": metadata }));
    let image = format!("{REGISTRY}/bundle:v{VERSION}");
    let mut images = csv["spec"]["relatedImages"].as_array().cloned().unwrap_or_default();
    images.push(json!({ "name": "bundle", "image": image }));
    Ok(vec![
        json!({
            "schema": "olm.package", "name": PACKAGE, "defaultChannel": CHANNEL,
            "description": csv["spec"]["displayName"], "icon": { "base64data": icon(), "mediatype": ICON },
        }),
        json!({ "schema": "olm.channel", "name": CHANNEL, "package": PACKAGE, "entries": [{ "name": name }] }),
        json!({
            "schema": "olm.bundle", "name": name, "package": PACKAGE, "image": image, "properties": properties,
            "relatedImages": images,
        }),
    ])
}
