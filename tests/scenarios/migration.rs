//! A guest that moves between two nodes, and what may go wrong on the way: whatever happens, one guest runs, it is the one
//! that ran before, and nothing is left of the other.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, holds, phase, uid};
use e2e::wait::{BOOT, SOON, throughout, until};
use e2e::{Console, Namespace, node};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;
use crate::two_nodes::{self, ferrovirt};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("migration_moves_a_guest_to_and_fro", moves_to_and_fro),
        trial("migration_moves_a_guest_that_changes_its_memory", moves_a_busy_guest),
        trial("migration_leaves_a_paused_guest_paused", leaves_a_paused_guest_paused),
        trial("migration_is_cancelled", is_cancelled),
        trial("migration_fails_with_the_target_launcher", fails_with_the_target_launcher),
        trial("migration_fails_with_the_source_handler", fails_with_the_source_handler),
        trial("migration_fails_with_the_link", fails_with_the_link),
    ]
}

const NAME: &str = "mover";

/// A guest on a node of two.
struct Mover {
    space: Namespace,
    runs: u32,
}

/// What must be the same wherever the guest runs.
#[derive(Debug, PartialEq)]
struct Life {
    instance: String,
    boot: String,
    shell: String,
    memory: String,
    disks: String,
    address: String,
}

impl Mover {
    fn boot(name: &str) -> Result<Self> {
        two_nodes::ready()?;
        let space = Namespace::new(name)?;
        let mut vm = machine::on_disk(NAME, "Always");
        machine::add_disk(&mut vm, "scratch", json!({ "emptyDisk": { "capacity": "64Mi" } }));
        space.apply(&vm)?;
        let mover = Self { space, runs: 0 };
        mover.usable()?;
        let mut console = mover.console()?;
        let (shown, code) = console.run(
            // Its second address comes after its prompt: what is compared later is what it has when it is complete.
            "until ip -6 -o addr show dev eth0 scope global | grep -q fd10; do sleep 0.2; done; \
             dd if=/dev/urandom of=/dev/shm/memory bs=1M count=8 2>/dev/null; \
             dd if=/dev/urandom of=/root/disk bs=1M count=8 2>/dev/null; \
             dd if=/dev/urandom of=/dev/vdc bs=1M count=8 2>/dev/null; sync; \
             (while :; do n=$((n+1)); echo $n > /dev/shm/count; sleep 0.2; done) & echo $! > /dev/shm/counter",
        )?;
        ensure!(code == 0, "{code}: {shown}");
        console.leave()?;
        Ok(mover)
    }

    fn usable(&self) -> Result<Value> {
        self.space
            .wait("vmi", NAME, "ran with its agent", |vmi| phase(vmi) == "Running" && holds(vmi, "AgentConnected"))
    }

    fn vmi(&self) -> Result<Value> {
        self.space.get("vmi", NAME)
    }

    fn node(&self) -> Result<String> {
        Ok(self.vmi()?["status"]["nodeName"].as_str().unwrap_or_default().to_owned())
    }

    fn console(&self) -> Result<Console> {
        let mut console = Console::open(&self.space, NAME)?;
        console.log_in("root", "guest")?;
        Ok(console)
    }

    fn life(&self) -> Result<Life> {
        let mut console = self.console()?;
        let life = self.life_by(&mut console)?;
        console.leave()?;
        Ok(life)
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

    /// Asks for a migration.
    fn leave(&mut self) -> Result<String> {
        self.runs += 1;
        let name = format!("away-{}", self.runs);
        self.space.apply(&json!({
            "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration", "metadata": { "name": name },
            "spec": { "vmiName": NAME },
        }))?;
        Ok(name)
    }

    fn ended(&self, migration: &str, how: &str) -> Result<Value> {
        let over = |found: &Value| matches!(phase(found), "Succeeded" | "Failed");
        let found = self.space.wait("vmim", migration, "ended", over)?;
        ensure!(phase(&found) == how, "{} and not {how}: {}", phase(&found), found["status"]);
        Ok(found)
    }

    /// Exactly one QEMU, on the node that the VMI names, and no pod but that one's.
    fn alone(&self) -> Result<()> {
        until("one pod and one QEMU", SOON, || {
            let vmi = self.vmi()?;
            let here = vmi["status"]["nodeName"].as_str().unwrap_or_default();
            let pods = self.space.list("pods", "kubevirt.io=virt-launcher")?;
            let [pod] = pods.as_slice() else { return Ok(None) };
            ensure!(pod["spec"]["nodeName"] == here, "the pod is not on {here}");
            let active = vmi["status"]["activePods"].as_object().map(|pods| pods.len());
            let settled =
                active == Some(1) && vmi["metadata"]["labels"]["kubevirt.io/migrationTargetNodeName"].is_null();
            let qemu =
                node::processes(uid(pod))?.iter().filter(|process| process.words[0].contains("qemu-system")).count();
            Ok((settled && qemu == 1).then_some(()))
        })
    }

    /// Moves the guest, whose shell stays open.
    fn move_with(&mut self, console: &mut Console, before: &Life) -> Result<()> {
        let from = self.node()?;
        let count = console.run("cat /dev/shm/count")?.0;
        let name = self.leave()?;
        self.ended(&name, "Succeeded")?;
        let vmi = self.vmi()?;
        let state = &vmi["status"]["migrationState"];
        let to = vmi["status"]["nodeName"].as_str().unwrap_or_default();
        ensure!(from != to && state["sourceNode"] == from && state["targetNode"] == to, "{state}");
        ensure!(state["completed"] == true && state["failed"] != true && state["mode"] == "PreCopy", "{state}");
        ensure!(vmi["metadata"]["labels"]["kubevirt.io/nodeName"] == to, "{}", vmi["metadata"]["labels"]);
        self.alone()?;
        let pods = self.space.list("pods", "kubevirt.io=virt-launcher")?;
        let pod = pods.first().context("no pod")?;
        let reached =
            || -> Result<bool> { Ok(self.vmi()?["status"]["interfaces"][0]["ipAddress"] == pod["status"]["podIP"]) };
        until("the new pod's address in the VMI", SOON, || Ok(reached()?.then_some(())))?;
        let after = self.life_by(console)?;
        ensure!(after == *before, "before: {before:?}\nafter: {after:?}");
        let number = |text: &str| text.parse::<u64>().with_context(|| format!("{text:?} is no number"));
        let later = console.run("sleep 1; cat /dev/shm/count")?.0;
        ensure!(number(&later)? > number(&count)?, "the count went from {count} to {later}");
        Ok(())
    }

    /// The migration has failed or was given up: the guest is where it was, and goes on.
    fn stayed(&self, before: &Life, on: &str) -> Result<()> {
        self.alone()?;
        ensure!(self.node()? == on, "it was on {on} and is on {}", self.node()?);
        let after = self.life()?;
        ensure!(after == *before, "before: {before:?}\nafter: {after:?}");
        Ok(())
    }

    /// Waits until the source sends.
    fn under_way(&self) -> Result<Value> {
        self.space.wait_for(2 * SOON, "vmi", NAME, "was on its way", |vmi| {
            let text = vmi["metadata"]["annotations"]["ferrovirt.io/migration-progress"].as_str().unwrap_or("{}");
            let progress: Value = serde_json::from_str(text).unwrap_or_default();
            let this = progress["uid"] == vmi["status"]["migrationState"]["migrationUid"];
            this && progress["outcome"].is_null() && progress["processed"].as_u64() > Some(0)
        })
    }
}

fn moves_to_and_fro() -> Result<()> {
    let mut mover = Mover::boot("move")?;
    let before = mover.life()?;
    let mut console = mover.console()?;
    for _ in 0..5 {
        mover.move_with(&mut console, &before)?;
    }
    console.leave()
}

fn moves_a_busy_guest() -> Result<()> {
    let mut mover = Mover::boot("busy")?;
    let mut console = mover.console()?;
    let busy =
        "(while :; do dd if=/dev/zero of=/dev/shm/dirty bs=1M count=24 conv=notrunc 2>/dev/null; done) & echo $!";
    let (_, code) = console.run(busy)?;
    ensure!(code == 0);
    let before = mover.life_by(&mut console)?;
    mover.move_with(&mut console, &before)?;
    console.leave()
}

fn leaves_a_paused_guest_paused() -> Result<()> {
    let mut mover = Mover::boot("paused")?;
    let before = mover.life()?;
    mover.space.virtctl(&["pause", "vmi", NAME])?;
    mover.space.wait_for(SOON, "vmi", NAME, "was Paused", |vmi| holds(vmi, "Paused"))?;
    let from = mover.node()?;
    let name = mover.leave()?;
    mover.ended(&name, "Succeeded")?;
    mover.alone()?;
    ensure!(mover.node()? != from, "it is still on {from}");
    throughout(Duration::from_secs(3), || {
        ensure!(holds(&mover.vmi()?, "Paused"), "it is no longer paused");
        Ok(())
    })?;
    mover.space.virtctl(&["unpause", "vmi", NAME])?;
    mover.space.wait_for(SOON, "vmi", NAME, "was not Paused", |vmi| !holds(vmi, "Paused"))?;
    let after = mover.life()?;
    ensure!(after == before, "before: {before:?}\nafter: {after:?}");
    Ok(())
}

/// A guest on its way, so slowly that there is time to disturb it.
fn slowly(name: &str, disturb: impl FnOnce(&Mover, &str, &Value) -> Result<()>) -> Result<()> {
    let mut mover = Mover::boot(name)?;
    let before = mover.life()?;
    let on = mover.node()?;
    let outcome = two_nodes::with_bandwidth("1Mi", || {
        let migration = mover.leave()?;
        let vmi = mover.under_way()?;
        disturb(&mover, &migration, &vmi)
    });
    outcome?;
    mover.stayed(&before, &on)?;
    // Nothing is left that would be in the way of another.
    let mut console = mover.console()?;
    mover.move_with(&mut console, &before)?;
    console.leave()
}

fn is_cancelled() -> Result<()> {
    slowly("cancel", |mover, migration, _| {
        mover.space.kubectl(&["delete", "vmim", migration, "--timeout=60s"])?;
        let state = mover.vmi()?["status"]["migrationState"].clone();
        ensure!(state["abortStatus"] == "Succeeded" && state["failed"] == true, "{state}");
        ensure!(state["failureReason"] == "Live migration aborted", "{state}");
        Ok(())
    })
}

fn target_pod(mover: &Mover, vmi: &Value) -> Result<Value> {
    mover.space.get("pod", vmi["status"]["migrationState"]["targetPod"].as_str().unwrap_or_default())
}

fn fails_with_the_target_launcher() -> Result<()> {
    slowly("target", |mover, migration, vmi| {
        node::process(uid(&target_pod(mover, vmi)?), "virt-launcher")?.kill()?;
        mover.ended(migration, "Failed").map(drop)
    })
}

fn fails_with_the_source_handler() -> Result<()> {
    slowly("handler", |mover, migration, vmi| {
        let on = vmi["status"]["nodeName"].as_str().unwrap_or_default();
        two_nodes::handler(on)?.kill()?;
        mover.ended(migration, "Failed").map(drop)
    })
}

fn fails_with_the_link() -> Result<()> {
    slowly("link", |mover, migration, vmi| {
        let other = vmi["status"]["migrationState"]["targetNode"].as_str().unwrap_or_default();
        // What is cut off is the second node, wherever the guest is: the first has the control plane.
        let here = vmi["status"]["nodeName"].as_str().unwrap_or_default();
        let cut = if other == two_nodes::FIRST { here } else { other };
        ferrovirt(&["node", "cut", cut])?;
        // Its connections are found dead, and the guest goes on while the node is still away.
        let broken = until("the way to be given up", BOOT, || {
            if cut == here {
                return Ok(Some(()));
            }
            Ok(mover.vmi()?["status"]["migrationState"]["endTimestamp"].is_string().then_some(()))
        });
        ferrovirt(&["node", "heal", cut])?;
        broken?;
        mover.ended(migration, "Failed").map(drop)
    })
}
