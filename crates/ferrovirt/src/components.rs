//! The product's components as programs of the multicall binary: arguments, log, runtime, then the component's own `run`.

use std::ffi::OsString;
use std::future::Future;

use anyhow::Context;
use clap::{Args, Parser};

use crate::failure::parse;
use crate::terminal;

#[derive(Parser)]
#[command(name = "component")]
struct Wrapped<A: Args> {
    #[command(flatten)]
    component: A,
}

/// Components wait more than they compute: two threads serve, and each thread saved is memory saved in every pod.
fn serve<A, F, E>(words: Vec<OsString>, run: impl FnOnce(A) -> F) -> anyhow::Result<()>
where
    A: Args,
    F: Future<Output = Result<(), E>>,
    E: std::error::Error + Send + Sync + 'static,
{
    let Some(arguments) = parse::<Wrapped<A>>(words)? else { return Ok(()) };
    terminal::log("info");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .max_blocking_threads(16)
        .enable_all()
        .build()
        .context("cannot start the runtime")?;
    Ok(runtime.block_on(run(arguments.component))?)
}

/// `virt-operator`
pub(crate) fn virt_operator(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, virt_operator::run)
}

/// `virt-api`
pub(crate) fn virt_api(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, virt_api::run)
}

/// `virt-controller`
pub(crate) fn virt_controller(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, virt_controller::run)
}

/// `hostpath-csi`
pub(crate) fn hostpath_csi(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, hpp::run)
}

/// `virt-handler`
pub(crate) fn virt_handler(words: Vec<OsString>) -> anyhow::Result<()> {
    serve(words, virt_handler::run)
}
