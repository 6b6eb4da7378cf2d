//! The thirteen Tasks. Names of params, results and workspaces, and their defaults, are those that Pipelines of others use. Pure.

mod disks;

use serde_json::{Value, json};

pub use self::disks::without_kvm;
use self::disks::{disk_uploader, disk_virt, modify_windows_iso_file};
use super::task::{Images, Param, Task, mounted, result, step, text};
use crate::lists::{BEGIN, END};

/// Their names.
pub const NAMES: [&str; 13] = [
    "create-vm-from-manifest",
    "create-vm-from-template",
    "copy-template",
    "modify-vm-template",
    "modify-data-object",
    "generate-ssh-keys",
    "execute-in-vm",
    "cleanup-vm",
    "wait-for-vmi-status",
    "disk-virt-customize",
    "disk-virt-sysprep",
    "modify-windows-iso-file",
    "disk-uploader",
];
const TEMPORARY: (&str, &str) = ("tmp", "/tmp");

/// The Tasks: `image` holds the program, `disk_image` the tools of libguestfs as well.
pub fn tasks(image: &str, disk_image: &str, version: &str) -> Vec<Value> {
    let images = Images { tasks: image, disk: disk_image, version };
    [
        create_vm_from_manifest(images),
        create_vm_from_template(images),
        copy_template(images),
        modify_vm_template(images),
        modify_data_object(images),
        generate_ssh_keys(images),
        execute_in_vm(images),
        cleanup_vm(images),
        wait_for_vmi_status(images),
        disk_virt("disk-virt-customize", "virt-customize", images),
        disk_virt("disk-virt-sysprep", "virt-sysprep", images),
        modify_windows_iso_file(images),
        disk_uploader(images),
    ]
    .into_iter()
    .map(|task| task.render(images))
    .collect()
}

fn needed(name: &'static str, description: &'static str) -> Param {
    Param::Text(name, description, None)
}

fn param(name: &'static str, description: &'static str) -> Param {
    Param::Text(name, description, Some(""))
}

fn switch(name: &'static str, description: &'static str) -> Param {
    Param::Text(name, description, Some("false"))
}

fn owner() -> Param {
    switch("setOwnerReference", "Whether the object goes with the pod of the TaskRun.")
}

const NAME: (&str, &str) = ("name", "The name of the object.");
const NAMESPACE: (&str, &str) = ("namespace", "The namespace of the object.");

/// The flags of params, and of both results.
fn args(what: &str, flags: &[(&str, &str)], results: bool) -> Vec<String> {
    let mut out = vec![what.to_owned()];
    out.extend(flags.iter().map(|(flag, param)| text(flag, param)));
    if results {
        out.extend([result("name-result", "name"), result("namespace-result", "namespace")]);
    }
    out
}

/// A param of several values is as many words, each behind its flag.
fn words(mut step: Value, lists: &[(&str, &str)]) -> Value {
    if let Some(args) = step["args"].as_array_mut() {
        for (flag, param) in lists {
            args.extend([json!(format!("{BEGIN}{flag}")), json!(format!("$(params.{param}[*])")), json!(END)]);
        }
    }
    step
}

fn plain(name: &'static str, images: Images<'_>, args: &[String]) -> Value {
    mounted(step(name, images.tasks, args), &[TEMPORARY])
}

fn temporary() -> Value {
    json!({ "name": TEMPORARY.0, "emptyDir": {} })
}

const THEN: [(&str, &str); 3] =
    [("start-vm", "startVM"), ("run-strategy", "runStrategy"), ("set-owner-reference", "setOwnerReference")];

fn then() -> [Param; 3] {
    [
        param("startVM", "Set to true to start the VM once it is created; ignored where the run strategy starts it."),
        param("runStrategy", "The run strategy, in place of what the VM says of when it runs."),
        owner(),
    ]
}

fn create_vm_from_manifest(images: Images<'_>) -> Task {
    let name = "create-vm-from-manifest";
    let mut params = vec![
        param("manifest", "YAML of a VirtualMachine; one of manifest and virtctl has to be given."),
        param("virtctl", "Options of `virtctl create vm`; one of manifest and virtctl has to be given."),
        param("namespace", "The VM's namespace: before the manifest's, and that of the TaskRun."),
    ];
    params.extend(then());
    let flags = [&[("manifest", "manifest"), ("virtctl", "virtctl"), ("namespace", "namespace")], &THEN[..]].concat();
    Task {
        name,
        title: "Create VM from Manifest",
        description: "Creates a VirtualMachine from a manifest, or from options of virtctl.",
        params,
        results: vec![NAME, NAMESPACE],
        workspaces: Vec::new(),
        steps: vec![plain("createvm", images, &args(name, &flags, true))],
        volumes: vec![temporary()],
    }
}

fn create_vm_from_template(images: Images<'_>) -> Task {
    let name = "create-vm-from-template";
    let mut params = vec![
        needed("templateName", "Name of a VirtualMachineTemplate, or of a Template of OpenShift."),
        param("templateNamespace", "Its namespace."),
        Param::List("templateParams", "KEY:VALUE of its parameters."),
        param("vmNamespace", "The VM's namespace."),
    ];
    params.extend(then());
    let flags = [
        &[
            ("template-name", "templateName"),
            ("template-namespace", "templateNamespace"),
            ("vm-namespace", "vmNamespace"),
        ],
        &THEN[..],
    ];
    let step = plain("createvm", images, &args(name, &flags.concat(), true));
    Task {
        name,
        title: "Create VM from Template",
        description: "Creates a VirtualMachine from a template.",
        params,
        results: vec![NAME, NAMESPACE],
        workspaces: Vec::new(),
        steps: vec![words(step, &[("template-param", "templateParams")])],
        volumes: vec![temporary()],
    }
}

fn copy_template(images: Images<'_>) -> Task {
    let name = "copy-template";
    let flags = [
        ("source-template-name", "sourceTemplateName"),
        ("source-template-namespace", "sourceTemplateNamespace"),
        ("target-template-name", "targetTemplateName"),
        ("target-template-namespace", "targetTemplateNamespace"),
        ("allow-replace", "allowReplace"),
    ];
    Task {
        name,
        title: "Copy Template",
        description: "Copies a VirtualMachineTemplate, or a Template of OpenShift.",
        params: vec![
            needed("sourceTemplateName", "The template."),
            param("sourceTemplateNamespace", "Its namespace."),
            param("targetTemplateName", "Name of the copy; one that nobody has where it is empty."),
            param("targetTemplateNamespace", "Namespace of the copy."),
            switch("allowReplace", "Whether a template of the copy's name may be replaced."),
        ],
        results: vec![NAME, NAMESPACE],
        workspaces: Vec::new(),
        steps: vec![plain("copytemplate", images, &args(name, &flags, true))],
        volumes: vec![temporary()],
    }
}

fn modify_vm_template(images: Images<'_>) -> Task {
    let name = "modify-vm-template";
    let flags = [
        ("template-name", "templateName"),
        ("template-namespace", "templateNamespace"),
        ("cpu-sockets", "cpuSockets"),
        ("cpu-cores", "cpuCores"),
        ("cpu-threads", "cpuThreads"),
        ("memory", "memory"),
        ("delete-disks", "deleteDisks"),
        ("delete-volumes", "deleteVolumes"),
        ("delete-datavolume-template", "deleteDatavolumeTemplate"),
        ("delete-template-parameters", "deleteTemplateParameters"),
        ("delete-template", "deleteTemplate"),
    ];
    let lists = [
        ("template-label", "templateLabels"),
        ("template-annotation", "templateAnnotations"),
        ("vm-label", "vmLabels"),
        ("vm-annotation", "vmAnnotations"),
        ("disk", "disks"),
        ("volume", "volumes"),
        ("datavolume-template", "datavolumeTemplates"),
        ("template-parameter", "templateParameters"),
    ];
    Task {
        name,
        title: "Modify VM Template",
        description: "Changes a VirtualMachineTemplate, or a Template of OpenShift, or deletes it.",
        params: vec![
            needed("templateName", "The template."),
            param("templateNamespace", "Its namespace."),
            param("cpuSockets", "Sockets of the machine's processor."),
            param("cpuCores", "Cores of each socket."),
            param("cpuThreads", "Threads of each core."),
            param("memory", "Memory of the guest, such as 2Gi."),
            Param::List("templateLabels", "KEY:VALUE of labels of the template."),
            Param::List("templateAnnotations", "KEY:VALUE of its annotations."),
            Param::List("vmLabels", "KEY:VALUE of labels of the machine."),
            Param::List("vmAnnotations", "KEY:VALUE of its annotations."),
            Param::List("disks", "Disks, as JSON; one of that name is replaced."),
            switch("deleteDisks", "Whether all other disks go."),
            Param::List("volumes", "Volumes, as JSON; one of that name is replaced."),
            switch("deleteVolumes", "Whether all other volumes go."),
            Param::List("datavolumeTemplates", "Templates of DataVolumes, as JSON; one of that name is replaced."),
            switch("deleteDatavolumeTemplate", "Whether all others go."),
            Param::List("templateParameters", "Parameters, as JSON; one of that name is replaced."),
            switch("deleteTemplateParameters", "Whether all others go."),
            switch("deleteTemplate", "Whether to delete the template."),
        ],
        results: vec![NAME, NAMESPACE],
        workspaces: Vec::new(),
        steps: vec![words(plain("modifytemplate", images, &args(name, &flags, true)), &lists)],
        volumes: vec![temporary()],
    }
}

fn modify_data_object(images: Images<'_>) -> Task {
    let name = "modify-data-object";
    let flags = [
        ("manifest", "manifest"),
        ("namespace", "namespace"),
        ("wait-for-success", "waitForSuccess"),
        ("allow-replace", "allowReplace"),
        ("delete-object", "deleteObject"),
        ("delete-object-kind", "deleteObjectKind"),
        ("delete-object-name", "deleteObjectName"),
        ("timeout", "timeout"),
        ("set-owner-reference", "setOwnerReference"),
    ];
    Task {
        name,
        title: "Modify Data Object",
        description: "Creates, replaces or deletes a DataVolume or a DataSource.",
        params: vec![
            param("manifest", "YAML of a DataVolume or a DataSource."),
            param("namespace", "Its namespace."),
            switch("waitForSuccess", "Whether to wait until it is ready."),
            switch("allowReplace", "Whether one of that name may be replaced."),
            switch("deleteObject", "Whether to delete the one that is named."),
            param("deleteObjectKind", "DataVolume, DataSource or PersistentVolumeClaim."),
            param("deleteObjectName", "Its name."),
            Param::Text("timeout", "How long to wait, such as 1h30m.", Some("1h")),
            owner(),
        ],
        results: vec![NAME, NAMESPACE],
        workspaces: Vec::new(),
        steps: vec![plain("modifydataobject", images, &args(name, &flags, true))],
        volumes: vec![temporary()],
    }
}

fn generate_ssh_keys(images: Images<'_>) -> Task {
    let name = "generate-ssh-keys";
    let flags = [
        ("public-key-secret-name", "publicKeySecretName"),
        ("public-key-secret-namespace", "publicKeySecretNamespace"),
        ("private-key-secret-name", "privateKeySecretName"),
        ("private-key-secret-namespace", "privateKeySecretNamespace"),
        ("additional-ssh-keygen-options", "additionalSSHKeygenOptions"),
    ];
    let results =
        ["publicKeySecretName", "publicKeySecretNamespace", "privateKeySecretName", "privateKeySecretNamespace"];
    let mut given = args(name, &flags, false);
    given.extend(results.map(|name| result(&flag_of(name), name)));
    let step = words(
        plain("generate-ssh-keys", images, &given),
        &[("private-key-connection-option", "privateKeyConnectionOptions")],
    );
    Task {
        name,
        title: "Generate SSH Keys",
        description: "Generates a pair of keys for SSH: the public key is added to a Secret, the private key gets a Secret of its own.",
        params: vec![
            param("publicKeySecretName", "The Secret that the public key is added to."),
            param("publicKeySecretNamespace", "Its namespace."),
            param("privateKeySecretName", "The Secret of the private key, which must not be there yet."),
            param("privateKeySecretNamespace", "Its namespace."),
            Param::List(
                "privateKeyConnectionOptions",
                "KEY:VALUE of the connection: user, host-public-key and the like.",
            ),
            param("additionalSSHKeygenOptions", "Options of ssh-keygen, such as -t rsa -b 4096."),
        ],
        results: vec![
            (results[0], "The Secret of public keys."),
            (results[1], "Its namespace."),
            (results[2], "The Secret of the private key."),
            (results[3], "Its namespace."),
        ],
        workspaces: Vec::new(),
        steps: vec![step],
        volumes: vec![temporary()],
    }
}

/// `publicKeySecretName` is `public-key-secret-name-result`.
fn flag_of(name: &str) -> String {
    let mut out = String::new();
    for c in name.chars() {
        if c.is_ascii_uppercase() {
            out.push('-');
        }
        out.push(c.to_ascii_lowercase());
    }
    format!("{out}-result")
}

const CONNECTION: (&str, &str) = ("connectionsecret", "/data/connectionsecret");

fn execution() -> Vec<Param> {
    vec![
        needed("vmName", "The VM, which is started if it does not run."),
        param("vmNamespace", "Its namespace."),
        Param::Text(
            "secretName",
            "A Secret with user, ssh-privatekey, and host-public-key or disable-strict-host-key-checking.",
            Some("__empty__"),
        ),
        Param::List("command", "The command, and its first words."),
        Param::List("args", "Further words."),
        param("script", "A script, in place of a command."),
    ]
}

fn executing(name: &'static str, images: Images<'_>, more: &[(&str, &str)]) -> (Value, Vec<Value>) {
    let flags = [&[("vm-name", "vmName"), ("vm-namespace", "vmNamespace"), ("script", "script")], more].concat();
    let step = words(plain("execute", images, &args(name, &flags, false)), &[("command", "command"), ("arg", "args")]);
    let mounts = [TEMPORARY, CONNECTION];
    let secret = json!({ "name": CONNECTION.0, "secret": { "secretName": "$(params.secretName)", "optional": true } });
    (mounted(step, &mounts), vec![temporary(), secret])
}

fn execute_in_vm(images: Images<'_>) -> Task {
    let (step, volumes) = executing("execute-in-vm", images, &[]);
    Task {
        name: "execute-in-vm",
        title: "Execute in VM",
        description: "Runs a command or a script in a guest, by SSH. The exit code of the step is that of the command.",
        params: execution(),
        results: Vec::new(),
        workspaces: Vec::new(),
        steps: vec![step],
        volumes,
    }
}

fn cleanup_vm(images: Images<'_>) -> Task {
    let more = [("stop", "stop"), ("delete", "delete"), ("timeout", "timeout")];
    let (step, volumes) = executing("cleanup-vm", images, &more);
    let mut params = execution();
    params.extend([
        Param::Text("stop", "Whether to stop the VM.", Some("true")),
        switch("delete", "Whether to delete it."),
        Param::Text("timeout", "How long the command may take, with the guest's start.", Some("30m")),
    ]);
    Task {
        name: "cleanup-vm",
        title: "Cleanup VM",
        description: "Runs a command or a script in a guest, if there is one, and stops or deletes the VM, whatever came of the command.",
        params,
        results: Vec::new(),
        workspaces: Vec::new(),
        steps: vec![step],
        volumes,
    }
}

fn wait_for_vmi_status(images: Images<'_>) -> Task {
    let name = "wait-for-vmi-status";
    let flags = [
        ("vmi-name", "vmiName"),
        ("vmi-namespace", "vmiNamespace"),
        ("success-condition", "successCondition"),
        ("failure-condition", "failureCondition"),
    ];
    Task {
        name,
        title: "Wait for VMI Status",
        description: "Waits until fields of a VirtualMachineInstance are as they are to be.",
        params: vec![
            needed("vmiName", "The VirtualMachineInstance."),
            param("vmiNamespace", "Its namespace."),
            param("successCondition", "When to succeed, in the grammar of label selectors: status.phase == Succeeded."),
            param("failureCondition", "When to fail: status.phase in (Failed, Unknown)."),
        ],
        results: Vec::new(),
        workspaces: Vec::new(),
        steps: vec![plain("wait-for-vmi-status", images, &args(name, &flags, false))],
        volumes: vec![temporary()],
    }
}

#[cfg(test)]
mod tests;
