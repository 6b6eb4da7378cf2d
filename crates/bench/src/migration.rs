//! Live migration: how long it takes and how long the guest stands still, each against `virsh migrate` of the same guest
//! between two bare daemons.
//!
//! The pause is measured twice. A guest's clock stands still while the guest does: what passed outside between two readings
//! of it, less what passed inside, is the pause. And the guest pings this host: the longest silence is the pause and what its
//! network adds.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::bare::{Bare, Bridge, Domain};
use crate::cluster::{self, Cluster};
use crate::ping::{self, Pings};
use crate::process;
use crate::table::{Table, Times};

const PATIENCE: Duration = Duration::from_secs(120);
/// What a busy guest changes of its memory, in MB a second.
const RATE: u64 = 70;
/// Of the guest's clock, to know it once.
const READINGS: usize = 5;

/// Addresses of this host: what pods reach, and what the bare guest does.
const HOST: &str = "10.88.0.1";
const BARE_HOST: &str = "10.9.0.1";
const BARE_GUEST: &str = "10.9.0.2";

/// Totals and pauses of several migrations.
#[derive(Default)]
struct Moves {
    totals: Times,
    pauses: Times,
    silences: Times,
}

impl Moves {
    /// One that took `total`, with the guest's clock as it was read before and after.
    fn add(&mut self, total: Duration, before: &Clock, after: &Clock, pings: &mut Pings) -> Result<()> {
        self.totals.extend([total]);
        self.pauses.extend([after.behind(before)]);
        self.silences.extend([pings.longest_silence(before.read, after.read)?]);
        Ok(())
    }
}

/// When the guest's clock was read, and what it said.
struct Clock {
    read: Instant,
    said: Duration,
}

impl Clock {
    /// What this clock lost since `before`.
    fn behind(&self, before: &Self) -> Duration {
        (self.read - before.read).saturating_sub(self.said.saturating_sub(before.said))
    }

    /// The best of some readings: each comes a little late, and the one that lost the least is the nearest.
    fn of(domain: &Domain) -> Result<Self> {
        let mut best = Self::once(domain)?;
        for _ in 1..READINGS {
            let next = Self::once(domain)?;
            if next.behind(&best).is_zero() {
                best = next;
            }
        }
        Ok(best)
    }

    fn once(domain: &Domain) -> Result<Self> {
        let said = shell(domain, "read up rest </proc/uptime; echo $up", true)?;
        let seconds: f64 = said.trim().parse().with_context(|| format!("the guest's clock says {said:?}"))?;
        Ok(Self { read: Instant::now(), said: Duration::from_secs_f64(seconds) })
    }
}

/// Rows for a guest that is idle and for one that changes its memory. The cluster has one node before, and two afterwards.
pub(crate) async fn measure(cluster: &Cluster, client: &Client, rounds: usize) -> Result<Table> {
    cluster.ferrovirt(&["node", "add"])?;
    let api = cluster::kind(client, "default", "VirtualMachineInstance");
    cluster.apply(&shared_claim())?;
    let mut table = Table::default();
    for (number, shared, busy) in [(1, false, false), (3, false, true), (5, true, false), (7, true, true)] {
        let name = format!("{}-{}", if busy { "busy" } else { "idle" }, if shared { "shared" } else { "copied" });
        let mut machine = cluster::instance(cluster.root(), &name)?;
        if shared {
            on_shared_disk(&mut machine);
        }
        cluster::create(&api, &machine, |seen| cluster::condition(seen, "AgentConnected"), |_| false).await?;
        let pid = launcher(client, &name).await?;
        let bares = tokio::task::spawn_blocking(move || {
            let (here, there) = (Bare::copy(pid, number)?, Bare::copy(pid, number + 1)?);
            if shared {
                there.share_claims(&here)?;
            }
            anyhow::Ok((here, there))
        });
        let (here, there) = bares.await??;
        let ours = migrations(client, &name, rounds, busy).await?;
        cluster::delete(&api, &name).await?;
        let floor = tokio::task::spawn_blocking(move || floor(&here, &there, rounds, (shared, busy))).await??;
        let disk = if shared { "on a shared disk" } else { "with its disk" };
        let does = if busy { format!("changing {RATE} MB/s") } else { "idle".to_owned() };
        rows(&mut table, &format!("live migration {disk}, guest {does}"), &ours, &floor);
    }
    Ok(table)
}

/// A volume that both nodes reach, and its claim.
fn shared_claim() -> Value {
    let (name, class) = ("bench-shared", "bench-shared");
    let size = json!({"storage": "64Mi"});
    json!({"apiVersion": "v1", "kind": "List", "items": [
        {"apiVersion": "v1", "kind": "PersistentVolume",
         "metadata": {"name": name, "annotations": {"ferrovirt.io/locks": "shared"}},
         "spec": {"capacity": size, "accessModes": ["ReadWriteMany"], "storageClassName": class,
                  "hostPath": {"path": "/srv/shared/bench", "type": "DirectoryOrCreate"}}},
        {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": {"name": name, "namespace": "default"},
         "spec": {"accessModes": ["ReadWriteMany"], "storageClassName": class, "resources": {"requests": size}}},
    ]})
}

/// Has a machine boot the demo's kernel, and its only disk on that claim.
fn on_shared_disk(machine: &mut Value) {
    machine["spec"]["domain"]["firmware"] = json!({"kernelBoot": {
        "kernelArgs": "console=ttyS0 quiet mitigations=off net.ifnames=0",
        "container": {"image": "ferrovirt.local/guest-kernel:v0.1.0", "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd"},
    }});
    for volume in machine["spec"]["volumes"].as_array_mut().into_iter().flatten() {
        if volume["name"] == "root" {
            *volume = json!({"name": "root", "persistentVolumeClaim": {"claimName": "bench-shared"}});
        }
    }
}

fn rows(table: &mut Table, what: &str, ours: &Moves, floor: &Moves) {
    let total = floor.totals.at(0.5);
    table.row(
        format!("{what}, total, p50 of {} (s)", ours.totals.len()),
        format!("{:.2}", ours.totals.at(0.5)),
        format!("virsh migrate of the same guest {total:.2}; aim 1.5x + 1 = {:.2}", 1.5 * total + 1.0),
    );
    for (how, here, beside) in
        [("guest's clock", &ours.pauses, &floor.pauses), ("guest's ping", &ours.silences, &floor.silences)]
    {
        let beside = beside.at(0.5) * 1e3;
        table.row(
            format!("{what}, pause by the {how}, p50 (ms)"),
            format!("{:.0}", here.at(0.5) * 1e3),
            format!("virsh migrate {beside:.0}; aim 1.2x = {:.0}", beside * 1.2),
        );
    }
}

/// Migrations of the instance `name`, to and fro.
async fn migrations(client: &Client, name: &str, rounds: usize, busy: bool) -> Result<Moves> {
    let api = cluster::kind(client, "default", "VirtualMachineInstanceMigration");
    let mut moves = Moves::default();
    let pid = launcher(client, name).await?;
    let mut pings = Pings::listen()?;
    blocking(pid, move |domain| prepare(&domain, busy, HOST)).await?;
    pings.begin(PATIENCE)?;
    for round in 0..2 * rounds {
        let before = blocking(launcher(client, name).await?, |domain| Clock::of(&domain)).await?;
        let migration = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstanceMigration",
            "metadata": {"name": format!("{name}-{round}")}, "spec": {"vmiName": name}});
        let phase = |seen: &Value, wanted: &str| seen["status"]["phase"] == wanted;
        let took = cluster::create(&api, &migration, |seen| phase(seen, "Succeeded"), |seen| phase(seen, "Failed"));
        let took = took.await?;
        let after = blocking(launcher(client, name).await?, |domain| Clock::of(&domain)).await?;
        moves.add(took, &before, &after, &mut pings)?;
    }
    Ok(moves)
}

/// Does something with the domain of the launcher with process id `pid`.
async fn blocking<T: Send + 'static>(pid: u32, work: impl FnOnce(Domain) -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(move || work(Domain::of_launcher(pid)?)).await?
}

/// Process id of the launcher that runs the instance `name` now.
async fn launcher(client: &Client, name: &str) -> Result<u32> {
    let machine = cluster::kind(client, "default", "VirtualMachineInstance").get(name).await?;
    let node = machine.data["status"]["nodeName"].as_str().unwrap_or_default().to_owned();
    let pods: Api<Pod> = Api::default_namespaced(client.clone());
    let created = format!("kubevirt.io/created-by={}", machine.metadata.uid.unwrap_or_default());
    let on_it = ListParams::default().labels(&created).fields(&format!("spec.nodeName={node},status.phase=Running"));
    let pod = pods.list(&on_it).await?.items.into_iter().next().and_then(|pod| pod.metadata.uid);
    let processes = process::of_pod(&pod.with_context(|| format!("{name} has no pod on {node}"))?);
    let launcher = processes.into_iter().find(|process| process.name() == "virt-launcher");
    Ok(launcher.with_context(|| format!("the launcher of {name} does not run"))?.pid)
}

/// The floor: to and fro between two bare daemons.
fn floor(here: &Bare, there: &Bare, rounds: usize, (shared, busy): (bool, bool)) -> Result<Moves> {
    here.define()?;
    let domain = here.domain();
    domain.virsh(&["start", &domain.name])?;
    booted(&domain)?;
    let _bridge = Bridge::between(BARE_HOST, &[here, there])?;
    shell(&domain, &format!("ip address flush dev eth0; ip address add {BARE_GUEST}/24 dev eth0"), true)?;
    let mut pings = Pings::listen()?;
    prepare(&domain, busy, BARE_HOST)?;
    pings.begin(PATIENCE)?;
    let mut moves = Moves::default();
    for _ in 0..rounds {
        for (from, to) in [(here, there), (there, here)] {
            let before = Clock::of(&from.domain())?;
            let begin = Instant::now();
            migrate(from, to, shared)?;
            let took = begin.elapsed();
            moves.add(took, &before, &Clock::of(&to.domain())?, &mut pings)?;
        }
    }
    domain.virsh(&["destroy", &domain.name])?;
    Ok(moves)
}

fn migrate(from: &Bare, to: &Bare, shared: bool) -> Result<()> {
    let domain = from.domain();
    let text = domain.virsh(&["dumpxml", "--migratable", &domain.name])?;
    let description = from.path("moved.xml");
    std::fs::write(&description, to.adapted(&text, from))?;
    let description = description.to_string_lossy();
    let (memory, disks) = (to.path("memory"), to.path("disks"));
    let unix = |path: &std::path::Path| format!("unix:{}", path.display());
    let (memory, disks) = (unix(&memory), unix(&disks));
    let writable = if shared { String::new() } else { writable(&domain)?.join(",") };
    let address = to.domain().address();
    let mut words = vec!["migrate", "--live", "--p2p", "--xml", &description, "--migrateuri", &memory];
    if !writable.is_empty() {
        words.extend(["--copy-storage-inc", "--migrate-disks", &writable, "--disks-uri", &disks]);
    }
    if shared {
        // libvirt does not believe that two directories of one host are one.
        words.push("--unsafe");
    }
    words.extend([domain.name.as_str(), &address]);
    domain.virsh(&words).map(drop)
}

/// Disks that the guest writes, by target.
fn writable(domain: &Domain) -> Result<Vec<String>> {
    let text = domain.virsh(&["dumpxml", &domain.name])?;
    let mut found = Vec::new();
    for disk in text.split("<disk ").skip(1).filter_map(|rest| rest.split("</disk>").next()) {
        if disk.contains("<readonly/>") || !disk.contains("<source") {
            continue;
        }
        let target = disk.split("<target dev='").nth(1).and_then(|rest| rest.split('\'').next());
        found.push(target.context("a disk without a target")?.to_owned());
    }
    Ok(found)
}

/// Waits until the guest's agent answers.
fn booted(domain: &Domain) -> Result<()> {
    let deadline = Instant::now() + PATIENCE;
    while let Err(error) = ask(domain, "guest-ping", &json!({})) {
        if Instant::now() > deadline {
            return Err(error.context("the guest does not boot"));
        }
    }
    Ok(())
}

/// Has the guest ping this host and, if it is to be busy, change its memory at a set rate until it ends.
fn prepare(domain: &Domain, busy: bool, host: &str) -> Result<()> {
    let interval = ping::INTERVAL.as_secs_f64();
    // Its agent may answer before it has an address.
    let ping = format!("until ping -q -c 1 -W 1 {host}; do sleep 0.2; done; exec ping -q -i {interval} {host}");
    shell(domain, &format!("({ping}) >/dev/null 2>&1"), false)?;
    if !busy {
        return Ok(());
    }
    // Ten steps a second over 70 MB of what does not compress to nothing, each step a seventh of a tenth of it.
    let script = format!(
        "dd if=/dev/urandom of=/dev/shm/a bs=1M count={step} 2>/dev/null; \
         while :; do for at in 0 1 2 3 4 5 6 7 8 9; do \
         dd if=/dev/shm/a of=/dev/shm/b bs=1M count={step} seek=$((at * {step})) conv=notrunc 2>/dev/null; sleep 0.1; \
         done; done",
        step = RATE / 10
    );
    shell(domain, &script, false).map(drop)
}

/// Runs a script in the guest; with `wait`, until it has ended, for what it prints.
pub(crate) fn shell(domain: &Domain, script: &str, wait: bool) -> Result<String> {
    let begun = ask(domain, "guest-exec", &json!({"path": "/bin/sh", "arg": ["-c", script], "capture-output": wait}))?;
    if !wait {
        return Ok(String::new());
    }
    let deadline = Instant::now() + PATIENCE;
    loop {
        let state = ask(domain, "guest-exec-status", &json!({"pid": begun["pid"]}))?;
        if state["exited"] == true {
            ensure!(state["exitcode"] == 0, "{script:?} failed in the guest: {state}");
            let said = STANDARD.decode(state["out-data"].as_str().unwrap_or_default())?;
            return Ok(String::from_utf8(said)?);
        }
        if Instant::now() > deadline {
            bail!("{script:?} does not end in the guest");
        }
    }
}

fn ask(domain: &Domain, command: &str, arguments: &Value) -> Result<Value> {
    let request = json!({"execute": command, "arguments": arguments}).to_string();
    let said = domain.virsh(&["qemu-agent-command", &domain.name, &request])?;
    let mut said: Value = serde_json::from_str(&said).context("the agent's answer is no JSON")?;
    Ok(said["return"].take())
}
