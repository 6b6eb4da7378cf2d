//! Scenarios on a live cluster, with real guests. `scripts/test.sh` starts the cluster and runs them.
//!
//! A scenario either has machines of its own in a namespace of its own, or uses the guest of `shared`, or the one of `mover`.
//! First what can run side by side; then, one after the other, what everybody would notice, or what must happen in time.

mod access;
mod bad_images;
mod bad_input;
mod boot;
mod cancel;
mod claims;
mod console;
mod continuity;
mod deletion;
mod endurance;
mod eviction;
mod faults;
mod handover;
mod hardware;
mod local_disks;
mod migration;
mod migration_modes;
mod migration_strangers;
mod mover;
mod networks;
mod node_loss;
mod power;
mod probes;
mod run_strategy;
mod shared;
mod shared_disks;
mod stop;
mod survival;
mod two_nodes;
mod update;

use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};

/// An emulated guest that boots takes a whole core. More of them at once would only wait for each other.
const SIDE_BY_SIDE: usize = 2;

fn main() -> ExitCode {
    let rounds =
        [(SIDE_BY_SIDE, beside()), (1, alone()), (SIDE_BY_SIDE, beside_on_two_nodes()), (1, alone_on_two_nodes())];
    let mut failed = false;
    for (threads, trials) in rounds {
        let mut arguments = Arguments::from_args();
        arguments.test_threads = Some(threads);
        failed |= libtest_mimic::run(&arguments, trials).has_failed();
    }
    mover::shut_down();
    shared::shut_down();
    two_nodes::shut_down();
    if failed { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

/// What may run side by side, on one node. Who uses the shared guest waits for it: there are others in between.
fn beside() -> Vec<Trial> {
    let shared = [console::trials(), access::trials(), power::trials()];
    let own = [
        claims::trials(),
        hardware::trials(),
        run_strategy::trials(),
        probes::trials(),
        bad_images::trials(),
        deletion::trials(),
        eviction::trials(),
        boot::trials(),
        bad_input::trials(),
    ];
    interleaved(shared.into_iter().flatten().collect(), own.into_iter().flatten().collect())
}

/// What ends parts of the one node there is.
fn alone() -> Vec<Trial> {
    stop::trials().into_iter().chain(survival::trials()).collect()
}

/// Guests that move and do nothing to the nodes: those that take turns with one guest, and those with guests of their own.
fn beside_on_two_nodes() -> Vec<Trial> {
    let shared = [migration::trials(), continuity::trials(), endurance::trials()];
    let own = [networks::trials_beside(), local_disks::trials(), migration_modes::trials_beside()];
    interleaved(own.into_iter().flatten().collect(), shared.into_iter().flatten().collect())
}

fn alone_on_two_nodes() -> Vec<Trial> {
    let trials = [
        eviction::trials_alone(),
        update::trials(),
        migration::trials_alone(),
        faults::trials(),
        cancel::trials(),
        migration_modes::trials(),
        migration_strangers::trials(),
        networks::trials(),
        handover::trials(),
        migration::trials_last(),
        node_loss::trials(),
        shared_disks::trials(),
    ];
    trials.into_iter().flatten().collect()
}

/// Both lists in their order, the one spread over the other.
fn interleaved(few: Vec<Trial>, many: Vec<Trial>) -> Vec<Trial> {
    let (few_len, many_len) = (few.len(), many.len().max(1));
    let mut out = Vec::new();
    let mut few = few.into_iter();
    for (at, trial) in many.into_iter().enumerate() {
        out.push(trial);
        let due = (at + 1) * few_len / many_len - at * few_len / many_len;
        out.extend(few.by_ref().take(due));
    }
    out.extend(few);
    out
}

/// A scenario by its name.
fn trial(name: &'static str, run: fn() -> Result<()>) -> Trial {
    Trial::test(name, move || run().map_err(|error| Failed::from(format!("{error:#}"))))
}
