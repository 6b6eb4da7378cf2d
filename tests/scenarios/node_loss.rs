//! Nodes are lost: their guests run elsewhere as far as their disks allow, and a node that comes back finds its own ended.

use std::time::Instant;

use anyhow::{Result, ensure};
use e2e::machine::{self, condition, phase, pod_uid, uid, word};
use e2e::wait::{SOON, throughout};
use e2e::{Namespace, ferrovirt, node, until};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::shared_disks::{NAME as LEDGER, Shared};
use crate::{mover, shared, trial, two_nodes};

/// The node that is lost.
const LOST: &str = two_nodes::SECOND;
/// A guest runs elsewhere within this many seconds.
const FAILOVER: u64 = 60;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("guests_of_a_lost_node_run_elsewhere", guests_of_a_lost_node_run_elsewhere)]
}

/// The second node, which is well again when this value is gone.
struct Second;

impl Second {
    fn join() -> Result<Self> {
        two_nodes::ready()?;
        Ok(Self)
    }

    fn takes_guests(&self) -> Result<()> {
        until(&format!("{LOST} takes guests"), || {
            let words = ["get", "node", LOST, "-o", "json"];
            let found: Value = serde_json::from_str(&Namespace::kubectl_in("default", &words)?)?;
            let takes = found["metadata"]["labels"]["kubevirt.io/schedulable"] == "true";
            Ok((takes && machine::holds(&found, "Ready")).then_some(()))
        })
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        let _ = ferrovirt(&["node", "heal", LOST]);
        let _ = ferrovirt(&["node", "start", LOST]);
    }
}

/// A guest that rather runs on the node that is going to be lost.
fn drifter(name: &str, run_strategy: &str) -> Value {
    let mut vm = machine::on_kernel(name, run_strategy);
    machine::spec(&mut vm)["affinity"] = json!({ "nodeAffinity": {
        "preferredDuringSchedulingIgnoredDuringExecution": [{ "weight": 100, "preference": { "matchExpressions": [
            { "key": "kubernetes.io/hostname", "operator": "In", "values": [LOST] },
        ] } }],
    } });
    vm
}

fn runs_on(vmi: &Value, node: &str) -> bool {
    phase(vmi) == "Running" && vmi["status"]["nodeName"] == node
}

/// Brings guests up on the node that is going to be lost.
fn there<const N: usize>(space: &Namespace, machines: [Value; N]) -> Result<[Value; N]> {
    for vm in &machines {
        space.apply(vm)?;
    }
    let mut out = machines;
    for vm in &mut out {
        let name = vm["metadata"]["name"].as_str().unwrap_or_default();
        *vm = space.wait("vmi", name, "ran on the second node", |vmi| runs_on(vmi, LOST))?;
    }
    Ok(out)
}

/// The guest that was there runs on the first node, soon enough after `since`.
fn runs_elsewhere(space: &Namespace, before: &Value, since: Instant) -> Result<Value> {
    let name = before["metadata"]["name"].as_str().unwrap_or_default();
    let after = space.wait("vmi", name, "ran on the first node", |vmi| runs_on(vmi, two_nodes::FIRST))?;
    let took = since.elapsed().as_secs();
    ensure!(took <= FAILOVER && uid(&after) != uid(before), "{name} ran elsewhere after {took} s");
    Ok(after)
}

/// How many QEMUs of an instance run.
pub(crate) fn qemus(vmi: &Value) -> Result<usize> {
    let all = node::processes(pod_uid(vmi))?;
    Ok(all.iter().filter(|process| process.words.iter().any(|word| word.contains("qemu-system"))).count())
}

fn guests_of_a_lost_node_run_elsewhere() -> Result<()> {
    // Nobody else is to be started elsewhere beside them.
    mover::shut_down();
    shared::shut_down();
    let second = Second::join()?;
    let space = Namespace::new("node-loss")?;
    let shared = Shared::file()?;
    shared.guest(LEDGER)?;
    let machines = [drifter("drifts", "Always"), bound(&space)?];
    let [drifts, bound] = there(&space, machines)?;
    let ledger = shared.runs_on(LOST)?;
    shared.writes("first")?;
    a_cable_is_pulled(&space, &second, [&drifts, &bound], (&shared, &ledger))?;
    a_power_cut(&space, &second, &bound, &shared)?;
    // Each began where the one before had ended, and none came back.
    let mut writers = shared.writers()?;
    writers.dedup();
    ensure!(writers == ["first", "second", "third"], "{writers:?}");
    space.kubectl(&["delete", "vm", "--all"])?;
    space.kubectl(&["delete", "pvc", "data"])?;
    space.kubectl(&["delete", "pv", "e2e-node-loss"]).map(drop)
}

/// A machine with a disk that only the node that is going to be lost can reach.
fn bound(space: &Namespace) -> Result<Value> {
    let only = json!({ "required": { "nodeSelectorTerms": [{ "matchExpressions": [
        { "key": "kubernetes.io/hostname", "operator": "In", "values": [LOST] },
    ] }] } });
    // One that a run left behind is another claim's.
    space.kubectl(&["delete", "pv", "e2e-node-loss", "--ignore-not-found"])?;
    space.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolume", "metadata": { "name": "e2e-node-loss" },
        "spec": { "capacity": { "storage": "64Mi" }, "accessModes": ["ReadWriteOnce"], "nodeAffinity": only,
            "storageClassName": "e2e-node-loss", "hostPath": { "path": "/var/e2e-node-loss", "type": "DirectoryOrCreate" } },
    }))?;
    space.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "storageClassName": "e2e-node-loss",
            "resources": { "requests": { "storage": "64Mi" } } },
    }))?;
    let mut vm = drifter("bound", "Always");
    machine::add_disk(&mut vm, "data", json!({ "persistentVolumeClaim": { "claimName": "data" } }));
    Ok(vm)
}

/// The machine whose disk only the lost node can reach waits, and says for what.
fn waits_for_its_node(space: &Namespace) -> Result<()> {
    let vm =
        space.wait_for(SOON * 2, "vm", "bound", "said that its node does not answer", |vm| word(vm) == "Unknown")?;
    let said = condition(&vm, "Ready")["message"].as_str().unwrap_or_default().to_owned();
    ensure!(said.contains("volume data is on a disk that only node2 can reach"), "{said}");
    let explained = space.virtctl(&["explain", "bound"])?;
    ensure!(explained.contains("does not answer"), "{explained}");
    Ok(())
}

fn a_cable_is_pulled(
    space: &Namespace,
    second: &Second,
    [drifts, bound]: [&Value; 2],
    (shared, ledger): (&Shared, &Value),
) -> Result<()> {
    ferrovirt(&["node", "cut", LOST])?;
    let after = runs_elsewhere(space, drifts, Instant::now())?;
    // Nobody can reach the first guest, which lives; its disks were its pod's own.
    ensure!(qemus(drifts)? == 1, "the guest of the node without a cable does not run");
    waits_for_its_node(space)?;
    shared.is_cut_off(ledger)?;
    ferrovirt(&["node", "heal", LOST])?;
    until("the guest that was given up is ended", || Ok((qemus(drifts)? == 0).then_some(())))?;
    shared.is_taken_over(ledger)?;
    // The other was there all the time, and goes on.
    space.wait("vm", "bound", "ran again", |vm| word(vm) == "Running")?;
    second.takes_guests()?;
    ensure!(uid(&space.get("vmi", "bound")?) == uid(bound) && qemus(bound)? == 1, "it was started once more");
    ensure!(uid(&space.get("vmi", "drifts")?) == uid(&after) && qemus(&after)? == 1, "another guest was touched");
    Ok(())
}

/// Without power the guests are gone. The one that has lost its disk is started once it is back, on the administrator's word.
fn a_power_cut(space: &Namespace, second: &Second, bound: &Value, shared: &Shared) -> Result<()> {
    let [falls] = there(space, [drifter("falls", "Always")])?;
    shared.moves_to(LOST)?;
    shared.more("second")?;
    let ledger = shared.space.get("vmi", LEDGER)?;
    ferrovirt(&["node", "kill", LOST])?;
    let moved = runs_elsewhere(space, &falls, Instant::now())?;
    // With the power went the lock of its disk.
    let next = shared.runs_on(two_nodes::FIRST)?;
    ensure!(uid(&next) != uid(&ledger), "it was not started anew");
    shared.writes("third")?;
    space.event("VirtualMachineInstance", "falls", "NodeUnresponsive")?;
    waits_for_its_node(space)?;
    let taint = "node.kubernetes.io/out-of-service";
    let unknown = ["wait", "node", LOST, "--for=condition=Ready=Unknown", "--timeout=120s"];
    space.kubectl(&unknown)?;
    space.kubectl(&["taint", "node", LOST, &format!("{taint}=nodeshutdown:NoExecute")])?;
    let another = |vmi: &Value| !vmi.is_null() && uid(vmi) != uid(bound);
    let after = space.wait("vmi", "bound", "was given up", another)?;
    throughout(SOON / 6, || {
        let now = space.get("vmi", "bound")?;
        ensure!(uid(&now) == uid(&after) && phase(&now) != "Running", "it runs without its disk: {}", now["status"]);
        Ok(())
    })?;
    space.kubectl(&["taint", "node", LOST, &format!("{taint}-")])?;
    ferrovirt(&["node", "start", LOST])?;
    second.takes_guests()?;
    space.wait("vmi", "bound", "ran with its disk", |vmi| runs_on(vmi, LOST))?;
    ensure!(uid(&space.get("vmi", "falls")?) == uid(&moved), "it was started once more");
    Ok(())
}
