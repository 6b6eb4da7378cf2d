//! Machines whose pod somebody wants gone, and machines under components that are exchanged.

use std::process::Output;

use anyhow::{Context, Result, ensure};
use e2e::hostpath::{CLASS, DRIVER, Hostpath, claim};
use e2e::machine::{self, condition, holds, phase, uid};
use e2e::wait::{self, BOOT};
use e2e::{Namespace, image, product, until};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::two_nodes::{self, FIRST, SECOND};
use crate::{local_disks, long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        long("an_evicted_machine_starts_again", an_evicted_machine_starts_again),
        trial("a_machine_that_cannot_be_moved_is_not_evicted", a_machine_that_cannot_be_moved_is_not_evicted),
        long("an_eviction_of_external_concern_is_marked", an_eviction_of_external_concern_is_marked),
    ]
}

pub(crate) fn trials_alone() -> Vec<Trial> {
    vec![
        trial("nodes_say_which_processors_guests_can_have", nodes_say_which_processors_guests_can_have),
        trial("a_drain_moves_every_machine", a_drain_moves_every_machine),
    ]
}

const NAME: &str = "guest";

/// A machine that runs, with this eviction strategy: its instance and the name of its pod.
fn running(space: &Namespace, strategy: &str, binding: &str) -> Result<(Value, String)> {
    let mut vm = machine::on_kernel(NAME, "Always");
    machine::spec(&mut vm)["evictionStrategy"] = json!(strategy);
    let interface = json!([{ "name": "default", (binding): {} }]);
    machine::domain(&mut vm)["devices"]["interfaces"] = interface;
    space.apply(&vm)?;
    let judged = |vmi: &Value| phase(vmi) == "Running" && !condition(vmi, "LiveMigratable").is_null();
    let vmi = space.wait("vmi", NAME, "ran", judged)?;
    let pod = machine::pod_uid(&vmi).to_owned();
    let pods = space.list("pods", &format!("kubevirt.io/created-by={}", uid(&vmi)))?;
    let found = pods.iter().find(|found| uid(found) == pod).context("the instance has no pod")?;
    Ok((vmi, found["metadata"]["name"].as_str().unwrap_or_default().to_owned()))
}

/// Asks for a pod's eviction as `kubectl drain` does.
pub(crate) fn evict(space: &Namespace, pod: &str) -> Result<Output> {
    let eviction = json!({ "apiVersion": "policy/v1", "kind": "Eviction", "metadata": { "name": pod } });
    let path = format!("/api/v1/namespaces/{}/pods/{pod}/eviction", space.name());
    space.feed(&["create", "--raw", &path, "-f", "-"], eviction.to_string().as_bytes())
}

fn refused(space: &Namespace, pod: &str) -> Result<String> {
    let output = evict(space, pod)?;
    ensure!(!output.status.success(), "pod {pod} was evicted");
    Ok(String::from_utf8_lossy(&output.stderr).into_owned())
}

fn nodes_say_which_processors_guests_can_have() -> Result<()> {
    let labels = || -> Result<Value> {
        let text = Namespace::kubectl_in("default", &["get", "node", "node1", "-o", "json"])?;
        let node: Value = serde_json::from_str(&text).context("kubectl's JSON")?;
        Ok(node["metadata"]["labels"].clone())
    };
    let found = labels()?;
    let has = |labels: &Value, prefix: &str| -> Option<String> {
        let all = labels.as_object()?;
        all.keys().find_map(|key| key.strip_prefix(prefix).map(str::to_owned))
    };
    for prefix in ["cpu-model", "cpu-feature", "cpu-vendor", "cpu-model-migration", "host-model-required-features"] {
        ensure!(has(&found, &format!("{prefix}.node.kubevirt.io/")).is_some(), "no {prefix}: {found}");
    }
    ensure!(found["machine-type.node.kubevirt.io/q35"] == "true", "{found}");
    let host = has(&found, "host-model-cpu.node.kubevirt.io/").context("no model of the host")?;
    ensure!(found[format!("cpu-model-migration.node.kubevirt.io/{host}")] == "true", "{found}");

    // The administrator gives that model up, and takes it back.
    let obsolete = |models: Value| product::merge(&json!({ "virtualization": { "obsoleteCPUModels": models } }));
    let marked = |wanted: bool| {
        until("the label of an obsolete model to follow", || {
            let marked = labels()?["node-labeller.kubevirt.io/obsolete-host-model"] == "true";
            Ok((marked == wanted).then_some(()))
        })
    };
    obsolete(json!([host.as_str()]))?;
    let gone = marked(true);
    obsolete(Value::Null)?;
    gone?;
    marked(false)
}

fn an_evicted_machine_starts_again() -> Result<()> {
    let space = Namespace::new("evicted")?;
    let (before, pod) = running(&space, "None", "masquerade")?;
    let output = evict(&space, &pod)?;
    ensure!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    space.wait("vmi", NAME, "started again", |vmi| phase(vmi) == "Running" && uid(vmi) != uid(&before))?;
    Ok(())
}

fn a_machine_that_cannot_be_moved_is_not_evicted() -> Result<()> {
    let space = Namespace::new("stays")?;
    let (vmi, pod) = running(&space, "LiveMigrate", "bridge")?;
    let said = condition(&vmi, "LiveMigratable");
    ensure!(said["status"] == "False" && said["reason"] == "InterfaceNotLiveMigratable", "{said}");
    let event = space.event("VirtualMachineInstance", NAME, "Migrated")?;
    ensure!(event.starts_with("EvictionStrategy is set but vmi is not migratable; "), "{event}");
    let complaint = refused(&space, &pod)?;
    let why = format!("VMI {NAME} is configured with an eviction strategy but is not live-migratable");
    ensure!(complaint.contains(&why), "{complaint}");
    let budgets = || space.list("poddisruptionbudgets", "");
    until("a budget", || Ok((budgets()?.len() == 1).then_some(())))?;
    space.kubectl(&["delete", "vm", NAME, "--timeout=120s"])?;
    until("the budget to go", || Ok(budgets()?.is_empty().then_some(())))
}

fn an_eviction_of_external_concern_is_marked() -> Result<()> {
    let space = Namespace::new("external")?;
    let (vmi, pod) = running(&space, "External", "masquerade")?;
    let complaint = refused(&space, &pod)?;
    let triggered = format!("Eviction triggered evacuation of VMI \"{}/{NAME}\"", space.name());
    ensure!(complaint.contains(&triggered), "{complaint}");
    let marked = space.get("vmi", NAME)?;
    ensure!(marked["status"]["evacuationNodeName"] == vmi["status"]["nodeName"], "{}", marked["status"]);
    let complaint = refused(&space, &pod)?;
    ensure!(complaint.contains("Evacuation in progress: "), "{complaint}");
    ensure!(space.get("pod", &pod)?["metadata"]["deletionTimestamp"].is_null(), "the pod was told to end");
    Ok(())
}

/// Waits until the components are of `tag` and the product says that it is done.
pub(crate) fn updated(tag: &str) -> Result<()> {
    wait::until(&format!("the components to be of {tag}"), BOOT, || {
        let kubevirt = product::get(&["kubevirt", product::KUBEVIRT])?;
        let status = &kubevirt["status"];
        ensure!(holds(&kubevirt, "Available"), "not available: {status}");
        let settled = status["observedDeploymentID"] == status["targetDeploymentID"]
            && status["observedGeneration"] == kubevirt["metadata"]["generation"];
        let pods = product::get(&["pods", "-l", "kubevirt.io in (virt-api, virt-controller, virt-handler)"])?;
        let all = pods["items"].as_array().cloned().unwrap_or_default();
        let new = |pod: &Value| {
            let image = pod["spec"]["containers"][0]["image"].as_str().unwrap_or_default();
            image.ends_with(&format!(":{tag}")) && pod["metadata"]["deletionTimestamp"].is_null()
        };
        Ok((settled && all.iter().all(new)).then_some(()))
    })
}

pub(crate) const BUILD: &str = "v0.1.0";

/// Another build, as far as anybody can tell: the same images by another tag, on every node.
pub(crate) fn next_build() -> Result<()> {
    for image in ["component", "launcher"] {
        image::tag(&format!("ferrovirt.local/{image}:{BUILD}"), &format!("ferrovirt.local/{image}:next"))?;
    }
    Ok(())
}

/// Asks for the build of a tag, and for outdated guests to be dealt with by `methods`.
pub(crate) fn to(tag: &Value, methods: &Value) -> Result<()> {
    // Nothing said is HyperConverged's default, which moves guests; an empty list leaves them where they are.
    let methods = if methods.is_null() { json!([]) } else { methods.clone() };
    product::merge(&json!({ "virtualization": { "workloadUpdateStrategy": { "workloadUpdateMethods": methods } } }))?;
    let by = |tag: &Value| json!([{ "op": "add", "path": "/spec/imageTag", "value": tag }]);
    product::patch_kubevirt(&if tag.is_null() { Value::Null } else { by(tag) })?;
    until("the KubeVirt object to name that build", || {
        Ok((product::get(&["kubevirt", product::KUBEVIRT])?["spec"]["imageTag"] == *tag).then_some(()))
    })
}

/// Machines that run on the second node, drained: each is the guest it was, on the first node.
fn a_drain_moves_every_machine() -> Result<()> {
    const NAMES: [&str; 3] = ["one", "two", "three"];
    two_nodes::ready()?;
    let driver = Hostpath::install(DRIVER, CLASS, &json!({}))?;
    let space = Namespace::new("drain")?;
    space.apply(&claim("local", "Filesystem", "16Mi"))?;
    for name in NAMES {
        let mut vm = machine::on_kernel(name, "Always");
        // One has a disk that only its node reaches.
        if name == "three" {
            machine::add_disk(&mut vm, "local", json!({ "persistentVolumeClaim": { "claimName": "local" } }));
        }
        let spec = machine::spec(&mut vm);
        spec["evictionStrategy"] = json!("LiveMigrate");
        // Where they begin; the node that is drained then is not preferred any more.
        spec["affinity"] = json!({ "nodeAffinity": { "preferredDuringSchedulingIgnoredDuringExecution": [{
            "weight": 100, "preference": { "matchExpressions": [
                { "key": "kubernetes.io/hostname", "operator": "In", "values": [SECOND] },
            ] },
        }] } });
        space.apply(&vm)?;
    }
    let mut before = Vec::new();
    for name in NAMES {
        let ready =
            |vmi: &Value| phase(vmi) == "Running" && holds(vmi, "AgentConnected") && holds(vmi, "LiveMigratable");
        let vmi = space
            .wait("vmi", name, "ran on the second node", |vmi| ready(vmi) && vmi["status"]["nodeName"] == SECOND)?;
        before.push(uid(&vmi).to_owned());
    }
    let words = ["drain", SECOND, "--ignore-daemonsets", "--delete-emptydir-data", "--force", "--timeout=300s"];
    let said = space.output(&words);
    space.kubectl(&["uncordon", SECOND])?;
    let said = said?;
    let heard = String::from_utf8_lossy(&said.stderr).into_owned() + &String::from_utf8_lossy(&said.stdout);
    ensure!(said.status.success(), "{heard}");
    ensure!(heard.contains("Eviction triggered evacuation of VMI"), "{heard}");
    for (name, uid_before) in NAMES.iter().zip(&before) {
        let vmi = space.get("vmi", name)?;
        ensure!(uid(&vmi) == uid_before, "{name} was started anew");
        ensure!(phase(&vmi) == "Running" && vmi["status"]["nodeName"] == FIRST, "{}", vmi["status"]);
        space.wait("vmi", name, "was unmarked", |vmi| vmi["status"]["evacuationNodeName"].is_null())?;
        let budgets = || -> Result<Vec<Value>> {
            let all = space.list("poddisruptionbudgets", "")?;
            Ok(all.into_iter().filter(|budget| budget["metadata"]["ownerReferences"][0]["name"] == **name).collect())
        };
        until("the budget to protect one pod", || {
            Ok(budgets()?.iter().all(|budget| budget["spec"]["minAvailable"] == 1).then_some(()))
        })?;
    }
    let copied = &space.get("vmi", "three")?["status"]["migratedVolumes"];
    ensure!(copied.as_array().is_some_and(|all| all.len() == 1), "{copied}");
    space.kubectl(&["delete", "vm", "three", "--timeout=120s"])?;
    // In the midst of it the claim is made anew, and would be there after it was deleted.
    local_disks::put_back(&space, &["local"])?;
    space.kubectl(&["delete", "pvc", "--all"])?;
    driver.volumes_are_gone()
}
