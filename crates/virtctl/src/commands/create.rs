//! `virtctl create`: manifests of new objects, for `kubectl create -f -`.

use super::{create_clone, create_instancetype, create_preference, create_vm};
use crate::connect::Globals;
use crate::fault::Outcome;

/// Print the manifest of a new object.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Print the manifest of a clone of a virtual machine.
    Clone(Box<create_clone::Args>),
    /// Print the manifest of an instance type.
    Instancetype(Box<create_instancetype::Args>),
    /// Print the manifest of a preference.
    Preference(Box<create_preference::Args>),
    /// Print the manifest of a virtual machine.
    Vm(Box<create_vm::Args>),
}

pub(crate) fn run(globals: &Globals, args: Args) -> Outcome {
    match args.what {
        What::Clone(args) => create_clone::run(globals, &args),
        What::Instancetype(args) => create_instancetype::run(globals, &args),
        What::Preference(args) => create_preference::run(globals, &args),
        What::Vm(args) => create_vm::run(globals, &args),
    }
}

#[cfg(test)]
impl Args {
    pub(super) fn into_vm(self) -> create_vm::Args {
        match self.what {
            What::Vm(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn into_clone(self) -> create_clone::Args {
        match self.what {
            What::Clone(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn into_instancetype(self) -> create_instancetype::Args {
        match self.what {
            What::Instancetype(args) => *args,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn into_preference(self) -> create_preference::Args {
        match self.what {
            What::Preference(args) => *args,
            other => panic!("{other:?}"),
        }
    }
}
