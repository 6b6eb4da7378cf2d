//! Sets of instances and pools of machines, as their users scale and change them.

use anyhow::{Result, ensure};
use e2e::Namespace;
use e2e::machine::{self, holds, phase, uid};
use e2e::wait::{BOOT, until};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_set_has_as_many_guests_as_it_is_scaled_to", set),
        trial("machines_of_a_pool_follow_its_template_one_after_another", pool),
    ]
}

/// What guests are made from: small ones, for more than one runs at once.
fn template() -> Value {
    let mut vm = machine::on_kernel("one", "Always");
    machine::domain(&mut vm)["memory"]["guest"] = json!("128Mi");
    let mut template = vm["spec"]["template"].take();
    template["metadata"]["labels"] = json!({ "app": "many" });
    template
}

fn items(space: &Namespace, kind: &str) -> Result<Vec<Value>> {
    let list: Value = serde_json::from_str(&space.kubectl(&["get", kind, "-o", "json"])?)?;
    Ok(list["items"].as_array().cloned().unwrap_or_default())
}

/// Waits until so many instances run; their names and UIDs.
fn running(space: &Namespace, wanted: usize) -> Result<Vec<(String, String)>> {
    until(&format!("{wanted} guests to run"), BOOT, || {
        let all = items(space, "vmi")?;
        let ran = all.iter().all(|vmi| phase(vmi) == "Running");
        let named =
            |vmi: &Value| (vmi["metadata"]["name"].as_str().unwrap_or_default().to_owned(), uid(vmi).to_owned());
        Ok((all.len() == wanted && ran).then(|| all.iter().map(named).collect()))
    })
}

fn set() -> Result<()> {
    let space = Namespace::new("set")?;
    space.apply(&json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceReplicaSet", "metadata": { "name": "web" },
        "spec": { "replicas": 2, "selector": { "matchLabels": { "app": "many" } }, "template": template() },
    }))?;
    let first = running(&space, 2)?;
    space.wait("vmirs", "web", "counted its guests", |set| set["status"]["readyReplicas"] == 2)?;
    // One that somebody deletes is followed by another.
    space.kubectl(&["delete", "vmi", &first[0].0])?;
    until("another guest in its place", BOOT, || {
        Ok(running(&space, 2)?.iter().any(|(_, uid)| first.iter().all(|(_, old)| old != uid)).then_some(()))
    })?;
    space.kubectl(&["scale", "vmirs/web", "--replicas=1"])?;
    running(&space, 1)?;
    space.kubectl(&["delete", "vmirs", "web", "--timeout=60s"])?;
    until("the last guest to go with its set", BOOT, || Ok(items(&space, "vmi")?.is_empty().then_some(())))
}

fn pool() -> Result<()> {
    let space = Namespace::new("pool")?;
    let mut pool = json!({
        "apiVersion": "pool.kubevirt.io/v1beta1", "kind": "VirtualMachinePool", "metadata": { "name": "lab" },
        "spec": {
            "replicas": 2, "selector": { "matchLabels": { "app": "many" } }, "maxUnavailable": 1,
            "virtualMachineTemplate": {
                "metadata": { "labels": { "app": "many" } },
                "spec": { "runStrategy": "Always", "template": template() },
            },
        },
    });
    space.apply(&pool)?;
    let first = running(&space, 2)?;
    let names: Vec<&str> = first.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(names == ["lab-0", "lab-1"], "{names:?}");

    let template = &mut pool["spec"]["virtualMachineTemplate"]["spec"]["template"];
    template["metadata"]["annotations"] = json!({ "build": "2" });
    template["spec"]["domain"]["memory"]["guest"] = json!("144Mi");
    space.apply(&pool)?;
    until("both machines to be of the new template", BOOT, || {
        let all = items(&space, "vmi")?;
        let new =
            all.iter().filter(|vmi| vmi["spec"]["domain"]["memory"]["guest"] == "144Mi" && phase(vmi) == "Running");
        Ok((new.count() == 2 && all.len() == 2).then_some(()))
    })?;
    space.wait("vmpool", "lab", "counted its machines", |pool| pool["status"]["readyReplicas"] == 2)?;
    space.kubectl(&["scale", "vmpool/lab", "--replicas=1"])?;
    let left = running(&space, 1)?;
    ensure!(items(&space, "vm")?.len() == 1 && left[0].0.starts_with("lab-"), "{left:?}");
    let found = space.get("vmpool", "lab")?;
    ensure!(!holds(&found, "ReplicaFailure"), "{}", found["status"]);
    space.kubectl(&["delete", "vmpool", "lab", "--timeout=60s"])?;
    until("its machines to go with it", BOOT, || Ok(items(&space, "vm")?.is_empty().then_some(())))
}
