//! A guest is what its instance type and its preference say.

use anyhow::{Result, ensure};
use e2e::machine::{self, phase};
use e2e::{Console, Namespace};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::trial;

pub(crate) fn trials() -> Vec<Trial> {
    vec![trial("a_guest_is_what_its_instance_type_says", a_guest_is_what_its_instance_type_says)]
}

/// A machine that says neither its size nor how its devices are attached.
fn unsized_machine(name: &str, instancetype: &Value, preference: &str) -> Value {
    let mut vm = machine::on_kernel(name, "Always");
    vm["spec"]["instancetype"] = instancetype.clone();
    vm["spec"]["preference"] = json!({ "name": preference });
    let domain = machine::domain(&mut vm);
    domain["memory"] = Value::Null;
    domain["devices"] = json!({});
    let spec = machine::spec(&mut vm);
    spec["networks"] = Value::Null;
    spec["volumes"] = json!([{ "name": "space", "emptyDisk": { "capacity": "16Mi" } }]);
    vm
}

fn pair(vcpus: u32) -> Value {
    json!({
        "apiVersion": "instancetype.kubevirt.io/v1beta1", "kind": "VirtualMachineInstancetype",
        "metadata": { "name": "pair" }, "spec": { "cpu": { "guest": vcpus }, "memory": { "guest": "160Mi" } },
    })
}

fn a_guest_is_what_its_instance_type_says() -> Result<()> {
    let space = Namespace::new("chosen")?;
    space.apply(&pair(2))?;
    let named = json!({ "name": "pair", "kind": "VirtualMachineInstancetype" });
    // One of the common preferences, which come with the product.
    let vm = unsized_machine("chosen", &named, "linux");
    space.apply(&vm)?;
    let vmi = space.wait("vmi", "chosen", "ran", |vmi| phase(vmi) == "Running")?;
    let domain = &vmi["spec"]["domain"];
    ensure!(domain["cpu"]["sockets"] == 2 && domain["memory"]["guest"] == "160Mi", "{domain}");
    let mut console = Console::open(&space, "chosen")?;
    console.log_in("root", "guest")?;
    // The disk that no disk was said of is on the bus that the preference names.
    let (said, _) = console.run("nproc; ls -d /sys/block/vd*")?;
    ensure!(said.split_whitespace().collect::<Vec<_>>() == ["2", "/sys/block/vda"], "{said:?}");
    console.leave()?;

    // What becomes of the instance type is nothing to machines that have it.
    space.apply(&pair(1))?;
    let whole = space.kubectl(&[
        "get", "--raw",
        &format!("/apis/subresources.kubevirt.io/v1/namespaces/{}/virtualmachines/chosen/expand-spec", space.name()),
    ])?;
    let whole: Value = serde_json::from_str(&whole)?;
    let cpu = &whole["spec"]["template"]["spec"]["domain"]["cpu"];
    ensure!(cpu["sockets"] == 2 && whole["spec"].get("instancetype").is_none(), "{whole}");

    let mut own = unsized_machine("own", &json!({ "name": "u1.nano" }), "linux");
    machine::domain(&mut own)["cpu"] = json!({ "cores": 2 });
    let refused = space.refused(&own)?;
    let conflict = "VM field(s) spec.template.spec.domain.cpu.cores conflicts with selected instance type";
    ensure!(refused.contains(conflict), "{refused}");
    Ok(())
}
