//! What users apply: the operator itself, and the CDI object. Generated from the code, so that the operator's rights are
//! always those it needs.

use kit::operator::manifests::{APPLY, Documents, Program, account, bind, binding, pod, role, rule};
use kit::workload;
use serde_json::{Value, json};

use super::MANAGER;
use super::manifests::{crds, rbac};

/// Default image of the components.
pub const COMPONENT_IMAGE: &str = concat!("ferrovirt.local/component:v", env!("CARGO_PKG_VERSION"));

const NAMESPACE: &str = "cdi";

/// The product's version, as images are tagged.
pub fn version() -> String {
    format!("v{}", env!("CARGO_PKG_VERSION"))
}

/// `cdi-operator.yaml`: namespace, CRD, rights and Deployment of the operator.
///
/// # Errors
/// When a manifest has no YAML form.
pub fn operator() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": {
            "cdi.kubevirt.io": "", "pod-security.kubernetes.io/enforce": "restricted",
        } },
    }))?;
    out.add_definition(crds::CDI);
    for manifest in rights().into_iter().chain([deployment()]) {
        out.add(&manifest)?;
    }
    Ok(out.into_text())
}

/// `cdi-cr.yaml`: the object that asks for the product.
///
/// # Errors
/// When the manifest has no YAML form.
pub fn object() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "CDI", "metadata": { "name": "cdi" },
        "spec": {
            "config": { "featureGates": ["HonorWaitForFirstConsumer"] },
            "imagePullPolicy": "IfNotPresent",
            "infra": {
                "nodeSelector": { "kubernetes.io/os": "linux" },
                "tolerations": [{ "key": "CriticalAddonsOnly", "operator": "Exists" }],
            },
            "workload": { "nodeSelector": { "kubernetes.io/os": "linux" } },
        },
    }))?;
    Ok(out.into_text())
}

fn labels() -> Value {
    json!({ "cdi.kubevirt.io": MANAGER, "operator.cdi.kubevirt.io": "" })
}

fn rights() -> Vec<Value> {
    let mut rules = vec![
        rule("cdi.kubevirt.io", &["cdis", "cdis/finalizers"], &["get", "list", "watch", "patch", "update"]),
        rule("rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings"], APPLY),
        rule("apiextensions.k8s.io", &["customresourcedefinitions"], APPLY),
        rule("apiregistration.k8s.io", &["apiservices"], APPLY),
        rule("security.openshift.io", &["securitycontextconstraints"], APPLY),
        rule(
            "admissionregistration.k8s.io",
            &["validatingwebhookconfigurations", "mutatingwebhookconfigurations"],
            APPLY,
        ),
        rule("scheduling.k8s.io", &["priorityclasses"], &["list", "watch"]),
        // What is left of imports, clones and uploads is taken away with the product.
        rule("", &["pods", "services"], &["list", "delete"]),
        bind("clusterroles", "system:auth-delegator"),
        bind("roles", "extension-apiserver-authentication-reader"),
        // The binding to the role above stands in kube-system.
        rule("rbac.authorization.k8s.io", &["rolebindings"], APPLY),
    ];
    let mut own = vec![
        rule("", &["secrets", "configmaps", "serviceaccounts", "services"], APPLY),
        rule("apps", &["deployments"], APPLY),
        rule("rbac.authorization.k8s.io", &["roles"], APPLY),
        // What the role of Prometheus' account grants.
        rule("", &["services", "endpoints", "pods"], &["get", "list", "watch"]),
        rule("networking.k8s.io", &["networkpolicies"], APPLY),
        rule("monitoring.coreos.com", &["servicemonitors", "prometheusrules"], APPLY),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update", "delete"]),
    ];
    for (kind, held) in [("ClusterRole", &mut rules), ("Role", &mut own)] {
        for granted in rbac::granted(kind) {
            if !held.contains(&granted) {
                held.push(granted);
            }
        }
    }
    let metadata = |name: &str| json!({ "name": name, "labels": labels() });
    let here = json!({ "name": MANAGER, "namespace": NAMESPACE, "labels": labels() });
    let users = json!({ "name": "cdi.kubevirt.io:operator", "labels": {
        "operator.cdi.kubevirt.io": "", "rbac.authorization.k8s.io/aggregate-to-admin": "true",
    } });
    let all = &["get", "delete", "create", "update", "patch", "list", "watch", "deletecollection"];
    let of = (NAMESPACE, MANAGER);
    vec![
        account(&here),
        role(&users, &[rule("cdi.kubevirt.io", &["cdis"], all)]),
        role(&metadata("cdi-operator-cluster"), &rules),
        binding(&metadata(MANAGER), "cdi-operator-cluster", of),
        role(&here, &own),
        binding(&here, MANAGER, of),
    ]
}

fn deployment() -> Value {
    let program = Program {
        name: MANAGER,
        account: MANAGER,
        image: COMPONENT_IMAGE,
        args: &[],
        env: &[("COMPONENT_IMAGE", COMPONENT_IMAGE)],
        ports: &[(super::manifests::workloads::METRICS, 8443)],
        memory: "24Mi",
    };
    let metadata = json!({ "name": MANAGER, "namespace": NAMESPACE, "labels": labels() });
    let labels = json!({
        "name": MANAGER, "operator.cdi.kubevirt.io": "", "cdi.kubevirt.io": MANAGER,
        "prometheus.cdi.kubevirt.io": "true", "np.kubevirt.io/allow-access-cluster-services": "true",
    });
    let selector = json!({ "name": MANAGER, "operator.cdi.kubevirt.io": "" });
    workload::deployment(&metadata, 1, &selector, &labels, &pod(&program))
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
        check("cdi-operator.yaml", &super::operator().unwrap());
        check("cdi-cr.yaml", &super::object().unwrap());
    }
}
