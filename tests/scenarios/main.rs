//! Scenarios on a live cluster, with real guests. `scripts/test.sh` starts the cluster and runs them.
//!
//! A scenario either has machines of its own in a namespace of its own, or uses the guest of `shared`.

mod access;
mod bad_images;
mod bad_input;
mod boot;
mod claims;
mod console;
mod deletion;
mod eviction;
mod hardware;
mod local_disks;
mod migration;
mod node_loss;
mod power;
mod probes;
mod run_strategy;
mod shared;
mod stop;
mod survival;
mod two_nodes;

use std::process::ExitCode;

use anyhow::Result;
use libtest_mimic::{Arguments, Failed, Trial};

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Emulated guests share two cores: side by side they would only wait for each other.
    arguments.test_threads = Some(1);
    let trials = [
        bad_input::trials(),
        bad_images::trials(),
        console::trials(),
        access::trials(),
        power::trials(),
        survival::trials(),
        boot::trials(),
        hardware::trials(),
        claims::trials(),
        probes::trials(),
        stop::trials(),
        run_strategy::trials(),
        eviction::trials(),
        deletion::trials(),
        migration::trials(),
        local_disks::trials(),
        node_loss::trials(),
    ];
    let conclusion = libtest_mimic::run(&arguments, trials.into_iter().flatten().collect());
    shared::shut_down();
    two_nodes::shut_down();
    conclusion.exit_code()
}

/// A scenario by its name.
fn trial(name: &'static str, run: fn() -> Result<()>) -> Trial {
    Trial::test(name, move || run().map_err(|error| Failed::from(format!("{error:#}"))))
}
