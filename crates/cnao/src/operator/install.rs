//! What users apply: the operator and the NetworkAddonsConfig object. Generated from the code, so that the operator's rights are always
//! those it needs.

use kit::operator::manifests::{APPLY, Documents, Program, account, binding, pod, role, rule};
use kit::workload;
use serde_json::{Value, json};

use super::PROGRAM;
use super::operands::{self, CLAIMS, DEFINITIONS};
use crate::release::{COMPONENT_IMAGE, NAMESPACE};

const OBJECT: &str =
    include_str!("../../../../deploy/crds/networkaddonsconfigs.networkaddonsoperator.network.kubevirt.io.yaml");

/// `network-addons-operator.yaml`: namespace, definition, rights and Deployment of the operator.
///
/// # Errors
/// When a manifest has no YAML form.
pub fn operator() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "v1", "kind": "Namespace",
        // The marker of bridges is in the network of its node, and plugins are put into a directory of it.
        "metadata": { "name": NAMESPACE, "labels": { "pod-security.kubernetes.io/enforce": "privileged" } },
    }))?;
    out.add_definition(OBJECT);
    for manifest in rights().into_iter().chain([deployment()]) {
        out.add(&manifest)?;
    }
    Ok(out.into_text())
}

/// `network-addons-cr.yaml`: the object that asks for all that is there.
///
/// # Errors
/// When the manifest has no YAML form.
pub fn object() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "networkaddonsoperator.network.kubevirt.io/v1", "kind": "NetworkAddonsConfig",
        "metadata": { "name": "cluster" }, "spec": { "multus": {}, "linuxBridge": {}, "kubeMacPool": {}, "kubevirtIpamController": {} },
    }))?;
    Ok(out.into_text())
}

fn labels() -> Value {
    json!({ "name": PROGRAM, "app.kubernetes.io/component": "network", "app.kubernetes.io/part-of": "hyperconverged-cluster" })
}

fn rights() -> Vec<Value> {
    let group = "networkaddonsoperator.network.kubevirt.io";
    let mut definition = rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["patch"]);
    let definitions: Vec<&str> = DEFINITIONS.iter().chain([&CLAIMS]).map(|(name, _)| *name).collect();
    definition["resourceNames"] = json!(definitions);
    let mut undefinition = rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["delete"]);
    undefinition["resourceNames"] = json!([CLAIMS.0]);
    let mut rules = vec![
        rule(group, &["networkaddonsconfigs"], &["get", "list", "watch", "patch", "update"]),
        rule(group, &["networkaddonsconfigs/status", "networkaddonsconfigs/finalizers"], &["get", "patch", "update"]),
        rule("", &["nodes"], &["list", "watch"]),
        definition,
        undefinition,
        // A patch of what is not there yet is its creation.
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["create"]),
        rule(
            "admissionregistration.k8s.io",
            &["mutatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings"],
            APPLY,
        ),
        rule("rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings"], APPLY),
        // Where there is that kind.
        rule("security.openshift.io", &["securitycontextconstraints"], APPLY),
    ];
    let mut own = vec![
        rule("", &["secrets", "configmaps", "services", "serviceaccounts"], APPLY),
        rule("apps", &["deployments", "daemonsets"], APPLY),
        rule("policy", &["poddisruptionbudgets"], APPLY),
        rule("networking.k8s.io", &["networkpolicies"], APPLY),
        rule("rbac.authorization.k8s.io", &["roles", "rolebindings"], APPLY),
        // Where there are those kinds.
        rule("monitoring.coreos.com", &["servicemonitors", "prometheusrules"], APPLY),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update", "delete", "deletecollection"]),
    ];
    // What it gives away.
    for manifest in operands::every(NAMESPACE) {
        let into = match manifest["kind"].as_str() {
            Some("ClusterRole") => &mut rules,
            Some("Role") => &mut own,
            _ => continue,
        };
        for granted in manifest["rules"].as_array().into_iter().flatten() {
            if !into.contains(granted) {
                into.push(granted.clone());
            }
        }
    }
    let metadata = json!({ "name": PROGRAM, "labels": labels() });
    let here = json!({ "name": PROGRAM, "namespace": NAMESPACE, "labels": labels() });
    let of = (NAMESPACE, PROGRAM);
    vec![
        account(&here),
        role(&metadata, &rules),
        binding(&metadata, PROGRAM, of),
        role(&here, &own),
        binding(&here, PROGRAM, of),
    ]
}

fn deployment() -> Value {
    let program = Program {
        name: PROGRAM,
        account: PROGRAM,
        image: COMPONENT_IMAGE,
        args: &[],
        env: &[("COMPONENT_IMAGE", COMPONENT_IMAGE)],
        ports: &[("metrics", 8443)],
        memory: "24Mi",
    };
    let metadata = json!({ "name": PROGRAM, "namespace": NAMESPACE, "labels": labels() });
    let selector = json!({ "name": PROGRAM });
    workload::deployment(&metadata, 1, &selector, &labels(), &pod(&program))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    /// Compares with what is committed; `UPDATE_EXPECT=1` writes it.
    #[track_caller]
    fn check(name: &str, text: &str) {
        let path = Path::new("../../deploy").join(name);
        if std::env::var_os("UPDATE_EXPECT").is_some() {
            std::fs::write(&path, text).unwrap();
        }
        let held = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(held == text, "{name} is out of date: run `cargo xtask codegen manifests`");
    }

    #[test]
    fn committed_manifests_are_current() {
        check("network-addons-operator.yaml", &super::operator().unwrap());
        check("network-addons-cr.yaml", &super::object().unwrap());
    }
}
