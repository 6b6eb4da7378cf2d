//! The embedded cluster as plain kubectl sees it, on a live one. `scripts/test.sh` starts the cluster and runs these.
//!
//! First what can run side by side, each test in a namespace of its own; then, one after the other, what stops parts of
//! the cluster or changes its nodes.

mod access;
mod aggregation;
mod attachment;
mod collection;
mod confinement;
mod copying;
mod crd;
mod csi;
mod deleting;
mod devices;
mod dns;
mod documents;
mod endpoints;
mod exec;
mod forwarding;
mod https;
mod jobs;
mod local;
mod logs;
mod network_policy;
mod networks;
mod node;
mod nodes;
mod packets;
mod pods;
mod probes;
mod reading;
mod registry;
mod resize;
mod restarts;
mod restricted;
mod rollout;
mod services;
mod stateful;
mod storage;
mod survival;
mod tokens;
mod volumes;
mod watching;
mod webhooks;
mod workloads;
mod writing;

use std::process::ExitCode;

use anyhow::Result;
use e2e::report;
use libtest_mimic::{Arguments, Trial};

/// A test and its name.
type Test = (&'static str, fn() -> Result<()>);

/// What may run side by side.
const SHARED: &[(&str, &[Test])] = &[
    ("access", access::TESTS),
    ("aggregation", aggregation::TESTS),
    ("collection", collection::TESTS),
    ("confinement", confinement::TESTS),
    ("copying", copying::TESTS),
    ("crd", crd::TESTS),
    ("deleting", deleting::TESTS),
    ("devices", devices::TESTS),
    ("dns", dns::TESTS),
    ("documents", documents::TESTS),
    ("endpoints", endpoints::TESTS),
    ("exec", exec::TESTS),
    ("forwarding", forwarding::TESTS),
    ("jobs", jobs::TESTS),
    ("local", local::TESTS),
    ("logs", logs::TESTS),
    ("network_policy", network_policy::TESTS),
    ("networks", networks::TESTS),
    ("probes", probes::TESTS),
    ("reading", reading::TESTS),
    ("resize", resize::TESTS),
    ("restarts", restarts::TESTS),
    ("rollout", rollout::TESTS),
    ("services", services::TESTS),
    ("stateful", stateful::TESTS),
    ("storage", storage::TESTS),
    ("tokens", tokens::TESTS),
    ("volumes", volumes::TESTS),
    ("watching", watching::TESTS),
    ("webhooks", webhooks::TESTS),
    ("workloads", workloads::TESTS),
    ("writing", writing::TESTS),
];

/// What others would notice.
const ALONE: &[(&str, &[Test])] = &[
    ("csi", csi::TESTS),
    ("node", node::TESTS),
    ("nodes", nodes::TESTS),
    ("registry", registry::TESTS),
    ("restricted", restricted::TESTS),
    ("survival", survival::TESTS),
];

/// Of those, what takes long: `make test-all` runs it.
const LONG: &[(&str, &[Test])] = &[("attachment", attachment::TESTS), ("csi", csi::LONG), ("survival", survival::LONG)];

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    arguments.test_threads = Some(arguments.test_threads.unwrap_or(4));
    let run = |arguments: &Arguments, trials: Vec<Trial>| {
        libtest_mimic::run(arguments, report::selected(trials, arguments)).has_failed()
    };
    let mut failed = run(&arguments, trials(SHARED, report::trial));
    arguments.test_threads = Some(1);
    failed |= run(&arguments, trials(ALONE, report::trial));
    failed |= run(&arguments, trials(LONG, report::long));
    report::conclude(failed)
}

fn trials(groups: &[(&str, &[Test])], trial: impl Fn(String, fn() -> Result<()>) -> Trial) -> Vec<Trial> {
    let named = groups.iter().flat_map(|(group, tests)| tests.iter().map(move |test| (group, test)));
    named.map(|(group, (name, run))| trial(format!("{group}::{name}"), *run)).collect()
}
