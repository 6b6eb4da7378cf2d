//! Scenarios on a live cluster, with real guests. `scripts/test.sh` starts the cluster and runs them.
//!
//! Each capability has one that is always run; those that take long by nature (many moves in a row, every format, interruptions
//! at every point) are marked `long` and run by `make test-all`, or when they are asked for by name.
//!
//! A scenario either has machines of its own in a namespace of its own, or uses the guest of `shared`, or the one of `mover`.
//! First what can run side by side; then, one after the other, what everybody would notice, or what must happen in time.

mod access;
mod backup;
mod backup_pull;
mod bad_images;
mod bad_input;
mod boot;
mod cancel;
mod chain;
mod chosen;
mod claims;
mod component;
mod console;
mod continuity;
mod copies;
mod credentials;
mod data_volume;
mod deletion;
mod disk_tasks;
mod endurance;
mod eviction;
mod export;
mod export_links;
mod faults;
mod full;
mod golden;
mod handover;
mod hardware;
mod hotplug;
mod imports;
mod interruptions;
mod live_update;
mod local_disks;
mod macvtap;
mod memory_dump;
mod migration;
mod migration_modes;
mod migration_strangers;
mod mover;
mod networks;
mod node_loss;
mod one_object;
mod power;
mod probes;
mod refusals;
mod rotation;
mod run_strategy;
mod sets;
mod shared;
mod shared_disks;
mod stop;
mod storage_moves;
mod survival;
mod tasks;
mod traffic;
mod two_nodes;
mod update;
mod update_whole;
mod volumes;
mod whole;

use std::process::ExitCode;

use anyhow::Result;
use e2e::report;
use libtest_mimic::{Arguments, Trial};

/// An emulated guest that boots takes a whole core. More of them at once would only wait for each other.
const SIDE_BY_SIDE: usize = 2;
/// On one node many wait for something that takes time and no work: one more fills the gaps.
const ON_ONE_NODE: usize = 3;

fn main() -> ExitCode {
    let rounds =
        [(ON_ONE_NODE, beside()), (1, alone()), (SIDE_BY_SIDE, beside_on_two_nodes()), (1, alone_on_two_nodes())];
    let mut failed = false;
    for (threads, trials) in rounds {
        let mut arguments = Arguments::from_args();
        arguments.test_threads = Some(threads);
        let trials = report::selected(trials, &arguments);
        failed |= libtest_mimic::run(&arguments, trials).has_failed();
    }
    mover::shut_down();
    shared::shut_down();
    two_nodes::shut_down();
    report::conclude(failed)
}

/// What may run side by side, on one node. Who uses the shared guest waits for it: there are others in between.
fn beside() -> Vec<Trial> {
    let shared = [console::trials(), access::trials(), power::trials()];
    let own = [
        claims::trials(),
        hardware::trials(),
        hotplug::trials(),
        volumes::trials(),
        export::trials(),
        imports::trials(),
        golden::trials(),
        refusals::trials(),
        copies::trials(),
        backup::trials(),
        backup_pull::trials(),
        memory_dump::trials(),
        credentials::trials(),
        full::trials(),
        run_strategy::trials(),
        sets::trials(),
        live_update::trials(),
        probes::trials(),
        bad_images::trials(),
        deletion::trials(),
        eviction::trials(),
        boot::trials(),
        chosen::trials(),
        bad_input::trials(),
        one_object::trials(),
        whole::trials(),
        macvtap::trials(),
        tasks::trials(),
        disk_tasks::trials(),
    ];
    interleaved(shared.into_iter().flatten().collect(), own.into_iter().flatten().collect())
}

/// What ends parts of the one node there is.
fn alone() -> Vec<Trial> {
    [stop::trials(), survival::trials(), interruptions::trials(), export_links::trials()]
        .into_iter()
        .flatten()
        .collect()
}

/// Guests that move and do nothing to the nodes: those that take turns with one guest, and those with guests of their own.
fn beside_on_two_nodes() -> Vec<Trial> {
    let shared = [migration::trials(), continuity::trials(), endurance::trials()];
    let own = [
        networks::trials_beside(),
        local_disks::trials(),
        storage_moves::trials(),
        shared_disks::trials(),
        migration_modes::trials_beside(),
    ];
    interleaved(own.into_iter().flatten().collect(), shared.into_iter().flatten().collect())
}

fn alone_on_two_nodes() -> Vec<Trial> {
    let trials = [
        eviction::trials_alone(),
        update::trials(),
        update_whole::trials(),
        rotation::trials(),
        migration::trials_alone(),
        faults::trials(),
        cancel::trials(),
        migration_modes::trials(),
        migration_strangers::trials(),
        networks::trials(),
        handover::trials(),
        migration::trials_last(),
        node_loss::trials(),
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
    report::trial(name, run)
}

/// A scenario that takes long by nature, or shows live what tests in process show too.
fn long(name: &'static str, run: fn() -> Result<()>) -> Trial {
    report::long(name, run)
}
