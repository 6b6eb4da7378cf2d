//! A template as an object of the cluster: KubeVirt's own kind, or OpenShift's.

use serde_json::{Map, Value, json};

use super::machine::{self, USER};
use super::system::Guest;
use super::{Template, VERSION};
use crate::words;

const PROJECT: &str = "https://github.com/kubevirt/common-templates";

/// As a VirtualMachineTemplate in `namespace`, whose machines boot from sources in `images`.
pub fn native(template: &Template, namespace: &str, images: &str) -> Value {
    json!({
        "apiVersion": "template.kubevirt.io/v1alpha1", "kind": "VirtualMachineTemplate",
        "metadata": metadata(template, namespace, "/spec.virtualMachine"),
        "spec": { "virtualMachine": machine::render(template), "parameters": parameters(template, images) },
    })
}

/// As a Template of OpenShift.
pub fn openshift(template: &Template, namespace: &str, images: &str) -> Value {
    json!({
        "apiVersion": "template.openshift.io/v1", "kind": "Template",
        "metadata": metadata(template, namespace, "/objects[0]"),
        "objects": [machine::render(template)], "parameters": parameters(template, images),
    })
}

/// `machine` is where the machine lies in the object.
fn metadata(template: &Template, namespace: &str, machine: &str) -> Value {
    json!({
        "name": template.name(), "namespace": namespace, "labels": labels(template),
        "annotations": annotations(template, machine),
    })
}

fn labels(template: &Template) -> Value {
    let system = template.system;
    let mut labels = Map::new();
    for version in system.versions {
        labels.insert(format!("{}{version}", words::OS), json!("true"));
    }
    labels.insert(format!("{}{}", words::WORKLOAD, template.workload.word()), json!("true"));
    labels.insert(format!("{}{}", words::FLAVOR, template.flavor.word()), json!("true"));
    labels.insert(words::TYPE.to_owned(), json!(words::BASE));
    labels.insert(words::VERSION.to_owned(), json!(VERSION));
    labels.insert(words::ARCHITECTURE.to_owned(), json!(template.architecture.word()));
    Value::Object(labels)
}

fn annotations(template: &Template, machine: &str) -> Value {
    let system = template.system;
    let (title, maker) = (system.title, system.maker);
    let tags = match system.guest {
        Guest::Linux => format!("hidden,kubevirt,virtualmachine,linux,{maker}"),
        Guest::Windows => "hidden,kubevirt,virtualmachine,windows".to_owned(),
    };
    let mut out = json!({
        "openshift.io/display-name": format!("{title} VM"),
        "description": format!("Template for {title} VM. A PVC with the disk image must be available."),
        "tags": tags,
        "iconClass": format!("icon-{maker}"),
        "openshift.io/provider-display-name": "KubeVirt",
        "openshift.io/documentation-url": PROJECT,
        "openshift.io/support-url": format!("{PROJECT}/issues"),
        "template.openshift.io/bindable": "false",
        // The version of these annotations, and not of the template.
        (words::VERSION): "v1alpha1",
        "defaults.template.kubevirt.io/disk": "rootdisk",
        "defaults.template.kubevirt.io/network": "default",
        "template.kubevirt.io/editable": editable(machine),
    });
    for (key, value) in [("containerdisks", system.container_disk), ("images", system.images)] {
        if !value.is_empty() {
            out[format!("template.kubevirt.io/{key}")] = json!(format!("{value}\n"));
        }
    }
    for version in system.versions {
        out[format!("{}{version}", words::OS_NAME)] = json!(system.pretty);
    }
    out
}

/// The fields that consoles offer to change.
fn editable(machine: &str) -> String {
    const FIELDS: [&str; 7] = [
        "domain.cpu.sockets",
        "domain.cpu.cores",
        "domain.cpu.threads",
        "domain.memory.guest",
        "domain.devices.disks",
        "volumes",
        "networks",
    ];
    FIELDS.map(|field| format!("{machine}.spec.template.spec.{field}\n")).concat()
}

fn parameters(template: &Template, images: &str) -> Value {
    let system = template.system;
    let windows = system.guest == Guest::Windows;
    let generated = |name: &str, description: &str, from: String| json!({ "name": name, "description": description, "generate": "expression", "from": from });
    let length = if windows { 6 } else { 16 };
    let mut all = vec![
        generated("NAME", "VM name", format!("{}-[a-z0-9]{{{length}}}", system.name)),
        json!({
            "name": "DATA_SOURCE_NAME", "description": "Name of the DataSource to clone", "value": template.source(),
        }),
        json!({ "name": "DATA_SOURCE_NAMESPACE", "description": "Namespace of the DataSource", "value": images }),
    ];
    if !windows {
        let description = format!("Randomized password for the cloud-init user {USER}");
        let from = "[a-z0-9]{4}-[a-z0-9]{4}-[a-z0-9]{4}".to_owned();
        all.push(generated("CLOUD_USER_PASSWORD", &description, from));
    }
    json!(all)
}
