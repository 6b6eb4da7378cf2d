//! `virtctl create preference`: the manifest of a preference from options. No cluster is asked.

use serde_json::{Value, json};

use super::create_named::Named;
use super::create_vm::suffix;
use super::document;
use super::params::wrong;
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};

/// What the processors of an instance type may become.
const TOPOLOGIES: [&str; 5] = ["sockets", "cores", "threads", "spread", "any"];

/// Print the manifest of a preference.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl create preference --cpu-topology cores | kubectl create -f -
  virtctl create preference --name fast --namespaced --volume-storage-class nvme -n my-ns
  virtctl create preference --machine-type q35")]
pub(crate) struct Args {
    #[command(flatten)]
    named: Named,
    /// Storage class of disks that name none.
    #[arg(long, value_name = "CLASS")]
    volume_storage_class: Option<String>,
    /// Machine type of the guest.
    #[arg(long, value_name = "TYPE")]
    machine_type: Option<String>,
    /// What the processors of an instance type are: sockets, cores, threads, spread or any.
    #[arg(long, value_name = "TOPOLOGY")]
    cpu_topology: Option<String>,
}

pub(crate) fn run(globals: &Globals, args: &Args) -> Outcome {
    document::print(&manifest(args, globals.namespace.as_deref(), &mut suffix)?, "yaml")
}

fn manifest(args: &Args, namespace: Option<&str>, suffix: &mut dyn FnMut() -> String) -> Result<Value, Fault> {
    let mut spec = json!({});
    if let Some(class) = &args.volume_storage_class {
        spec["volumes"] = json!({ "preferredStorageClassName": class });
    }
    if let Some(machine) = &args.machine_type {
        spec["machine"] = json!({ "preferredMachineType": machine });
    }
    if let Some(topology) = &args.cpu_topology {
        if !TOPOLOGIES.contains(&topology.as_str()) {
            let why = format!("invalid topology \"{topology}\", supported values are: {}", TOPOLOGIES.join(", "));
            return Err(wrong("cpu-topology", why));
        }
        spec["cpu"] = json!({ "preferredCPUTopology": topology });
    }
    Ok(args.named.object("Preference", namespace, &spec, suffix))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use insta::assert_snapshot;

    use super::*;
    use crate::cli::{Cli, Command};

    fn build(options: &str) -> Result<Value, Fault> {
        let words = ["virtctl", "create", "preference"].into_iter().chain(options.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Create(create) => manifest(&create.into_preference(), Some("here"), &mut || "abcde".to_owned()),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn yaml(options: &str) -> String {
        serde_saphyr::to_string(&build(options).unwrap()).unwrap()
    }

    #[test]
    fn it_prefers_nothing_unless_it_is_told() {
        assert_snapshot!(yaml(""), @r"
        apiVersion: instancetype.kubevirt.io/v1beta1
        kind: VirtualMachineClusterPreference
        metadata:
          name: preference-abcde
        spec: {}
        ");
    }

    #[test]
    fn every_option() {
        let options = "--name fast --namespaced --volume-storage-class nvme --machine-type q35 --cpu-topology spread";
        assert_snapshot!(yaml(options), @r"
        apiVersion: instancetype.kubevirt.io/v1beta1
        kind: VirtualMachinePreference
        metadata:
          name: fast
          namespace: here
        spec:
          cpu:
            preferredCPUTopology: spread
          machine:
            preferredMachineType: q35
          volumes:
            preferredStorageClassName: nvme
        ");
    }

    #[test]
    fn a_topology_that_is_none_is_refused() {
        let fault = build("--cpu-topology dies").unwrap_err().to_string();
        let expect = "error: failed to parse \"--cpu-topology\" flag: invalid topology \"dies\", supported values are: \
                      sockets, cores, threads, spread, any";
        assert_eq!(fault.lines().next().unwrap(), expect);
    }
}
