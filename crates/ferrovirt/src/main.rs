//! The one program of the product, virt-launcher excepted: a table from names to what they run, looked up by the name it is called by, then by
//! its first argument.

mod arguments;
mod at_rest;
mod available;
mod backup;
mod bundle;
mod cluster;
mod components;
mod control_plane;
mod csi_controller;
mod demo;
mod deploy;
mod down;
mod failure;
mod images;
mod importer;
mod install;
mod logs;
mod node;
mod node_commands;
mod nodes;
mod operators;
mod plugins;
mod power;
mod process;
mod service_route;
mod simulated;
mod state;
mod status;
mod storage;
mod terminal;
mod up;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;

/// What a name runs: it gets the arguments after the name.
type Program = fn(Vec<OsString>) -> anyhow::Result<()>;

/// Name, what it runs, what it is for (empty for names that are not typed by people).
const PROGRAMS: &[(&str, Program, &str)] = &[
    ("up", up::main, "start the cluster on this machine, or repair it"),
    ("down", down::main, "stop the cluster and leave nothing behind on the host"),
    ("status", status::main, "say what runs, where, and how much memory it takes"),
    ("kubeconfig", state::print_kubeconfig, "print the path of the kubeconfig"),
    ("backup", backup::main, "save the cluster's objects and keys to a file"),
    ("restore", backup::restore::main, "replace the cluster's state by a backup"),
    ("demo", demo::main, "create the demo VM and say what to do with it"),
    ("bundle", bundle::main, "write all images, the manifests and the programs to one file"),
    ("images", images::main, "build, list, load or push the container images"),
    ("install", install::main, "install virtual machine support on the cluster of the current kubeconfig"),
    ("uninstall", install::uninstall::main, "take virtual machine support away from that cluster"),
    ("logs", logs::main, "print the log of a part of the cluster"),
    ("control-plane", control_plane::main, "run the API server and the built-in controllers in the foreground"),
    ("node", node_commands::main, "list, add, remove, start, stop, kill, cut off or enter the nodes"),
    ("installer", install::hook::main, ""),
    (operators::PROGRAM, components::operators, ""),
    ("hyperconverged-cluster-operator", components::hco_operator, ""),
    ("hyperconverged-cluster-webhook", components::hco_webhook, ""),
    ("hyperconverged-cluster-cli-download", components::cli_download, ""),
    ("virt-network-resources-injector", components::network_resources_injector, ""),
    ("cluster-network-addons-operator", components::network_addons_operator, ""),
    ("kubemacpool", components::kubemacpool, ""),
    ("multus-daemon", components::multus_daemon, ""),
    ("bridge-marker", components::bridge_marker, ""),
    ("kubevirt-ipam-controller", components::ipam_controller, ""),
    ("macvtap-device-plugin", components::macvtap_device_plugin, ""),
    ("secondary-dns", components::secondary_dns, ""),
    ("tekton-task", components::tekton_task, ""),
    ("ssp-operator", components::ssp_operator, ""),
    ("template-validator", components::template_validator, ""),
    ("vm-console-proxy", components::vm_console_proxy, ""),
    ("virt-operator", components::virt_operator, ""),
    ("virt-api", components::virt_api, ""),
    ("cdi-controller", components::cdi_controller, ""),
    ("virt-controller", components::virt_controller, ""),
    ("virt-handler", components::virt_handler, ""),
    ("virt-exportserver", components::virt_exportserver, ""),
    ("virt-exportproxy", components::virt_exportproxy, ""),
    ("hostpath-provisioner-operator", components::hostpath_operator, ""),
    ("hostpath-csi", components::hostpath_csi, ""),
    ("cdi-operator", components::cdi_operator, ""),
    ("cdi-apiserver", components::cdi_apiserver, ""),
    ("hostpath-provisioner", components::hostpath_legacy, ""),
    ("hostpath-pool", components::hostpath_pool, ""),
    ("csi-controller", components::csi_controller, ""),
    (simulated::PROGRAM, simulated::main, ""),
    ("cdi-importer", components::cdi_importer, ""),
    ("cdi-poller", components::cdi_poller, ""),
    ("ovirt-populator", components::ovirt_populator, ""),
    ("openstack-populator", components::openstack_populator, ""),
    ("cdi-uploadserver", components::cdi_uploadserver, ""),
    ("cdi-cloner", components::cdi_cloner, ""),
    ("cdi-uploadproxy", components::cdi_uploadproxy, ""),
    (kubelet::node::start::INIT, node::init, ""),
    (kubelet::node::init::AGENT, node::agent, ""),
];

fn main() -> ExitCode {
    sys::heap::bound();
    // One provider for every TLS connection of this process; a second installation is refused, which is as good.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut words = std::env::args_os();
    let called = words.next().unwrap_or_default();
    let mut words: Vec<OsString> = words.collect();
    let by_name = Path::new(&called).file_name().and_then(OsStr::to_str).and_then(find);
    let program = match by_name {
        Some(program) => program,
        None => {
            let first = words.first().and_then(|word| word.to_str()).unwrap_or("help").to_owned();
            if matches!(first.as_str(), "help" | "--help" | "-h") {
                terminal::say(&usage());
                return ExitCode::SUCCESS;
            }
            if matches!(first.as_str(), "version" | "--version" | "-V") {
                terminal::say(&format!("ferrovirt {}", state::VERSION));
                return ExitCode::SUCCESS;
            }
            let Some(program) = find(&first) else {
                terminal::complain(&format!("error: {first:?} is not a command\nhint: `ferrovirt help` lists them"));
                return ExitCode::from(2);
            };
            words.remove(0);
            program
        }
    };
    match program(words) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

fn find(name: &str) -> Option<Program> {
    PROGRAMS.iter().find(|(known, ..)| *known == name).map(|(_, program, _)| *program)
}

fn usage() -> String {
    let mut text = "Virtual machines next to containers, on one machine, with the Kubernetes and KubeVirt APIs.\n\n\
                    usage: ferrovirt COMMAND [ARGUMENTS]\n\n"
        .to_owned();
    for (name, _, purpose) in PROGRAMS.iter().filter(|(.., purpose)| !purpose.is_empty()) {
        text.push_str(&format!("  {name:<16} {purpose}\n"));
    }
    text.push_str("  version          print the version\n\n`ferrovirt COMMAND --help` says more.");
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_the_help_hides_internals() {
        for (index, (name, ..)) in PROGRAMS.iter().enumerate() {
            assert!(PROGRAMS[index + 1..].iter().all(|(other, ..)| other != name), "{name} twice");
        }
        let text = usage();
        assert!(text.contains("\n  up ") && !text.contains("node-init"), "{text}");
    }

    #[test]
    fn the_image_calls_programs_that_there_are() {
        for name in ::images::COMPONENTS {
            assert!(find(name).is_some(), "{name}");
        }
        assert!(::images::COMPONENTS.contains(&operators::PROGRAM));
    }
}
