//! HyperConverged, and what follows from it: the other operators' objects, templates and who holds machines to them, the pool of MAC
//! addresses, the marks of bridges.

use anyhow::{Context, Result, ensure};
use e2e::machine::{self, holds, phase};
use e2e::wait::{SOON, until};
use e2e::{Namespace, product};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("one_object_is_the_source_of_the_others", one_object_is_the_source_of_the_others),
        trial("a_machine_comes_of_a_template_with_an_address_of_the_pool", a_machine_comes_of_a_template),
    ]
}

const OBJECT: &str = "kubevirt-hyperconverged";

fn one_object_is_the_source_of_the_others() -> Result<()> {
    let object = product::get(&["hyperconverged", OBJECT])?;
    ensure!(holds(&object, "Available") && !holds(&object, "Degraded"), "{}", object["status"]);
    ensure!(object["status"]["systemHealthStatus"] == "healthy", "{}", object["status"]);
    let related = object["status"]["relatedObjects"].as_array().cloned().unwrap_or_default();
    for kind in ["KubeVirt", "CDI", "NetworkAddonsConfig", "SSP"] {
        ensure!(related.iter().any(|one| one["kind"] == kind), "{kind} is not among {related:?}");
    }
    // Whoever edits one of them by hand sees it undone.
    let model = || -> Result<Value> {
        let kubevirt = product::get(&["kubevirt", product::KUBEVIRT])?;
        Ok(kubevirt["spec"]["configuration"]["obsoleteCPUModels"]["486"].clone())
    };
    let edit = json!({ "spec": { "configuration": { "obsoleteCPUModels": { "486": false } } } }).to_string();
    product::kubectl(&["patch", "kubevirt", product::KUBEVIRT, "--type=merge", "-p", &edit])?;
    until("the edit to be undone", SOON, || Ok((model()? == true).then_some(())))?;
    let node: Value =
        serde_json::from_str(&product::kubectl(&["get", "nodes", "-o", "json"])?).context("kubectl's JSON")?;
    let marked = node["items"][0]["status"]["allocatable"]
        .as_object()
        .is_some_and(|all| all.keys().any(|resource| resource.starts_with("bridge.network.kubevirt.io/")));
    ensure!(marked, "no bridge is marked: {}", node["items"][0]["status"]["allocatable"]);
    Ok(())
}

/// The machine of the demo's kernel, with its name and its processors left open.
fn template() -> Value {
    let mut machine = machine::on_kernel("${NAME}", "Halted");
    machine["metadata"]["namespace"] = json!("elsewhere");
    machine::domain(&mut machine)["cpu"] = json!({ "cores": "${{CORES}}" });
    json!({
        "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplate", "metadata": { "name": "small" },
        "spec": {
            "message": "start it by: virtctl start ${NAME}",
            "parameters": [
                { "name": "NAME", "generate": "expression", "from": "vm-[a-z0-9]{8}" },
                { "name": "CORES", "value": "1", "required": true },
            ],
            "virtualMachine": machine,
        },
    })
}

fn a_machine_comes_of_a_template() -> Result<()> {
    let space = Namespace::new("templates")?;
    space.apply(&template())?;
    space.virtctl(&["template", "process", "small", "-p", "NAME=one", "-p", "CORES=2", "--create"])?;
    let made = space.get("vm", "one")?;
    let mac = made["spec"]["template"]["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"].clone();
    ensure!(mac.as_str().is_some_and(|mac| mac.starts_with("02:")), "{mac} is not of the pool");
    space.virtctl(&["start", "one"])?;
    let vmi = space.wait("vmi", "one", "ran", |vmi| phase(vmi) == "Running")?;
    ensure!(vmi["spec"]["domain"]["cpu"]["cores"] == 2, "{}", vmi["spec"]["domain"]["cpu"]);
    ensure!(
        vmi["spec"]["domain"]["devices"]["interfaces"][0]["macAddress"] == mac,
        "{}",
        vmi["spec"]["domain"]["devices"]
    );

    // Of the templates that come with the product; and a machine that does not keep the rules of its own is refused.
    let words = ["template", "process", "fedora-server-small", "-p", "NAME=two", "-o", "json"];
    let printed = space.virtctl(&[&words[..], &["-n", product::NAMESPACE]].concat())?;
    let mut two: Value = serde_json::from_str(&printed).context("virtctl's JSON")?;
    machine::domain(&mut two)["memory"]["guest"] = json!("256Mi");
    let complaint = space.refused(&two)?;
    ensure!(complaint.contains("This VM requires more memory."), "{complaint}");
    machine::domain(&mut two)["memory"]["guest"] = json!("2Gi");
    space.apply(&two)?;
    ensure!(space.get("vm", "two")?["metadata"]["labels"]["vm.kubevirt.io/template"] == "fedora-server-small", "{two}");
    Ok(())
}
