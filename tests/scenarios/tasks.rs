//! Tekton's tasks: their steps as pods, on machines, disks and a registry.

use anyhow::{Result, ensure};
use e2e::guest::NAME;
use e2e::servers::registry::Registry;
use e2e::{Namespace, machine, taskrun};
use libtest_mimic::Trial;
use serde_json::{Value, json};

use crate::shared::with_guest;
use crate::{long, trial};

pub(crate) fn trials() -> Vec<Trial> {
    vec![
        trial("tasks_make_machines_and_disks_and_send_them_to_a_registry", make),
        trial("tasks_run_commands_in_a_guest", run_commands),
        long("tasks_copy_and_change_templates_and_make_machines_of_them", templates),
    ]
}

/// The task succeeds.
pub(crate) fn done(space: &Namespace, task: &str, params: &[(&str, Value)]) -> Result<taskrun::Ended> {
    let ended = taskrun::run(space, task, params)?;
    ensure!(ended.code == 0, "{task}: {ended:?}");
    Ok(ended)
}

/// The task fails, and says so.
pub(crate) fn failed(space: &Namespace, task: &str, params: &[(&str, Value)], words: &str) -> Result<()> {
    let ended = taskrun::run(space, task, params)?;
    ensure!(ended.code == 1 && ended.log.contains(words), "{task}: {ended:?}, and not {words:?}");
    Ok(())
}

fn make() -> Result<()> {
    let space = Namespace::new("tasks")?;
    taskrun::grant(&space)?;
    let machine = machine::on_kernel("one", "Halted").to_string();
    let made = done(&space, "create-vm-from-manifest", &[("manifest", json!(machine)), ("startVM", json!("true"))])?;
    ensure!(made.results["name"] == "one" && made.results["namespace"] == space.name(), "{made:?}");
    let wait = |success: &str, failure: &str| {
        [("vmiName", json!("one")), ("successCondition", json!(success)), ("failureCondition", json!(failure))]
    };
    done(&space, "wait-for-vmi-status", &wait("status.phase == Running", "status.phase in (Failed, Unknown)"))?;
    failed(
        &space,
        "wait-for-vmi-status",
        &wait("status.phase == Gone", "status.phase in (Running)"),
        "the failure condition",
    )?;
    done(&space, "cleanup-vm", &[("vmName", json!("one")), ("delete", json!("true"))])?;
    ensure!(space.list("vm", "")?.is_empty() && space.list("vmi", "")?.is_empty(), "the machine is there");

    let options = "--name two --memory 192Mi --volume-containerdisk src:ferrovirt.local/guest-demo:v0.1.0";
    let made =
        done(&space, "create-vm-from-manifest", &[("virtctl", json!(options)), ("runStrategy", json!("Halted"))])?;
    ensure!(made.results["name"] == "two", "{made:?}");
    let keys = done(&space, "generate-ssh-keys", &[("privateKeyConnectionOptions", json!(["user:guest"]))])?;
    space.get("secret", &keys.results["privateKeySecretName"])?;

    let disk = json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": "DataVolume",
        "metadata": { "name": "disk", "annotations": { "cdi.kubevirt.io/storage.bind.immediate.requested": "true" } },
        "spec": { "source": { "blank": {} }, "storage": { "resources": { "requests": { "storage": "16Mi" } } } },
    });
    let made = [("manifest", json!(disk.to_string())), ("waitForSuccess", json!("true"))];
    done(&space, "modify-data-object", &made)?;
    failed(&space, "modify-data-object", &made, "cannot create DataVolume")?;
    let label = json!({ "metadata": { "labels": { "instancetype.kubevirt.io/default-instancetype": "u1.small" } } });
    space.patch("pvc", "disk", &label)?;
    let registry = Registry::start()?;
    space.apply(&json!({
        "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "registry" },
        "stringData": { "accessKeyId": "somebody", "secretKey": "anything" },
    }))?;
    let image = format!("{}/disks/blank:v1", registry.host());
    let upload = |kind: &str| {
        [
            ("EXPORT_SOURCE_KIND", json!(kind)),
            ("EXPORT_SOURCE_NAME", json!("disk")),
            ("VOLUME_NAME", json!("disk")),
            ("IMAGE_DESTINATION", json!(image)),
            ("SECRET_NAME", json!("registry")),
            ("PLAIN_HTTP", json!("true")),
        ]
    };
    let sent = done(&space, "disk-uploader", &upload("pvc"))?;
    ensure!(sent.results["digest"].starts_with("sha256:"), "{sent:?}");
    failed(&space, "disk-uploader", &upload("disk"), "is none of vm, vmsnapshot and pvc")?;
    // What the claim says of instance types is said by the image, from which an import takes it.
    let config = registry.config("disks/blank", "v1")?;
    let variables = config["config"]["Env"].to_string();
    ensure!(variables.contains("INSTANCETYPE_KUBEVIRT_IO_DEFAULT_INSTANCETYPE=u1.small"), "{config}");
    Ok(())
}

fn run_commands() -> Result<()> {
    with_guest(|guest| {
        let space = &guest.space;
        taskrun::grant(space)?;
        let connection = json!({
            "apiVersion": "v1", "kind": "Secret", "metadata": { "name": "connection" }, "type": "kubernetes.io/ssh-auth",
            "stringData": {
                "type": "ssh", "user": "guest", "ssh-privatekey": guest.key()?, "disable-strict-host-key-checking": "true",
            },
        });
        space.apply(&connection)?;
        let with = |more: &[(&'static str, Value)]| {
            [&[("vmName", json!(NAME)), ("secretName", json!("connection"))], more].concat()
        };
        let hostname = with(&[("script", json!("#!/bin/sh\nhostname\nexit 4\n"))]);
        let ended = taskrun::run(space, "execute-in-vm", &hostname)?;
        ensure!(ended.code == 4 && ended.log.contains(NAME), "{ended:?}");
        // Words of a command are words of it.
        let command = with(&[("command", json!(["sh", "-c"])), ("args", json!(["echo \"$0\"; exit 3", "a  b"]))]);
        let ended = taskrun::run(space, "execute-in-vm", &command)?;
        ensure!(ended.code == 3 && ended.log.contains("a  b"), "{ended:?}");
        failed(
            space,
            "execute-in-vm",
            &[("vmName", json!(NAME)), ("command", json!(["true"]))],
            "no Secret with ssh-privatekey",
        )
    })
}

fn templates() -> Result<()> {
    let space = Namespace::new("templates")?;
    taskrun::grant(&space)?;
    let mut machine = machine::on_kernel("one", "Halted");
    machine["metadata"]["name"] = json!("${NAME}");
    space.apply(&json!({
        "apiVersion": "template.kubevirt.io/v1beta1", "kind": "VirtualMachineTemplate", "metadata": { "name": "small" },
        "spec": {
            "parameters": [{ "name": "NAME", "required": true }],
            "virtualMachine": { "metadata": machine["metadata"], "spec": machine["spec"] },
        },
    }))?;
    let copy = [("sourceTemplateName", json!("small")), ("targetTemplateName", json!("large"))];
    let made = done(&space, "copy-template", &copy)?;
    ensure!(made.results["name"] == "large", "{made:?}");
    failed(&space, "copy-template", &copy, "cannot create VirtualMachineTemplate")?;
    let change = [("templateName", json!("large")), ("memory", json!("224Mi")), ("vmLabels", json!(["size:large"]))];
    done(&space, "modify-vm-template", &change)?;
    let create =
        [("templateName", json!("large")), ("templateParams", json!(["NAME:made"])), ("startVM", json!("true"))];
    let made = done(&space, "create-vm-from-template", &create)?;
    ensure!(made.results["name"] == "made", "{made:?}");
    let nameless = [("templateName", json!("large"))];
    failed(&space, "create-vm-from-template", &nameless, "NAME is required")?;
    let vmi = space.wait("vmi", "made", "ran", |vmi| machine::phase(vmi) == "Running")?;
    ensure!(vmi["spec"]["domain"]["memory"]["guest"] == "224Mi", "{}", vmi["spec"]);
    ensure!(
        space.get("vm", "made")?["metadata"]["labels"]["size"] == "large",
        "the label of the template is not there"
    );
    done(&space, "modify-vm-template", &[("templateName", json!("large")), ("deleteTemplate", json!("true"))])?;
    ensure!(space.get("virtualmachinetemplate", "large")?.is_null(), "the template is there");
    Ok(())
}
