//! Deleting: finalizers, the three kinds of cascade, waiting, selectors, grace.

use anyhow::{Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, idle, template, text};

pub(crate) const TESTS: &[Test] = &[
    ("finalizers_hold_an_object", finalizers_hold_an_object),
    ("cascades_of_each_kind", cascades_of_each_kind),
    ("delete_waits_and_chooses", delete_waits_and_chooses),
    ("forced_deletion_takes_a_pod_at_once", forced_deletion_takes_a_pod_at_once),
];

fn finalizers_hold_an_object() -> Result<()> {
    let space = Namespace::new("finalizer")?;
    apply(
        &space,
        &[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "finalizers": ["example.org/hold"]}}),
        ],
    )?;
    space.kubectl(&["delete", "cm", "m", "--wait=false"])?;
    let object = space.get("cm", "m")?;
    ensure!(object["metadata"]["deletionTimestamp"].is_string(), "{object}");
    let waiting = space.output(&["delete", "cm", "m", "--timeout=1s"])?;
    ensure!(text(&waiting.stderr).contains("timed out"), "{waiting:?}");
    let added = space.output(&[
        "patch",
        "cm",
        "m",
        "--type=merge",
        "-p",
        r#"{"metadata":{"finalizers":["example.org/hold","example.org/more"]}}"#,
    ])?;
    ensure!(!added.status.success(), "a finalizer was added to an object that is being deleted");
    space.kubectl(&["patch", "cm", "m", "--type=merge", "-p", r#"{"metadata":{"finalizers":null}}"#])?;
    space.kubectl(&["wait", "cm/m", "--for=delete", "--timeout=60s"])?;
    Ok(())
}

fn replica_set(name: &str) -> Value {
    let labels = json!({"app": name});
    json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": name},
           "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template(&labels, IDLE)}})
}

fn cascades_of_each_kind() -> Result<()> {
    let space = Namespace::new("cascade")?;
    apply(&space, &[replica_set("back"), replica_set("fore"), replica_set("orphan")])?;
    let pods = |name: &str| -> Result<Vec<Value>> {
        let list: Value =
            serde_json::from_str(&space.kubectl(&["get", "pods", "-l", &format!("app={name}"), "-o", "json"])?)?;
        Ok(list["items"].as_array().cloned().unwrap_or_default())
    };
    for name in ["back", "fore", "orphan"] {
        until("each replica set had its pod", || Ok((pods(name)?.len() == 1).then_some(())))?;
    }
    space.kubectl(&["delete", "rs", "back", "--cascade=background"])?;
    until("background deletion took the pod", || Ok(pods("back")?.is_empty().then_some(())))?;
    // In the foreground the owner goes last.
    space.kubectl(&["delete", "rs", "fore", "--cascade=foreground", "--timeout=120s"])?;
    ensure!(pods("fore")?.iter().all(|pod| pod["metadata"]["deletionTimestamp"].is_string()), "{:?}", pods("fore")?);
    space.kubectl(&["delete", "rs", "orphan", "--cascade=orphan", "--timeout=120s"])?;
    let left = pods("orphan")?;
    ensure!(left.len() == 1 && left[0]["metadata"]["ownerReferences"].is_null(), "{left:?}");
    ensure!(left[0]["metadata"]["deletionTimestamp"].is_null(), "an orphan is being deleted");
    // An orphan is adopted by the next owner that selects it.
    apply(&space, &[replica_set("orphan")])?;
    let adopted = until("the orphan was adopted", || {
        Ok(pods("orphan")?.into_iter().find(|pod| pod["metadata"]["ownerReferences"].is_array()))
    })?;
    ensure!(adopted["metadata"]["name"] == left[0]["metadata"]["name"], "another pod was made");
    Ok(())
}

fn delete_waits_and_chooses() -> Result<()> {
    let space = Namespace::new("delete")?;
    let map = |name: &str| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name, "labels": {"set": "x"}}});
    apply(&space, &[map("a"), map("b")])?;
    idle(&space, "p")?;
    let said = space.kubectl(&["delete", "cm", "-l", "set=x"])?;
    ensure!(said.contains("\"a\" deleted") && said.contains("\"b\" deleted"), "{said}");
    space.kubectl(&["delete", "pod", "p", "--timeout=60s"])?;
    ensure!(space.get("pod", "p")?.is_null(), "delete did not wait");
    let gone = space.output(&["delete", "pod", "p"])?;
    ensure!(text(&gone.stderr).contains("(NotFound)"), "{gone:?}");
    space.kubectl(&["delete", "pod", "p", "--ignore-not-found"])?;
    Ok(())
}

fn forced_deletion_takes_a_pod_at_once() -> Result<()> {
    let space = Namespace::new("force")?;
    apply(
        &space,
        &[crate::pods::special(
            "stubborn",
            "trap '' TERM; sleep 100000",
            &json!({}),
            &json!({"terminationGracePeriodSeconds": 600}),
        )],
    )?;
    crate::pods::ready(&space, "stubborn")?;
    space.kubectl(&["delete", "pod", "stubborn", "--force", "--grace-period=0", "--timeout=60s"])?;
    ensure!(space.get("pod", "stubborn")?.is_null(), "the pod is still there");
    Ok(())
}
