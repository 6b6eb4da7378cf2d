//! What goes with what: owners and their dependents, namespaces and everything in them.

use anyhow::{Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{apply, idle};

pub(crate) const TESTS: &[Test] = &[
    ("dependents_go_with_their_owner", dependents_go_with_their_owner),
    ("a_namespace_is_emptied", a_namespace_is_emptied),
];

fn dependents_go_with_their_owner() -> Result<()> {
    let space = Namespace::new("owners")?;
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}});
    apply(&space, &[map("owner"), map("second")])?;
    let reference = |name: &str| -> Result<Value> {
        let uid = space.get("cm", name)?["metadata"]["uid"].clone();
        Ok(json!({"apiVersion": "v1", "kind": "ConfigMap", "name": name, "uid": uid}))
    };
    let owned = |name: &str, owners: Value| json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name, "ownerReferences": owners}});
    let absent = json!({"apiVersion": "v1", "kind": "ConfigMap", "name": "never", "uid": "00000000-0000-4000-8000-000000000000"});
    apply(
        &space,
        &[
            owned("one", json!([reference("owner")?])),
            owned("both", json!([reference("owner")?, reference("second")?])),
            owned("stray", json!([absent])),
        ],
    )?;
    space.wait("secret", "stray", "was collected, as its owner never was", Value::is_null)?;
    space.kubectl(&["delete", "cm", "owner"])?;
    space.wait("secret", "one", "was collected", Value::is_null)?;
    ensure!(!space.get("secret", "both")?.is_null(), "a dependent with another owner was collected");
    space.kubectl(&["delete", "cm", "second"])?;
    space.wait("secret", "both", "was collected", Value::is_null)?;
    Ok(())
}

fn a_namespace_is_emptied() -> Result<()> {
    let outer = Namespace::new("outer")?;
    let inner = Namespace::new("inner")?;
    idle(&inner, "p")?;
    apply(
        &inner,
        &[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "held", "finalizers": ["example.org/hold"]}}),
        ],
    )?;
    outer.kubectl(&["delete", "namespace", inner.name(), "--wait=false"])?;
    let terminating = outer.wait("namespace", inner.name(), "told what holds it", |namespace| {
        let conditions = namespace["status"]["conditions"].as_array();
        conditions.into_iter().flatten().any(|c| c["type"] == "NamespaceFinalizersRemaining" && c["status"] == "True")
    })?;
    ensure!(terminating["status"]["phase"] == "Terminating", "{terminating}");
    until("the pod went", || Ok(inner.kubectl(&["get", "pods", "-o", "name"])?.is_empty().then_some(())))?;
    let late = inner.output(&["create", "cm", "late"])?;
    ensure!(crate::pods::text(&late.stderr).contains("because it is being terminated"), "{late:?}");
    inner.kubectl(&["patch", "cm", "held", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    outer.kubectl(&["wait", &format!("namespace/{}", inner.name()), "--for=delete", "--timeout=60s"])?;
    let default = outer.output(&["delete", "namespace", "default"])?;
    ensure!(crate::pods::text(&default.stderr).contains("(Forbidden)"), "{default:?}");
    Ok(())
}
