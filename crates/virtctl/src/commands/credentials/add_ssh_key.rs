//! `virtctl credentials add-ssh-key`: a key more in a Secret of the machine, or a Secret for it.

use std::collections::BTreeMap;
use std::process::ExitCode;

use api::kubevirt::credentials::is_user;
use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::{Value, json};

use super::{Machine, Whose, key, secret};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};
use crate::output;

/// What the key of a key begins with.
const PREFIX: &str = "ssh-key-";
/// Somebody else may change the machine at the same time, but not for ever.
const TRIES: usize = 5;

/// Give a user of the guest an SSH key.
#[derive(Clone, Debug, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl credentials add-ssh-key --user cloud-user --file ~/.ssh/id_ed25519.pub myvm
  virtctl credentials add-ssh-key --user cloud-user --value 'ssh-ed25519 AAAA...' myvm
  virtctl credentials add-ssh-key --user cloud-user --file key.pub --force myvm                   into a Secret that others use too
  virtctl credentials add-ssh-key --create-secret --user cloud-user --file key.pub myvm           into a new Secret
  virtctl credentials add-ssh-key --create-secret --user cloud-user --file key.pub --force myvm   which a running guest has after a restart")]
pub(super) struct Args {
    #[command(flatten)]
    whose: Whose,
    #[command(flatten)]
    key: key::Source,
    /// Make a new Secret for the key; a machine that runs has it after a restart, for which --force is needed.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    create_secret: bool,
    /// Add the key to a Secret that the machine has; with --force also to one that is not its own.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    #[arg(conflicts_with = "create_secret")]
    update_secret: bool,
}

pub(super) async fn run(globals: &Globals, args: Args) -> Outcome {
    let key = args.key.read()?;
    let user = &args.whose.user;
    if !is_user(user) {
        return Err(Fault::usage(format!("{user:?} is not the name of a user")));
    }
    let machine = Machine::read(globals, &args.whose.name).await?;
    let known = secret::with_keys(&machine.vm, user);
    if args.create_secret || (!args.update_secret && known.is_empty()) {
        create(&machine, &args, &key).await?;
    } else {
        update(&machine, &args, &known, &key).await?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn update(machine: &Machine, args: &Args, known: &[&str], key: &str) -> Result<(), Fault> {
    if known.is_empty() {
        return Err(Fault::new(format!("no secrets specified for user: {}", args.whose.user)));
    }
    let name = secret::one(&args.whose.secret, known)?;
    let secrets = machine.secrets();
    let held = secrets.get(name).await.map_err(|error| Fault::api(format!("cannot read secret {name:?}"), &error))?;
    let values: Vec<_> =
        held.data.iter().flatten().map(|(_, value)| String::from_utf8_lossy(&value.0).into_owned()).collect();
    if key::has_all(&values.join("\n"), key) {
        return output::say(&format!("Secret {name:?} already contains this SSH key."));
    }
    if !args.whose.force {
        secret::owned(&held.metadata, &machine.vm)?;
    }
    let data = BTreeMap::from([(secret::fresh(PREFIX), ByteString(key.as_bytes().to_vec()))]);
    let patch = Patch::Merge(json!({ "data": data }));
    let patched = secrets.patch(name, &PatchParams::default(), &patch).await;
    patched.map_err(|error| Fault::api(format!("cannot change secret {name:?}"), &error))?;
    output::say(&format!("Successfully added the key to secret {name:?}"))
}

async fn create(machine: &Machine, args: &Args, key: &str) -> Result<(), Fault> {
    let name = machine.name();
    if !args.whose.force {
        let vmis: Api<VirtualMachineInstance> =
            Api::namespaced(machine.cluster.client.clone(), &machine.cluster.namespace);
        let vmi = vmis.get_opt(name).await;
        let what = format!("cannot read VMI {}/{name}", machine.cluster.namespace);
        if vmi.map_err(|error| Fault::api(what, &error))?.is_some() {
            return Err(Fault::new(format!(
                "virtual machine {name} is running. Use --force flag to update a running VM, it will take effect after restart"
            )));
        }
    }
    let secrets = machine.secrets();
    let wanted = manifest(&machine.vm, &args.whose.secret, key)?;
    let made = secrets.create(&PostParams::default(), &wanted).await;
    let made = made.map_err(|error| Fault::api("cannot create a secret for the key", &error))?;
    let secret = made.metadata.name.unwrap_or_default();
    if let Err(fault) = assign(machine, &secret, &args.whose.user).await {
        // Nobody has it.
        let _ = secrets.delete(&secret, &DeleteParams::default()).await;
        return Err(fault);
    }
    output::say(&format!("Successfully added the key to secret {secret:?}, which is new"))
}

/// A Secret that goes with the machine.
fn manifest(vm: &VirtualMachine, name: &str, key: &str) -> Result<Secret, Fault> {
    let (machine, uid) = (&vm.metadata.name, &vm.metadata.uid);
    let mut metadata = json!({ "ownerReferences": [{
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": machine, "uid": uid, "controller": true,
    }] });
    if name.is_empty() {
        metadata["generateName"] = json!(format!("{}-{PREFIX}", machine.as_deref().unwrap_or_default()));
    } else {
        metadata["name"] = json!(name);
    }
    let data = BTreeMap::from([(secret::fresh(PREFIX), ByteString(key.as_bytes().to_vec()))]);
    let manifest = json!({ "metadata": metadata, "data": data });
    serde_json::from_value(manifest).map_err(|error| Fault::new("cannot make a secret for the key").because(error))
}

/// Has the machine's template name the Secret, for this user.
async fn assign(machine: &Machine, secret: &str, user: &str) -> Result<(), Fault> {
    let (vms, name) = (machine.vms(), machine.name());
    let what = format!("cannot change VM {}/{name}", machine.cluster.namespace);
    let mut vm = machine.vm.clone();
    for _ in 1..TRIES {
        match vms.patch(name, &PatchParams::default(), &Patch::Merge(assigned(&vm, secret, user))).await {
            Ok(_) => return Ok(()),
            Err(kube::Error::Api(status)) if status.code == 409 => vm = super::read(&machine.cluster, name).await?,
            Err(error) => return Err(Fault::api(what, &error)),
        }
    }
    let last = vms.patch(name, &PatchParams::default(), &Patch::Merge(assigned(&vm, secret, user))).await;
    last.map(drop).map_err(|error| Fault::api(what, &error))
}

/// The change of the machine, as long as nobody else changes it.
fn assigned(vm: &VirtualMachine, secret: &str, user: &str) -> Value {
    let known = vm.spec.template.spec.as_deref().map(|spec| spec.access_credentials.clone()).unwrap_or_default();
    let mut credentials: Vec<Value> = known.iter().map(|credential| json!(credential)).collect();
    credentials.push(json!({ "sshPublicKey": {
        "source": { "secret": { "secretName": secret } },
        "propagationMethod": { "qemuGuestAgent": { "users": [user] } },
    } }));
    json!({
        "metadata": { "resourceVersion": vm.metadata.resource_version },
        "spec": { "template": { "spec": { "accessCredentials": credentials } } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vm() -> VirtualMachine {
        let seed = json!({ "sshPublicKey": {
            "source": { "secret": { "secretName": "s" } }, "propagationMethod": { "noCloud": {} },
        } });
        serde_json::from_value(json!({
            "metadata": { "name": "vm", "uid": "u", "resourceVersion": "7" },
            "spec": { "template": { "spec": { "domain": { "devices": {} }, "accessCredentials": [seed] } } },
        }))
        .unwrap()
    }

    #[test]
    fn a_secret_that_is_made_is_the_machines_own() {
        let made = manifest(&vm(), "", "ssh-rsa AAA").unwrap();
        secret::owned(&made.metadata, &vm()).unwrap();
        assert_eq!(made.metadata.generate_name.as_deref(), Some("vm-ssh-key-"));
        let values: Vec<_> = made.data.unwrap().into_values().map(|value| value.0).collect();
        assert_eq!(values, [b"ssh-rsa AAA"]);
        assert_eq!(manifest(&vm(), "mine", "k").unwrap().metadata.name.as_deref(), Some("mine"));
    }

    #[test]
    fn what_the_machine_has_stays() {
        let change = assigned(&vm(), "new", "eve");
        let list = &change["spec"]["template"]["spec"]["accessCredentials"];
        assert_eq!(list[0]["sshPublicKey"]["propagationMethod"], json!({ "noCloud": {} }));
        assert_eq!(list[1]["sshPublicKey"]["source"]["secret"]["secretName"], "new");
        assert_eq!(list[1]["sshPublicKey"]["propagationMethod"]["qemuGuestAgent"]["users"], json!(["eve"]));
        assert_eq!(change["metadata"]["resourceVersion"], "7");
    }
}
