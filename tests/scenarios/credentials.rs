//! A guest's agent is given SSH keys and passwords out of Secrets, follows them, and says whom it does not know.

use anyhow::{Result, ensure};
use e2e::machine::{self, condition, holds};
use e2e::wait::{BOOT, until};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a_guest_is_given_what_its_secrets_have_and_follows_them", follows)]
}

const NAME: &str = "opened";
const CONDITION: &str = "AccessCredentialsSynchronized";
const FILE: &str = "/home/guest/.ssh/authorized_keys";
const KEY: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKJ2gW7vY2l6m6Fz3Q1m0X1l8n2m0c5c9Y7Qw8e1r2t3 first";
const OTHER: &str = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIHq9s8d7f6g5h4j3k2l1z0x9c8v7b6n5m4Q3W2E1R0T9 second";
/// Nothing else that is logged has these words in it.
const WORDS: [&str; 2] = ["quiet-harbour-17", "narrow-lantern-42"];

fn secret(name: &str, values: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": values })
}

fn vm() -> Value {
    let source = |name: &str| json!({ "secret": { "secretName": name } });
    let mut vm = machine::on_kernel(NAME, "Always");
    machine::domain(&mut vm)["memory"]["guest"] = json!("128Mi");
    machine::spec(&mut vm)["accessCredentials"] = json!([
        { "sshPublicKey": {
            "source": source("keys"), "propagationMethod": { "qemuGuestAgent": { "users": ["guest"] } },
        } },
        { "userPassword": { "source": source("words"), "propagationMethod": { "qemuGuestAgent": {} } } },
    ]);
    vm
}

/// Waits until the file has these keys and no others.
fn keys(console: &mut Console, expect: &[&str]) -> Result<()> {
    until(&format!("{FILE} with {expect:?}"), BOOT, || {
        let (shown, _) = console.run(&format!("cat {FILE}"))?;
        let lines: Vec<&str> = shown.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        ensure!(lines == expect, "{lines:?}");
        Ok(Some(()))
    })
}

fn follows() -> Result<()> {
    let space = Namespace::new("credentials")?;
    space.apply(&secret("keys", &json!({ "one": KEY })))?;
    space.apply(&secret("words", &json!({ "guest": WORDS[0] })))?;
    space.apply(&vm())?;
    space.wait_for(BOOT, "vmi", NAME, "had its credentials", |vmi| holds(vmi, CONDITION))?;
    let said = space.event("VirtualMachineInstance", NAME, "AccessCredentialsSyncSuccess")?;
    ensure!(said == "Access credentials sync successful.", "{said}");

    let mut console = Console::open(&space, NAME)?;
    console.log_in("root", "guest")?;
    keys(&mut console, &[KEY])?;
    let (mode, _) = console.run(&format!("stat -c '%a %U' {FILE}"))?;
    ensure!(mode == "600 guest", "{mode}");
    // The Secret is nobody's, so that others may have it too.
    let add = ["credentials", "add-ssh-key", "--user", "guest", "--value", OTHER, NAME];
    let refused = space.virtctl_refused(&add)?;
    ensure!(refused.contains("does not have an owner reference pointing to VM opened"), "{refused}");
    space.virtctl(&[&add[..], &["--force"]].concat())?;
    keys(&mut console, &[KEY, OTHER])?;
    space.virtctl(&["credentials", "remove-ssh-key", "--user", "guest", "--value", KEY, "--force", NAME])?;
    keys(&mut console, &[OTHER])?;

    let hash = "grep ^guest: /etc/shadow";
    let (before, _) = console.run(hash)?;
    let password = ["credentials", "set-password", "--user", "guest", "--password", WORDS[1], "--force", NAME];
    space.virtctl(&password)?;
    // Each time that it is set, it has another salt: what counts is that one can log in with it.
    until("another password", BOOT, || Ok((console.run(hash)?.0 != before).then_some(())))?;
    console.log_out()?;
    until("a login with the new password", BOOT, || console.log_in("guest", WORDS[1]).map(Some))?;
    console.log_out()?;
    console.leave()?;

    // Somebody whom the guest does not have.
    space.patch("secret", "words", &json!({ "stringData": { "stranger": "x1y2z3" } }))?;
    let failed = |vmi: &Value| condition(vmi, CONDITION)["status"] == "False";
    let vmi = space.wait_for(BOOT, "vmi", NAME, "missed a user", failed)?;
    let why = condition(&vmi, CONDITION)["message"].as_str().unwrap_or_default().to_owned();
    ensure!(why.starts_with("Error encountered setting password for user [stranger]: "), "{why}");
    space.event_with(
        "VirtualMachineInstance",
        NAME,
        "AccessCredentialsSyncFailed",
        "Access credentials sync failed: Error encountered",
    )?;
    let told = space.virtctl(&["explain", NAME])?;
    ensure!(told.contains("was not given all of its access credentials") && told.contains("stranger"), "{told}");
    space.patch("secret", "words", &json!({ "data": { "stranger": null } }))?;
    space.wait_for(BOOT, "vmi", NAME, "had its credentials again", |vmi| holds(vmi, CONDITION))?;

    // What is secret is in neither logs nor objects.
    let log = space.kubectl(&["logs", "-l", "kubevirt.io=virt-launcher", "-c", "compute", "--tail=-1"])?;
    let shown = [log, space.kubectl(&["get", "vm,vmi,events", "-o", "yaml"])?].concat();
    for word in [WORDS[0], WORDS[1], "AAAAC3NzaC1lZDI1NTE5"] {
        ensure!(!shown.contains(word), "{word} can be read by others");
    }
    Ok(())
}
