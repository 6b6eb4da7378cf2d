//! A guest that moves between two nodes. Scenarios hand it from one to the next, so that most of them boot nothing: whatever
//! was done to it, it is still the guest that was booted first, with what it had in memory and on its disks.

use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, holds, phase, uid};
use e2e::wait::{BOOT, SOON, until};
use e2e::{Console, Namespace, node};
use serde_json::{Value, json};

use crate::two_nodes;

/// Its name.
pub(crate) const NAME: &str = "mover";
static IDLE: Mutex<Option<Mover>> = Mutex::new(None);

/// Runs a scenario with the guest that they share. Whoever fails with it takes it down, so that the next gets one that nobody
/// spoilt.
pub(crate) fn with_mover(scenario: impl FnOnce(&mut Mover) -> Result<()>) -> Result<()> {
    let mut idle = IDLE.lock().unwrap_or_else(PoisonError::into_inner);
    let mut mover = match idle.take() {
        Some(mover) => {
            two_nodes::ready()?;
            mover.usable()?;
            mover.at_rest()?;
            mover
        }
        None => Mover::boot("mover", |_| ())?,
    };
    scenario(&mut mover)?;
    *idle = Some(mover);
    Ok(())
}

/// Takes the shared guest down, if any scenario has booted it.
pub(crate) fn shut_down() {
    drop(IDLE.lock().unwrap_or_else(PoisonError::into_inner).take());
}

/// A guest on a node of two.
pub(crate) struct Mover {
    pub(crate) space: Namespace,
    born: Option<Life>,
    runs: u32,
}

/// What must be the same wherever the guest runs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Life {
    instance: String,
    boot: String,
    shell: String,
    memory: String,
    disks: String,
    address: String,
}

impl Mover {
    /// Boots a guest on the demo's disk, which `change` makes another in whatever way its scenario needs, in the namespace
    /// `e2e-SPACE`; then fills its memory and its disks.
    pub(crate) fn boot(space: &str, change: impl FnOnce(&mut Value)) -> Result<Self> {
        two_nodes::ready()?;
        let space = Namespace::new(space)?;
        let mut vm = machine::on_disk(NAME, "Always");
        machine::add_disk(&mut vm, "scratch", json!({ "emptyDisk": { "capacity": "64Mi" } }));
        machine::spec(&mut vm)["evictionStrategy"] = json!("LiveMigrate");
        // Nothing that outlives it is on its disks.
        machine::spec(&mut vm)["terminationGracePeriodSeconds"] = json!(1);
        change(&mut vm);
        space.apply(&vm)?;
        let mut mover = Self { space, born: None, runs: 0 };
        mover.usable()?;
        let mut console = mover.console()?;
        let (shown, code) = console.run(
            // Its addresses come in any order, and after its prompt: what is compared later is what it has when it is complete.
            "until ip -4 -o addr show dev eth0 scope global | grep -q inet && \
                   ip -6 -o addr show dev eth0 scope global | grep -q fd10; do sleep 0.2; done; \
             dd if=/dev/urandom of=/dev/shm/memory bs=1M count=8 2>/dev/null; \
             dd if=/dev/urandom of=/root/disk bs=1M count=8 2>/dev/null; \
             dd if=/dev/urandom of=/dev/vdc bs=1M count=8 2>/dev/null; sync; \
             (while :; do n=$((n+1)); echo $n > /dev/shm/new; mv /dev/shm/new /dev/shm/count; sleep 0.2; done) & echo $! > /dev/shm/counter",
        )?;
        ensure!(code == 0, "{code}: {shown}");
        mover.born = Some(mover.life_by(&mut console)?);
        console.leave()?;
        Ok(mover)
    }

    /// Waits until it runs and its agent answers.
    pub(crate) fn usable(&self) -> Result<Value> {
        self.space
            .wait("vmi", NAME, "ran with its agent", |vmi| phase(vmi) == "Running" && holds(vmi, "AgentConnected"))
    }

    /// Waits until nobody moves it any more.
    fn at_rest(&self) -> Result<()> {
        until("the idle guest to stand still", 2 * BOOT, || {
            let all = self.space.list("vmim", "")?;
            Ok(all.iter().all(|found| matches!(phase(found), "Succeeded" | "Failed")).then_some(()))
        })
    }

    pub(crate) fn vmi(&self) -> Result<Value> {
        self.space.get("vmi", NAME)
    }

    /// The node on which it runs.
    pub(crate) fn node(&self) -> Result<String> {
        Ok(self.vmi()?["status"]["nodeName"].as_str().unwrap_or_default().to_owned())
    }

    /// A console, logged in as root, in the shell that was there before.
    pub(crate) fn console(&self) -> Result<Console> {
        let mut console = Console::open(&self.space, NAME)?;
        console.log_in("root", "guest")?;
        Ok(console)
    }

    fn life_by(&self, console: &mut Console) -> Result<Life> {
        let mut say = |command: &str| -> Result<String> {
            let (shown, code) = console.run(command)?;
            ensure!(code == 0, "{command:?} ended with {code}: {shown}");
            Ok(shown)
        };
        // The disks themselves, and not what the guest remembers of them.
        say("echo 3 > /proc/sys/vm/drop_caches")?;
        Ok(Life {
            instance: uid(&self.vmi()?).to_owned(),
            boot: say("cat /proc/sys/kernel/random/boot_id")?,
            shell: say("echo $$; cat /dev/shm/counter; kill -0 $(cat /dev/shm/counter) && echo counts")?,
            memory: say("sha256sum /dev/shm/memory")?,
            disks: say("sha256sum /root/disk; dd if=/dev/vdc bs=1M count=8 2>/dev/null | sha256sum")?,
            address: say("ip -o addr show dev eth0 | awk '{print $4}'; cat /sys/class/net/eth0/address")?,
        })
    }

    /// It is what it was when it had booted, and its time goes on.
    pub(crate) fn unharmed_by(&self, console: &mut Console) -> Result<()> {
        let (born, now) = (self.born.as_ref(), self.life_by(console)?);
        ensure!(born == Some(&now), "before: {born:?}\nafter: {now:?}");
        let count = |console: &mut Console| -> Result<u64> {
            let text = console.run("cat /dev/shm/count")?.0;
            text.parse().with_context(|| format!("{text:?} is no number"))
        };
        let before = count(console)?;
        until("its count to go on", SOON, || Ok((count(console)? > before).then_some(())))
    }

    /// The same, by a console for this.
    pub(crate) fn unharmed(&self) -> Result<()> {
        let mut console = self.console()?;
        self.unharmed_by(&mut console)?;
        console.leave()
    }

    /// Asks for a migration, and returns its name.
    pub(crate) fn leave(&mut self) -> Result<String> {
        self.leave_for(&json!({}))
    }

    /// Asks for a migration to a node with these labels, and returns its name.
    pub(crate) fn leave_for(&mut self, labels: &Value) -> Result<String> {
        self.runs += 1;
        let name = format!("away-{}", self.runs);
        self.space.apply(&json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration", "metadata": { "name": name },
            "spec": { "vmiName": NAME, "addedNodeSelector": labels },
        }))?;
        Ok(name)
    }

    /// Waits until a migration is in this phase.
    pub(crate) fn reaches(&self, migration: &str, wanted: &str) -> Result<()> {
        let what = format!("was {wanted}");
        self.space.wait_for(2 * SOON, "vmim", migration, &what, |found| phase(found) == wanted).map(drop)
    }

    /// The pod that runs it.
    pub(crate) fn pod(&self) -> Result<Value> {
        let pods = self.space.list("pods", "kubevirt.io=virt-launcher")?;
        let active = self.vmi()?["status"]["activePods"].clone();
        pods.into_iter().find(|pod| active.get(uid(pod)).is_some()).context("no pod of the guest")
    }

    /// Waits for the end of a migration, which must be `how`.
    pub(crate) fn ended(&self, migration: &str, how: &str) -> Result<Value> {
        let over = |found: &Value| matches!(phase(found), "Succeeded" | "Failed");
        let found = self.space.wait("vmim", migration, "ended", over)?;
        ensure!(phase(&found) == how, "{} and not {how}: {}", phase(&found), found["status"]);
        Ok(found)
    }

    /// Exactly one QEMU, on the node that the VMI names, and no pod but that one's, which is returned.
    pub(crate) fn alone(&self) -> Result<Value> {
        until("one pod and one QEMU", SOON, || {
            let vmi = self.vmi()?;
            let here = vmi["status"]["nodeName"].as_str().unwrap_or_default();
            let pods = self.space.list("pods", "kubevirt.io=virt-launcher")?;
            let [pod] = pods.as_slice() else { return Ok(None) };
            ensure!(pod["spec"]["nodeName"] == here, "the pod is not on {here}");
            let active = vmi["status"]["activePods"].as_object().map(|pods| pods.len());
            let settled =
                active == Some(1) && vmi["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"].is_null();
            Ok((settled && qemus(pod)? == 1).then(|| pod.clone()))
        })
    }

    /// Moves the guest, whose shell stays open.
    pub(crate) fn move_with(&mut self, console: &mut Console) -> Result<()> {
        let from = self.node()?;
        let name = self.leave()?;
        self.ended(&name, "Succeeded")?;
        self.arrived(&from)?;
        self.unharmed_by(console)
    }

    /// The migration went well: the status says so, and nothing is left on the node it came from.
    pub(crate) fn arrived(&self, from: &str) -> Result<()> {
        self.arrived_in(from, "PreCopy")
    }

    /// The same, with the mode it ended in.
    pub(crate) fn arrived_in(&self, from: &str, mode: &str) -> Result<()> {
        let vmi = self.vmi()?;
        let state = &vmi["status"]["migrationState"];
        let to = vmi["status"]["nodeName"].as_str().unwrap_or_default();
        ensure!(from != to && state["sourceNode"] == from && state["targetNode"] == to, "{state}");
        ensure!(state["completed"] == true && state["failed"] != true && state["mode"] == mode, "{state}");
        ensure!(vmi["metadata"]["labels"]["kubevirt.io/nodeName"] == to, "{}", vmi["metadata"]["labels"]);
        let pod = self.alone()?;
        let reached =
            || -> Result<bool> { Ok(self.vmi()?["status"]["interfaces"][0]["ipAddress"] == pod["status"]["podIP"]) };
        until("the new pod's address in the VMI", SOON, || Ok(reached()?.then_some(())))
    }

    /// Moves it to this node, if it is not there.
    pub(crate) fn go_to(&mut self, node: &str) -> Result<()> {
        let from = self.node()?;
        if from == node {
            return Ok(());
        }
        let name = self.leave()?;
        self.ended(&name, "Succeeded")?;
        self.arrived(&from)
    }

    /// The migration has failed or was given up: the guest is where it was, and goes on.
    pub(crate) fn stayed(&self, on: &str) -> Result<()> {
        self.alone()?;
        ensure!(self.node()? == on, "it was on {on} and is on {}", self.node()?);
        self.unharmed()
    }

    /// Waits until the source sends.
    pub(crate) fn under_way(&self) -> Result<Value> {
        self.under_way_and("was on its way", |progress| progress["processed"].as_u64() > Some(0))
    }

    /// Waits until the progress of a migration that has not ended is as `check` wants.
    pub(crate) fn under_way_and(&self, what: &str, check: impl Fn(&Value) -> bool) -> Result<Value> {
        self.space.wait_for(2 * SOON, "vmi", NAME, what, |vmi| under_way(vmi).is_some_and(|progress| check(&progress)))
    }

    /// How far the migration is that has not ended; null without one.
    pub(crate) fn progress(&self) -> Result<Value> {
        Ok(under_way(&self.vmi()?).unwrap_or_default())
    }

    /// A guest on its way, so slowly that there is time to disturb it; afterwards it is where it was, and can go as before.
    /// `disturb` gets the migration's name and the VMI.
    pub(crate) fn disturbed(&mut self, disturb: impl FnOnce(&Self, &str, &Value) -> Result<()>) -> Result<()> {
        let on = self.node()?;
        let slow = Policy::new(&self.space, &json!({ "bandwidthPerMigration": "1Mi" }))?;
        let migration = self.leave()?;
        let vmi = self.under_way()?;
        disturb(self, &migration, &vmi)?;
        drop(slow);
        self.stayed(&on)?;
        // Nothing is left that would be in the way of another.
        let mut console = self.console()?;
        self.move_with(&mut console)?;
        console.leave()
    }
}

/// How far the migration of a VMI is that has not ended.
pub(crate) fn under_way(vmi: &Value) -> Option<Value> {
    let text = vmi["metadata"]["annotations"]["ferrovirt.io/migration-progress"].as_str()?;
    let progress: Value = serde_json::from_str(text).ok()?;
    let this = progress["uid"] == vmi["status"]["migrationState"]["migrationUid"];
    (this && progress["outcome"].is_null()).then_some(progress)
}

/// How many QEMUs run in a pod.
pub(crate) fn qemus(pod: &Value) -> Result<usize> {
    Ok(node::processes(uid(pod))?.iter().filter(|process| process.words[0].contains("qemu-system")).count())
}

/// A MigrationPolicy for one namespace, for as long as this is held: other migrations go on as they did.
pub(crate) struct Policy {
    name: String,
}

impl Policy {
    /// Applies a policy with this spec.
    pub(crate) fn new(space: &Namespace, spec: &Value) -> Result<Self> {
        let mut spec = spec.clone();
        if spec["completionTimeoutPerGiB"].is_null() {
            // HyperConverged's 20 seconds are not meant for guests that are slowed down.
            spec["completionTimeoutPerGiB"] = json!(150);
        }
        spec["selectors"] = json!({ "namespaceSelector": { "kubernetes.io/metadata.name": space.name() } });
        let name = space.name().to_owned();
        space.apply(&json!({
            "apiVersion": "migrations.kubevirt.io/v1alpha1", "kind": "MigrationPolicy", "metadata": { "name": name },
            "spec": spec,
        }))?;
        Ok(Self { name })
    }
}

impl Drop for Policy {
    fn drop(&mut self) {
        // Its namespace may be gone; the policy is in none.
        let _ = Namespace::kubectl_in("default", &["delete", "migrationpolicy", &self.name, "--ignore-not-found"]);
    }
}
