//! What outlives what: the control plane killed, the node losing its power, `down` and `up`.

use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::{Namespace, kubeconfig, product, root};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, idle, ready, sh, template};

pub(crate) const TESTS: &[Test] = &[
    ("the_control_plane_is_killed", the_control_plane_is_killed),
    ("the_node_loses_its_power", the_node_loses_its_power),
];
pub(crate) const LONG: &[Test] = &[("down_and_up", down_and_up)];

fn state() -> PathBuf {
    kubeconfig().with_file_name("")
}

pub(crate) fn ferrovirt(words: &[&str]) -> Result<String> {
    let output = Command::new(root().join("bin/ferrovirt")).args(words).env("FERROVIRT_STATE", state()).output()?;
    ensure!(output.status.success(), "ferrovirt {}: {output:?}", words.join(" "));
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// Kills the holder of a lock in the state directory, as a loss of power would.
fn kill(lock: &str) -> Result<()> {
    let pid = sys::lock::holder(&state().join(lock))?.with_context(|| format!("nobody holds {lock}"))?;
    let process = sys::process::Handle::open(pid)?.context("it has just ended")?;
    process.kill()?;
    ensure!(process.ended_within(Duration::from_secs(10))?, "it does not end");
    Ok(())
}

/// The components of the product are back.
fn everything_is_back(space: &Namespace) -> Result<()> {
    for name in [
        "deployment/ferrovirt-operators",
        "deployment/virt-api",
        "deployment/virt-controller",
        "daemonset/virt-handler",
    ] {
        space.kubectl(&["rollout", "status", name, "-n", product::NAMESPACE, "--timeout=120s"])?;
    }
    Ok(())
}

fn the_control_plane_is_killed() -> Result<()> {
    let space = Namespace::new("kill")?;
    idle(&space, "p")?;
    // Acknowledged, so it is on the disk; then at once the end.
    let version =
        space.kubectl(&["create", "cm", "m", "--from-literal=k=v", "-o", "jsonpath={.metadata.resourceVersion}"])?;
    kill("control-plane.lock")?;
    let said = ferrovirt(&["up", "--cluster-only"])?;
    ensure!(said.contains("control plane started") && !said.contains("node node1 started"), "{said}");
    ensure!(space.get("cm", "m")?["data"]["k"] == "v", "an acknowledged write was lost");
    // Positions from before are no longer known, and clients are told to list again.
    space.kubectl(&["delete", "cm", "m"])?;
    let path = format!(
        "/api/v1/namespaces/{}/configmaps?watch=true&timeoutSeconds=1&resourceVersion={}",
        space.name(),
        version.parse::<u64>()? - 1
    );
    let gone = space.output(&["get", "--raw", &path])?;
    let told = format!("{}{}", crate::pods::text(&gone.stdout), crate::pods::text(&gone.stderr));
    ensure!(told.contains("too old resource version"), "{told}");
    let pod = space.get("pod", "p")?;
    ensure!(pod["status"]["containerStatuses"][0]["restartCount"] == 0, "{pod}");
    ensure!(sh(&space, "p", "echo still here")? == "still here\n", "the pod");
    idle(&space, "new")
}

fn the_node_loses_its_power() -> Result<()> {
    let space = Namespace::new("power")?;
    idle(&space, "single")?;
    let labels = json!({"app": "d"});
    apply(
        &space,
        &[json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "d"},
                           "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template(&labels, IDLE)}})],
    )?;
    space.kubectl(&["rollout", "status", "deployment/d", "--timeout=120s"])?;
    let uid = space.get("pod", "single")?["metadata"]["uid"].clone();
    kill("nodes/node1/lock")?;
    let said = ferrovirt(&["up", "--cluster-only"])?;
    ensure!(said.contains("node node1 started") && !said.contains("control plane started"), "{said}");
    let pod = space.wait("pod", "single", "was started again", |pod| {
        let status = &pod["status"]["containerStatuses"][0];
        status["restartCount"].as_u64() >= Some(1) && status["ready"] == true
    })?;
    ensure!(pod["metadata"]["uid"] == uid, "another pod took its place");
    space.kubectl(&["rollout", "status", "deployment/d", "--timeout=120s"])?;
    ensure!(sh(&space, "single", "echo back")? == "back\n", "the pod");
    everything_is_back(&space)
}

fn down_and_up() -> Result<()> {
    let space = Namespace::new("resume")?;
    idle(&space, "p")?;
    space.kubectl(&["create", "cm", "m", "--from-literal=k=v"])?;
    let node = sys::lock::holder(&state().join("nodes/node1/lock"))?.context("no node runs")?;
    let groups = std::fs::read_to_string(format!("/proc/{node}/cgroup"))?;
    ferrovirt(&["down"])?;
    ensure!(!PathBuf::from("/sys/class/net/fv0").exists(), "the bridge is still there");
    let mounts = std::fs::read_to_string("/proc/self/mounts")?;
    ensure!(!mounts.contains(&*state().to_string_lossy()), "{mounts}");
    let tables = Command::new("nft").args(["list", "tables"]).output()?;
    ensure!(!String::from_utf8_lossy(&tables.stdout).contains("ferrovirt"), "{tables:?}");
    for path in groups.lines().filter_map(|line| line.rsplit(':').next()).filter(|path| path.len() > 1) {
        for hierarchy in sys::cgroup::hierarchies()? {
            let group = hierarchy.mount.join(path.trim_start_matches('/'));
            ensure!(!group.exists(), "{} is still there", group.display());
        }
    }
    ensure!(ferrovirt(&["down"])?.contains("nothing was running"), "a second down found something");
    let said = ferrovirt(&["up", "--cluster-only"])?;
    ensure!(said.contains("control plane started") && said.contains("node node1 started"), "{said}");
    ensure!(ferrovirt(&["up", "--cluster-only"])?.contains("already up"), "a second up did something");
    ensure!(space.get("cm", "m")?["data"]["k"] == "v", "the state was lost");
    space.wait("pod", "p", "was started again", |pod: &Value| {
        pod["status"]["containerStatuses"][0]["restartCount"].as_u64() >= Some(1)
    })?;
    ready(&space, "p")?;
    everything_is_back(&space)
}
