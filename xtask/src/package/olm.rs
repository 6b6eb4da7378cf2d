//! The bundle and the catalog of the Operator Lifecycle Manager. What usual validators of bundles ask for is checked here, when they
//! are made.

mod catalog;
mod check;
mod csv;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Result, ensure};
use serde_json::{Value, json};

use crate::product::{Document, HEADER, NAMESPACE, text_of};

/// Name of the package in catalogs.
const PACKAGE: &str = "ferrovirt";
/// Its one channel.
const CHANNEL: &str = "stable";

/// The files, by path.
///
/// # Errors
/// When a manifest has no YAML form, or a validator would refuse what was made.
pub(crate) fn files(documents: &[Document]) -> Result<BTreeMap<PathBuf, String>> {
    let csv = csv::render(documents)?;
    let mut manifests = vec![csv.clone()];
    manifests.extend(documents.iter().filter(|document| is_of_bundle(document, documents)).map(|document| {
        let mut value = document.value.clone();
        // They are where the administrator subscribes.
        if value["metadata"]["namespace"] == NAMESPACE {
            value["metadata"].as_object_mut().map(|metadata| metadata.remove("namespace"));
        }
        value
    }));
    let metadata = json!({ "annotations": annotations() });
    let catalog = catalog::render(&csv)?;
    let mut findings = check::bundle(&manifests, &metadata);
    findings.extend(check::catalog(&catalog));
    ensure!(findings.is_empty(), "the bundle would be refused: {findings:#?}");

    let bundle = Path::new("deploy/olm/bundle");
    let mut out = BTreeMap::new();
    for manifest in &manifests {
        let of = |field: &str| manifest[field].as_str().unwrap_or_default().to_lowercase();
        let name = manifest["metadata"]["name"].as_str().unwrap_or_default().replace(':', "_");
        let kind = if of("kind") == "clusterserviceversion" { PACKAGE.to_owned() } else { name };
        let file = format!("{kind}.{}.yaml", of("kind"));
        out.insert(bundle.join("manifests").join(file), format!("{HEADER}{}", text_of(manifest)?));
    }
    out.insert(bundle.join("metadata/annotations.yaml"), format!("{HEADER}{}", text_of(&metadata)?));
    out.insert(PathBuf::from("deploy/olm/bundle.Dockerfile"), dockerfile());
    let blobs: Vec<String> = catalog.iter().map(text_of).collect::<Result<_>>()?;
    let place = PathBuf::from("deploy/olm/catalog").join(PACKAGE).join("catalog.yaml");
    out.insert(place, format!("{HEADER}---\n{}", blobs.join("---\n")));
    Ok(out)
}

/// What is neither made of the ClusterServiceVersion by OLM, nor made by an operator where OLM has no place for it.
fn is_of_bundle(document: &Document, documents: &[Document]) -> bool {
    match document.kind() {
        "CustomResourceDefinition" | "Service" => true,
        // Roles that are bound to nobody: OLM makes those of the operators.
        "ClusterRole" => !csv::is_bound(document, documents),
        _ => false,
    }
}

/// Marks of the bundle, in its metadata and on its image.
fn annotations() -> Value {
    let prefix = "operators.operatorframework.io.bundle";
    json!({
        format!("{prefix}.mediatype.v1"): "registry+v1",
        format!("{prefix}.manifests.v1"): "manifests/",
        format!("{prefix}.metadata.v1"): "metadata/",
        format!("{prefix}.package.v1"): PACKAGE,
        format!("{prefix}.channels.v1"): CHANNEL,
        format!("{prefix}.channel.default.v1"): CHANNEL,
    })
}

fn dockerfile() -> String {
    let mut out = format!("{HEADER}FROM scratch\n\n");
    for (key, value) in annotations().as_object().into_iter().flatten() {
        out.push_str(&format!("LABEL {key}={}\n", value.as_str().unwrap_or_default()));
    }
    out.push_str("\nCOPY bundle/manifests /manifests/\nCOPY bundle/metadata /metadata/\n");
    out
}
