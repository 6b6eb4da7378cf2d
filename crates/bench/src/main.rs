//! `make bench`: measure, and print one table in which each figure has its floor or its reference beside it.
//!
//! Needs root, no cluster running, and a machine that does nothing else; leaves no cluster behind.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that prints a table")]

mod bare;
mod cluster;
mod disks;
mod floor;
mod import;
mod load;
mod machines;
mod migration;
mod nodes;
mod ping;
mod process;
mod rest;
mod start;
mod storage;
mod survival;
mod table;
mod writes;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Instant;

use anyhow::Result;

use cluster::Cluster;
use table::Table;

const STATE: &str = "/var/lib/ferrovirt-bench";
/// The argument that leaves the cluster out: `bench api-server`.
const SERVER_ONLY: &str = "api-server";
/// The one that measures nothing but nodes: `bench nodes`.
const NODES_ONLY: &str = "nodes";
/// The one that measures nothing but imports of disks: `bench import`.
const IMPORT_ONLY: &str = "import";
/// The one that measures nothing but disks of machines: `bench storage`.
const STORAGE_ONLY: &str = "storage";
/// What there is at rest alone.
const REST_ONLY: &str = "rest";
/// The one that measures nothing but machines that move: `bench migration`.
const MIGRATION_ONLY: &str = "migration";

fn main() -> ExitCode {
    // Refused when there is one already, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    if std::env::args().nth(1).as_deref() == Some(start::SERVE) {
        return server(Path::new(&std::env::args_os().nth(2).unwrap_or_default()));
    }
    let mut table = Table::default();
    let outcome = run(&mut table);
    for line in table.lines() {
        println!("{line}");
    }
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// A server in a process of its own, which ends by being killed.
fn server(store: &Path) -> ExitCode {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let said = runtime.map_err(anyhow::Error::new).and_then(|runtime| runtime.block_on(start::serve(store)));
    match said {
        Ok(line) => {
            println!("{line}");
            loop {
                std::thread::park();
            }
        }
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// What was measured before a failure stays in the table.
fn run(table: &mut Table) -> Result<()> {
    let number = |name: &str, usual: usize| std::env::var(name).ok().and_then(|n| n.parse().ok()).unwrap_or(usual);
    let (rounds, objects) = (number("ROUNDS", 20), number("OBJECTS", 10_000));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    if std::env::args().nth(1).as_deref() == Some(SERVER_ONLY) {
        table.append(runtime.block_on(load::measure(objects))?);
        return Ok(());
    }
    let imports = || import::measure(&runtime, &cluster::root(), number("IMPORT_MIB", 2048) as u64);
    if std::env::args().nth(1).as_deref() == Some(IMPORT_ONLY) {
        table.append(imports()?);
        return Ok(());
    }
    let state = std::env::var_os("FERROVIRT_STATE").map_or_else(|| PathBuf::from(STATE), PathBuf::from);
    let cluster = Cluster::new(state)?;
    if std::env::args().nth(1).as_deref() == Some(NODES_ONLY) {
        return nodes::measure(&cluster, &runtime, objects / 2, table);
    }
    if std::env::args().nth(1).as_deref() == Some(MIGRATION_ONLY) {
        cluster.ferrovirt(&["up"])?;
        let client = runtime.block_on(cluster.client())?;
        table.append(runtime.block_on(migration::measure(&cluster, &client, rounds.div_ceil(4)))?);
        return runtime.block_on(survival::measure(&cluster, &client, table));
    }
    let disks = |table: &mut Table| -> Result<()> {
        cluster.ferrovirt(&["up"])?;
        let client = runtime.block_on(cluster.client())?;
        table.append(runtime.block_on(storage::measure(&cluster, &client, rounds.div_ceil(2)))?);
        Ok(())
    };
    if std::env::args().nth(1).as_deref() == Some(REST_ONLY) {
        cluster.ferrovirt(&["up", "--cluster-only"])?;
        deploy(&cluster, table)?;
        let client = runtime.block_on(cluster.client())?;
        table.append(runtime.block_on(rest::measure(&cluster, &client))?);
        return cluster.ferrovirt(&["down", "--purge"]).map(drop);
    }
    if std::env::args().nth(1).as_deref() == Some(STORAGE_ONLY) {
        return disks(table);
    }
    say("the cluster starts");
    let begin = Instant::now();
    cluster.ferrovirt(&["up", "--cluster-only"])?;
    table.row(
        "ferrovirt up, to node Ready (s)",
        format!("{:.2}", begin.elapsed().as_secs_f64()),
        "aim 3; Kubernetes on such a machine 9-22",
    );
    runtime.block_on(async {
        let client = cluster.client().await?;
        say("virtual machine support is deployed");
        deploy(&cluster, table)?;
        say("everything is left alone");
        table.append(rest::measure(&cluster, &client).await?);
        say("machines start");
        table.append(machines::measure(&cluster, &client, rounds).await?);
        say("machines move");
        table.append(migration::measure(&cluster, &client, rounds.div_ceil(4)).await?);
        say("a node is emptied, and one is lost");
        survival::measure(&cluster, &client, table).await
    })?;
    cluster.ferrovirt(&["down", "--purge"])?;
    say("nodes start, and pods on simulated ones");
    nodes::measure(&cluster, &runtime, objects / 2, table)?;
    cluster.ferrovirt(&["down", "--purge"])?;
    say("disks are imported");
    table.append(imports()?);
    say("the API server is loaded");
    table.append(runtime.block_on(load::measure(objects))?);
    say("disks come to machines");
    disks(table)
}

fn say(what: &str) {
    eprintln!("{what} …");
}

/// From images on the node to a HyperConverged object that is Available, with every image there.
fn deploy(cluster: &Cluster, table: &mut Table) -> Result<()> {
    let begin = Instant::now();
    cluster.ferrovirt(&["images", "load"])?;
    table.row("images loaded into the node (s)", format!("{:.2}", begin.elapsed().as_secs_f64()), "");
    let begin = Instant::now();
    cluster.ferrovirt(&["up"])?;
    let took = format!("{:.2}", begin.elapsed().as_secs_f64());
    table.row("images loaded -> HyperConverged Available (s)", took, "aim 10; KubeVirt alone 84");
    Ok(())
}
