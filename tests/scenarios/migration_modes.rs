//! A guest that changes its memory faster than it can be sent, or that has no time: what its migration policy allows is done,
//! and nothing else.

use anyhow::{Result, ensure};
use e2e::machine::{phase, uid};
use e2e::wait::{BOOT, SOON, until};
use e2e::{Console, Namespace, product};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::mover::{Mover, NAME, Policy, qemus, with_mover};
use crate::two_nodes::{self, ferrovirt};
use crate::{long, trial};

pub(crate) fn trials_beside() -> Vec<Trial> {
    vec![long("migration_modes_carry_firmware_and_tpm", carry_firmware_and_tpm)]
}

/// What changes limits of all migrations, or takes a node.
pub(crate) fn trials() -> Vec<Trial> {
    vec![
        long("migration_modes_give_up_in_time", give_up_in_time),
        long("migration_modes_help_a_busy_guest_over", help_a_busy_guest_over),
        trial("migration_modes_end_in_post_copy", end_in_post_copy),
        long("migration_modes_lose_a_guest_that_is_torn", lose_a_guest_that_is_torn),
    ]
}

/// Has the guest write to 24 MiB of its memory as fast as it can until [`rest`]. Pages of zeros would be sent in no time.
fn toil(console: &mut Console) -> Result<()> {
    let busy = "dd if=/dev/urandom of=/dev/shm/noise bs=1M count=24 2>/dev/null; \
                (while :; do dd if=/dev/shm/noise of=/dev/shm/dirty bs=1M conv=notrunc 2>/dev/null; done) & dirtier=$!";
    let (shown, code) = console.run(busy)?;
    ensure!(code == 0, "{shown}");
    Ok(())
}

fn rest(console: &mut Console) -> Result<()> {
    let (shown, code) = console.run("kill $dirtier && rm /dev/shm/dirty /dev/shm/noise")?;
    ensure!(code == 0, "what changed its memory is gone: {shown}");
    Ok(())
}

/// Moves the guest under this policy; the migration ends in `mode`.
fn moves(mover: &mut Mover, policy: &Value, mode: &str) -> Result<()> {
    let _policy = Policy::new(&mover.space, policy)?;
    let from = mover.node()?;
    let migration = mover.leave()?;
    mover.ended(&migration, "Succeeded")?;
    mover.arrived_in(&from, mode)
}

/// The migration fails under this policy for a reason that contains `why`, and the guest stays.
fn fails(mover: &mut Mover, policy: &Value, why: &str) -> Result<()> {
    let _policy = Policy::new(&mover.space, policy)?;
    let on = mover.node()?;
    let migration = mover.leave()?;
    let failed = mover.ended(&migration, "Failed")?;
    let reason = failed["status"]["migrationState"]["failureReason"].as_str().unwrap_or_default().to_owned();
    ensure!(reason.contains(why) && reason.contains("has been aborted"), "{reason}");
    mover.alone()?;
    ensure!(mover.node()? == on, "it was on {on} and is on {}", mover.node()?);
    Ok(())
}

fn give_up_in_time() -> Result<()> {
    with_mover(|mover| {
        is_measured(mover)?;
        let short = json!({ "bandwidthPerMigration": "1Mi", "completionTimeoutPerGiB": 5 });
        fails(mover, &short, "Live migration is not completed after")?;
        let mut console = mover.console()?;
        toil(&mut console)?;
        // What remains goes up and down, and a way down takes six seconds: after the first, nothing was less for too long.
        let stuck = with_progress_timeout(4, || {
            fails(mover, &json!({ "bandwidthPerMigration": "4Mi" }), "Live migration stuck for")
        });
        rest(&mut console)?;
        stuck?;
        mover.unharmed_by(&mut console)?;
        console.leave()
    })
}

/// It is looked at while it is on its way, and then stays where it was.
fn is_measured(mover: &mut Mover) -> Result<()> {
    let _slow = Policy::new(&mover.space, &json!({ "bandwidthPerMigration": "1Mi" }))?;
    let migration = mover.leave()?;
    mover.under_way()?;
    figures_are_served(mover)?;
    mover.space.virtctl(&["migrate-cancel", NAME])?;
    mover.space.wait("vmim", &migration, "was gone", Value::is_null)?;
    mover.alone().map(drop)
}

/// Runs `work` while migrations may be without progress for so many seconds. No policy can say that.
fn with_progress_timeout(seconds: u64, work: impl FnOnce() -> Result<()>) -> Result<()> {
    let limit = |seconds: Value| {
        product::merge(&json!({ "virtualization": { "liveMigrationConfig": { "progressTimeout": seconds } } }))
    };
    limit(json!(seconds))?;
    until("the limit to be known", SOON, || {
        let kubevirt = product::get(&["kubevirt", product::KUBEVIRT])?;
        let (generation, observed) = (&kubevirt["metadata"]["generation"], &kubevirt["status"]["observedGeneration"]);
        Ok((kubevirt["status"]["phase"] == "Deployed" && generation == observed).then_some(()))
    })?;
    let outcome = work();
    limit(Value::Null)?;
    outcome
}

fn help_a_busy_guest_over() -> Result<()> {
    with_mover(|mover| {
        let mut console = mover.console()?;
        toil(&mut console)?;
        is_slowed_down(mover)?;
        let pause = json!({
            "bandwidthPerMigration": "8Mi", "completionTimeoutPerGiB": 15, "allowWorkloadDisruption": true,
        });
        moves(mover, &pause, "Paused")?;
        rest(&mut console)?;
        mover.unharmed_by(&mut console)?;
        console.leave()
    })
}

/// Auto-converge takes the guest over, after it was seen to slow it down. How fast a guest writes to its memory depends on what
/// else the machine does, so the way is made narrower until this is too fast.
fn is_slowed_down(mover: &mut Mover) -> Result<()> {
    for bandwidth in ["16Mi", "8Mi", "4Mi"] {
        let policy =
            json!({ "bandwidthPerMigration": bandwidth, "allowAutoConverge": true, "completionTimeoutPerGiB": 600 });
        let _policy = Policy::new(&mover.space, &policy)?;
        let from = mover.node()?;
        let migration = mover.leave()?;
        let slowed = until("the guest to be slowed down, or to be over", 2 * BOOT, || {
            let over = matches!(phase(&mover.space.get("vmim", &migration)?), "Succeeded" | "Failed");
            let throttle = mover.progress()?["throttle"].as_u64() > Some(0);
            Ok((over || throttle).then_some(throttle && !over))
        })?;
        mover
            .space
            .wait_for(2 * BOOT, "vmim", &migration, "ended", |found| matches!(phase(found), "Succeeded" | "Failed"))?;
        mover.ended(&migration, "Succeeded")?;
        mover.arrived(&from)?;
        if slowed {
            return Ok(());
        }
    }
    anyhow::bail!("the guest was never slowed down")
}

/// Whoever watches the source's virt-handler sees the migration that runs.
fn figures_are_served(mover: &Mover) -> Result<()> {
    let node = mover.node()?;
    let selector = format!("spec.nodeName={node}");
    let words = ["get", "pods", "-l", "kubevirt.io=virt-handler", "--field-selector", &selector, "-o", "name"];
    let pods = product::kubectl(&words)?;
    let pod = pods.lines().next().unwrap_or_default().trim_start_matches("pod/").to_owned();
    let page = format!("/api/v1/namespaces/{}/pods/https:{pod}:8443/proxy/metrics", product::NAMESPACE);
    let of = format!("{{node=\"{node}\",namespace=\"{}\",name=\"{NAME}\"}}", mover.space.name());
    let text = Namespace::kubectl_in("default", &["get", "--raw", &page])?;
    for figure in ["data_processed_bytes", "data_remaining_bytes", "dirty_memory_rate_bytes", "data_bytes_total"] {
        let name = format!("kubevirt_vmi_migration_{figure}{of}");
        ensure!(text.contains(&name), "{name} is not in\n{text}");
    }
    Ok(())
}

fn end_in_post_copy() -> Result<()> {
    with_mover(|mover| {
        let policy = json!({ "bandwidthPerMigration": "8Mi", "completionTimeoutPerGiB": 3, "allowPostCopy": true });
        moves(mover, &policy, "PostCopy")?;
        // What memory was still on the other node has come, every byte of it.
        mover.unharmed()
    })
}

fn carry_firmware_and_tpm() -> Result<()> {
    let mut mover = Mover::boot("firmware", |vm| {
        let domain = e2e::machine::domain(vm);
        domain["firmware"] = json!({ "bootloader": { "efi": { "secureBoot": false, "persistent": true } } });
        domain["devices"]["tpm"] = json!({ "persistent": true });
    })?;
    let mut console = mover.console()?;
    let says = |console: &mut Console, command: &str| -> Result<String> {
        let (shown, code) = console.run(command)?;
        ensure!(code == 0, "{command:?} ended with {code}: {shown}");
        Ok(shown)
    };
    says(
        &mut console,
        &format!("mount -t efivarfs none /sys/firmware/efi/efivars && printf '\\007\\000\\000\\000kept' > {VARIABLE}"),
    )?;
    says(&mut console, &format!("printf '{}' > /dev/tpm0", extend()))?;
    let measured = says(&mut console, &format!("cat {REGISTER}"))?;
    ensure!(measured.trim().chars().any(|digit| digit != '0'), "nothing was measured: {measured}");
    mover.move_with(&mut console)?;
    let kept = says(&mut console, &format!("tail -c 4 {VARIABLE}"))?;
    ensure!(kept == "kept", "the firmware's variable reads {kept:?}");
    let after = says(&mut console, &format!("cat {REGISTER}"))?;
    ensure!(after == measured, "the TPM had measured {measured} and says {after}");
    console.leave()
}

/// A variable of the firmware's, in its flash memory.
const VARIABLE: &str = "/sys/firmware/efi/efivars/Moved-3c1b5a52-9e3f-4a46-8f1c-0d6f3a7a1e55";
/// A register of the TPM that is for debugging, and only in its memory.
const REGISTER: &str = "/sys/class/tpm/tpm0/pcr-sha256/16";

/// `TPM2_PCR_Extend` of that register (TPM 2.0 Library, part 3), as `printf` writes it.
fn extend() -> String {
    let tag_size_code = [0x80, 0x02, 0, 0, 0, 65, 0, 0, 1, 0x82];
    let register = [0, 0, 0, 16];
    // A password that is empty, in nine bytes.
    let authorization = [0, 0, 0, 9, 0x40, 0, 0, 9, 0, 0, 0, 0, 0];
    let one_sha256 = [0, 0, 0, 1, 0, 0x0b];
    let bytes = tag_size_code.into_iter().chain(register).chain(authorization).chain(one_sha256).chain([1; 32]);
    bytes.map(|byte: u8| format!("\\{byte:03o}")).collect()
}

fn lose_a_guest_that_is_torn() -> Result<()> {
    // Whoever is on the other node when that is cut off may be given up.
    with_mover(|mover| mover.go_to(two_nodes::FIRST))?;
    let mut mover = Mover::boot("torn", |_| ())?;
    mover.go_to(two_nodes::FIRST)?;
    let before = uid(&mover.vmi()?).to_owned();
    let policy = json!({ "bandwidthPerMigration": "1Mi", "completionTimeoutPerGiB": 3, "allowPostCopy": true });
    let policy = Policy::new(&mover.space, &policy)?;
    mover.leave()?;
    let vmi = mover.under_way_and("ran on the target", |progress| progress["mode"] == "PostCopy")?;
    let half = vmi["status"]["migrationState"]["targetPod"].as_str().unwrap_or_default();
    let half = mover.space.get("pod", half)?;
    ferrovirt(&["node", "cut", two_nodes::SECOND])?;
    // Half of its memory is on a node that cannot be reached: it is lost, and says so.
    let lost = until("the guest to be given up", BOOT, || {
        let vmi = mover.vmi()?;
        ensure!(uid(&vmi) == before, "another guest runs while the other node may have this one");
        Ok((phase(&vmi) == "Failed").then(|| vmi["status"]["reason"].as_str().unwrap_or_default().to_owned()))
    });
    ferrovirt(&["node", "heal", two_nodes::SECOND])?;
    let why = lost?;
    ensure!(why.contains("broke during post-copy"), "{why}");
    // Its VM, which is always to run, starts anew.
    until("another guest to run", BOOT, || {
        let vmi = mover.vmi()?;
        Ok((uid(&vmi) != before && phase(&vmi) == "Running").then_some(()))
    })?;
    drop(policy);
    mover.usable()?;
    // What ran on the other node ends when that is back.
    two_nodes::ready()?;
    until("nothing to be left on the other node", BOOT, || {
        Ok((mover.space.list("pods", "kubevirt.io=virt-launcher")?.len() == 1 && qemus(&half)? == 0).then_some(()))
    })?;
    mover.alone().map(drop)
}
