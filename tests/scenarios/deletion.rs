//! Deleting a machine at any moment of its start leaves nothing of it.

use anyhow::{Result, ensure};
use e2e::machine::{self, phase};
use e2e::wait::{SOON, until};
use e2e::{Namespace, node};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("deletion_while_starting_leaves_nothing", while_starting),
        long("deletion_while_an_image_cannot_be_pulled_leaves_nothing", while_an_image_cannot_be_pulled),
        trial("deletion_of_the_instance_alone_starts_another", of_the_instance_alone),
    ]
}

const NAME: &str = "short";

fn delete(space: &Namespace) -> Result<()> {
    let pods = space.list("pods", &format!("vm.kubevirt.io/name={NAME}"))?;
    space.kubectl(&["delete", "vm", NAME, "--wait", "--timeout=60s"])?;
    for kind in ["vm", "vmi", "pods", "controllerrevisions"] {
        until(&format!("no {kind} left"), SOON, || {
            let left = space.kubectl(&["get", kind, "-o", "name"])?;
            Ok(left.trim().is_empty().then_some(()))
        })?;
    }
    for pod in pods {
        until("no process left", SOON, || Ok(node::processes(machine::uid(&pod))?.is_empty().then_some(())))?;
    }
    Ok(())
}

/// What a VMI did, and how that shows.
type Moment = (&'static str, fn(&Value) -> bool);

fn while_starting() -> Result<()> {
    let space = Namespace::new("deletion")?;
    let moments: [Moment; 4] = [
        ("was created", |vmi| !vmi.is_null()),
        ("was being scheduled", |vmi| ["Scheduling", "Scheduled", "Running"].contains(&phase(vmi))),
        ("was handed to its node", |vmi| ["Scheduled", "Running"].contains(&phase(vmi))),
        ("had just started", |vmi| phase(vmi) == "Running"),
    ];
    let mut vm = machine::on_disk(NAME, "Always");
    machine::spec(&mut vm)["terminationGracePeriodSeconds"] = json!(2);
    space.apply(&vm)?;
    delete(&space)?;
    for (what, check) in moments {
        space.apply(&vm)?;
        space.wait("vmi", NAME, what, check)?;
        delete(&space)?;
    }
    Ok(())
}

fn while_an_image_cannot_be_pulled() -> Result<()> {
    let space = Namespace::new("nopull")?;
    let mut vm = machine::on_disk(NAME, "Always");
    machine::spec(&mut vm)["volumes"][0]["containerDisk"]["image"] = json!("127.0.0.1:9/no/such/image:v1");
    space.apply(&vm)?;
    space.wait("vm", NAME, "said so", |vm| ["ErrImagePull", "ImagePullBackOff"].contains(&machine::word(vm)))?;
    delete(&space)
}

fn of_the_instance_alone() -> Result<()> {
    let space = Namespace::new("instance")?;
    space.apply(&machine::on_kernel(NAME, "Always"))?;
    let first = space.wait("vmi", NAME, "ran", |vmi| phase(vmi) == "Running")?;
    space.kubectl(&["delete", "vmi", NAME, "--wait=false"])?;
    let second = space
        .wait("vmi", NAME, "ran anew", |vmi| phase(vmi) == "Running" && machine::uid(vmi) != machine::uid(&first))?;
    ensure!(second["metadata"]["deletionTimestamp"].is_null(), "{second}");
    delete(&space)
}
