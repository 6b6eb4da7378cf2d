//! `virtctl credentials remove-ssh-key`: a key less in the Secrets of the machine.

use std::collections::BTreeMap;
use std::process::ExitCode;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{Patch, PatchParams};
use serde_json::{Value, json};

use super::{Machine, Whose, key, secret};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::output;

/// Somebody else may change the Secret at the same time, but not for ever.
const TRIES: usize = 5;

/// Take an SSH key from a user of the guest.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl credentials remove-ssh-key --user cloud-user --file ~/.ssh/id_ed25519.pub myvm
  virtctl credentials remove-ssh-key --user cloud-user --value 'ssh-ed25519 AAAA...' myvm
  virtctl credentials remove-ssh-key --user cloud-user --file key.pub --force myvm          from a Secret that others use too")]
pub(super) struct Args {
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    key: key::Source,
}

pub(super) async fn run(globals: &Globals, args: Args) -> Outcome {
    let key = args.key.read()?;
    let machine = Machine::read(globals, &args.whose.name).await?;
    let Whose { user, secret: wanted, .. } = &args.whose;
    let known = secret::with_keys(&machine.vm, user);
    if known.is_empty() {
        output::say(&format!("No secrets associated with user {user}"))?;
        return Ok(ExitCode::SUCCESS);
    }
    if !wanted.is_empty() && !known.contains(&wanted.as_str()) {
        return Err(Fault::new(format!("secret {wanted} is not associated with user {user}")));
    }
    for name in known.into_iter().filter(|name| wanted.is_empty() || name == wanted) {
        remove(&machine, &args, name, &key).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn remove(machine: &Machine, args: &Args, name: &str, key: &str) -> Result<(), Fault> {
    let secrets = machine.secrets();
    let what = |verb: &str| format!("cannot {verb} secret {name:?}");
    let mut tries = 0;
    loop {
        let held = secrets.get_opt(name).await.map_err(|error| Fault::api(what("read"), &error))?;
        // What is not there has no key.
        let Some(held) = held else { return Ok(()) };
        if !args.whose.force {
            secret::owned(&held.metadata, &machine.vm)?;
        }
        let Some(change) = change(&held, key) else {
            return output::say(&format!("Secret {name:?} does not contain this SSH key."));
        };
        tries += 1;
        match secrets.patch(name, &PatchParams::default(), &Patch::Merge(change)).await {
            Ok(_) => return output::say(&format!("Successfully removed the key from secret {name:?}")),
            Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => {}
            Err(error) => return Err(Fault::api(what("change"), &error)),
        }
    }
}

/// The change of the Secret, as long as nobody else changes it: values that have other keys too keep those, the rest goes. None
/// where it does not have the key.
fn change(held: &Secret, key: &str) -> Option<Value> {
    let mut data = BTreeMap::new();
    for (name, value) in held.data.iter().flatten() {
        if let Some(rest) = key::without(&String::from_utf8_lossy(&value.0), key) {
            let rest = Some(rest).filter(|rest| !rest.trim().is_empty());
            data.insert(name.clone(), rest.map(|rest| ByteString(rest.into_bytes())));
        }
    }
    let version = &held.metadata.resource_version;
    (!data.is_empty()).then(|| json!({ "metadata": { "resourceVersion": version }, "data": data }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_goes_with_its_last_key() {
        let data = [("alone", "ssh-rsa AAA me"), ("two", "ssh-rsa BBB\nssh-rsa AAA\n"), ("other", "ssh-rsa CCC")];
        let data: BTreeMap<_, _> =
            data.into_iter().map(|(key, value)| (key.to_owned(), ByteString(value.into()))).collect();
        let mut held = Secret { data: Some(data), ..Secret::default() };
        held.metadata.resource_version = Some("7".to_owned());
        let two = json!(ByteString("ssh-rsa BBB".into()));
        let expect = json!({ "metadata": { "resourceVersion": "7" }, "data": { "alone": null, "two": two } });
        assert_eq!(change(&held, "ssh-rsa AAA somebody"), Some(expect));
        assert_eq!(change(&held, "ssh-rsa DDD"), None);
        assert_eq!(change(&Secret::default(), "ssh-rsa AAA"), None);
    }
}
