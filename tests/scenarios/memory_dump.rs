//! A guest's memory leaves the cluster as a file, once more onto the same claim, and the claim is given back.

use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, holds, phase, uid};
use e2e::{Console, Namespace, until};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("the_memory_of_a_guest_is_dumped_and_downloaded", the_memory_of_a_guest_is_dumped_and_downloaded)]
}

const NAME: &str = "remembered";
const CLAIM: &str = "memory";
/// What the guest keeps in memory; nothing but its own shell puts the pieces together.
const MARK: &str = "kept-in-memory-kept-in-memory-kept-in-memory-";

/// The name of the only dump in the archive `path`, an ELF core.
fn dumped(path: &Path) -> Result<String> {
    let mut archive = tar::Archive::new(File::open(path)?);
    let mut found = None;
    for entry in archive.entries()? {
        let mut entry = entry?;
        let name = entry.path()?.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        if !name.ends_with(".memory.dump") {
            continue;
        }
        ensure!(found.is_none(), "there is more than {found:?}: {name}");
        let mut header = [0; 17];
        entry.read_exact(&mut header)?;
        // The type at byte 16 is ET_CORE.
        ensure!(header.starts_with(b"\x7fELF") && header[16] == 4, "{name} is no ELF core: {header:x?}");
        found = Some(name);
    }
    found.context("no dump in the archive")
}

/// The machine with a dump in this file or a later one.
fn completed(space: &Namespace, other: &str) -> Result<Value> {
    space.wait("vm", NAME, "was dumped", |vm| {
        let request = &vm["status"]["memoryDumpRequest"];
        request["phase"] == "Completed" && request["fileName"].is_string() && request["fileName"] != other
    })
}

fn the_memory_of_a_guest_is_dumped_and_downloaded() -> Result<()> {
    let space = Namespace::new("memory-dump")?;
    let mut vm = machine::on_kernel(NAME, "Always");
    machine::domain(&mut vm)["memory"]["guest"] = json!("128Mi");
    space.apply(&vm)?;
    let refused = space.virtctl_refused(&["memory-dump", "get", NAME])?;
    ensure!(refused.contains("Memory dump requires claim name to be set"), "{refused}");
    let before = space.wait("vmi", NAME, "ran", |vmi| phase(vmi) == "Running")?;
    let mut console = Console::open(&space, NAME)?;
    console.log_in("root", "guest")?;
    let (shown, code) =
        console.run("for part in 1 2 3; do printf %s-in-memory- kept; done > /tmp/mark; wc -c < /tmp/mark")?;
    ensure!(code == 0 && shown.trim().ends_with(&MARK.len().to_string()), "{shown}");
    console.leave()?;

    let directory = tempfile::tempdir()?;
    let path = directory.path().join("memory.tar");
    let output = format!("--output={}", path.display());
    let claim = format!("--claim-name={CLAIM}");
    let get = ["memory-dump", "get", NAME, &claim, "--create-claim", &output, "--format=raw", "--port-forward"];
    let said = space.virtctl(&get)?;
    ensure!(said.contains("Memory dump completed successfully"), "{said}");
    let file = dumped(&path)?;
    let marked = Command::new("grep").args(["-qaF", MARK]).arg(&path).status()?;
    ensure!(marked.success(), "{file} has not what the guest kept");
    let vm = completed(&space, "")?;
    ensure!(vm["status"]["memoryDumpRequest"]["fileName"] == json!(file), "{}: {file}", vm["status"]);
    let volumes = &vm["spec"]["template"]["spec"]["volumes"];
    let own = json!({ "name": CLAIM, "memoryDump": { "claimName": CLAIM, "hotpluggable": true } });
    ensure!(volumes.as_array().is_some_and(|volumes| volumes.contains(&own)), "{volumes}");
    ensure!(!holds(&vm, "RestartRequired"), "{}", vm["status"]);
    let noted = |claim: &Value| claim["metadata"]["annotations"]["kubevirt.io/memory-dump"].as_str().map(str::to_owned);
    ensure!(noted(&space.get("pvc", CLAIM)?).as_ref() == Some(&file), "the claim does not name {file}");

    // The guest goes on, and the next dump takes the place of this one.
    let after = space.get("vmi", NAME)?;
    ensure!(uid(&after) == uid(&before) && !holds(&after, "Paused"), "{}", after["status"]);
    let other = space.virtctl_refused(&["memory-dump", "get", NAME, "--claim-name=other"])?;
    ensure!(other.contains("while pvc [memory] is still associated as the memory dump pvc"), "{other}");
    until("the claim can be dumped to again", || {
        Ok(space.virtctl(&["memory-dump", "get", NAME]).is_ok().then_some(()))
    })?;
    let vm = completed(&space, &file)?;
    let next = vm["status"]["memoryDumpRequest"]["fileName"].as_str().unwrap_or_default().to_owned();

    space.virtctl(&["memory-dump", "remove", NAME])?;
    let vm = space.wait("vm", NAME, "let go of the claim", |vm| vm["status"]["memoryDumpRequest"].is_null())?;
    let volumes = &vm["spec"]["template"]["spec"]["volumes"];
    ensure!(volumes.as_array().is_none_or(Vec::is_empty), "{volumes}");
    ensure!(noted(&space.get("pvc", CLAIM)?) == Some(next), "what is on the claim stays");
    let used = space.list("pods", "kubevirt.io=hotplug-disk")?;
    ensure!(
        used.iter().all(|pod| !pod["metadata"]["deletionTimestamp"].is_null()),
        "the claim is still held: {used:?}"
    );
    Ok(())
}
