//! Hooks: before an upgrade the definitions of the new version are applied, which Helm does once alone; before the end the objects go,
//! while their operators are there to take away what they made; after it the definitions, where they are not to be kept.

use anyhow::Result;
use serde_json::{Value, json};

use crate::product::{Document, HEADER, NAMESPACE, REGISTRY, VERSION, text_of};

const NAME: &str = "ferrovirt-chart";

/// The template of the hooks' account, its rights and the jobs.
///
/// # Errors
/// When a manifest has no YAML form.
pub(super) fn template(documents: &[Document]) -> Result<String> {
    let definitions = documents.iter().filter(|document| document.kind() == "CustomResourceDefinition");
    let definitions: Vec<&str> = definitions.map(Document::name).collect();
    let mut out = HEADER.to_owned();
    let mut add = |value: &Value| -> Result<()> {
        let text = super::images(&text_of(value)?);
        out.push_str("---\n");
        out.push_str(&text.replace(&format!("namespace: {NAMESPACE}\n"), &format!("namespace: {}\n", super::HERE)));
        Ok(())
    };
    for manifest in rights(&definitions) {
        add(&manifest)?;
    }
    add(&job("definitions", "pre-upgrade", &["apply-definitions"]))?;
    add(&job("objects", "pre-delete", &["delete-objects"]))?;
    let last = super::images(&text_of(&job("end", "post-delete", &["delete-definitions"]))?);
    let last = last.replace(&format!("namespace: {NAMESPACE}\n"), &format!("namespace: {}\n", super::HERE));
    out.push_str(&format!("{{{{- if not .Values.crds.keep }}}}\n---\n{last}{{{{- end }}}}\n"));
    Ok(out)
}

/// Marks of a hook: `weight` orders those of one moment, and none is left behind.
fn marks(moments: &str, weight: &str) -> Value {
    json!({
        "helm.sh/hook": moments, "helm.sh/hook-weight": weight,
        "helm.sh/hook-delete-policy": "before-hook-creation,hook-succeeded",
    })
}

fn rights(definitions: &[&str]) -> [Value; 3] {
    let marks = marks("pre-upgrade,pre-delete,post-delete", "-1");
    let metadata = json!({ "name": NAME, "annotations": marks });
    let mut here = metadata.clone();
    here["namespace"] = json!(NAMESPACE);
    let rbac = "rbac.authorization.k8s.io";
    let crds = "customresourcedefinitions";
    [
        json!({ "apiVersion": "v1", "kind": "ServiceAccount", "metadata": here }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRole", "metadata": metadata,
            "rules": [
                { "apiGroups": ["apiextensions.k8s.io"], "resources": [crds], "verbs": ["create"] },
                {
                    "apiGroups": ["apiextensions.k8s.io"], "resources": [crds], "resourceNames": definitions,
                    "verbs": ["get", "patch", "delete"],
                },
                { "apiGroups": ["hco.kubevirt.io"], "resources": ["hyperconvergeds"], "verbs": ["get", "delete"] },
                {
                    "apiGroups": ["hostpathprovisioner.kubevirt.io"], "resources": ["hostpathprovisioners"],
                    "verbs": ["get", "delete"],
                },
            ],
        }),
        json!({
            "apiVersion": format!("{rbac}/v1"), "kind": "ClusterRoleBinding", "metadata": metadata,
            "roleRef": { "apiGroup": rbac, "kind": "ClusterRole", "name": NAME },
            "subjects": [{ "kind": "ServiceAccount", "name": NAME, "namespace": NAMESPACE }],
        }),
    ]
}

fn job(what: &str, moment: &str, words: &[&str]) -> Value {
    let command: Vec<&str> = ["installer"].into_iter().chain(words.iter().copied()).collect();
    json!({
        "apiVersion": "batch/v1", "kind": "Job",
        "metadata": { "name": format!("{NAME}-{what}"), "namespace": NAMESPACE, "annotations": marks(moment, "0") },
        "spec": {
            // Whoever refuses does so for good; Helm shows that the hook failed.
            "backoffLimit": 0, "activeDeadlineSeconds": 600,
            "template": { "spec": {
                "serviceAccountName": NAME, "restartPolicy": "Never",
                "securityContext": { "runAsNonRoot": true, "seccompProfile": { "type": "RuntimeDefault" } },
                "containers": [{
                    "name": what, "image": format!("{REGISTRY}/component:v{VERSION}"), "command": command,
                    "env": [{
                        "name": "POD_NAMESPACE",
                        "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": "metadata.namespace" } },
                    }],
                    "securityContext": {
                        "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": { "drop": ["ALL"] },
                    },
                    "resources": { "requests": { "cpu": "10m", "memory": "16Mi" } },
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                }],
            } },
        },
    })
}
