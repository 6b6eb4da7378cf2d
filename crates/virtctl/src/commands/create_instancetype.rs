//! `virtctl create instancetype`: the manifest of an instance type from options. No cluster is asked.

use meta::quantity::Amount;
use serde_json::{Value, json};

use super::create_named::Named;
use super::create_vm::suffix;
use super::document;
use super::params::{Params, wrong};
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};

/// Print the manifest of an instance type.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl create instancetype --cpu 2 --memory 4Gi | kubectl create -f -
  virtctl create instancetype --name small --namespaced --cpu 1 --memory 1Gi -n my-ns
  virtctl create instancetype --cpu 8 --memory 32Gi --iothreadspolicy auto --gpu name:gpu1,devicename:example.com/gpu")]
pub(crate) struct Args {
    #[command(flatten)]
    named: Named,
    /// Number of virtual processors.
    #[arg(long)]
    cpu: u32,
    /// Memory of the guest.
    #[arg(long)]
    memory: String,
    /// A GPU: name:NAME,devicename:RESOURCE; may be repeated.
    #[arg(long, value_name = "PARAMS")]
    gpu: Vec<String>,
    /// A device of the host: name:NAME,devicename:RESOURCE; may be repeated.
    #[arg(long, value_name = "PARAMS")]
    hostdevice: Vec<String>,
    /// Which threads serve the disks: auto or shared.
    #[arg(long, value_name = "POLICY")]
    iothreadspolicy: Option<String>,
}

pub(crate) fn run(globals: &Globals, args: &Args) -> Outcome {
    document::print(&manifest(args, globals.namespace.as_deref(), &mut suffix)?, "yaml")
}

fn manifest(args: &Args, namespace: Option<&str>, suffix: &mut dyn FnMut() -> String) -> Result<Value, Fault> {
    if args.cpu == 0 {
        return Err(wrong("cpu", "a guest has one processor at least"));
    }
    let memory =
        args.memory.parse::<Amount>().map_err(|error| wrong("memory", format!("{:?}: {error}", args.memory)))?;
    if memory <= Amount::ZERO {
        return Err(wrong("memory", format!("{:?} is no memory", args.memory)));
    }
    let mut spec = json!({ "cpu": { "guest": args.cpu }, "memory": { "guest": args.memory } });
    for (field, flag, given) in [("gpus", "gpu", &args.gpu), ("hostDevices", "hostdevice", &args.hostdevice)] {
        if !given.is_empty() {
            spec[field] = given.iter().map(|text| device(flag, text)).collect::<Result<_, _>>()?;
        }
    }
    if let Some(policy) = &args.iothreadspolicy {
        let known = ["auto", "shared"];
        if !known.contains(&policy.as_str()) {
            let why = format!("invalid policy \"{policy}\", supported values are: {}", known.join(", "));
            return Err(wrong("iothreadspolicy", why));
        }
        spec["ioThreadsPolicy"] = json!(policy);
    }
    Ok(args.named.object("Instancetype", namespace, &spec, suffix))
}

fn device(flag: &str, text: &str) -> Result<Value, Fault> {
    let params = Params::parse(flag, text)?;
    params.only(&["name", "devicename"])?;
    let name = params.need("name", "name must be specified")?;
    Ok(json!({ "name": name, "deviceName": params.need("devicename", "devicename must be specified")? }))
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use insta::assert_snapshot;

    use super::*;
    use crate::cli::{Cli, Command};

    fn build(options: &str, namespace: Option<&str>) -> Result<Value, Fault> {
        let words = ["virtctl", "create", "instancetype"].into_iter().chain(options.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Create(create) => manifest(&create.into_instancetype(), namespace, &mut || "abcde".to_owned()),
            other => panic!("{other:?}"),
        }
    }

    #[track_caller]
    fn yaml(options: &str, namespace: Option<&str>) -> String {
        serde_saphyr::to_string(&build(options, namespace).unwrap()).unwrap()
    }

    #[test]
    fn it_is_of_the_cluster_unless_it_is_to_be_of_a_namespace() {
        assert_snapshot!(yaml("--cpu 2 --memory 4Gi", Some("here")), @r"
        apiVersion: instancetype.kubevirt.io/v1beta1
        kind: VirtualMachineClusterInstancetype
        metadata:
          name: instancetype-abcde
        spec:
          cpu:
            guest: 2
          memory:
            guest: 4Gi
        ");
        assert_snapshot!(yaml("--cpu 2 --memory 4Gi --name small --namespaced", Some("here")), @r"
        apiVersion: instancetype.kubevirt.io/v1beta1
        kind: VirtualMachineInstancetype
        metadata:
          name: small
          namespace: here
        spec:
          cpu:
            guest: 2
          memory:
            guest: 4Gi
        ");
    }

    #[test]
    fn every_option() {
        let options = "--cpu 8 --memory 32Gi --iothreadspolicy auto --gpu name:a,devicename:example.com/gpu \
                       --gpu name:b,devicename:example.com/gpu --hostdevice devicename:example.com/nic,name:c --name big";
        assert_snapshot!(yaml(options, None), @r"
        apiVersion: instancetype.kubevirt.io/v1beta1
        kind: VirtualMachineClusterInstancetype
        metadata:
          name: big
        spec:
          cpu:
            guest: 8
          gpus:
          - deviceName: example.com/gpu
            name: a
          - deviceName: example.com/gpu
            name: b
          hostDevices:
          - deviceName: example.com/nic
            name: c
          ioThreadsPolicy: auto
          memory:
            guest: 32Gi
        ");
    }

    #[test]
    fn mistakes() {
        #[track_caller]
        fn check(options: &str, expect: &str) {
            let fault = build(options, None).unwrap_err().to_string();
            assert_eq!(fault.lines().next().unwrap(), format!("error: failed to parse {expect}"));
        }
        check("--cpu 0 --memory 1Gi", "\"--cpu\" flag: a guest has one processor at least");
        check("--cpu 1 --memory 0", "\"--memory\" flag: \"0\" is no memory");
        let policy = "\"--iothreadspolicy\" flag: invalid policy \"many\", supported values are: auto, shared";
        check("--cpu 1 --memory 1Gi --iothreadspolicy many", policy);
        check("--cpu 1 --memory 1Gi --gpu name:a", "\"--gpu\" flag: devicename must be specified");
        check("--cpu 1 --memory 1Gi --hostdevice devicename:a", "\"--hostdevice\" flag: name must be specified");
        check("--cpu 1 --memory 1Gi --gpu name:a,device:b", "\"--gpu\" flag: unknown param(s): device:b");
        check("--cpu 1 --memory 1Gi --gpu a", "\"--gpu\" flag: params need to have at least one colon: a");
        let memory = build("--cpu 1 --memory much", None).unwrap_err().to_string();
        assert!(
            memory.starts_with("error: failed to parse \"--memory\" flag: \"much\": quantities must match"),
            "{memory}"
        );
    }

    #[test]
    fn processors_and_memory_are_needed() {
        for options in ["--cpu 1", "--memory 1Gi", ""] {
            let words = ["virtctl", "create", "instancetype"].into_iter().chain(options.split_whitespace());
            assert!(Cli::try_parse_from(words).is_err(), "{options}");
        }
    }
}
