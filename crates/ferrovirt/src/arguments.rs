//! Arguments of a component, which are parsed like those of a program.

use clap::{Args, Parser};

/// Whose arguments are those of the component.
#[derive(Parser)]
#[command(name = "component")]
pub(crate) struct Wrapped<A: Args> {
    #[command(flatten)]
    pub(crate) component: A,
}
