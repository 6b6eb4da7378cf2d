//! `virtctl create clone`: the manifest of a clone from options. No cluster is asked.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use super::create_vm::suffix;
use super::document;
use super::params::wrong;
use crate::connect::Globals;
use crate::fault::{Fault, Outcome};

/// Print the manifest of a clone of a virtual machine.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_help = "\
Examples:
  virtctl create clone --source-name my-vm --target-name twin | kubectl create -f -
  virtctl create clone --source-name my-snapshot --source-type snapshot --target-name twin
  virtctl create clone --source-name my-vm --label-filter '*' --label-filter '!some/key'
  virtctl create clone --source-name my-vm --new-mac-address default:02:00:00:00:00:07")]
pub(crate) struct Args {
    /// Name of the clone [default: random].
    #[arg(long)]
    name: Option<String>,
    /// Name of what is cloned.
    #[arg(long)]
    source_name: String,
    /// Kind of what is cloned: vm or snapshot.
    #[arg(long, default_value = "vm")]
    source_type: String,
    /// Name of the new machine [default: chosen by the cluster].
    #[arg(long)]
    target_name: Option<String>,
    /// Kind of what is made: vm.
    #[arg(long, default_value = "vm")]
    target_type: String,
    /// Labels that the new machine has, too; with ! before it, those that it has not. May be given several times.
    #[arg(long, value_name = "FILTER")]
    label_filter: Vec<String>,
    /// The same for annotations.
    #[arg(long, value_name = "FILTER")]
    annotation_filter: Vec<String>,
    /// The same for labels of its instance.
    #[arg(long, value_name = "FILTER")]
    template_label_filter: Vec<String>,
    /// The same for annotations of its instance.
    #[arg(long, value_name = "FILTER")]
    template_annotation_filter: Vec<String>,
    /// MAC address of an interface, as INTERFACE:ADDRESS. May be given several times.
    #[arg(long, value_name = "INTERFACE:ADDRESS")]
    new_mac_address: Vec<String>,
    /// Serial number in the SMBIOS.
    #[arg(long, value_name = "SERIAL")]
    new_smbios_serial: Option<String>,
}

pub(crate) fn run(globals: &Globals, args: &Args) -> Outcome {
    let manifest = manifest(args, globals.namespace.as_deref(), &mut suffix)?;
    document::print(&manifest, "yaml")
}

fn machine(kind: &str) -> bool {
    matches!(kind, "vm" | "VM" | "VirtualMachine" | "virtualmachine")
}

fn snapshot(kind: &str) -> bool {
    matches!(kind, "snapshot" | "VirtualMachineSnapshot" | "vmsnapshot" | "VMSnapshot")
}

fn manifest(args: &Args, namespace: Option<&str>, suffix: &mut dyn FnMut() -> String) -> Result<Value, Fault> {
    if args.source_name.is_empty() {
        return Err(wrong("source-name", "source name must not be empty"));
    }
    let source = match args.source_type.as_str() {
        kind if machine(kind) => json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine" }),
        kind if snapshot(kind) => json!({ "apiGroup": "snapshot.kubevirt.io", "kind": "VirtualMachineSnapshot" }),
        kind => {
            let why = format!("source type {kind} is not supported. Supported types: vm, vmsnapshot");
            return Err(wrong("source-type", why));
        }
    };
    if !machine(&args.target_type) {
        let why = format!("target type {} is not supported. Supported types: vm", args.target_type);
        return Err(wrong("target-type", why));
    }
    let named = |mut object: Value, name: &str| {
        object["name"] = json!(name);
        object
    };
    let target = json!({ "apiGroup": "kubevirt.io", "kind": "VirtualMachine" });
    let mut spec = json!({
        "source": named(source, &args.source_name),
        "target": named(target, args.target_name.as_deref().unwrap_or_default()),
    });
    let mut template = json!({});
    for (place, key, filters) in
        [(&mut spec, "labelFilters", &args.label_filter), (&mut template, "labelFilters", &args.template_label_filter)]
    {
        if !filters.is_empty() {
            place[key] = json!(filters);
        }
    }
    for (place, key, filters) in [
        (&mut spec, "annotationFilters", &args.annotation_filter),
        (&mut template, "annotationFilters", &args.template_annotation_filter),
    ] {
        if !filters.is_empty() {
            place[key] = json!(filters);
        }
    }
    if template != json!({}) {
        spec["template"] = template;
    }
    if !args.new_mac_address.is_empty() {
        spec["newMacAddresses"] = json!(addresses(&args.new_mac_address)?);
    }
    if let Some(serial) = &args.new_smbios_serial {
        spec["newSMBiosSerial"] = json!(serial);
    }
    let mut metadata = json!({ "name": args.name.clone().unwrap_or_else(|| format!("clone-{}", suffix())) });
    if let Some(namespace) = namespace {
        metadata["namespace"] = json!(namespace);
    }
    let version = "clone.kubevirt.io/v1beta1";
    Ok(json!({ "apiVersion": version, "kind": "VirtualMachineClone", "metadata": metadata, "spec": spec }))
}

fn addresses(given: &[String]) -> Result<BTreeMap<&str, &str>, Fault> {
    let parse = |text: &'_ String| -> Result<(), String> {
        match text.split_once(':') {
            None => Err(format!("{text} is invalid: write it like default:02:00:00:00:00:07")),
            Some(("", _)) => Err(format!("{text} has empty interface name")),
            Some((_, "")) => Err(format!("{text} has empty address name")),
            Some(_) => Ok(()),
        }
    };
    given.iter().try_for_each(parse).map_err(|why| wrong("new-mac-address", why))?;
    Ok(given.iter().filter_map(|text| text.split_once(':')).collect())
}

#[cfg(test)]
mod tests {
    use clap::Parser;
    use insta::assert_snapshot;

    use super::*;
    use crate::cli::{Cli, Command};

    fn build(options: &str) -> Result<Value, Fault> {
        let words = ["virtctl", "create", "clone"].into_iter().chain(options.split_whitespace());
        match Cli::try_parse_from(words).unwrap().command {
            Command::Create(create) => manifest(&create.into_clone(), None, &mut || "abcde".to_owned()),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn every_option() {
        let options = "--name copy --source-name s --source-type vmsnapshot --target-name twin --label-filter a \
                       --label-filter !b --template-annotation-filter c --new-mac-address default:02:00:00:00:00:07 \
                       --new-smbios-serial x";
        assert_snapshot!(serde_saphyr::to_string(&build(options).unwrap()).unwrap(), @r#"
        apiVersion: clone.kubevirt.io/v1beta1
        kind: VirtualMachineClone
        metadata:
          name: copy
        spec:
          labelFilters:
          - a
          - "!b"
          newMacAddresses:
            default: 02:00:00:00:00:07
          newSMBiosSerial: x
          source:
            apiGroup: snapshot.kubevirt.io
            kind: VirtualMachineSnapshot
            name: s
          target:
            apiGroup: kubevirt.io
            kind: VirtualMachine
            name: twin
          template:
            annotationFilters:
            - c
        "#);
    }

    #[test]
    fn mistakes() {
        #[track_caller]
        fn check(options: &str, expect: &str) {
            let fault = build(options).unwrap_err().to_string();
            assert!(fault.lines().next().unwrap().contains(expect), "{fault}");
        }
        check("--source-name s --source-type pod", "source type pod is not supported. Supported types: vm, vmsnapshot");
        check("--source-name s --target-type pod", "target type pod is not supported. Supported types: vm");
        check("--source-name s --new-mac-address default", "write it like default:02:00:00:00:00:07");
        check("--source-name s --new-mac-address :02", ":02 has empty interface name");
    }
}
