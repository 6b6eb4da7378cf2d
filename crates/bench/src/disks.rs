//! Disks that come to a running guest: how long one takes, and as many as a guest can have.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kube::api::DynamicObject;
use kube::{Api, Client};
use serde_json::{Value, json};

use crate::bare::{Bare, Domain};
use crate::cluster::{self, Cluster};
use crate::migration::shell;
use crate::process::{self, Memory};
use crate::table::{Table, Times};

/// The most disks of a guest, two of which the demo's machine has from the start.
const DISKS: usize = 255 - 2;
const GUEST: &str = "disks";
/// How long many disks may take.
const PATIENCE: Duration = Duration::from_secs(600);
const LOOK: Duration = Duration::from_millis(10);
/// How many the floor is measured with: each comes to a place that the domain has for it.
const FLOOR: usize = 5;

pub(crate) async fn measure(cluster: &Cluster, client: &Client, rounds: usize, table: &mut Table) -> Result<()> {
    let vmis = cluster::kind(client, "default", "VirtualMachineInstance");
    let agent = |seen: &Value| cluster::condition(seen, "AgentConnected");
    cluster::create(&vmis, &cluster::instance(cluster.root(), GUEST)?, agent, |_| false).await?;
    let launcher = launcher(&vmis).await?;
    let domain = Domain::of_launcher(launcher)?;
    // The demo's guest has nobody who loads drivers for what comes after its start.
    shell(&domain, "modprobe -a virtio_scsi sd_mod", true)?;
    let floor = tokio::task::spawn_blocking(move || floor(launcher)).await??;

    let names: Vec<String> = (0..DISKS).map(|n| format!("disk-{n}")).collect();
    let claims: Vec<Value> = names.iter().map(|name| claim(name)).collect();
    cluster.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": claims }))?;
    let virtctl = cluster.root().join("bin/virtctl");
    let add =
        |name: &str| cluster.run(&virtctl.to_string_lossy(), &["addvolume", GUEST, &format!("--volume-name={name}")]);
    let mut times = Times::default();
    for (n, name) in names.iter().take(rounds).enumerate() {
        let begin = Instant::now();
        add(name)?;
        wait(&vmis, n + 1).await?;
        while disks_seen(&domain)? <= n {
            if begin.elapsed() > PATIENCE {
                bail!("the guest does not see {name}");
            }
        }
        times.extend([begin.elapsed()]);
    }
    table.row(
        format!("virtctl addvolume -> the guest sees the disk, {} in sequence, p50 (s)", times.len()),
        format!("{:.2}", times.at(0.5)),
        format!("virsh attach-disk {:.2}, of a file that is there", floor.at(0.5)),
    );
    let before = memory(launcher);
    let begin = Instant::now();
    for name in names.iter().skip(rounds) {
        add(name)?;
    }
    let asked = begin.elapsed().as_secs_f64();
    wait(&vmis, DISKS).await?;
    let took = begin.elapsed().as_secs_f64();
    let more = DISKS - rounds;
    table.row(
        format!("255 disks: {more} more, one virtctl addvolume after the other, to all Ready (s)"),
        format!("{took:.1}"),
        format!("virtctl itself {asked:.1}; {more} times the floor {:.1}", floor.at(0.5) * more as f64),
    );
    let after = memory(launcher);
    table.row(
        "  what each of them adds to launcher and QEMU, RSS / PSS (MiB)",
        Memory { rss: after.rss - before.rss, pss: after.pss - before.pss }.over(more).to_string(),
        "",
    );
    table.row("  of which the guest sees", format!("{}", disks_seen(&domain)?), format!("{DISKS} came to it"));
    cluster::delete(&vmis, GUEST).await?;
    cluster.kubectl(&["delete", "pvc", "--all", "--wait=false"]).map(drop)
}

fn claim(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name, "namespace": "default" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "1Mi" } } } })
}

/// Waits until this many disks on claims are the guest's.
async fn wait(vmis: &Api<DynamicObject>, count: usize) -> Result<()> {
    let begin = Instant::now();
    loop {
        let seen = vmis.get(GUEST).await.context("cannot read the guest")?;
        let all = seen.data["status"]["volumeStatus"].as_array();
        let there = |entry: &&Value| entry["phase"] == "Ready" && !entry["hotplugVolume"].is_null();
        let found = all.into_iter().flatten().filter(there).count();
        if found >= count {
            return Ok(());
        }
        if begin.elapsed() > PATIENCE {
            bail!("{found} of {count} disks came in {} s", PATIENCE.as_secs());
        }
        tokio::time::sleep(LOOK).await;
    }
}

fn disks_seen(domain: &Domain) -> Result<usize> {
    let said = shell(domain, "ls /sys/block | grep -c ^sd || true", true)?;
    said.trim().parse().with_context(|| format!("the guest counts {said:?} disks"))
}

/// The process id of the guest's launcher.
async fn launcher(vmis: &Api<DynamicObject>) -> Result<u32> {
    let seen = vmis.get(GUEST).await?;
    let pods = seen.data["status"]["activePods"].as_object();
    let uid = pods.and_then(|pods| pods.keys().next().cloned()).context("the guest has no pod")?;
    let launcher = process::of_pod(&uid).into_iter().find(|process| process.name() == "virt-launcher");
    Ok(launcher.context("the launcher does not run")?.pid)
}

/// Of the launcher and of what it started.
fn memory(launcher: u32) -> Memory {
    let mut sum = process::memory(launcher);
    for child in process::all().into_iter().filter(|process| process.parent == launcher) {
        sum += process::memory(child.pid);
    }
    sum
}

/// `virsh attach-disk` on a daemon that has the launcher's own domain, and nothing else to do.
fn floor(launcher: u32) -> Result<Times> {
    let bare = Bare::copy(launcher, 9)?;
    bare.define()?;
    let domain = bare.domain();
    domain.virsh(&["start", &domain.name])?;
    let mut times = Times::default();
    for n in 0..FLOOR {
        let image = bare.path(&format!("floor-{n}.img"));
        std::fs::File::create(&image)?.set_len(1 << 20)?;
        bare.give(&image)?;
        let target = format!("sd{}", ["j", "k", "l", "m", "n"][n]);
        let path = image.to_string_lossy().into_owned();
        let begin = Instant::now();
        let as_disk = ["--targetbus", "scsi", "--subdriver", "raw", "--live"];
        domain.virsh(&[&["attach-disk", &domain.name, &path, &target], &as_disk[..]].concat())?;
        times.extend([begin.elapsed()]);
    }
    Ok(times)
}
