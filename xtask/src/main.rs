//! Chores of the repository: `cargo xtask codegen <what>` and friends. Each chore is a file.

mod codegen;

use clap::Parser;

#[derive(Parser)]
#[command(name = "xtask", about = "Chores of this repository")]
enum Chore {
    /// Rewrites generated, committed files.
    Codegen {
        /// What to generate.
        #[command(subcommand)]
        what: codegen::What,
    },
}

fn main() -> anyhow::Result<()> {
    match Chore::parse() {
        Chore::Codegen { what } => codegen::run(&what),
    }
}
