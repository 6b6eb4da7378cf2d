//! What users apply: the operator itself, and the KubeVirt object. Generated from the code, so that the operator's rights
//! are always those it needs.

use kit::operator::manifests::{APPLY, Documents, Program, account, bind, binding, pod, role, rule};
use kit::workload;
use serde_json::{Value, json};

use crate::MANAGER;
use crate::manifests::{crds, instancetypes, rbac};

/// Default image of the components.
pub const COMPONENT_IMAGE: &str = concat!("ferrovirt.local/component:v", env!("CARGO_PKG_VERSION"));
/// Default image of launcher pods.
pub const LAUNCHER_IMAGE: &str = concat!("ferrovirt.local/launcher:v", env!("CARGO_PKG_VERSION"));
/// Default image of what `virtctl guestfs` runs.
pub const GUESTFS_IMAGE: &str = concat!("ferrovirt.local/guestfs:v", env!("CARGO_PKG_VERSION"));

const NAMESPACE: &str = "kubevirt";
const ACCOUNT: &str = "kubevirt-operator";

/// The product's version, as images are tagged.
pub fn version() -> String {
    format!("v{}", env!("CARGO_PKG_VERSION"))
}

/// `kubevirt-operator.yaml`: namespace, CRD, rights and Deployment of the operator.
///
/// # Errors
/// When a manifest has no YAML form.
pub fn operator() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&namespace())?;
    out.add_definition(crds::KUBEVIRT);
    for manifest in rights().into_iter().chain([deployment()]) {
        out.add(&manifest)?;
    }
    Ok(out.into_text())
}

/// `kubevirt-cr.yaml`: the object that asks for the product.
///
/// # Errors
/// When the manifest has no YAML form.
pub fn object() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "KubeVirt",
        "metadata": { "name": "kubevirt", "namespace": NAMESPACE },
        "spec": {
            "certificateRotateStrategy": {},
            "configuration": { "developerConfiguration": { "featureGates": [] } },
            "customizeComponents": {},
            "imagePullPolicy": "IfNotPresent",
            "workloadUpdateStrategy": {},
        },
    }))?;
    Ok(out.into_text())
}

fn labels() -> Value {
    json!({ "kubevirt.io": "virt-operator", "operator.kubevirt.io": "" })
}

fn namespace() -> Value {
    json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": {
            "name": NAMESPACE,
            "labels": { "kubevirt.io": "", "pod-security.kubernetes.io/enforce": "privileged" },
        },
    })
}

fn rights() -> Vec<Value> {
    let mut rules = vec![
        rule(
            "kubevirt.io",
            &["kubevirts", "kubevirts/status", "kubevirts/finalizers"],
            &["get", "list", "watch", "patch", "update"],
        ),
        rule("", &["serviceaccounts", "services"], APPLY),
        rule("", &["nodes"], &["list", "patch"]),
        rule("apps", &["deployments", "daemonsets"], APPLY),
        rule("scheduling.k8s.io", &["priorityclasses"], APPLY),
        rule("security.openshift.io", &["securitycontextconstraints"], APPLY),
        rule("rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings", "roles", "rolebindings"], APPLY),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], APPLY),
        rule("apiregistration.k8s.io", &["apiservices"], APPLY),
        rule(
            "admissionregistration.k8s.io",
            &[
                "validatingwebhookconfigurations",
                "mutatingwebhookconfigurations",
                "validatingadmissionpolicies",
                "validatingadmissionpolicybindings",
            ],
            APPLY,
        ),
        rule(instancetypes::GROUP, &instancetypes::KINDS.map(|(_, plural)| plural), APPLY),
        // Removed with the product, as is what its components wrote on nodes.
        rule("certificates.k8s.io", &["certificatesigningrequests"], &["get", "list", "watch", "delete"]),
        rule(
            "certificates.k8s.io",
            &["certificatesigningrequests/approval", "certificatesigningrequests/status"],
            &["patch", "update"],
        ),
        json!({
            "apiGroups": ["certificates.k8s.io"], "resources": ["signers"], "verbs": ["approve", "sign"],
            "resourceNames": [api::kubevirt::constants::SIGNER],
        }),
        bind("clusterroles", "system:auth-delegator"),
        bind("roles", "extension-apiserver-authentication-reader"),
    ];
    let mut own = vec![
        rule("", &["secrets", "configmaps"], APPLY),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update", "delete"]),
    ];
    for (kind, held) in [("ClusterRole", &mut rules), ("Role", &mut own)] {
        for granted in rbac::granted(kind) {
            if !held.contains(&granted) {
                held.push(granted);
            }
        }
    }
    let metadata = |name: &str| json!({ "name": name, "labels": { "kubevirt.io": "" } });
    let here = |name: &str| json!({ "name": name, "namespace": NAMESPACE, "labels": { "kubevirt.io": "" } });
    let users = json!({ "name": "kubevirt.io:operator", "labels": {
        "operator.kubevirt.io": "", "rbac.authorization.k8s.io/aggregate-to-admin": "true",
    } });
    let all = &["get", "delete", "create", "update", "patch", "list", "watch", "deletecollection"];
    let of = (NAMESPACE, ACCOUNT);
    vec![
        account(&here(ACCOUNT)),
        role(&users, &[rule("kubevirt.io", &["kubevirts"], all)]),
        role(&metadata(ACCOUNT), &rules),
        binding(&metadata(ACCOUNT), ACCOUNT, of),
        role(&here(ACCOUNT), &own),
        binding(&here("kubevirt-operator-rolebinding"), ACCOUNT, of),
    ]
}

fn deployment() -> Value {
    let program = Program {
        name: MANAGER,
        account: ACCOUNT,
        image: COMPONENT_IMAGE,
        args: &[],
        env: &[
            ("COMPONENT_IMAGE", COMPONENT_IMAGE),
            ("LAUNCHER_IMAGE", LAUNCHER_IMAGE),
            ("GUESTFS_IMAGE", GUESTFS_IMAGE),
        ],
        ports: &[("metrics", 8443), ("webhooks", 8444)],
        memory: "24Mi",
    };
    let metadata = json!({ "name": MANAGER, "namespace": NAMESPACE, "labels": labels() });
    let labels = json!({ "kubevirt.io": MANAGER, "name": MANAGER, "prometheus.kubevirt.io": "true" });
    workload::deployment(&metadata, 1, &json!({ "kubevirt.io": MANAGER }), &labels, &pod(&program))
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
        check("kubevirt-operator.yaml", &super::operator().unwrap());
        check("kubevirt-cr.yaml", &super::object().unwrap());
    }
}
