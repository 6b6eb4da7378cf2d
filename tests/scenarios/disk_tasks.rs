//! Tekton's tasks about the content of disks, and `virtctl guestfs`: the tools of libguestfs on disks of claims. They take the image that
//! `ferrovirt images build guestfs` makes and `ferrovirt images load` gives to the nodes.

use anyhow::{Result, ensure};
use e2e::machine::{self, phase};
use e2e::{Console, Namespace, python, taskrun};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::backup::{FILES, claim, shell};
use crate::data_volume::{succeeded, volume};
use crate::long;
use crate::tasks::{done, failed};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        long("tasks_customize_and_seal_the_disk_of_a_guest_that_boots_afterwards", customize),
        long("tasks_have_a_medium_of_windows_start_without_a_key", modify_medium),
        long("tasks_have_a_medium_whose_files_are_in_udf_alone_start_without_a_key", modify_udf),
        long("guestfs_says_what_to_do_about_an_image_that_is_nowhere", image_that_is_nowhere),
    ]
}

/// The user of steps, to whom a TaskRun gives volumes by `podTemplate.securityContext.fsGroup`.
const AS_STEPS: [&str; 3] = ["--uid=1001", "--gid=1001", "--fsGroup=1001"];

fn on(claim: &str, commands: &str) -> [(&'static str, Value); 2] {
    [("pvc", json!(claim)), ("virtCommands", json!(commands))]
}

fn customize() -> Result<()> {
    let space = Namespace::new("customize")?;
    taskrun::grant(&space)?;
    let image = json!({ "registry": { "url": format!("docker://{}", machine::DISK_IMAGE), "pullMethod": "node" } });
    space.apply(&volume("disk", "256Mi", &image))?;
    space.apply(&claim("empty", FILES, "16Mi"))?;
    failed(&space, "disk-virt-customize", &on("empty", "write /a:b"), "the claim holds no disk")?;
    succeeded(&space, "disk")?;

    let customized = on("disk", "write /etc/motd:customized\nrun-command hostname > /root/ran-in\nmkdir /root/made");
    let ended = done(&space, "disk-virt-customize", &customized)?;
    ensure!(ended.log.contains("Writing: /etc/motd"), "{ended:?}");
    failed(&space, "disk-virt-customize", &on("disk", "no-such-command a"), "command 'no-such-command' not valid")?;
    let missing = on("disk", "run-command cat /not-there");
    failed(&space, "disk-virt-customize", &missing, "cat /not-there: command exited with an error")?;

    // What was done is there for the next tool; what belongs to one machine alone is gone after it.
    let sealed = [
        ("pvc", json!("disk")),
        ("virtCommands", json!("run-command test -d /root/made && grep customized /etc/motd")),
        ("additionalVirtOptions", json!("--operations defaults,-lvm-uuids,customize")),
    ];
    let ended = done(&space, "disk-virt-sysprep", &sealed)?;
    ensure!(ended.log.contains("ssh-hostkeys") && ended.log.contains("machine-id"), "{ended:?}");
    failed(&space, "disk-virt-sysprep", &on("empty", ""), "the claim holds no disk")?;

    let found = shell(
        &space,
        "disk",
        &AS_STEPS,
        "guestfish --ro --format=raw -a /disk/disk.img -i cat /etc/motd\nvirt-filesystems --format=raw -a /disk/disk.img\nexit\n",
    )?;
    ensure!(found.contains("customized") && found.contains("/dev/sda2"), "{found}");

    let mut vm = machine::on_disks("sealed", ["disk"]);
    machine::domain(&mut vm)["memory"]["guest"] = json!("192Mi");
    space.apply(&vm)?;
    space.wait("vmi", "sealed", "ran", |vmi| phase(vmi) == "Running")?;
    let mut console = Console::open(&space, "sealed")?;
    console.log_in("root", "guest")?;
    let (shown, code) = console.run("cat /etc/motd && ls -d /root/made /root/ran-in")?;
    ensure!(code == 0 && shown.contains("customized"), "{shown}");
    console.leave()
}

/// Makes a medium of the files that one of Windows starts with; what asks for a key has a name of its own in it, as its content.
const MEDIUM: &str = "set -e; mkdir -p /tmp/guestfs/m/boot /tmp/guestfs/m/efi/microsoft/boot; cd /tmp/guestfs/m\n\
    head -c 4096 /dev/zero > boot/etfsboot.com; echo content > setup.exe\n\
    for f in efisys.bin efisys_noprompt.bin cdboot.efi cdboot_noprompt.efi; do echo is-$f > efi/microsoft/boot/$f; done\n\
    xorriso -as mkisofs -quiet -J -iso-level 3 -V MEDIUM -o /disk/disk.img /tmp/guestfs/m; echo made-it\nexit\n";

fn modify_medium() -> Result<()> {
    let space = Namespace::new("medium")?;
    taskrun::grant(&space)?;
    space.apply(&claim("windows", FILES, "32Mi"))?;
    space.apply(&claim("other", FILES, "32Mi"))?;
    let made = shell(&space, "windows", &AS_STEPS, MEDIUM)?;
    ensure!(made.contains("made-it"), "{made}");
    let other = MEDIUM.replace("efisys_noprompt.bin ", "");
    shell(&space, "other", &AS_STEPS, &other)?;

    exchanged(&space)?;
    let other = [("pvcName", json!("other"))];
    failed(&space, "modify-windows-iso-file", &other, "this is no installation medium of Windows")
}

/// The task has the medium start without a key, by BIOS and by UEFI, and keeps what else is on it.
fn exchanged(space: &Namespace) -> Result<()> {
    done(space, "modify-windows-iso-file", &[("pvcName", json!("windows"))])?;
    let names = ["efi/microsoft/boot/efisys.bin", "efi/microsoft/boot/cdboot.efi", "setup.exe"];
    let look = names.map(|name| format!("cat /{name}")).join(" : ");
    let script = format!(
        "guestfish --ro --format=raw -a /disk/disk.img -m /dev/sda {look}\n\
         xorriso -indev /disk/disk.img -report_el_torito plain\nexit\n"
    );
    let found = shell(space, "windows", &AS_STEPS, &script)?;
    for words in ["is-efisys_noprompt.bin", "is-cdboot_noprompt.efi", "content", "UEFI", "/boot/etfsboot.com"] {
        ensure!(found.contains(words), "{words} is not in {found}");
    }
    Ok(())
}

/// As Windows' own media are; the disk is an upload's.
fn modify_udf() -> Result<()> {
    let space = Namespace::new("udf")?;
    taskrun::grant(&space)?;
    let directory = tempfile::tempdir()?;
    let medium = directory.path().join("windows.iso");
    let (script, path) = (e2e::root().join("tests/scenarios/medium.py"), medium.to_string_lossy().into_owned());
    python::run(&python::interpreter("pycdlib", "1.22.0")?, &[&script.to_string_lossy(), &path])?;
    let from = format!("--image-path={path}");
    space.virtctl(&["image-upload", "dv", "windows", "--size=32Mi", &from, "--force-bind", "--insecure"])?;
    succeeded(&space, "windows")?;
    exchanged(&space)
}

fn image_that_is_nowhere() -> Result<()> {
    let space = Namespace::new("nowhere")?;
    space.apply(&claim("disk", FILES, "16Mi"))?;
    let said =
        space.virtctl_refused(&["guestfs", "disk", "--kvm=false", "--image=ferrovirt.local/none:v1", "--uid=1001"])?;
    ensure!(said.contains("the nodes cannot get image ferrovirt.local/none:v1"), "{said}");
    ensure!(said.contains("`ferrovirt images build guestfs`"), "{said}");
    Ok(())
}
