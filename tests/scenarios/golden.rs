//! One golden image, and many machines that are made of it; and one that follows its registry.

use anyhow::Result;
use e2e::machine::{self, phase};
use e2e::servers::registry::Registry;
use e2e::{Namespace, wait};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::chain::{Chain, said};
use crate::data_volume::{apply, succeeded, volume};
use crate::long;

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        long("ten_machines_come_of_one_golden_image", ten_machines_come_of_one_golden_image),
        long("a_golden_image_follows_its_registry", a_golden_image_follows_its_registry),
    ]
}

const MACHINES: usize = 10;
const SIZE: &str = "8Mi";

fn name(number: usize) -> String {
    format!("clone{number}")
}

/// A machine whose disk is a clone of the golden image.
fn clone(number: usize) -> Value {
    let name = name(number);
    let mut vm = machine::on_disks(&name, [name.as_str()]);
    machine::spec(&mut vm)["volumes"][0] = json!({ "name": name, "dataVolume": { "name": name } });
    machine::spec(&mut vm)["terminationGracePeriodSeconds"] = json!(0);
    vm["spec"]["dataVolumeTemplates"] = json!([{
        "metadata": { "name": name },
        "spec": { "sourceRef": { "kind": "DataSource", "name": "golden" }, "storage": {} },
    }]);
    vm
}

fn ten_machines_come_of_one_golden_image() -> Result<()> {
    let space = Namespace::new("golden")?;
    let registry = Registry::secure()?;
    let mut chain = Chain::default();
    let image = registry.push("images/golden:v1", &[("disk/disk.qcow2", &chain.image("golden", "qcow2")?)])?;
    let authorities = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "authorities" },
        "data": { "registry.pem": registry.certificate } });
    let from = json!({ "registry": { "url": format!("docker://{image}"), "certConfigMap": "authorities" } });
    let source = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataSource", "metadata": { "name": "golden" },
        "spec": { "source": { "pvc": { "name": "golden", "namespace": space.name() } } } });
    apply(&space, vec![authorities, volume("golden", SIZE, &from), source])?;
    succeeded(&space, "golden")?;
    apply(&space, (0..MACHINES).map(clone).collect())?;
    for number in 0..MACHINES {
        let name = name(number);
        let vmi = space.wait("vmi", &name, "ran", |vmi| phase(vmi) == "Running")?;
        succeeded(&space, &name)?;
        chain.is_said_by("golden", &said(&vmi, wait::BOOT)?)?;
    }
    Ok(())
}

/// The claim that the DataSource names, once it is another than `before`.
fn named(space: &Namespace, before: &str) -> Result<String> {
    let name = |source: &Value| source["spec"]["source"]["pvc"]["name"].as_str().unwrap_or_default().to_owned();
    let another = |source: &Value| !name(source).is_empty() && name(source) != before;
    Ok(name(&space.wait("datasource", "followed", "named another image", another)?))
}

fn a_golden_image_follows_its_registry() -> Result<()> {
    let space = Namespace::new("followed")?;
    let registry = Registry::secure()?;
    let mut chain = Chain::default();
    let image = registry.push("images/followed:latest", &[("disk/disk.qcow2", &chain.image("first", "qcow2")?)])?;
    let authorities = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "authorities" },
        "data": { "registry.pem": registry.certificate } });
    let from = json!({ "registry": { "url": format!("docker://{image}"), "certConfigMap": "authorities" } });
    let template = json!({ "source": from, "storage": { "resources": { "requests": { "storage": SIZE } } } });
    let cron = json!({ "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataImportCron", "metadata": { "name": "followed" },
        "spec": { "managedDataSource": "followed", "schedule": "* * * * *", "template": { "spec": template } } });
    apply(&space, vec![authorities, cron])?;
    let first = named(&space, "")?;
    succeeded(&space, &first)?;
    registry.push("images/followed:latest", &[("disk/disk.qcow2", &chain.image("second", "qcow2")?)])?;
    let second = named(&space, &first)?;
    succeeded(&space, &second)?;
    Ok(())
}
