//! Scenarios on a live cluster, with real guests. `scripts/test.sh` starts the cluster and runs them.

use std::process::ExitCode;

use anyhow::{Result, ensure};
use e2e::Namespace;
use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;

fn main() -> ExitCode {
    let mut arguments = Arguments::from_args();
    // Emulated guests share two cores: side by side they would only wait for each other.
    arguments.test_threads = Some(1);
    let trial = |name: &'static str, run: fn() -> Result<()>| {
        Trial::test(name, move || run().map_err(|error| Failed::from(format!("{error:#}"))))
    };
    let trials = vec![
        trial("bad_machines_are_refused_with_the_field", bad_machines_are_refused_with_the_field),
        trial("container_disk_boots_and_serves", container_disk_boots_and_serves),
        trial("kernel_boot_runs", kernel_boot_runs),
    ];
    libtest_mimic::run(&arguments, trials).exit_code()
}

/// A VM of the demo's disk with the words given.
fn machine(name: &str, run_strategy: &str, volumes: &str, disks: &str, extra: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata: {{name: {name}}}\nspec:\n  runStrategy: {run_strategy}\n  \
         template:\n    metadata: {{labels: {{app: {name}}}}}\n    spec:\n      terminationGracePeriodSeconds: 60\n      domain:\n        \
         memory: {{guest: 192Mi}}\n{extra}        devices:\n          interfaces: [{{name: default, masquerade: {{}}}}]\n          \
         disks: {disks}\n      networks: [{{name: default, pod: {{}}}}]\n      volumes: {volumes}\n"
    )
}

const ROOT: &str = "[{name: root, containerDisk: {image: \"ferrovirt.local/guest-demo:v0.1.0\"}}, \
                    {name: seed, cloudInitNoCloud: {userData: \"#cloud-config\\nhostname: scenario\\n\"}}]";
const DISKS: &str = "[{name: root, disk: {bus: virtio}}, {name: seed, disk: {bus: virtio}}]";

fn phase(vmi: &Value) -> &str {
    vmi["status"]["phase"].as_str().unwrap_or_default()
}

fn condition(object: &Value, kind: &str) -> bool {
    let list = object["status"]["conditions"].as_array();
    list.into_iter().flatten().any(|c| c["type"] == kind && c["status"] == "True")
}

/// Boot from a containerDisk, reach the guest over a Service, agent facts, stop by the power button.
fn container_disk_boots_and_serves() -> Result<()> {
    let space = Namespace::new("disk")?;
    space.apply(&machine("web", "Always", ROOT, DISKS, ""))?;
    space.apply(
        "apiVersion: v1\nkind: Service\nmetadata: {name: web}\nspec:\n  type: NodePort\n  selector: {vm.kubevirt.io/name: web}\n  ports: [{port: 80}]\n",
    )?;
    space.wait("vmi", "web", "ran", |vmi| phase(vmi) == "Running")?;
    let vmi = space.wait("vmi", "web", "had its agent connected", |vmi| condition(vmi, "AgentConnected"))?;
    ensure!(vmi["status"]["nodeName"] == "node1", "{}", vmi["status"]);
    space
        .wait("vmi", "web", "told its guest's system", |vmi| vmi["status"]["guestOSInfo"]["id"] == "ferrovirt-guest")?;
    let vm = space.wait("vm", "web", "was Ready", |vm| condition(vm, "Ready"))?;
    ensure!(vm["status"]["printableStatus"] == "Running", "{}", vm["status"]);

    let port = space.kubectl(&["get", "service", "web", "-o", "jsonpath={.spec.ports[0].nodePort}"])?;
    let page = space.fetch(&format!("http://10.88.0.11:{port}/cgi-bin/hello"))?;
    ensure!(page.contains("virtual machine “scenario”"), "{page}");

    space.virtctl(&["stop", "web"])?;
    space.wait("vmi", "web", "was gone after the stop", Value::is_null)?;
    let vm = space.wait("vm", "web", "said Stopped", |vm| vm["status"]["printableStatus"] == "Stopped")?;
    ensure!(vm["spec"]["runStrategy"] == "Halted" || vm["spec"]["runStrategy"] == "Always", "{}", vm["spec"]);
    Ok(())
}

/// Boot a kernel and an initrd from an image, with no disk at all.
fn kernel_boot_runs() -> Result<()> {
    let space = Namespace::new("kernel")?;
    let firmware = "        firmware: {kernelBoot: {kernelArgs: \"console=ttyS0 quiet\", container: {image: \"ferrovirt.local/guest-kernel:v0.1.0\", \
                    kernelPath: /boot/vmlinuz, initrdPath: /boot/initrd}}}\n";
    space.apply(&machine("kernel", "Always", "[]", "[]", firmware))?;
    space.wait("vmi", "kernel", "ran", |vmi| phase(vmi) == "Running")?;
    space.wait("vmi", "kernel", "had its agent connected", |vmi| condition(vmi, "AgentConnected"))?;
    Ok(())
}

/// What cannot work is refused when it is applied, with the field that is wrong.
fn bad_machines_are_refused_with_the_field() -> Result<()> {
    let space = Namespace::new("bad")?;
    let check = |manifest: String, words: &str| -> Result<()> {
        let complaint = space.refused(&manifest)?;
        ensure!(complaint.contains(words), "{words:?} is not in: {complaint}");
        Ok(())
    };
    check(
        machine("a", "Always", ROOT, "[{name: nope, disk: {}}]", ""),
        "spec.template.spec.domain.devices.disks[0].name",
    )?;
    check(machine("a", "Sometimes", ROOT, DISKS, ""), "runStrategy")?;
    check(machine("a", "Always", ROOT, DISKS, "        cpu: {coress: 2}\n"), "coress")?;
    Ok(())
}
