//! What users apply: the operator itself, the namespace of boot sources, and the SSP object. Generated from the code, so that the
//! operator's rights are always those it needs.

use kit::operator::manifests::{APPLY, Documents, Program, account, binding, pod, role, rule};
use kit::{served, workload};
use serde_json::{Value, json};

use super::MANAGER;
use super::manifests::{crds, images, tekton, tokens, validator};
use super::names::METRICS_SERVICE;
use crate::console_proxy;
use crate::words::{self, IMAGES};

/// Default image of the validator.
pub const COMPONENT_IMAGE: &str = concat!("ferrovirt.local/component:v", env!("CARGO_PKG_VERSION"));
/// Default image of steps of tasks.
pub const TEKTON_TASKS_IMAGE: &str = concat!("ferrovirt.local/tekton-tasks:v", env!("CARGO_PKG_VERSION"));
/// Default image of those that take libguestfs.
pub const GUESTFS_IMAGE: &str = concat!("ferrovirt.local/guestfs:v", env!("CARGO_PKG_VERSION"));
/// Where the operator lives.
pub const NAMESPACE: &str = "kubevirt-hyperconverged";

const READ: &[&str] = &["get", "list", "watch"];
/// Who hands out tokens for screens.
const PROXY: &str = console_proxy::NAME;

/// The product's version, as images are tagged.
pub fn version() -> String {
    format!("v{}", env!("CARGO_PKG_VERSION"))
}

/// `ssp-operator.yaml`: namespaces, CRD, rights and Deployment of the operator.
///
/// # Errors
/// When a manifest has no YAML form.
pub fn operator() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": { "pod-security.kubernetes.io/enforce": "privileged" } },
    }))?;
    // It outlives the product: images in it are its users'.
    out.add(&json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": IMAGES } }))?;
    out.add_definition(crds::SSP);
    for manifest in rights().into_iter().chain([service(), deployment()]) {
        out.add(&manifest)?;
    }
    Ok(out.into_text())
}

/// `ssp-cr.yaml`: the object that asks for the product.
///
/// # Errors
/// When the manifest has no YAML form.
pub fn object() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "ssp.kubevirt.io/v1beta3", "kind": "SSP", "metadata": { "name": "ssp", "namespace": NAMESPACE },
        "spec": { "commonTemplates": { "namespace": NAMESPACE }, "templateValidator": { "replicas": 2 } },
    }))?;
    Ok(out.into_text())
}

fn labels() -> Value {
    json!({ "control-plane": MANAGER })
}

/// A right to objects of these names alone.
fn named(group: &str, resource: &str, verbs: &[&str], names: &[&str]) -> Value {
    let mut rule = rule(group, &[resource], verbs);
    rule["resourceNames"] = json!(names);
    rule
}

fn rights() -> Vec<Value> {
    const RBAC: &str = "rbac.authorization.k8s.io";
    const MONITORING: &str = "monitoring.coreos.com";
    // What is applied by name; a list knows no names.
    const CHANGE: &[&str] = &["get", "create", "patch", "delete"];
    let mut rules = vec![
        rule("ssp.kubevirt.io", &["ssps"], &["get", "list", "watch", "patch"]),
        rule("ssp.kubevirt.io", &["ssps/status", "ssps/finalizers"], &["patch", "update"]),
        rule(words::OPENSHIFT.0, &[words::OPENSHIFT.1], APPLY),
        rule(words::KUBEVIRT.0, &[words::KUBEVIRT.1], APPLY),
        rule("cdi.kubevirt.io", &["dataimportcrons"], APPLY),
        rule(
            "admissionregistration.k8s.io",
            &["validatingwebhookconfigurations", "validatingadmissionpolicies", "validatingadmissionpolicybindings"],
            APPLY,
        ),
        // Each kind is watched once, in both namespaces.
        rule(RBAC, &["clusterroles", "clusterrolebindings", "roles", "rolebindings"], READ),
        rule("networking.k8s.io", &["networkpolicies"], READ),
        named(RBAC, "clusterroles", CHANGE, &["template:view", images::EDIT, PROXY, tokens::GENERATE]),
        named(RBAC, "clusterrolebindings", CHANGE, &[validator::ACCOUNT, PROXY]),
        // What these roles grant, the operator need not have: two it gives to nobody, and one to an account of its own namespace.
        named(RBAC, "clusterroles", &["escalate"], &[images::EDIT, PROXY, tokens::GENERATE]),
        named(RBAC, "clusterroles", &["bind"], &[PROXY]),
        // That of boot sources, where nobody has made it.
        rule("", &["namespaces"], &["create"]),
        named("", "namespaces", &["get"], &[IMAGES]),
        // Whether any has KVM.
        rule("", &["nodes"], &["list"]),
        rule("apiregistration.k8s.io", &["apiservices"], READ),
        named("apiregistration.k8s.io", "apiservices", CHANGE, &["v1.token.kubevirt.io"]),
    ];
    // The roles of tasks, which it gives to nobody.
    let tasks = tekton::roles();
    let tasks: Vec<&str> = tasks.iter().map(String::as_str).collect();
    rules.push(named(RBAC, "clusterroles", &["get", "create", "patch", "delete", "escalate"], &tasks));
    rules.extend(validator::cluster_rules());
    rules.extend(served::rules());
    let mut own = vec![
        rule("", &["secrets", "configmaps", "serviceaccounts", "services"], APPLY),
        rule("apps", &["deployments"], APPLY),
        rule("policy", &["poddisruptionbudgets"], APPLY),
        rule(RBAC, &["roles", "rolebindings"], CHANGE),
        rule("networking.k8s.io", &["networkpolicies"], CHANGE),
        rule(MONITORING, &["servicemonitors", "prometheusrules"], APPLY),
        rule("tekton.dev", &["tasks", "pipelines"], APPLY),
        // What the role of Prometheus' account grants.
        rule("", &["services", "endpoints", "pods"], READ),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update", "delete"]),
    ];
    own.extend(validator::own_rules());
    let sources = [
        rule("", &["persistentvolumeclaims"], &["list", "watch"]),
        rule("cdi.kubevirt.io", &["datasources"], APPLY),
        rule("networking.k8s.io", &["networkpolicies"], CHANGE),
        named(RBAC, "roles", &["get", "create", "patch", "delete", "escalate", "bind"], &[images::VIEW]),
        named(RBAC, "rolebindings", CHANGE, &[images::VIEW]),
    ];
    // How the API server vouches for users is read by the account of vm-console-proxy.
    let reader = [named(RBAC, "roles", &["bind"], &[tokens::READER]), named(RBAC, "rolebindings", CHANGE, &[PROXY])];
    let metadata = |name: &str| json!({ "name": name, "labels": labels() });
    let place = |namespace: &str| json!({ "name": MANAGER, "namespace": namespace, "labels": labels() });
    let of = (NAMESPACE, MANAGER);
    // What happens to an SSP elsewhere is told there.
    rules.push(rule("", &["events"], &["create", "patch"]));
    vec![
        account(&place(NAMESPACE)),
        role(&metadata(MANAGER), &rules),
        binding(&metadata(MANAGER), MANAGER, of),
        role(&place(NAMESPACE), &own),
        binding(&place(NAMESPACE), MANAGER, of),
        role(&place(IMAGES), &sources),
        binding(&place(IMAGES), MANAGER, of),
        role(&place("kube-system"), &reader),
        binding(&place("kube-system"), MANAGER, of),
    ]
}

fn service() -> Value {
    let mut metadata = json!({ "name": METRICS_SERVICE, "namespace": NAMESPACE, "labels": labels() });
    metadata["labels"]["metrics.ssp.kubevirt.io"] = json!(METRICS_SERVICE);
    metadata["labels"]["prometheus.ssp.kubevirt.io"] = json!("true");
    let ports = json!([{ "name": "http-metrics", "port": 443, "targetPort": "http-metrics", "protocol": "TCP" }]);
    workload::service(&metadata, &labels(), &ports)
}

fn deployment() -> Value {
    let program = Program {
        name: MANAGER,
        account: MANAGER,
        image: COMPONENT_IMAGE,
        args: &[],
        env: &[
            ("COMPONENT_IMAGE", COMPONENT_IMAGE),
            ("TEKTON_TASKS_IMAGE", TEKTON_TASKS_IMAGE),
            ("GUESTFS_IMAGE", GUESTFS_IMAGE),
        ],
        ports: &[("http-metrics", 8443)],
        memory: "24Mi",
    };
    let metadata = json!({ "name": MANAGER, "namespace": NAMESPACE, "labels": labels() });
    let mut marked = labels();
    marked["name"] = json!(MANAGER);
    marked["prometheus.ssp.kubevirt.io"] = json!("true");
    workload::deployment(&metadata, 1, &labels(), &marked, &pod(&program))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

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
        check("ssp-operator.yaml", &operator().unwrap());
        check("ssp-cr.yaml", &object().unwrap());
    }

    /// Secrets of tenants are no business of this operator, nor are the claims and machines that they have.
    #[test]
    fn outside_of_its_namespaces_it_reads_no_secrets_and_writes_no_claims() {
        let rights = rights();
        let cluster = rights.iter().find(|one| one["kind"] == "ClusterRole").unwrap();
        for rule in cluster["rules"].as_array().unwrap() {
            let text = rule.to_string();
            assert!(
                !text.contains("secrets") && !text.contains("persistentvolumeclaims") && !text.contains("\"*\""),
                "{text}"
            );
        }
    }
}
