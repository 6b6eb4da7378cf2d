//! The program of launcher pods: the launcher itself, and by other names the programs that ask it.
//!
//! It is not part of the multicall binary, because every virtual machine pays for what it maps and relocates.

use std::ffi::OsStr;
use std::future::Future;
use std::io::Write as _;
use std::path::Path;
use std::process::ExitCode;

use clap::Parser as _;
use tracing_subscriber::filter::LevelFilter;
use virt_launcher::Args;

type Failure = Box<dyn std::error::Error>;

fn main() -> ExitCode {
    sys::heap::bound();
    let called = std::env::args_os().next().unwrap_or_default();
    let outcome = match Path::new(&called).file_name().and_then(OsStr::to_str) {
        Some("virt-probe") => ask("virt-probe", virt_launcher::probe),
        Some("virt-freezer") => ask("virt-freezer", freezer),
        Some("virt-node-capabilities") => ask("virt-node-capabilities", virt_launcher::node_capabilities),
        _ => launch(),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = writeln!(std::io::stderr().lock(), "error: {}", kit::Chain(error.as_ref()));
            ExitCode::FAILURE
        }
    }
}

fn launch() -> Result<(), Failure> {
    let arguments = Args::parse();
    let level = std::env::var("FERROVIRT_LOG").ok().and_then(|level| level.parse().ok()).unwrap_or(LevelFilter::INFO);
    tracing_subscriber::fmt().with_max_level(level).with_writer(std::io::stderr).with_ansi(false).init();
    Ok(virt_launcher::run(arguments)?)
}

async fn freezer(arguments: virt_launcher::FreezerArgs) -> Result<(), virt_launcher::InsideError> {
    if let Some(said) = virt_launcher::freezer(arguments).await? {
        let _ = writeln!(std::io::stderr().lock(), "{said}");
    }
    Ok(())
}

/// A program that asks one question and ends.
fn ask<A, F, E>(name: &'static str, question: impl FnOnce(A) -> F) -> Result<(), Failure>
where
    A: clap::Args,
    F: Future<Output = Result<(), E>>,
    E: std::error::Error + 'static,
{
    let arguments = A::from_arg_matches(&A::augment_args(clap::Command::new(name)).get_matches())?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    Ok(runtime.block_on(question(arguments))?)
}
