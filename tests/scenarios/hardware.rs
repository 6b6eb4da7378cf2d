//! The guest sees the hardware that was asked for: firmware, processor, buses, seeds, and the pod's own addresses.

use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, ensure};
use e2e::machine::{self, condition, holds};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("hardware_is_what_was_asked_for", hardware_is_what_was_asked_for)]
}

const MAC: &str = "02:00:5e:10:20:30";

/// EFI, two cores of an old model, SATA and SCSI disks, a config drive in a CD-ROM drive, an emulated card on a bridge.
fn unusual() -> Value {
    let mut vm = machine::on_disk("unusual", "Always");
    let volumes = json!([
        { "name": "root", "containerDisk": { "image": machine::DISK_IMAGE } },
        { "name": "space", "emptyDisk": { "capacity": "64Mi" } },
        { "name": "seed", "cloudInitConfigDrive": { "userData": "#cloud-config\nhostname: drive\n" } },
    ]);
    machine::spec(&mut vm)["volumes"] = volumes;
    let domain = machine::domain(&mut vm);
    domain["firmware"] = json!({ "bootloader": { "efi": { "secureBoot": false } }, "serial": "SN-77" });
    domain["cpu"] = json!({ "cores": 2, "model": "Nehalem" });
    domain["clock"] = json!({ "timezone": "Asia/Tokyo" });
    domain["devices"] = json!({
        "autoattachGraphicsDevice": false,
        "inputs": [{ "name": "pointer", "type": "tablet", "bus": "virtio" }],
        "tpm": {},
        "disks": [
            { "name": "root", "bootOrder": 1, "disk": { "bus": "sata" } },
            { "name": "space", "disk": { "bus": "scsi" }, "serial": "SPACE1" },
            { "name": "seed", "cdrom": { "bus": "sata" } },
        ],
        "interfaces": [{ "name": "default", "bridge": {}, "model": "e1000", "macAddress": MAC }],
    });
    let key = json!({ "source": { "secret": { "secretName": "keys" } }, "propagationMethod": { "configDrive": {} } });
    machine::spec(&mut vm)["accessCredentials"] = json!([{ "sshPublicKey": key }]);
    vm
}

/// A guest on a bridge too, without a serial console.
fn mute() -> Value {
    let mut vm = machine::on_kernel("mute", "Always");
    let devices = &mut machine::domain(&mut vm)["devices"];
    devices["autoattachSerialConsole"] = json!(false);
    devices["interfaces"] = json!([{ "name": "default", "bridge": {} }]);
    vm
}

fn hardware_is_what_was_asked_for() -> Result<()> {
    let space = Namespace::new("hardware")?;
    let key = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIMbNq somebody";
    space.apply(
        &json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "keys" }, "stringData": { "a": key } }),
    )?;
    space.apply(&unusual())?;
    space.apply(&mute())?;
    let addressed = |vmi: &Value| holds(vmi, "AgentConnected") && addresses(vmi).len() > 2;
    let vmi = space.wait("vmi", "unusual", "had both addresses", addressed)?;
    ensure!(condition(&vmi, "LiveMigratable")["reason"] == "InterfaceNotLiveMigratable", "{}", vmi["status"]);
    let other = space.wait("vmi", "mute", "had both addresses", addressed)?;

    let mut console = Console::open(&space, "unusual")?;
    console.log_in("root", "guest")?;
    let (clock, _) = console.run("cat /sys/class/rtc/rtc0/since_epoch")?;
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let ahead = clock.trim().parse::<u64>()?.saturating_sub(now);
    ensure!(ahead.abs_diff(9 * 3600) < 1800, "the clock is {ahead} seconds ahead, Tokyo is nine hours");
    let mut says = |command: &str, expect: &str| -> Result<()> {
        let (said, code) = console.run(command)?;
        ensure!(code == 0 && said.contains(expect), "{command}: expected {expect:?}, found {said:?} and code {code}");
        Ok(())
    };
    says("hostname", "drive")?;
    says("ls -d /sys/firmware/efi", "/sys/firmware/efi")?;
    says("cat /sys/class/dmi/id/product_serial", "SN-77")?;
    says("mount -o ro /dev/sr0 /mnt && cat /mnt/openstack/latest/meta_data.json; umount /mnt", key)?;
    says("nproc", "2")?;
    says("grep -m1 'model name' /proc/cpuinfo", "Nehalem")?;
    says("cat /sys/block/sda/device/model", "QEMU HARDDISK")?;
    // 64 MiB in sectors of 512 bytes.
    says("cat /sys/block/*/size", "131072")?;
    says("cat /sys/class/net/eth0/address", MAC)?;
    says("basename $(readlink /sys/class/net/eth0/device/driver)", "e1000")?;
    // The way to the other guest is the pod network, in both families; both have the addresses of their pods.
    let pods = pod_addresses(&space, "mute")?;
    for address in &pods {
        ensure!(addresses(&other).contains(address), "{address} is not among {:?}", addresses(&other));
        says(&format!("nc -w 10 {address} 22 </dev/null"), "SSH-2.0")?;
    }
    ensure!(pods.len() == 2, "one address of each family, found {pods:?}");
    console.leave()?;

    let refused = space.virtctl_refused(&["console", "mute"])?;
    ensure!(refused.contains("No serial consoles are present"), "{refused}");
    let refused = space.virtctl_refused(&["vnc", "screenshot", "unusual", "--file", "/dev/null"])?;
    ensure!(refused.contains("No graphics devices are present"), "{refused}");
    Ok(())
}

fn addresses(vmi: &Value) -> Vec<String> {
    let list = vmi["status"]["interfaces"][0]["ipAddresses"].as_array();
    list.into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

fn pod_addresses(space: &Namespace, vmi: &str) -> Result<Vec<String>> {
    let pods = space.list("pods", &format!("vm.kubevirt.io/name={vmi}"))?;
    let list = pods.iter().filter_map(|pod| pod["status"]["podIPs"].as_array()).flatten();
    Ok(list.filter_map(|ip| ip["ip"].as_str()).map(str::to_owned).collect())
}
