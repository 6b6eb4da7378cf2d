//! What users apply: the operator, its webhook, and the HyperConverged object. Generated from the code, so that the operator's rights
//! are always those it needs.

use kit::operator::manifests::{APPLY, Documents, Program, account, binding, pod, role, rule};
use kit::{served, workload};
use serde_json::{Value, json};

use super::{MANAGER, guard};
use crate::child::Child;
use crate::release::{COMPONENT_IMAGE, NAMESPACE};
use crate::render::{Input, NAME};
use crate::webhook;

const DEFINITION: &str = include_str!("../../../../deploy/crds/hyperconvergeds.hco.kubevirt.io.yaml");

/// `hco-operator.yaml`: namespace, definition, rights and Deployments of the operator and its webhook.
///
/// # Errors
/// When a manifest has no YAML form.
pub fn operator() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "v1", "kind": "Namespace",
        "metadata": { "name": NAMESPACE, "labels": { "pod-security.kubernetes.io/enforce": "restricted" } },
    }))?;
    out.add_definition(DEFINITION);
    for manifest in rights().into_iter().chain(rights_of_webhook()).chain([deployment(), deployment_of_webhook()]) {
        out.add(&manifest)?;
    }
    Ok(out.into_text())
}

/// `hco-cr.yaml`: the object that asks for the product.
///
/// # Errors
/// When the manifest has no YAML form.
pub fn object() -> Result<String, serde_saphyr::ser_error::Error> {
    let mut out = Documents::new();
    out.add(&json!({
        "apiVersion": "hco.kubevirt.io/v1", "kind": "HyperConverged",
        "metadata": { "name": NAME, "namespace": NAMESPACE }, "spec": {},
    }))?;
    Ok(out.into_text())
}

/// What the operator deploys beside the objects of other operators, for who looks at the rights of it.
pub fn operands() -> Vec<Value> {
    guard::every_kind(&Input { namespace: NAMESPACE.to_owned(), ..Input::default() })
}

fn labels() -> Value {
    json!({
        "name": MANAGER, "app.kubernetes.io/part-of": "hyperconverged-cluster", "app.kubernetes.io/component": "deployment",
    })
}

/// A rule about the objects that follow.
fn children(verbs: &[&str]) -> Vec<Value> {
    let one = |child: Child| {
        let kind = child.kind();
        rule(kind.api_version.split_once('/').unwrap_or_default().0, &[kind.plural], verbs)
    };
    Child::ALL.into_iter().map(one).collect()
}

fn rights() -> Vec<Value> {
    let mut rules = vec![
        rule("hco.kubevirt.io", &["hyperconvergeds"], &["get", "list", "watch", "patch", "update"]),
        rule("hco.kubevirt.io", &["hyperconvergeds/status", "hyperconvergeds/finalizers"], &["get", "patch", "update"]),
        rule("", &["nodes"], &["list", "watch"]),
        // The injector's, with what it grants.
        rule("rbac.authorization.k8s.io", &["clusterroles", "clusterrolebindings"], APPLY),
        rule("k8s.cni.cncf.io", &["network-attachment-definitions"], &["get"]),
        rule("", &["events"], &["create", "patch"]),
        rule("events.k8s.io", &["events"], &["create", "patch"]),
        // By which OpenShift's console offers virtctl.
        rule("console.openshift.io", &["consoleclidownloads"], APPLY),
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
    ];
    rules.extend(children(APPLY));
    rules.extend(served::rules());
    let mut conversion = rule("apiextensions.k8s.io", &["customresourcedefinitions"], &["patch"]);
    conversion["resourceNames"] = json!([guard::DEFINITION]);
    rules.push(conversion);
    let own = [
        rule("", &["secrets", "configmaps", "services", "serviceaccounts"], APPLY),
        rule("apps", &["deployments"], APPLY),
        rule("policy", &["poddisruptionbudgets"], APPLY),
        rule("route.openshift.io", &["routes"], APPLY),
        rule("coordination.k8s.io", &["leases"], &["get", "create", "update", "delete"]),
    ];
    let metadata = json!({ "name": MANAGER, "labels": labels() });
    let here = json!({ "name": MANAGER, "namespace": NAMESPACE, "labels": labels() });
    let of = (NAMESPACE, MANAGER);
    vec![
        account(&here),
        role(&metadata, &rules),
        binding(&metadata, MANAGER, of),
        role(&here, &own),
        binding(&here, MANAGER, of),
    ]
}

/// The webhook writes nothing: what it may patch and delete it does by dry runs, which take the same rights.
fn rights_of_webhook() -> Vec<Value> {
    let metadata = json!({ "name": webhook::PROGRAM, "labels": labels() });
    let here = json!({ "name": webhook::PROGRAM, "namespace": NAMESPACE, "labels": labels() });
    let mut rules = children(&["get", "patch", "delete"]);
    rules.push(rule("hco.kubevirt.io", &["hyperconvergeds"], &["get", "list"]));
    let of = (NAMESPACE, webhook::PROGRAM);
    vec![account(&here), role(&metadata, &rules), binding(&metadata, webhook::PROGRAM, of)]
}

fn deployment() -> Value {
    let program = Program {
        name: MANAGER,
        account: MANAGER,
        image: COMPONENT_IMAGE,
        args: &[],
        env: &[("COMPONENT_IMAGE", COMPONENT_IMAGE)],
        ports: &[("metrics", 8443)],
        memory: "24Mi",
    };
    let metadata = json!({ "name": MANAGER, "namespace": NAMESPACE, "labels": labels() });
    let selector = json!({ "name": MANAGER });
    workload::deployment(&metadata, 1, &selector, &labels(), &pod(&program))
}

fn deployment_of_webhook() -> Value {
    let program = Program {
        name: webhook::PROGRAM,
        account: webhook::PROGRAM,
        image: COMPONENT_IMAGE,
        args: &[],
        env: &[],
        ports: &[("https", 4343)],
        memory: "24Mi",
    };
    let mut pod = pod(&program);
    pod["containers"][0]["volumeMounts"] = json!([
        { "name": "certificate", "mountPath": "/apiserver.local.config/certificates", "readOnly": true },
        { "name": "bundle", "mountPath": "/apiserver.local.config/bundle", "readOnly": true },
    ]);
    // Both are the operator's: until it has made them the pod waits.
    pod["volumes"] = json!([
        { "name": "certificate", "secret": { "secretName": guard::CERTIFICATE, "defaultMode": 0o444 } },
        { "name": "bundle", "configMap": { "name": guard::BUNDLE } },
    ]);
    let mut labels = labels();
    labels["name"] = json!(webhook::PROGRAM);
    let metadata = json!({ "name": webhook::PROGRAM, "namespace": NAMESPACE, "labels": labels });
    let selector = json!({ "name": webhook::PROGRAM });
    workload::deployment(&metadata, 1, &selector, &labels, &pod)
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

    /// Until the operator has added who vouches for the webhook, an object of the other version is refused, and not stored as what it
    /// is not.
    #[test]
    fn the_definition_has_its_conversion_from_the_beginning() {
        let definition: serde_json::Value = serde_saphyr::from_str(super::DEFINITION).unwrap();
        let wanted = super::guard::conversion(super::NAMESPACE);
        assert_eq!(definition["spec"]["conversion"], wanted["spec"]["conversion"]);
    }

    #[test]
    fn committed_manifests_are_current() {
        check("hco-operator.yaml", &super::operator().unwrap());
        check("hco-cr.yaml", &super::object().unwrap());
    }
}
