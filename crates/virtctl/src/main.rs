//! virtctl: the client of virtual machines. One module for each command; what they share is beside them.
#![allow(clippy::print_stdout, clippy::print_stderr, reason = "a command line program")]

mod cli;
mod commands;
mod connect;
mod dispatch;
mod fault;
mod input;
mod output;
mod stream;
mod target;
mod terminal;
mod tls;

use std::process::ExitCode;

use clap::Parser;

fn main() -> ExitCode {
    // A second installation is refused, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let cli = match cli::Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let code = if error.use_stderr() { fault::USAGE } else { 0 };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return fault::Fault::new("cannot start").because(error).report(),
    };
    let outcome = runtime.block_on(dispatch::run(cli));
    // Nothing that is still read or written may hold the program back.
    runtime.shutdown_background();
    match outcome {
        Ok(code) => code,
        Err(fault) => fault.report(),
    }
}
