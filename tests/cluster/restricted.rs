//! A namespace that enforces the *restricted* Pod Security level has virtual machines all the same.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::json;

use crate::Test;

pub(crate) const TESTS: &[Test] =
    &[("a_machine_runs_in_a_restricted_namespace", a_machine_runs_in_a_restricted_namespace)];

fn a_machine_runs_in_a_restricted_namespace() -> Result<()> {
    let space = Namespace::new("restricted")?;
    let levels = ["enforce=restricted", "enforce-version=latest", "warn=restricted"]
        .map(|level| format!("pod-security.kubernetes.io/{level}"));
    let mut words = vec!["label", "namespace", space.name()];
    words.extend(levels.iter().map(String::as_str));
    space.kubectl(&words)?;
    let machine = json!({"apiVersion": "kubevirt.io/v1", "kind": "VirtualMachineInstance", "metadata": {"name": "small"}, "spec": {
        "terminationGracePeriodSeconds": 0,
        "domain": {"memory": {"guest": "128Mi"}, "devices": {"disks": [{"name": "root", "disk": {"bus": "virtio"}}], "interfaces": [{"name": "default", "masquerade": {}}]}},
        "networks": [{"name": "default", "pod": {}}],
        "volumes": [{"name": "root", "containerDisk": {"image": "ferrovirt.local/guest-demo:v0.1.0"}}]
    }});
    let applied = space.feed(&["apply", "-f", "-"], machine.to_string().as_bytes())?;
    ensure!(applied.status.success(), "{applied:?}");
    space.wait("vmi", "small", "ran", |vmi| vmi["status"]["phase"] == "Running")?;
    let pod = space.kubectl(&[
        "get",
        "pods",
        "-l",
        "kubevirt.io=virt-launcher",
        "-o",
        "jsonpath={.items[0].status.phase} {.items[0].spec.securityContext.runAsUser}",
    ])?;
    ensure!(pod == "Running 107", "{pod}");
    let described = space.kubectl(&["describe", "vmi", "small"])?;
    ensure!(described.contains("SuccessfulCreate") && described.contains("Phase:"), "{described}");
    Ok(())
}
