//! What a guest that moves is to others: the same machine, known at its new place, with agent and screen.

use std::io::Read;

use anyhow::{Context, Result, ensure};
use e2e::machine::uid;
use e2e::node;
use e2e::screen::Screen;
use e2e::wait::{SOON, until};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::mover::{Mover, NAME, Policy, with_mover};
use crate::trial;
use crate::two_nodes::ferrovirt;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("migration_keeps_what_a_guest_is_to_others", keeps_what_a_guest_is_to_others)]
}

/// QEMU's command line, save what names a run of it and not the machine: numbers of descriptors, of libvirt's nodes and domains.
fn definition(pod: &Value) -> Result<Vec<String>> {
    let words = node::process(uid(pod), "qemu-system-x86_64")?.words;
    let mut kept: Vec<String> = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        match word.as_str() {
            "-incoming" => drop(words.next()),
            _ => kept.push(numberless(word)),
        }
    }
    Ok(kept)
}

fn numberless(word: &str) -> String {
    let mut out = word.to_owned();
    for prefix in ["domain-", "\"libvirt-", "fd=", "\"fd\":\"", "set=", "/dev/fdset/", "secret"] {
        let parts: Vec<&str> = out.split(prefix).collect();
        let rest = parts[1..].iter().map(|part| part.trim_start_matches(|c: char| c.is_ascii_digit()));
        out = std::iter::once(parts[0]).chain(rest).collect::<Vec<_>>().join(&format!("{prefix}N"));
    }
    out
}

/// Counts, on the bridge of a node's pods, the frames by which addresses are announced to everybody.
struct Witness(String);

const TABLE: &str = "e2e";

impl Witness {
    fn on(node: &str, addresses: &[String]) -> Result<Self> {
        let rules = addresses.iter().map(|address| {
            if address.contains(':') {
                format!("icmpv6 type nd-neighbor-advert ip6 saddr {address} ip6 daddr ff02::1 counter\n")
            } else {
                format!("arp saddr ip {address} arp daddr ip {address} counter\n")
            }
        });
        let rules: String = rules.collect();
        let chain = format!("chain seen {{ type filter hook prerouting priority -250\n {rules} }}\n");
        let witness = Self(node.to_owned());
        ferrovirt(&["node", "exec", node, "--", "nft", &format!("table bridge {TABLE} {{\n {chain} }}\n")])?;
        Ok(witness)
    }

    fn counts(&self) -> Result<Vec<u64>> {
        let text = ferrovirt(&["node", "exec", &self.0, "--", "nft", "list", "table", "bridge", TABLE])?;
        let counts = text.split("packets ").skip(1).map(|rest| rest.split(' ').next().unwrap_or_default().parse());
        counts.collect::<Result<_, _>>().context(text.clone())
    }
}

impl Drop for Witness {
    fn drop(&mut self) {
        let _ = ferrovirt(&["node", "exec", &self.0, "--", "nft", "delete", "table", "bridge", TABLE]);
    }
}

/// What the guest's agent says when it is asked here, and not what it told its source.
fn told_by_its_agent(mover: &Mover) -> Result<()> {
    let facts: Value = serde_json::from_str(&mover.space.virtctl(&["guestosinfo", NAME])?)?;
    ensure!(facts["hostname"] == NAME && facts["os"]["id"] == "ferrovirt-guest", "{facts}");
    Ok(())
}

fn keeps_what_a_guest_is_to_others() -> Result<()> {
    with_mover(|mover| {
        let from = mover.node()?;
        let before = definition(&mover.pod()?)?;
        let screen = Screen::open(&mover.space, NAME)?;
        let mut seen = screen.view()?;
        let slow = Policy::new(&mover.space, &json!({ "bandwidthPerMigration": "4Mi" }))?;
        let name = mover.leave()?;
        let vmi = mover.under_way()?;
        let state = &vmi["status"]["migrationState"];
        let target = mover.space.get("pod", state["targetPod"].as_str().unwrap_or_default())?;
        let addresses = target["status"]["podIPs"].as_array().into_iter().flatten();
        let addresses: Vec<String> = addresses.filter_map(|ip| ip["ip"].as_str().map(str::to_owned)).collect();
        let witness = Witness::on(state["targetNode"].as_str().unwrap_or_default(), &addresses)?;
        told_by_its_agent(mover)?;
        mover.ended(&name, "Succeeded")?;
        drop(slow);
        until("both families to be announced", SOON, || {
            let counts = witness.counts()?;
            Ok((counts.len() == 2 && counts.iter().all(|count| *count > 0)).then_some(()))
        })?;
        told_by_its_agent(mover)?;

        // The viewer's connection has ended, and whoever connects next sees the guest where it is.
        let mut rest = Vec::new();
        seen.read_to_end(&mut rest).context("the screen of the node that was left goes on")?;
        until("the screen to be back", SOON, || screen.view().map(Some))?;
        drop(screen);

        mover.arrived(&from)?;
        let after = definition(&mover.pod()?)?;
        let other = |one: &[String], two: &[String]| -> Vec<String> {
            one.iter().filter(|word| !two.contains(word)).cloned().collect()
        };
        ensure!(before == after, "gone: {:?}\nnew: {:?}", other(&before, &after), other(&after, &before));
        mover.unharmed()
    })
}
