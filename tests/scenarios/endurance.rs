//! Twenty moves in a row, of a guest that writes to its disk and is talked to all the time.

use anyhow::{Context, Result, ensure};
use e2e::Console;
use e2e::wait::{BOOT, SOON, until};
use libtest_mimic::Trial;
use serde_json::json;

use crate::long;
use crate::mover::{Mover, NAME, with_mover};

pub(crate) fn trials() -> Vec<Trial> {
    vec![long("migration_twenty_times_loses_no_line_and_no_client", twenty_times)]
}

const MOVES: usize = 20;
const CLIENT: &str = "client";
const IMAGE: &str = "ferrovirt.local/component:v0.1.0";

/// Appends lines to a file on the disk: a number, and what follows from all lines before. What was written last is
/// remembered in memory.
const WRITE: &str = "(n=0; s=1; while [ ! -e /dev/shm/enough ]; do \
    n=$((n + 1)); s=$(((s * 31 + n) % 65521)); echo \"$n $s the quick brown fox jumps over the lazy dog\" || break; echo $n > /dev/shm/written; \
    [ $((n % 20)) != 0 ] || { sync; sleep 0.1; }; done > /root/log; sync; echo yes > /dev/shm/stopped) & true";
/// Reads it back from the disk: how many lines are as they were written, and how many there are.
const READ: &str = "echo 3 > /proc/sys/vm/drop_caches; awk 'BEGIN { s = 1 } \
    { s = (s * 31 + NR) % 65521; good += $1 == NR && $2 == s && $NF == \"dog\" } END { print good, NR }' /root/log; cat /dev/shm/written";
/// Answers each line with the number of lines that were answered, whoever asked.
const SERVE: &str = "printf '%s\\n' '#!/bin/sh' \
    'while read -r line; do n=$(($(cat /dev/shm/served) + 1)); echo $n > /dev/shm/served; echo $n; done' > /dev/shm/serve; \
    chmod +x /dev/shm/serve; echo 0 > /dev/shm/served; nc -ll -p 7000 -e /dev/shm/serve & server=$!; true";
/// Asks again and again, on one connection for as long as it lasts.
const ASK: &str = "while :; do echo connects; { while echo ping; do sleep 0.2; done; } | busybox nc mover 7000; sleep 0.1; done > /tmp/answers 2>&1";

fn run(console: &mut Console, command: &str) -> Result<String> {
    let (shown, code) = console.run(command)?;
    ensure!(code == 0, "{command:?} ended with {code}: {shown}");
    Ok(shown)
}

/// What the client wrote down: the numbers it was answered with, and on how many connections.
fn answers(mover: &Mover) -> Result<(Vec<u64>, usize)> {
    let text = mover.space.kubectl(&["exec", CLIENT, "--", "cat", "/tmp/answers"])?;
    let connections = text.split("connects\n");
    let answered: Vec<Vec<u64>> =
        connections.map(|lines| lines.lines().filter_map(|line| line.parse().ok()).collect()).collect();
    let used = answered.iter().filter(|numbers| !numbers.is_empty()).count();
    Ok((answered.concat(), used))
}

/// The client is answered now, and not only before.
fn is_answered(mover: &Mover) -> Result<()> {
    let last = || -> Result<u64> { Ok(answers(mover)?.0.last().copied().unwrap_or_default()) };
    let before = last()?;
    until("the client to be answered", SOON, || Ok((last()? > before).then_some(())))
}

fn twenty_times() -> Result<()> {
    with_mover(|mover| {
        mover.space.apply(&json!({ "apiVersion": "v1", "kind": "List", "items": [
            { "apiVersion": "v1", "kind": "Service", "metadata": { "name": NAME },
              "spec": { "selector": { "vm.kubevirt.io/name": NAME }, "ports": [{ "port": 7000 }] } },
            { "apiVersion": "v1", "kind": "Pod", "metadata": { "name": CLIENT },
              "spec": { "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "main", "image": IMAGE, "command": ["sh", "-c", ASK] }] } },
        ] }))?;
        let mut console = mover.console()?;
        run(&mut console, WRITE)?;
        run(&mut console, SERVE)?;
        until("the first answers", BOOT, || is_answered(mover).map(Some))?;
        for turn in 1..=MOVES {
            let from = mover.node()?;
            let name = mover.leave()?;
            mover.ended(&name, "Succeeded")?;
            mover.arrived(&from)?;
            is_answered(mover).with_context(|| format!("after {turn} moves"))?;
        }
        run(&mut console, "touch /dev/shm/enough; until [ -e /dev/shm/stopped ]; do sleep 0.2; done")?;
        let found = run(&mut console, READ)?;
        let found: Vec<u64> =
            found.split_whitespace().map(str::parse).collect::<Result<_, _>>().context(found.clone())?;
        let [good, all, written] = found[..] else { anyhow::bail!("{found:?}") };
        ensure!(good == all && all == written && written > 0, "{good} of {all} lines are good, {written} were written");
        let (numbers, connections) = answers(mover)?;
        ensure!(numbers.windows(2).all(|pair| pair[0] < pair[1]), "an answer was given twice: {numbers:?}");
        // A move costs a client one connection at most.
        ensure!(connections <= 1 + MOVES, "it connected {connections} times");
        run(&mut console, "kill $server; rm -f /dev/shm/enough /dev/shm/stopped /root/log")?;
        mover.space.kubectl(&["delete", "pod", CLIENT])?;
        mover.space.kubectl(&["delete", "service", NAME])?;
        mover.unharmed_by(&mut console)?;
        console.leave()
    })
}
