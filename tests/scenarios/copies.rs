//! Machines that are like others: a running one is cloned, and what a machine keeps beside its disks stays its own.

use anyhow::{Result, ensure};
use e2e::machine::{self, holds, phase, uid};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("a_running_machine_is_cloned", a_running_machine_is_cloned),
        long("firmware_and_tpm_outlive_a_restart", firmware_and_tpm_outlive_a_restart),
    ]
}

const SOURCE: &str = "original";
const COPY: &str = "twin";

fn console(space: &Namespace, machine: &str) -> Result<Console> {
    let mut console = Console::open(space, machine)?;
    console.log_in("root", "guest")?;
    Ok(console)
}

/// What `command` shows, which must succeed.
fn says(console: &mut Console, command: &str) -> Result<String> {
    let (shown, code) = console.run(command)?;
    ensure!(code == 0, "{command:?} ended with {code}: {shown}");
    Ok(shown.trim().to_owned())
}

fn usable(vmi: &Value) -> bool {
    phase(vmi) == "Running" && holds(vmi, "AgentConnected")
}

fn a_running_machine_is_cloned() -> Result<()> {
    let space = Namespace::new("copies")?;
    space.apply(&json!({
        "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": "data" },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "16Mi" } } },
    }))?;
    let mut vm = machine::on_kernel(SOURCE, "Always");
    vm["metadata"]["labels"] = json!({ "keep": "a", "drop": "b" });
    machine::add_disk(&mut vm, "data", json!({ "persistentVolumeClaim": { "claimName": "data" } }));
    space.apply(&vm)?;
    space.wait("vmi", SOURCE, "was usable", usable)?;
    let kept = |vm: &Value| {
        let known = vm["status"]["volumeSnapshotStatuses"].as_array();
        known.is_some_and(|all| all.iter().any(|one| one["name"] == "data" && one["enabled"] == true))
    };
    space.wait("vm", SOURCE, "knew that its volume can be snapshotted", kept)?;
    let mut first = console(&space, SOURCE)?;
    says(&mut first, "echo what is copied > /dev/vda && sync")?;
    first.leave()?;

    let words = ["create", "clone", "--name=copy", "--source-name", SOURCE, "--target-name", COPY];
    let manifest = space.virtctl(&[&words[..], &["--label-filter=*", "--label-filter=!drop"]].concat())?;
    space.apply(&manifest)?;
    let over = |clone: &Value| matches!(phase(clone), "Succeeded" | "Failed");
    let clone = space.wait("vmclone", "copy", "was over", over)?;
    ensure!(phase(&clone) == "Succeeded" && holds(&clone, "Ready"), "{}", clone["status"]);
    let twin = space.get("vm", COPY)?;
    ensure!(twin["metadata"]["labels"] == json!({ "keep": "a" }), "{}", twin["metadata"]);
    ensure!(twin["spec"]["runStrategy"] == "Halted", "{}", twin["spec"]);

    // What the original writes from now on is its own.
    let mut first = console(&space, SOURCE)?;
    says(&mut first, "echo what is not copied > /dev/vda && sync")?;
    first.leave()?;
    space.virtctl(&["start", COPY])?;
    space.wait("vmi", COPY, "was usable", usable)?;
    let mut second = console(&space, COPY)?;
    let found = says(&mut second, "head -n 1 /dev/vda")?;
    ensure!(found == "what is copied", "the copy has {found:?}");
    second.leave()?;
    let tidy = |clone: &Value| clone["status"]["snapshotName"].is_null() && clone["status"]["restoreName"].is_null();
    space.wait("vmclone", "copy", "had put away what it made", tidy)?;
    space.kubectl(&["delete", "vm", SOURCE, COPY, "--timeout=120s"])?;
    space.kubectl(&["wait", "vmclone", "copy", "--for=delete", "--timeout=60s"]).map(drop)
}

/// A variable of the firmware's, in its flash memory.
const VARIABLE: &str = "/sys/firmware/efi/efivars/Kept-3c1b5a52-9e3f-4a46-8f1c-0d6f3a7a1e55";

/// `TPM2_HierarchyChangeAuth` (TPM 2.0 Library, part 3): gives the owner, whose password is empty, the password `x`. Shows
/// the answer's code.
fn change_owner() -> String {
    let tag_size_code = [0x80, 0x02, 0, 0, 0, 30, 0, 0, 1, 0x29];
    let owner = [0x40, 0, 0, 1];
    // A password that is empty, in nine bytes.
    let authorization = [0, 0, 0, 9, 0x40, 0, 0, 9, 0, 0, 0, 0, 0];
    let password = [0, 1, b'x'];
    let bytes = tag_size_code.into_iter().chain(owner).chain(authorization).chain(password);
    let bytes: String = bytes.map(|byte: u8| format!("\\{byte:03o}")).collect();
    format!(
        "exec 3<>/dev/tpm0; printf '{bytes}' >&3; dd bs=4096 count=1 <&3 2>/dev/null | hexdump -v -e '1/1 \"%02x\"' | cut -c 13-20; exec 3>&-"
    )
}

fn firmware_and_tpm_outlive_a_restart() -> Result<()> {
    let space = Namespace::new("keeps")?;
    let mut vm = machine::on_disk("keeper", "Always");
    let domain = machine::domain(&mut vm);
    domain["firmware"] = json!({ "bootloader": { "efi": { "secureBoot": false, "persistent": true } } });
    domain["devices"]["tpm"] = json!({ "persistent": true });
    space.apply(&vm)?;
    let before = space.wait("vmi", "keeper", "was usable", usable)?;
    let mut first = console(&space, "keeper")?;
    let mount = "mount -t efivarfs none /sys/firmware/efi/efivars";
    says(&mut first, &format!("{mount} && printf '\\007\\000\\000\\000kept' > {VARIABLE} && sync"))?;
    let code = says(&mut first, &change_owner())?;
    ensure!(code == "00000000", "the TPM answers {code}");
    first.leave()?;

    space.virtctl(&["restart", "keeper"])?;
    space.wait("vmi", "keeper", "was usable again", |vmi| usable(vmi) && uid(vmi) != uid(&before))?;
    let mut second = console(&space, "keeper")?;
    let kept = says(&mut second, &format!("{mount} && tail -c 4 {VARIABLE}"))?;
    ensure!(kept == "kept", "the firmware's variable reads {kept:?}");
    // The owner has another password now.
    let code = says(&mut second, &change_owner())?;
    ensure!(code == "000009a2", "the TPM answers {code}");
    second.leave()?;

    let claims = space.list("pvc", "persistent-state-for=keeper")?;
    ensure!(claims.len() == 1, "{claims:?}");
    space.kubectl(&["delete", "vm", "keeper", "--timeout=120s"])?;
    space.kubectl(&["wait", "pvc", "-l", "persistent-state-for=keeper", "--for=delete", "--timeout=60s"]).map(drop)
}
