//! Pipelines that make boot sources of Windows: one installs it of its medium, the other customizes what the first has made. Pure.
//!
//! ```text
//! prepare --+-- import-win-iso -- modify-windows-iso-file --+-- create-vm -- wait-for-vmi-status -- copy-root-disk -- create-datasource-root-disk
//!           +-- create-vm-root-disk ------------------------+                                      (to another namespace)
//! ```
//!
//! The machine, the medium and the disk are where the Pipeline runs: a pod mounts claims of its own namespace and no other.

mod objects;
mod prepare;

use serde_json::{Value, json};

use self::objects::{HERE, ROOT, answers, copy_of, data_source, disk, drivers, machine, on_claim, volume};
pub(super) use self::prepare::PREPARE;

/// The answers of an installation that nobody watches, and what is run after it.
const UNATTEND: &str = include_str!("pipelines/windows11-autounattend.xml");
const UNATTEND_NAME: &str = "windows11-autounattend";
const CUSTOMIZE: &str = include_str!("pipelines/windows-vs-code.xml");
const CUSTOMIZE_NAME: &str = "windows-vs-code";

/// ConfigMaps that the Pipelines name.
pub fn config_maps() -> Vec<Value> {
    let of = |name: &str, key: &str, text: &str| json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": { (key): text } });
    vec![of(UNATTEND_NAME, "autounattend.xml", UNATTEND), of(CUSTOMIZE_NAME, "unattend.xml", CUSTOMIZE)]
}

/// The Pipelines, whose Tasks are in `namespace`; `image` holds the program.
pub fn pipelines(namespace: &str, image: &str, version: &str) -> Vec<Value> {
    let home = Home { namespace, image, version };
    vec![installer(home), customize(home)]
}

/// Where the Pipelines are of.
#[derive(Clone, Copy, Debug)]
struct Home<'a> {
    namespace: &'a str,
    image: &'a str,
    version: &'a str,
}

impl Home<'_> {
    /// A Task of the Pipeline, which runs after others. It is found wherever the Pipeline runs, by the resolver that every Tekton has.
    fn task(self, name: &str, task: &str, after: &[&str], params: &[(&str, &str)]) -> Value {
        let given = |all: &[(&str, &str)]| -> Vec<Value> {
            all.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect()
        };
        let place = given(&[("kind", "task"), ("name", task), ("namespace", self.namespace)]);
        let reference = json!({ "resolver": "cluster", "params": place });
        let mut out = json!({ "name": name, "taskRef": reference, "params": given(params) });
        if !after.is_empty() {
            out["runAfter"] = json!(after);
        }
        out
    }

    /// A Task that makes an object of `manifest`, in place of one that is there, and waits until it is ready.
    fn make(self, name: &str, after: &[&str], manifest: &str) -> Value {
        let params = [("manifest", manifest), ("waitForSuccess", "true"), ("allowReplace", "true")];
        self.task(name, "modify-data-object", after, &params)
    }

    /// A Task that deletes a DataVolume of the Pipeline's own namespace.
    fn unmake(self, name: &str, volume: &str) -> Value {
        let params = [
            ("deleteObject", "true"),
            ("deleteObjectKind", "DataVolume"),
            ("deleteObjectName", volume),
            ("namespace", HERE),
        ];
        self.task(name, "modify-data-object", &[], &params)
    }

    fn pipeline(self, name: &str, description: &str, params: &[Value], tasks: &[Value], last: &[Value]) -> Value {
        json!({
            "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
            "metadata": {
                "name": name, "labels": { "app.kubernetes.io/version": self.version },
                "annotations": { "tekton.dev/pipelines.minVersion": "0.43.0", "tekton.dev/tags": "kubevirt" },
            },
            "spec": {
                "description": description, "params": params, "tasks": tasks, "finally": last,
                "results": [
                    { "name": "baseDvName", "description": "The boot source.", "value": format!("$(tasks.{BOOTS}.results.name)") },
                    { "name": "baseDvNamespace", "description": "Its namespace.", "value": format!("$(tasks.{BOOTS}.results.namespace)") },
                ],
            },
        })
    }

    /// What both do once the disk is there: the machine works on it, and a boot source is made of it.
    fn work(self, machine: &str, after: &[&str]) -> Vec<Value> {
        let create =
            self.task("create-vm", "create-vm-from-manifest", after, &[("manifest", machine), ("namespace", HERE)]);
        let mut wait = self.task(
            "wait-for-vmi-status",
            "wait-for-vmi-status",
            &["create-vm"],
            &[
                ("vmiName", MACHINE),
                ("successCondition", "status.phase == Succeeded"),
                ("failureCondition", "status.phase in (Failed, Unknown)"),
            ],
        );
        wait["timeout"] = json!("2h0m0s");
        let copy = volume("$(params.baseDvName)", "$(params.baseDvNamespace)", &copy_of(ROOT, HERE), SIZE);
        let copy = when(self.make("copy-root-disk", &["wait-for-vmi-status"], &copy), &[is_elsewhere()]);
        let boots = self.make(BOOTS, &["wait-for-vmi-status", "copy-root-disk"], &data_source());
        vec![create, wait, copy, boots]
    }

    /// What is left of the machine, and of a disk that was copied away, whatever came of it.
    fn clean(self) -> Vec<Value> {
        let params = [("vmName", MACHINE), ("stop", "false"), ("delete", "true")];
        let mut machine = self.task("cleanup-vm", "cleanup-vm", &[], &params);
        machine["timeout"] = json!("10m0s");
        let disk = self.unmake("delete-root-disk", ROOT);
        vec![machine, when(disk, &[was_tried("create-vm-root-disk"), is_elsewhere()])]
    }
}

/// The Task that makes the boot source. What a Pipeline results in is what its Tasks do: Tekton refuses params there.
const BOOTS: &str = "create-datasource-root-disk";
const MACHINE: &str = "$(tasks.create-vm.results.name)";
const SIZE: &str = "20Gi";
const DRIVERS: &str = "quay.io/kubevirt/virtio-container-disk:v1.8.4";

fn param(name: &str, description: &str, default: Option<&str>) -> Value {
    let mut out = json!({ "name": name, "type": "string", "description": description });
    if let Some(default) = default {
        out["default"] = json!(default);
    }
    out
}

fn when(mut task: Value, all: &[Value]) -> Value {
    task["when"] = json!(all);
    task
}

/// The boot source is to be in another namespace: the disk of the machine has a name of its own then.
fn is_elsewhere() -> Value {
    json!({ "input": ROOT, "operator": "notin", "values": ["$(params.baseDvName)"] })
}

/// The Task has begun: what it makes may be there. What others made is left alone where it has not.
fn was_tried(task: &str) -> Value {
    json!({ "input": format!("$(tasks.{task}.status)"), "operator": "in", "values": ["Succeeded", "Failed"] })
}

/// Params of both.
fn shared(name: &str) -> Vec<Value> {
    vec![
        param("instanceTypeName", "Instance type of machines that boot from it.", Some("u1.large")),
        param("preferenceName", "Their preference.", Some("windows.11.virtio")),
        param("baseDvName", "Name of the boot source.", Some(name)),
        param(
            "baseDvNamespace",
            "Its namespace, into which it is copied if the Pipeline runs in another.",
            Some("kubevirt"),
        ),
        param("virtioContainerDiskName", "The image of the drivers.", Some(DRIVERS)),
        param("useBiosMode", "Whether the machine starts by BIOS, and not by UEFI with a secure boot.", Some("false")),
    ]
}

fn installer(home: Home<'_>) -> Value {
    let mut params = vec![
        param("winImageDownloadURL", "Where the medium of Windows is.", None),
        param("acceptEula", "Whether you accept the licence of Windows: true. Nothing is done otherwise.", None),
        param("autounattendConfigMapName", "The answers of the installation.", Some(UNATTEND_NAME)),
        param("isoDVName", "Name of the medium's DataVolume.", Some("win11")),
    ];
    params.extend(shared("win11"));
    let medium =
        volume("$(params.isoDVName)-iso", HERE, "    http:\n      url: $(params.winImageDownloadURL)\n", "9Gi");
    let disks = [
        disk("installcdrom", "cdrom", "sata", 1),
        disk("rootdisk", "disk", "virtio", 2),
        disk("virtio", "cdrom", "sata", 3),
        disk("sysprep", "cdrom", "sata", 4),
    ];
    let volumes = [
        on_claim("installcdrom", "$(params.isoDVName)-iso"),
        on_claim("rootdisk", ROOT),
        drivers().to_owned(),
        answers(),
    ];
    let patch = home.task(
        "modify-windows-iso-file",
        "modify-windows-iso-file",
        &["import-win-iso"],
        &[("pvcName", "$(params.isoDVName)-iso")],
    );
    let by_uefi = json!({ "input": "$(params.useBiosMode)", "operator": "notin", "values": ["true"] });
    let mut tasks = vec![
        home.prepare("autounattendConfigMapName", true),
        home.make("import-win-iso", &["prepare"], &medium),
        home.make("create-vm-root-disk", &["prepare"], &volume(ROOT, HERE, "    blank: {}\n", SIZE)),
        // A medium asks for a key only where UEFI starts it.
        when(patch, &[by_uefi]),
    ];
    let machine = machine("windows-installer", &disks.concat(), &volumes.concat());
    tasks.extend(home.work(&machine, &["modify-windows-iso-file", "create-vm-root-disk"]));
    let mut last = home.clean();
    last.push(when(home.unmake("delete-imported-iso", "$(params.isoDVName)-iso"), &[was_tried("import-win-iso")]));
    home.pipeline(
        "windows-efi-installer",
        "Installs Windows of its medium, and makes a boot source of it.",
        &params,
        &tasks,
        &last,
    )
}

fn customize(home: Home<'_>) -> Value {
    let mut params = vec![
        param("customizeConfigMapName", "What is done to it.", Some(CUSTOMIZE_NAME)),
        param("sourceDiskImageName", "The boot source that is customized.", Some("win11")),
        param("sourceDiskImageNamespace", "Its namespace.", Some("kubevirt")),
    ];
    params.extend(shared("win11-customized"));
    let source = copy_of("$(params.sourceDiskImageName)", "$(params.sourceDiskImageNamespace)");
    let disks = [
        disk("rootdisk", "disk", "virtio", 1),
        disk("virtio", "cdrom", "sata", 2),
        disk("sysprep", "cdrom", "sata", 3),
    ];
    let volumes = [on_claim("rootdisk", ROOT), drivers().to_owned(), answers()];
    let mut tasks = vec![
        home.prepare("customizeConfigMapName", false),
        home.make("create-vm-root-disk", &["prepare"], &volume(ROOT, HERE, &source, SIZE)),
    ];
    let machine = machine("windows-customize", &disks.concat(), &volumes.concat());
    tasks.extend(home.work(&machine, &["create-vm-root-disk"]));
    home.pipeline(
        "windows-customize",
        "Customizes a boot source of Windows, and makes another of it.",
        &params,
        &tasks,
        &home.clean(),
    )
}

#[cfg(test)]
mod tests;
