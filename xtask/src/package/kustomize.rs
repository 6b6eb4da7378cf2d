//! The kustomization of the operators, one of the HyperConverged object, and a component that takes images from the registry that the
//! ConfigMap ferrovirt-registry of an overlay names.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;
use serde_json::{Value, json};

use crate::product::{Document, HEADER, REGISTRY, text_of};

/// The files, by path; `object` is the manifest of the HyperConverged object.
///
/// # Errors
/// When a manifest has no YAML form.
pub(crate) fn files(documents: &[Document], object: &str) -> Result<BTreeMap<PathBuf, String>> {
    let of = |version: &str, kind: &str, more: Value| -> Result<String> {
        let mut value = json!({ "apiVersion": format!("kustomize.config.k8s.io/{version}"), "kind": kind });
        for (key, field) in more.as_object().into_iter().flatten() {
            value[key] = field.clone();
        }
        Ok(format!("{HEADER}{}", text_of(&value)?))
    };
    let kustomization = |resource: &str| of("v1beta1", "Kustomization", json!({ "resources": [resource] }));
    let registry = of("v1alpha1", "Component", json!({ "replacements": [replacement(documents)] }))?;
    let files = [
        ("kustomization.yaml", kustomization("ferrovirt-operators.yaml")?),
        ("kustomize/hyperconverged/kustomization.yaml", kustomization("hyperconverged.yaml")?),
        ("kustomize/hyperconverged/hyperconverged.yaml", object.to_owned()),
        ("kustomize/registry/kustomization.yaml", registry),
    ];
    Ok(files.into_iter().map(|(path, text)| (PathBuf::from("deploy").join(path), text)).collect())
}

/// Puts the registry before every image, of containers and of what operators are told to deploy.
fn replacement(documents: &[Document]) -> Value {
    let deployments = documents.iter().filter(|document| document.kind() == "Deployment");
    let targets: Vec<Value> = deployments
        .map(|document| {
            let container = &document.value["spec"]["template"]["spec"]["containers"][0];
            let named = container["env"].as_array().into_iter().flatten().filter(|variable| {
                variable["value"].as_str().is_some_and(|value| value.starts_with(&format!("{REGISTRY}/")))
            });
            let container = "spec.template.spec.containers.*";
            let mut fields = vec![format!("{container}.image")];
            fields.extend(named.map(|variable| {
                format!("{container}.env.[name={}].value", variable["name"].as_str().unwrap_or_default())
            }));
            json!({
                "select": { "kind": "Deployment", "name": document.name() }, "fieldPaths": fields,
                "options": { "delimiter": "/", "index": 0 },
            })
        })
        .collect();
    json!({
        "source": { "kind": "ConfigMap", "name": "ferrovirt-registry", "fieldPath": "data.registry" },
        "targets": targets,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;
    use std::process::Command;

    use super::*;

    /// What `kubectl apply -k` applies.
    fn build(dir: &str) -> Vec<Value> {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy");
        let built = Command::new("kubectl").arg("kustomize").arg(root.join(dir)).output().unwrap();
        assert!(built.status.success(), "{dir}: {}", String::from_utf8_lossy(&built.stderr));
        serde_saphyr::from_multiple(&String::from_utf8(built.stdout).unwrap()).unwrap()
    }

    #[test]
    fn kustomize_makes_the_product_of_it() {
        let all = crate::product::compose(&Path::new(env!("CARGO_MANIFEST_DIR")).join("..")).unwrap();
        let sorted = |mut values: Vec<Value>| {
            values.sort_by_key(|value| format!("{}{}", value["kind"], value["metadata"]));
            values
        };
        let built = sorted(build("."));
        let expect = sorted(all.into_iter().map(|document| document.value).collect());
        assert_eq!(built.len(), expect.len());
        for (built, expect) in built.iter().zip(&expect) {
            assert_eq!(built, expect);
        }
        assert_eq!(build("kustomize/hyperconverged")[0]["kind"], "HyperConverged");
    }

    #[test]
    fn an_overlay_takes_every_image_from_its_registry() {
        let dir = tempfile::tempdir().unwrap();
        let copied = Command::new("cp").args(["-r", "../deploy"]).arg(dir.path()).status().unwrap();
        assert!(copied.success());
        let overlay = dir.path().join("overlay");
        std::fs::create_dir(&overlay).unwrap();
        // As README has it.
        let kustomization = "resources: [../deploy]\ncomponents: [../deploy/kustomize/registry]\nconfigMapGenerator:\n\
            - name: ferrovirt-registry\n  literals: [\"registry=registry.example:5000/team\"]\n  options:\n    \
              annotations: { config.kubernetes.io/local-config: \"true\" }\n";
        std::fs::write(overlay.join("kustomization.yaml"), kustomization).unwrap();
        let built = build(overlay.to_str().unwrap());
        let text = serde_json::to_string(&built).unwrap();
        assert!(!text.contains(REGISTRY) && text.contains("registry.example:5000/team/launcher:v"));
        assert!(!text.contains("ferrovirt-registry"));
    }
}
