//! The ClusterServiceVersion: what OLM shows, and what it makes: Deployments, accounts and their rights. Pure.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::PACKAGE;
use crate::product::{Document, IMAGES, NAMESPACE, REGISTRY, VERSION};

/// Media type of the icon.
pub(super) const ICON: &str = "image/svg+xml";
const PICTURE: &str = r##"<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 64 64"><rect x="6" y="10" width="52" height="34" rx="4" fill="#7a3b1e"/><rect x="11" y="15" width="42" height="24" fill="#f6ede4"/><path d="M24 21l14 6-14 6z" fill="#7a3b1e"/><rect x="20" y="50" width="24" height="5" rx="2" fill="#7a3b1e"/></svg>"##;

/// Examples of the kinds, as users apply them.
const EXAMPLES: [&str; 6] = [
    include_str!("../../../../deploy/hco-cr.yaml"),
    include_str!("../../../../deploy/kubevirt-cr.yaml"),
    include_str!("../../../../deploy/cdi-cr.yaml"),
    include_str!("../../../../deploy/network-addons-cr.yaml"),
    include_str!("../../../../deploy/ssp-cr.yaml"),
    include_str!("../../../../deploy/hostpath-cr.yaml"),
];
/// What administrators write themselves; HyperConverged writes the others.
const WRITTEN: [&str; 2] = ["hyperconvergeds.hco.kubevirt.io", "hostpathprovisioners.hostpathprovisioner.kubevirt.io"];
const DESCRIPTION: &str = "Runs virtual machines on Kubernetes, API-compatible with KubeVirt, the Containerized Data Importer, the \
cluster network addons, the Scheduling, Scale and Performance operator and the hostpath provisioner. Create the HyperConverged object, \
and everything else follows from it.";

/// The icon, as it is embedded.
pub(super) fn icon() -> String {
    BASE64_STANDARD.encode(PICTURE)
}

/// The ClusterServiceVersion of the product.
///
/// # Errors
/// When the product lacks a part, or names a role that it does not hold.
pub(super) fn render(documents: &[Document]) -> Result<Value> {
    let of = |kind: &'static str| documents.iter().filter(move |document| document.kind() == kind);
    let examples: Vec<Value> = EXAMPLES.iter().map(|text| example(text)).collect::<Result<_>>()?;
    let owned = owned(documents)?;
    let internal: Vec<&Value> = owned
        .iter()
        .map(|owned| &owned["name"])
        .filter(|name| !WRITTEN.iter().any(|written| *name == written))
        .collect();
    let component = format!("{REGISTRY}/component:v{VERSION}");
    let features = |name: &str| format!("features.operators.openshift.io/{name}");
    let mut annotations = json!({
        "alm-examples": serde_json::to_string_pretty(&examples)?,
        "capabilities": "Full Lifecycle", "categories": "OpenShift Optional", "certified": "false", "support": "false",
        "containerImage": component, "description": "Virtual machines on Kubernetes",
        "console.openshift.io/disable-operand-delete": "true",
        "operatorframework.io/initialization-resource": serde_json::to_string(&examples[0])?,
        "operatorframework.io/suggested-namespace": NAMESPACE,
        "operators.openshift.io/infrastructure-features": "[\"disconnected\",\"proxy-aware\"]",
        "operators.operatorframework.io/internal-objects": serde_json::to_string(&internal)?,
    });
    for (name, value) in [
        ("cnf", "false"),
        ("cni", "true"),
        ("csi", "true"),
        ("disconnected", "true"),
        ("fips-compliant", "false"),
        ("proxy-aware", "true"),
        ("tls-profiles", "true"),
        ("token-auth-aws", "false"),
        ("token-auth-azure", "false"),
        ("token-auth-gcp", "false"),
    ] {
        annotations[features(name)] = json!(value);
    }
    let deployments: Vec<Value> = of("Deployment")
        .map(|one| json!({ "name": one.name(), "label": one.value["metadata"]["labels"], "spec": one.value["spec"] }))
        .collect();
    let (permissions, everywhere) = permissions(documents)?;
    let mode = |kind: &str, supported: bool| json!({ "type": kind, "supported": supported });
    Ok(json!({
        "apiVersion": "operators.coreos.com/v1alpha1", "kind": "ClusterServiceVersion",
        "metadata": {
            "name": format!("{PACKAGE}-operator.v{VERSION}"), "annotations": annotations,
            "labels": { "operatorframework.io/arch.amd64": "supported", "operatorframework.io/os.linux": "supported" },
        },
        "spec": {
            "displayName": "Ferrovirt", "description": DESCRIPTION, "version": VERSION, "minKubeVersion": "1.30.0",
            "maturity": "alpha", "provider": { "name": "Ferrovirt" },
            "maintainers": [{ "name": "Ferrovirt", "email": "maintainers@ferrovirt.example" }],
            "links": [{ "name": "Source", "url": "https://ferrovirt.example" }],
            "keywords": ["KubeVirt", "Virtualization", "VM"],
            "icon": [{ "base64data": icon(), "mediatype": ICON }],
            "installModes": [
                mode("OwnNamespace", false), mode("SingleNamespace", false), mode("MultiNamespace", false),
                mode("AllNamespaces", true),
            ],
            "cleanup": { "enabled": false },
            "customresourcedefinitions": { "owned": owned },
            "relatedImages": IMAGES.map(|(image, _)| json!({ "name": image, "image": format!("{REGISTRY}/{image}:v{VERSION}") })),
            "install": { "strategy": "deployment", "spec": {
                "deployments": deployments, "permissions": permissions, "clusterPermissions": everywhere,
            } },
        },
    }))
}

fn example(text: &str) -> Result<Value> {
    let mut all: Vec<Value> = serde_saphyr::from_multiple(text).context("an example is no YAML")?;
    all.retain(|value| !value.is_null());
    anyhow::ensure!(!all.is_empty(), "an example is empty");
    Ok(all.remove(0))
}

/// Every version that a definition serves.
fn owned(documents: &[Document]) -> Result<Vec<Value>> {
    let mut out = Vec::new();
    for document in documents.iter().filter(|document| document.kind() == "CustomResourceDefinition") {
        let names = &document.value["spec"]["names"];
        let versions = document.value["spec"]["versions"].as_array().context("a definition has no versions")?;
        let kind = names["kind"].as_str().context("a definition has no kind")?;
        for version in versions.iter().filter(|version| version["served"] == true) {
            let what = if WRITTEN.contains(&document.name()) {
                "What the administrator wants"
            } else {
                "Written by HyperConverged"
            };
            out.push(json!({
                "name": document.name(), "version": version["name"], "kind": kind, "displayName": kind,
                "description": format!("{what}: the {kind} object"),
            }));
        }
    }
    Ok(out)
}

/// Whether a role is bound to an account of the product.
pub(super) fn is_bound(role: &Document, documents: &[Document]) -> bool {
    documents.iter().any(|binding| {
        let reference = &binding.value["roleRef"];
        binding.kind().ends_with("RoleBinding") && role.kind() == reference["kind"] && role.name() == reference["name"]
    })
}

/// Rules by account: within the namespace of the operators, and everywhere. Rules of other namespaces are given everywhere: OLM makes
/// roles in no other namespace than the one subscribed in.
fn permissions(documents: &[Document]) -> Result<(Vec<Value>, Vec<Value>)> {
    let mut here: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    let mut everywhere: BTreeMap<String, Vec<Value>> = BTreeMap::new();
    for binding in documents.iter().filter(|document| document.kind().ends_with("RoleBinding")) {
        let namespace = binding.value["metadata"]["namespace"].as_str();
        let reference = &binding.value["roleRef"];
        let role = documents.iter().find(|role| {
            let at = role.value["metadata"]["namespace"].as_str();
            role.kind() == reference["kind"]
                && role.name() == reference["name"]
                && (role.kind() == "ClusterRole" || at == namespace)
        });
        let role = role.with_context(|| format!("{} binds a role that is not there", binding.name()))?;
        let rules = role.value["rules"].as_array().cloned().unwrap_or_default();
        for subject in binding.value["subjects"].as_array().into_iter().flatten() {
            let account = subject["name"].as_str().context("a binding has a subject without name")?;
            let into = if namespace == Some(NAMESPACE) { &mut here } else { &mut everywhere };
            let held = into.entry(account.to_owned()).or_default();
            held.extend(rules.iter().filter(|rule| !held.contains(rule)).cloned().collect::<Vec<_>>());
        }
    }
    let list = |all: BTreeMap<String, Vec<Value>>| {
        all.into_iter().map(|(account, rules)| json!({ "serviceAccountName": account, "rules": rules })).collect()
    };
    Ok((list(here), list(everywhere)))
}
