//! Findings about what lies beside the ClusterServiceVersion.

use std::collections::BTreeSet;

use serde_json::Value;

/// Kinds that a bundle of this format may hold.
const KINDS: [&str; 19] = [
    "ClusterServiceVersion",
    "CustomResourceDefinition",
    "ClusterRole",
    "ClusterRoleBinding",
    "Role",
    "RoleBinding",
    "Service",
    "ServiceAccount",
    "Secret",
    "ConfigMap",
    "PrometheusRule",
    "ServiceMonitor",
    "PodMonitor",
    "PodDisruptionBudget",
    "PriorityClass",
    "ConsoleYAMLSample",
    "ConsoleQuickStart",
    "ConsoleCLIDownload",
    "NetworkPolicy",
];

/// The findings.
pub(super) fn check(csv: &Value, manifests: &[Value]) -> Vec<String> {
    let mut found = definitions(csv, manifests);
    let install = &csv["spec"]["install"]["spec"];
    for manifest in manifests {
        let text = |pointer: &str| manifest.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
        let (kind, name) = (text("/kind"), text("/metadata/name"));
        if !KINDS.contains(&kind) {
            found.push(format!("{kind} {name} is not supported in a bundle"));
        }
        let granted = ["permissions", "clusterPermissions"].into_iter().flat_map(|list| install[list].as_array());
        let mut accounts = granted.flatten().map(|granted| &granted["serviceAccountName"]);
        if kind == "ServiceAccount" && accounts.any(|account| account == name) {
            found.push(format!("ServiceAccount {name} is made by OLM"));
        }
        let spec = &manifest["spec"];
        if kind == "PodDisruptionBudget" {
            if spec["maxUnavailable"] == 0 || spec["maxUnavailable"] == "0%" {
                found.push(format!("{name}: maxUnavailable field cannot be set to 0 or 0%"));
            }
            if spec["minAvailable"] == "100%" {
                found.push(format!("{name}: minAvailable field cannot be set to 100%"));
            }
        }
        if kind == "PriorityClass" && manifest["globalDefault"] == true {
            found.push(format!("{name}: globalDefault field cannot be set to true"));
        }
    }
    found
}

/// What is owned is there once, and what is there is owned, in every version.
fn definitions(csv: &Value, manifests: &[Value]) -> Vec<String> {
    let mut found = Vec::new();
    let owned = csv["spec"]["customresourcedefinitions"]["owned"].as_array().into_iter().flatten();
    let owned: BTreeSet<(String, String)> = owned
        .map(|owned| {
            let text = |field: &str| owned[field].as_str().unwrap_or_default().to_owned();
            (text("name"), text("version"))
        })
        .collect();
    let mut there = BTreeSet::new();
    for definition in manifests.iter().filter(|manifest| manifest["kind"] == "CustomResourceDefinition") {
        let name = definition["metadata"]["name"].as_str().unwrap_or_default();
        for version in definition["spec"]["versions"].as_array().into_iter().flatten() {
            let version = version["name"].as_str().unwrap_or_default();
            if !there.insert((name.to_owned(), version.to_owned())) {
                found.push(format!("duplicate CRD {name} {version}"));
            }
        }
        if !owned.iter().any(|(owned, _)| owned == name) {
            found.push(format!("CRD {name} is present in bundle but not defined in CSV"));
        }
    }
    found.extend(
        owned.difference(&there).map(|(name, version)| format!("owned CRD {name} {version} not found in bundle")),
    );
    found
}
