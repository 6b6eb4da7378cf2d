//! Boot a kernel and an initrd from an image, with no disk at all.

use anyhow::{Result, ensure};
use e2e::machine::{self, holds, phase};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::json;

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("kernel_boot_runs", kernel_boot_runs)]
}

fn kernel_boot_runs() -> Result<()> {
    let space = Namespace::new("kernel")?;
    let mut vm = machine::on_kernel("kernel", "Always");
    let probe = json!({ "tcpSocket": { "port": 22 }, "periodSeconds": 2 });
    machine::spec(&mut vm)["readinessProbe"] = probe;
    space.apply(&vm)?;
    space.wait("vmi", "kernel", "ran", |vmi| phase(vmi) == "Running")?;
    let vmi = space
        .wait("vmi", "kernel", "was Ready with its agent", |vmi| holds(vmi, "Ready") && holds(vmi, "AgentConnected"))?;
    ensure!(vmi["status"]["volumeStatus"].as_array().is_none_or(Vec::is_empty), "{}", vmi["status"]);
    let mut console = Console::open(&space, "kernel")?;
    console.log_in("root", "guest")?;
    let (disks, _) = console.run("ls /sys/block | grep -v -e loop -e ram; cat /proc/cmdline")?;
    ensure!(disks.starts_with("console=ttyS0"), "{disks:?}");
    console.leave()?;
    // Where people look who know libvirt.
    let pod = space.kubectl(&["get", "pod", "-l", "kubevirt.io=virt-launcher", "-o", "name"])?;
    let look = "virsh -c 'qemu+unix:///session?socket=/var/run/libvirt/virtqemud-sock' list --name && ps";
    let within = ["exec", pod.trim(), "-c", "compute", "--"];
    let seen = space.kubectl(&[&within[..], &["bash", "-c", look]].concat())?;
    ensure!(seen.contains("_kernel") && seen.contains("qemu-system"), "{seen}");
    // Of its own, as clients of KubeVirt call it: a shell of busybox would take the one it has.
    let owner = space.kubectl(&[&within[..], &["stat", "--printf=%U", "/etc/passwd"]].concat())?;
    ensure!(owner.trim() == "root", "{owner}");
    Ok(())
}
