//! CPUs and memory that come to a running guest and leave it, by its machine's template, on the one node that it runs on.

use anyhow::{Result, ensure};
use e2e::machine::{self, condition, holds, phase, uid};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a_running_guest_gets_cpus_and_memory_and_gives_them_back", sizes_change)]
}

const NAME: &str = "growing";
/// The guest has nobody who loads drivers and takes into use what comes after its start.
const TAKE: &str = "modprobe virtio_mem; echo online_movable > /sys/devices/system/memory/auto_online_blocks; \
                    (while :; do for c in /sys/devices/system/cpu/cpu*/online; do echo 1 > $c; done; sleep 1; done) >/dev/null 2>&1 & true";

fn change(space: &Namespace, sockets: u32, guest: &str) -> Result<()> {
    let domain = json!({ "cpu": { "sockets": sockets }, "memory": { "guest": guest } });
    let patch = json!({ "spec": { "template": { "spec": { "domain": domain } } } });
    space.kubectl(&["patch", "vm", NAME, "--type=merge", "-p", &patch.to_string()]).map(drop)
}

/// Waits until the guest says that it has so many CPUs, and this much memory in MiB.
fn has(console: &mut Console, cpus: u32, least: u32, most: u32) -> Result<()> {
    let wait = format!(
        "for i in $(seq 60); do m=$(($(awk '/MemTotal/ {{ print $2 }}' /proc/meminfo) / 1024)); c=$(nproc); \
         [ $c = {cpus} ] && [ $m -ge {least} ] && [ $m -le {most} ] && echo it-has && break; sleep 1; done; echo $c $m"
    );
    let (found, _) = console.run(&wait)?;
    ensure!(found.contains("it-has"), "the guest has not {cpus} CPUs and {least} to {most} MiB: {found}");
    Ok(())
}

fn settled(vmi: &Value, sockets: u32, guest: &str) -> bool {
    let has = vmi["status"]["currentCPUTopology"]["sockets"] == sockets;
    let asked = vmi["status"]["memory"]["guestRequested"] == guest;
    has && asked && !holds(vmi, "HotVCPUChange") && !holds(vmi, "HotMemoryChange")
}

fn requests(space: &Namespace) -> Result<Value> {
    let pods: Value =
        serde_json::from_str(&space.kubectl(&["get", "pods", "-l", "kubevirt.io=virt-launcher", "-o", "json"])?)?;
    let pods = pods["items"].as_array().cloned().unwrap_or_default();
    ensure!(pods.len() == 1, "{} launcher pods", pods.len());
    let containers = pods[0]["spec"]["containers"].as_array().cloned().unwrap_or_default();
    let compute = containers.into_iter().find(|container| container["name"] == "compute").unwrap_or_default();
    Ok(json!([pods[0]["metadata"]["uid"], compute["resources"]["requests"]["cpu"]]))
}

fn sizes_change() -> Result<()> {
    let space = Namespace::new("grow")?;
    let mut vm = machine::on_kernel(NAME, "Always");
    machine::domain(&mut vm)["memory"]["guest"] = json!("1Gi");
    machine::domain(&mut vm)["cpu"] = json!({ "sockets": 1 });
    let network = |state: &str| json!([{ "name": "default", "masquerade": {}, "state": state }]);
    machine::domain(&mut vm)["devices"]["interfaces"] = network("up");
    machine::spec(&mut vm)["networks"] = json!([{ "name": "default", "pod": {} }]);
    space.apply(&vm)?;
    let vmi = space.wait("vmi", NAME, "ran", |vmi| phase(vmi) == "Running")?;
    let begun = uid(&vmi).to_owned();
    ensure!(vmi["spec"]["domain"]["memory"]["maxGuest"] == "4Gi", "{}", vmi["spec"]["domain"]["memory"]);
    let before = requests(&space)?;
    let mut console = Console::open(&space, NAME)?;
    console.log_in("root", "guest")?;
    console.run(TAKE)?;
    has(&mut console, 1, 700, 1024)?;

    change(&space, 3, "2Gi")?;
    space.wait("vmi", NAME, "got CPUs and memory", |vmi| settled(vmi, 3, "2Gi"))?;
    has(&mut console, 3, 1700, 2048)?;
    let grown = requests(&space)?;
    ensure!(grown[0] == before[0] && grown[1] == "300m", "the pod is the same one and larger: {before} {grown}");
    for (state, carrier) in [("down", "0"), ("up", "1")] {
        let domain = json!({ "devices": { "interfaces": network(state) } });
        let patch = json!({ "spec": { "template": { "spec": { "domain": domain } } } });
        space.kubectl(&["patch", "vm", NAME, "--type=merge", "-p", &patch.to_string()])?;
        space.wait("vmi", NAME, state, |vmi| vmi["status"]["interfaces"][0]["linkState"] == state)?;
        let wait = format!(
            "for i in $(seq 20); do [ \"$(cat /sys/class/net/e*/carrier)\" = {carrier} ] && echo so-it-is && break; sleep 1; done"
        );
        let (found, _) = console.run(&wait)?;
        ensure!(found.contains("so-it-is"), "the guest's link is not {state}: {found}");
    }
    let machine = space.get("vm", NAME)?;
    ensure!(!holds(&machine, "RestartRequired"), "{}", condition(&machine, "RestartRequired"));

    change(&space, 1, "1Gi")?;
    let vmi = space.wait("vmi", NAME, "gave back what it had got", |vmi| settled(vmi, 1, "1Gi"))?;
    has(&mut console, 1, 700, 1024)?;
    space.wait("vmi", NAME, "is as small as it was", |vmi| vmi["status"]["memory"]["guestCurrent"] == "1Gi")?;
    ensure!(requests(&space)? == before && uid(&vmi) == begun, "the pod is as it was: {}", requests(&space)?);

    // Beyond what it was started for.
    change(&space, 1, "8Gi")?;
    let why = "memory updated in template spec to a value higher than what's available";
    space.wait("vm", NAME, "asked to be restarted", |vm| condition(vm, "RestartRequired")["message"] == why)?;
    Ok(())
}
