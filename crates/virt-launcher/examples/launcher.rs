//! virt-launcher alone, outside of a pod: `cargo run --example launcher -- --name a --namespace b --uid c --run-dir DIR`.

use std::process::ExitCode;

use clap::Parser as _;

fn main() -> ExitCode {
    match virt_launcher::run(virt_launcher::Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            let _ = rustix::io::write(rustix::stdio::stderr(), format!("{}\n", kit::Chain(&error)).as_bytes());
            ExitCode::FAILURE
        }
    }
}
