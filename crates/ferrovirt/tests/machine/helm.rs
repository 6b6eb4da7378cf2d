//! Helm itself installs the chart, changes the release and takes it away.
//!
//! Helm comes from PyPI, as the library of the package helm-sdkpy, beside the images, once for all checkouts.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use serde_json::{Value, json};

use super::deploy::{Cluster, PRODUCT, machine};
use super::{Bare, run_installed};

/// The release of the package, of Helm 4.3.
const PACKAGE: &str = "helm-sdkpy==0.1.32";
const CHART: &str = "../../deploy/helm/ferrovirt";
const RELEASE: &str = "ferrovirt";

struct Helm {
    library: PathBuf,
    kubeconfig: PathBuf,
}

impl Helm {
    fn of(kubeconfig: &Path) -> Self {
        let images =
            std::env::var_os("FERROVIRT_IMAGES").map_or_else(|| "/var/cache/ferrovirt/images".into(), PathBuf::from);
        let place = images.parent().unwrap().join(PACKAGE.replace("==", "-"));
        let library = place.join("helm_sdkpy/_lib/linux-amd64/libhelm_sdkpy.so");
        if !library.exists() {
            let dir = tempfile::tempdir_in(images.parent().unwrap()).unwrap();
            let path = dir.path().to_str().unwrap();
            // Of the package only the library is used, which asks for no Python.
            let python = ["--python-version", "3.12", "--only-binary=:all:", "--no-deps"];
            run("python3", &[&["-m", "pip", "download", "--quiet", "--dest", path], &python[..], &[PACKAGE]].concat());
            let wheel = std::fs::read_dir(path).unwrap().next().unwrap().unwrap().path();
            run("python3", &["-m", "zipfile", "-e", wheel.to_str().unwrap(), place.to_str().unwrap()]);
        }
        Self { library, kubeconfig: kubeconfig.to_owned() }
    }

    fn output(&self, words: &[&str]) -> Output {
        let mut command = Command::new("python3");
        command.arg("tests/machine/helm.py").args([&self.library, &self.kubeconfig]).arg(PRODUCT).args(words);
        command.output().unwrap()
    }

    #[track_caller]
    fn run(&self, words: &[&str]) -> Value {
        let output = self.output(words);
        assert!(output.status.success(), "helm {words:?}: {}", String::from_utf8_lossy(&output.stderr));
        serde_json::from_slice(&output.stdout).unwrap()
    }
}

#[track_caller]
fn run(program: &str, words: &[&str]) {
    let output = Command::new(program).args(words).output().unwrap();
    assert!(output.status.success(), "{program} {words:?}: {}", String::from_utf8_lossy(&output.stderr));
}

#[test]
fn helm_installs_changes_and_takes_away_the_product() {
    let bare = Bare::up();
    run_installed(bare.state(), &["images", "load"]);
    let kubeconfig = bare.kubeconfig();
    let (cluster, helm) = (Cluster(&kubeconfig), Helm::of(&kubeconfig));
    let objects = cluster.objects();

    helm.run(&["lint", CHART]);
    let values = |more: Value| {
        let mut all = json!({ "image": { "registry": "ferrovirt.local" }, "storage": { "create": true } });
        all.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        all.to_string()
    };
    let wrong = helm.output(&["install", RELEASE, CHART, &values(json!({ "nonsense": true }))]);
    let said = String::from_utf8_lossy(&wrong.stderr).into_owned();
    assert!(!wrong.status.success() && said.contains("nonsense"), "{said}");
    helm.run(&["install", RELEASE, CHART, &values(json!({}))]);
    let available = ["--for", "condition=Available", "--timeout", "300s"];
    for object in ["hostpathprovisioner/hostpath-provisioner", "hyperconverged/kubevirt-hyperconverged"] {
        cluster.run(&[&["-n", PRODUCT, "wait", object], &available[..]].concat());
    }

    let manifest = bare.state().join("vm.json");
    std::fs::write(&manifest, machine().to_string()).unwrap();
    cluster.run(&["apply", "-f", manifest.to_str().unwrap()]);
    cluster.run(&["wait", "vm/first", "--for", "condition=Ready", "--timeout", "300s"]);
    cluster.run(&["wait", "vmi/first", "--for", "condition=AgentConnected", "--timeout", "300s"]);
    // A machine goes on while the release is changed, and keeps it from going.
    let changed = json!({
        "crds": { "keep": false },
        "hyperConverged": { "spec": { "virtualization": { "evictionStrategy": "LiveMigrateIfPossible" } } },
    });
    helm.run(&["upgrade", RELEASE, CHART, &values(changed)]);
    let follows =
        ["wait", "kubevirt", "--all", "--for", "jsonpath={.spec.configuration.evictionStrategy}=LiveMigrateIfPossible"];
    cluster.run(&[&["-n", PRODUCT], &follows[..]].concat());
    cluster.run(&[&["-n", PRODUCT, "wait", "hyperconverged/kubevirt-hyperconverged"], &available[..]].concat());
    cluster.run(&["wait", "vmi/first", "--for", "jsonpath={.status.phase}=Running", "--timeout", "10s"]);
    let refused = helm.output(&["uninstall", RELEASE]);
    assert!(!refused.status.success(), "it went although there is a machine");
    assert_eq!(cluster.names("vmi"), ["virtualmachineinstance.kubevirt.io/first"]);

    cluster.run(&["delete", "-f", manifest.to_str().unwrap(), "--timeout", "120s"]);
    cluster.loses("pv");
    helm.run(&["uninstall", RELEASE]);
    // Helm leaves the namespace that it has made.
    cluster.run(&["delete", "namespace", PRODUCT, "--timeout", "120s"]);
    cluster.lets_namespaces_go();
    cluster.is_as_before(&objects);
    bare.down();
}
