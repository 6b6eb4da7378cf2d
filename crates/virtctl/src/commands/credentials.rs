//! `virtctl credentials`: SSH keys and passwords that a guest's agent is given, changed where they are kept, in Secrets that the
//! virtual machine names. Rights are the user's own.

mod add_ssh_key;
mod key;
mod remove_ssh_key;
mod secret;
mod set_password;

use api::kubevirt::v1::VirtualMachine;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;

use super::request;
use crate::connect::{Cluster, Globals};
use crate::fault::{Fault, Outcome};
use crate::target::Kind;

/// Change SSH keys and passwords of a virtual machine.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    #[command(subcommand)]
    what: What,
}

#[derive(Debug, clap::Subcommand)]
enum What {
    /// Give a user of the guest an SSH key.
    AddSshKey(add_ssh_key::Args),
    /// Take an SSH key from a user of the guest.
    RemoveSshKey(remove_ssh_key::Args),
    /// Set the password of a user of the guest.
    SetPassword(set_password::Args),
}

/// Whose credentials, and where they are.
#[derive(Clone, Debug, clap::Args)]
struct Whose {
    /// Name of the virtual machine.
    #[arg(value_name = "VM")]
    name: String,
    /// Name of the guest's user.
    #[arg(long, short, value_name = "USER")]
    user: String,
    /// Name of the Secret, where the machine has more than one for the user.
    #[arg(long, value_name = "SECRET", default_value = "")]
    secret: String,
    /// Change the Secret even if it is not the machine's own.
    #[arg(long, num_args = 0..=1, default_missing_value = "true", require_equals = true, default_value_t = false)]
    force: bool,
}

pub(crate) async fn run(globals: &Globals, args: Args) -> Outcome {
    // Behind these commands, `--user` is the guest's user and no user of the kubeconfig.
    let globals = Globals { user: None, ..globals.clone() };
    match args.what {
        What::AddSshKey(args) => add_ssh_key::run(&globals, args).await,
        What::RemoveSshKey(args) => remove_ssh_key::run(&globals, args).await,
        What::SetPassword(args) => set_password::run(&globals, args).await,
    }
}

/// A virtual machine, and the way to what it has.
struct Machine {
    cluster: Cluster,
    vm: VirtualMachine,
}

impl Machine {
    async fn read(globals: &Globals, name: &str) -> Result<Self, Fault> {
        let mut cluster = globals.cluster().await?;
        let (namespace, name) = request::named(&cluster, Kind::Vm, name)?;
        cluster.namespace = namespace;
        let vm = read(&cluster, &name).await?;
        Ok(Self { cluster, vm })
    }

    fn name(&self) -> &str {
        self.vm.metadata.name.as_deref().unwrap_or_default()
    }

    fn vms(&self) -> Api<VirtualMachine> {
        Api::namespaced(self.cluster.client.clone(), &self.cluster.namespace)
    }

    fn secrets(&self) -> Api<Secret> {
        Api::namespaced(self.cluster.client.clone(), &self.cluster.namespace)
    }
}

async fn read(cluster: &Cluster, name: &str) -> Result<VirtualMachine, Fault> {
    let api: Api<VirtualMachine> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let what = format!("cannot read VM {}/{name}", cluster.namespace);
    api.get(name).await.map_err(|error| Fault::api(what, &error))
}
