//! Pipelines that make boot sources of Windows: one installs it of its medium, the other customizes what the first has made. Pure.

use serde_json::{Value, json};

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

/// The Pipelines.
pub fn pipelines(version: &str) -> Vec<Value> {
    vec![installer(version), customize(version)]
}

fn param(name: &str, description: &str, default: Option<&str>) -> Value {
    let mut out = json!({ "name": name, "type": "string", "description": description });
    if let Some(default) = default {
        out["default"] = json!(default);
    }
    out
}

/// A Task of the Pipeline, which runs after others.
fn task(name: &str, task: &str, after: &[&str], params: &[(&str, &str)]) -> Value {
    let params: Vec<Value> = params.iter().map(|(name, value)| json!({ "name": name, "value": value })).collect();
    let mut out = json!({ "name": name, "taskRef": { "kind": "Task", "name": task }, "params": params });
    if !after.is_empty() {
        out["runAfter"] = json!(after);
    }
    out
}

fn pipeline(name: &str, version: &str, description: &str, params: &[Value], tasks: &[Value], last: &[Value]) -> Value {
    json!({
        "apiVersion": "tekton.dev/v1", "kind": "Pipeline",
        "metadata": {
            "name": name, "labels": { "app.kubernetes.io/version": version },
            "annotations": { "tekton.dev/pipelines.minVersion": "0.43.0", "tekton.dev/tags": "kubevirt" },
        },
        "spec": {
            "description": description, "params": params, "tasks": tasks, "finally": last,
            "results": [
                { "name": "baseDvName", "description": "The boot source.", "value": "$(params.baseDvName)" },
                { "name": "baseDvNamespace", "description": "Its namespace.", "value": "$(params.baseDvNamespace)" },
            ],
        },
    })
}

/// A DataVolume, made at once and waited for.
fn volume(name: &str, namespace: &str, source: &str, size: &str, labels: &str) -> String {
    format!(
        "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  annotations:\n    \
         cdi.kubevirt.io/storage.bind.immediate.requested: \"true\"\n{labels}spec:\n  source:\n{source}  storage:\n    resources:\n      \
         requests:\n        storage: {size}\n"
    )
}

fn data_source() -> String {
    "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataSource\nmetadata:\n  name: $(params.baseDvName)\n  namespace: $(params.baseDvNamespace)\n  \
     labels:\n    instancetype.kubevirt.io/default-instancetype: $(params.instanceTypeName)\n    \
     instancetype.kubevirt.io/default-preference: $(params.preferenceName)\nspec:\n  source:\n    pvc:\n      name: $(params.baseDvName)\n      \
     namespace: $(params.baseDvNamespace)\n"
        .to_owned()
}

const NAMESPACE: &str = "$(context.pipelineRun.namespace)";

/// The machine that runs a medium's setup, or what seals it again: it ends when that is done.
fn machine(name: &str, disks: &str, volumes: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata:\n  generateName: {name}-\nspec:\n  runStrategy: Once\n  template:\n    spec:\n      \
         domain:\n        cpu:\n          cores: 2\n        memory:\n          guest: 4Gi\n        devices:\n          disks:\n{disks}          \
         interfaces:\n          - name: default\n            model: e1000e\n            masquerade: {{}}\n          tpm: {{}}\n        features:\n          \
         acpi: {{}}\n          smm: {{}}\n        firmware:\n          bootloader:\n            efi:\n              secureBoot: true\n      networks:\n      \
         - name: default\n        pod: {{}}\n      volumes:\n{volumes}"
    )
}

fn disk(name: &str, kind: &str, bus: &str, order: u32) -> String {
    format!("          - name: {name}\n            bootOrder: {order}\n            {kind}:\n              bus: {bus}\n")
}

fn on_claim(name: &str, claim: &str) -> String {
    format!("      - name: {name}\n        persistentVolumeClaim:\n          claimName: {claim}\n")
}

fn drivers() -> &'static str {
    "      - name: virtio\n        containerDisk:\n          image: $(params.virtioContainerDiskName)\n"
}

fn answers(param: &str) -> String {
    format!("      - name: sysprep\n        sysprep:\n          configMap:\n            name: $(params.{param})\n")
}

/// What both have in common: the machine is waited for and goes.
fn waiting(machine: &str, after: &[&str]) -> Value {
    let name = format!("$(tasks.{machine}.results.name)");
    let mut wait = task(
        "wait-for-vmi-status",
        "wait-for-vmi-status",
        after,
        &[
            ("vmiName", &name),
            ("successCondition", "status.phase == Succeeded"),
            ("failureCondition", "status.phase in (Failed, Unknown)"),
        ],
    );
    wait["timeout"] = json!("2h0m0s");
    wait
}

fn cleaning(machine: &str) -> Value {
    let name = format!("$(tasks.{machine}.results.name)");
    let mut clean = task("cleanup-vm", "cleanup-vm", &[], &[("vmName", &name), ("stop", "false"), ("delete", "true")]);
    clean["timeout"] = json!("10m0s");
    clean
}

fn common(name: &str, disk: &str) -> Vec<Value> {
    vec![
        param("instanceTypeName", "Instance type of machines that boot from it.", Some("u1.large")),
        param("preferenceName", "Their preference.", Some("windows.11.virtio")),
        param("baseDvName", "Name of the boot source.", Some(name)),
        param("baseDvNamespace", "Its namespace.", Some("kubevirt")),
        param("virtioContainerDiskName", "The image of the drivers.", Some(disk)),
    ]
}

const DRIVERS: &str = "quay.io/kubevirt/virtio-container-disk:v1.8.4";

fn installer(version: &str) -> Value {
    let mut params = vec![
        param("winImageDownloadURL", "Where the medium of Windows is.", None),
        param("acceptEula", "Whether you accept the licence of Windows: true.", None),
        param("autounattendConfigMapName", "The answers of the installation.", Some(UNATTEND_NAME)),
        param("isoDVName", "Name of the medium's DataVolume.", Some("win11")),
        param("useBiosMode", "Whether the medium is for BIOS, which asks for no key.", Some("false")),
    ];
    params.extend(common("win11", DRIVERS));
    let medium = volume(
        "$(params.isoDVName)-iso",
        NAMESPACE,
        "    http:\n      url: $(params.winImageDownloadURL)\n",
        "9Gi",
        "",
    );
    let root = volume("$(params.baseDvName)", "$(params.baseDvNamespace)", "    blank: {}\n", "20Gi", "");
    let disks = [
        disk("installcdrom", "cdrom", "sata", 1),
        disk("rootdisk", "disk", "virtio", 2),
        disk("virtio", "cdrom", "sata", 3),
        disk("sysprep", "cdrom", "sata", 4),
    ]
    .concat();
    let volumes = [
        on_claim("installcdrom", "$(params.isoDVName)-iso"),
        on_claim("rootdisk", "$(params.baseDvName)"),
        drivers().to_owned(),
        answers("autounattendConfigMapName"),
    ]
    .concat();
    let accepted = json!([{ "input": "$(params.acceptEula)", "operator": "in", "values": ["true"] }]);
    let mut import = task(
        "import-win-iso",
        "modify-data-object",
        &[],
        &[("manifest", &medium), ("waitForSuccess", "true"), ("allowReplace", "true")],
    );
    import["when"] = accepted.clone();
    let mut root = task(
        "create-vm-root-disk",
        "modify-data-object",
        &[],
        &[("manifest", &root), ("waitForSuccess", "true"), ("allowReplace", "true")],
    );
    root["when"] = accepted;
    let mut patch = task(
        "modify-windows-iso-file",
        "modify-windows-iso-file",
        &["import-win-iso"],
        &[("pvcName", "$(params.isoDVName)-iso")],
    );
    patch["when"] = json!([{ "input": "$(params.useBiosMode)", "operator": "notin", "values": ["true"] }]);
    let create = task(
        "create-vm",
        "create-vm-from-manifest",
        &["modify-windows-iso-file", "create-vm-root-disk"],
        &[("manifest", &machine("windows-installer", &disks, &volumes)), ("namespace", NAMESPACE)],
    );
    let boots = task(
        "create-datasource-root-disk",
        "modify-data-object",
        &["wait-for-vmi-status"],
        &[("manifest", &data_source()), ("waitForSuccess", "true"), ("allowReplace", "true")],
    );
    let gone = task(
        "delete-imported-iso",
        "modify-data-object",
        &[],
        &[
            ("deleteObject", "true"),
            ("deleteObjectKind", "DataVolume"),
            ("deleteObjectName", "$(params.isoDVName)-iso"),
            ("namespace", NAMESPACE),
        ],
    );
    pipeline(
        "windows-efi-installer",
        version,
        "Installs Windows of its medium, and makes a boot source of it.",
        &params,
        &[import, root, patch, create, waiting("create-vm", &["create-vm"]), boots],
        &[cleaning("create-vm"), gone],
    )
}

fn customize(version: &str) -> Value {
    let mut params = vec![
        param("customizeConfigMapName", "What is done to it.", Some(CUSTOMIZE_NAME)),
        param("sourceDiskImageName", "The boot source that is customized.", Some("win11")),
        param("sourceDiskImageNamespace", "Its namespace.", Some("kubevirt")),
    ];
    params.extend(common("win11-customized", DRIVERS));
    let copy = volume(
        "$(params.baseDvName)",
        "$(params.baseDvNamespace)",
        "    pvc:\n      name: $(params.sourceDiskImageName)\n      namespace: $(params.sourceDiskImageNamespace)\n",
        "20Gi",
        "",
    );
    let disks = [
        disk("rootdisk", "disk", "virtio", 1),
        disk("virtio", "cdrom", "sata", 2),
        disk("sysprep", "cdrom", "sata", 3),
    ]
    .concat();
    let volumes =
        [on_claim("rootdisk", "$(params.baseDvName)"), drivers().to_owned(), answers("customizeConfigMapName")]
            .concat();
    let copied = task(
        "copy-vm-root-disk",
        "modify-data-object",
        &[],
        &[("manifest", &copy), ("waitForSuccess", "true"), ("allowReplace", "true")],
    );
    let create = task(
        "create-vm",
        "create-vm-from-manifest",
        &["copy-vm-root-disk"],
        &[("manifest", &machine("windows-customize", &disks, &volumes)), ("namespace", NAMESPACE)],
    );
    let boots = task(
        "create-datasource-root-disk",
        "modify-data-object",
        &["wait-for-vmi-status"],
        &[("manifest", &data_source()), ("waitForSuccess", "true"), ("allowReplace", "true")],
    );
    pipeline(
        "windows-customize",
        version,
        "Customizes a boot source of Windows, and makes another of it.",
        &params,
        &[copied, create, waiting("create-vm", &["create-vm"]), boots],
        &[cleaning("create-vm")],
    )
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::manifests::tasks;

    /// Every word in `$(WHAT.…)` of a manifest.
    fn named(value: &Value, what: &str) -> BTreeSet<String> {
        let text = value.to_string();
        let open = format!("$({what}.");
        text.split(&open).skip(1).filter_map(|rest| rest.split(')').next()).map(str::to_owned).collect()
    }

    #[test]
    fn pipelines_give_tasks_params_that_they_have() {
        let all = tasks("i", "d", "v");
        for pipeline in pipelines("v1") {
            let spec = &pipeline["spec"];
            let list = |field: &str| spec[field].as_array().unwrap().clone();
            let declared: BTreeSet<String> =
                list("params").iter().map(|param| param["name"].as_str().unwrap().to_owned()).collect();
            assert_eq!(named(&json!([spec["tasks"], spec["finally"], spec["results"]]), "params"), declared);
            let steps = [list("tasks"), list("finally")].concat();
            for step in &steps {
                let task = all.iter().find(|task| task["metadata"]["name"] == step["taskRef"]["name"]).unwrap();
                let has: Vec<&Value> = task["spec"]["params"].as_array().unwrap().iter().collect();
                let given = step["params"].as_array().unwrap();
                for param in given {
                    assert!(
                        has.iter().any(|held| held["name"] == param["name"]),
                        "{}: {}",
                        step["name"],
                        param["name"]
                    );
                    // What is said in YAML is YAML.
                    if param["name"] == "manifest" {
                        let manifest: Value = serde_saphyr::from_str(param["value"].as_str().unwrap()).unwrap();
                        assert!(manifest["kind"].is_string());
                    }
                }
                for needed in has.iter().filter(|held| held["default"].is_null()) {
                    assert!(
                        given.iter().any(|param| param["name"] == needed["name"]),
                        "{}: {}",
                        step["name"],
                        needed["name"]
                    );
                }
                for after in step["runAfter"].as_array().into_iter().flatten() {
                    assert!(steps.iter().any(|other| other["name"] == *after), "{after}");
                }
            }
        }
    }

    #[test]
    fn what_pipelines_name_is_there() {
        let names: Vec<Value> = config_maps().iter().map(|map| map["metadata"]["name"].clone()).collect();
        assert_eq!(names, [UNATTEND_NAME, CUSTOMIZE_NAME]);
    }
}
