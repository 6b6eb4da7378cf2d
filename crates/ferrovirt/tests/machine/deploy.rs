//! A cluster that knows nothing of virtual machines gets the product by `kubectl` and `deploy/` alone, in the README's order,
//! runs a machine with a disk, and is afterwards as it was.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::backup::kubectl;
use super::{Bare, run_installed};

pub(crate) const PRODUCT: &str = "kubevirt-hyperconverged";
const KERNEL_IMAGE: &str = "ferrovirt.local/guest-kernel:v0.1.0";
/// The operators, which are waited for, and then what they act on.
const INSTALL: [&[&str]; 2] = [&["ferrovirt-operators.yaml"], &["hostpath-cr.yaml", "hco-cr.yaml"]];

/// Each operator after what it acts on.
const REMOVE: [&str; 3] = ["hco-cr.yaml", "hostpath-cr.yaml", "ferrovirt-operators.yaml"];
/// They come and go by themselves.
const PASSING: [&str; 4] = ["componentstatuses", "ipaddresses.", "certificatesigningrequests.", "events."];
const PATIENCE: Duration = Duration::from_secs(120);

/// A cluster of which nothing is known but its kubeconfig.
pub(crate) struct Cluster<'a>(pub(crate) &'a Path);

impl Cluster<'_> {
    #[track_caller]
    pub(crate) fn run(&self, words: &[&str]) -> String {
        kubectl(self.0, words).unwrap_or_else(|error| panic!("kubectl {words:?}: {error}"))
    }

    /// The names of the objects of a kind.
    pub(crate) fn names(&self, kind: &str) -> Vec<String> {
        self.run(&["get", kind, "-A", "-o", "name"]).lines().map(str::to_owned).collect()
    }

    /// Waits until the last object of a kind is gone.
    #[track_caller]
    pub(crate) fn loses(&self, kind: &str) {
        let begin = Instant::now();
        while begin.elapsed() < PATIENCE {
            if self.names(kind).is_empty() {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
        panic!("{:?} did not go", self.names(kind));
    }

    /// Whatever the product could leave behind: what is in no namespace, the namespaces, leases, and what is written on nodes.
    pub(crate) fn objects(&self) -> BTreeSet<String> {
        let kinds = self.run(&["api-resources", "--verbs=list", "--namespaced=false", "-o", "name"]);
        let kinds: Vec<_> =
            kinds.lines().filter(|kind| !PASSING.iter().any(|passing| kind.starts_with(passing))).collect();
        let mut found: BTreeSet<String> =
            [kinds.join(",").as_str(), "lease"].iter().flat_map(|kind| self.names(kind)).collect();
        found.extend(marks(&self.node()).into_keys().map(|key| format!("node1: {key}")));
        found
    }

    /// Waits for the end of the namespace of the boot sources: who deletes the product with a tool of Kubernetes does not wait for what
    /// goes with it.
    pub(crate) fn lets_namespaces_go(&self) {
        self.run(&["wait", "namespace/kubevirt-os-images", "--for", "delete", "--timeout", "120s"]);
    }

    /// Of the product nothing is left; these were the objects before it came.
    #[track_caller]
    pub(crate) fn is_as_before(&self, before: &BTreeSet<String>) {
        let now = self.objects();
        let left: Vec<_> = now.difference(before).collect();
        assert!(left.is_empty(), "left: {left:?}");
        let lost: Vec<_> = before.difference(&now).collect();
        assert!(lost.is_empty(), "taken away: {lost:?}");
    }

    fn node(&self) -> Value {
        serde_json::from_str(&self.run(&["get", "node", "node1", "-o", "json"])).unwrap()
    }
}

/// What components write on a node's object.
fn marks(node: &Value) -> BTreeMap<String, String> {
    let all = ["labels", "annotations"].into_iter().filter_map(|kind| node["metadata"][kind].as_object()).flatten();
    all.map(|(key, value)| (key.clone(), value.to_string())).filter(|(key, _)| key.contains("kubevirt.io")).collect()
}

/// A machine with a disk.
pub(crate) fn machine() -> Value {
    let kernel = json!({
        "kernelArgs": "console=ttyS0 quiet mitigations=off",
        "container": { "image": KERNEL_IMAGE, "kernelPath": "/boot/vmlinuz", "initrdPath": "/boot/initrd" },
    });
    json!({
        "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "metadata": { "name": "first" },
        "spec": {
            "runStrategy": "Always",
            "dataVolumeTemplates": [{ "metadata": { "name": "disk" }, "spec": {
                "source": { "blank": {} }, "storage": { "resources": { "requests": { "storage": "16Mi" } } },
            } }],
            "template": { "spec": {
                "terminationGracePeriodSeconds": 1,
                "domain": {
                    "memory": { "guest": "192Mi" },
                    "firmware": { "kernelBoot": kernel },
                    "devices": { "disks": [{ "name": "disk", "disk": { "bus": "virtio" } }],
                        "interfaces": [{ "name": "default", "masquerade": {} }] },
                },
                "networks": [{ "name": "default", "pod": {} }],
                "volumes": [{ "name": "disk", "dataVolume": { "name": "disk" } }],
            } },
        },
    })
}

#[test]
fn manifests_alone_install_the_product_and_take_it_away() {
    let bare = Bare::up();
    run_installed(bare.state(), &["images", "load"]);
    let kubeconfig = bare.kubeconfig();
    let cluster = Cluster(&kubeconfig);
    let objects = cluster.objects();

    for files in INSTALL {
        for file in files {
            cluster.run(&["apply", "--server-side", "-f", &format!("../../deploy/{file}")]);
        }
        let available = ["wait", "deployment", "--all", "--for", "condition=Available", "--timeout", "300s"];
        cluster.run(&[&["-n", PRODUCT], &available[..]].concat());
    }
    for object in ["hostpathprovisioner/hostpath-provisioner", "hyperconverged/kubevirt-hyperconverged"] {
        cluster.run(&["-n", PRODUCT, "wait", object, "--for", "condition=Available", "--timeout", "300s"]);
    }
    let manifest = bare.state().join("vm.json");
    std::fs::write(&manifest, machine().to_string()).unwrap();
    cluster.run(&["apply", "-f", manifest.to_str().unwrap()]);
    cluster.run(&["wait", "vm/first", "--for", "condition=Ready", "--timeout", "300s"]);
    cluster.run(&["wait", "vmi/first", "--for", "condition=AgentConnected", "--timeout", "300s"]);
    assert!(marks(&cluster.node()).contains_key("kubevirt.io/schedulable"));

    let refused = kubectl(&kubeconfig, &["-n", PRODUCT, "delete", "hyperconverged", "kubevirt-hyperconverged"]);
    let refused = refused.expect_err("it went although there is a machine").to_string();
    assert!(refused.contains("admission webhook"), "{refused}");
    cluster.run(&["delete", "-f", manifest.to_str().unwrap(), "--timeout", "120s"]);
    for file in REMOVE {
        if file == "hostpath-cr.yaml" {
            cluster.loses("pv");
        }
        // What is in a namespace of the file may be gone with it before kubectl comes to it.
        let file = format!("../../deploy/{file}");
        cluster.run(&["delete", "--ignore-not-found", "-f", &file, "--timeout", "300s"]);
    }
    cluster.lets_namespaces_go();
    cluster.is_as_before(&objects);
    bare.down();
}

#[test]
fn what_up_installs_uninstall_takes_away() {
    let bare = Bare::up();
    let (state, kubeconfig) = (bare.state(), bare.kubeconfig());
    let cluster = Cluster(&kubeconfig);
    let objects = cluster.objects();
    run_installed(state, &["up"]);
    run_installed(state, &["demo"]);
    let uninstall = ["uninstall", "--kubeconfig", kubeconfig.to_str().unwrap()];
    let refused = super::output_installed(state, &uninstall);
    let said = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(!refused.status.success() && said.contains("nothing was taken away"), "{said}");
    cluster.run(&["delete", "vm", "--all", "--all-namespaces", "--timeout", "120s"]);
    run_installed(state, &uninstall);
    cluster.is_as_before(&objects);
    bare.down();
}
