//! `virtctl credentials set-password`: a user's password in the machine's Secret.

use std::collections::BTreeMap;
use std::process::ExitCode;

use api::kubevirt::credentials::is_user;
use k8s_openapi::ByteString;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Machine, Whose, secret};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::output;

/// Set the password of a user of the guest.
#[derive(Clone, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl credentials set-password --user cloud-user --password <password> myvm
  virtctl credentials set-password --user cloud-user --password <password> --force myvm   in a Secret that others use too")]
pub(super) struct Args {
    #[command(flatten)]
    whose: Whose,
    /// The password.
    #[arg(long, short, value_name = "PASSWORD")]
    password: String,
}

impl std::fmt::Debug for Args {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Args").field("whose", &self.whose).finish_non_exhaustive()
    }
}

pub(super) async fn run(globals: &Globals, args: Args) -> Outcome {
    let Whose { name, user, secret: wanted, force } = &args.whose;
    if !is_user(user) {
        return Err(Fault::usage(format!("{user:?} is not the name of a user")));
    }
    if args.password.trim().is_empty() {
        return Err(Fault::usage("an empty password is not set"));
    }
    let machine = Machine::read(globals, name).await?;
    let known = secret::with_passwords(&machine.vm);
    if known.is_empty() {
        return Err(Fault::new("no secrets assigned to UserPassword AccessCredentials")
            .hint("name one in spec.template.spec.accessCredentials of the VM: userPassword, with qemuGuestAgent"));
    }
    let name = secret::one(wanted, &known)?;
    let secrets = machine.secrets();
    if !force {
        let held = secrets.get(name).await;
        let held = held.map_err(|error| Fault::api(format!("cannot read secret {name:?}"), &error))?;
        secret::owned(&held.metadata, &machine.vm)?;
    }
    let data = BTreeMap::from([(user, ByteString(args.password.into_bytes()))]);
    let patched = secrets.patch(name, &PatchParams::default(), &Patch::Merge(json!({ "data": data }))).await;
    patched.map_err(|error| Fault::api(format!("cannot change secret {name:?}"), &error))?;
    output::say(&format!("Successfully set password in secret {name:?}"))?;
    Ok(ExitCode::SUCCESS)
}
