//! Manifests that the Pipelines' Tasks are given: disks, the machine that works on one, and the boot source. Params and results of the
//! Pipeline stand where it puts their values. Pure.

/// Where a Pipeline runs, and with it its machine.
pub(super) const HERE: &str = "$(context.pipelineRun.namespace)";
/// The disk that the machine writes.
pub(super) const ROOT: &str = "$(tasks.prepare.results.rootDisk)";

/// A DataVolume, made at once and waited for.
pub(super) fn volume(name: &str, namespace: &str, source: &str, size: &str) -> String {
    format!(
        "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataVolume\nmetadata:\n  name: {name}\n  namespace: {namespace}\n  annotations:\n    \
         cdi.kubevirt.io/storage.bind.immediate.requested: \"true\"\nspec:\n  source:\n{source}  storage:\n    resources:\n      \
         requests:\n        storage: {size}\n"
    )
}

/// The source of a DataVolume that copies a claim.
pub(super) fn copy_of(claim: &str, namespace: &str) -> String {
    format!("    pvc:\n      name: {claim}\n      namespace: {namespace}\n")
}

/// What machines boot from.
pub(super) fn data_source() -> String {
    "apiVersion: cdi.kubevirt.io/v1beta1\nkind: DataSource\nmetadata:\n  name: $(params.baseDvName)\n  namespace: $(params.baseDvNamespace)\n  \
     labels:\n    instancetype.kubevirt.io/default-instancetype: $(params.instanceTypeName)\n    \
     instancetype.kubevirt.io/default-preference: $(params.preferenceName)\nspec:\n  source:\n    pvc:\n      name: $(params.baseDvName)\n      \
     namespace: $(params.baseDvNamespace)\n"
        .to_owned()
}

/// The machine that runs a medium's setup, or what seals it again: it ends when that is done.
pub(super) fn machine(name: &str, disks: &str, volumes: &str) -> String {
    format!(
        "apiVersion: kubevirt.io/v1\nkind: VirtualMachine\nmetadata:\n  generateName: {name}-\nspec:\n  runStrategy: Once\n  template:\n    spec:\n      \
         domain:\n        cpu:\n          cores: 2\n        memory:\n          guest: 4Gi\n        devices:\n          disks:\n{disks}          \
         interfaces:\n          - name: default\n            model: e1000e\n            masquerade: {{}}\n          tpm: {{}}\n        features:\n          \
         acpi: {{}}\n          smm: $(tasks.prepare.results.smm)\n        firmware: $(tasks.prepare.results.firmware)\n      networks:\n      \
         - name: default\n        pod: {{}}\n      volumes:\n{volumes}"
    )
}

pub(super) fn disk(name: &str, kind: &str, bus: &str, order: u32) -> String {
    format!("          - name: {name}\n            bootOrder: {order}\n            {kind}:\n              bus: {bus}\n")
}

pub(super) fn on_claim(name: &str, claim: &str) -> String {
    format!("      - name: {name}\n        persistentVolumeClaim:\n          claimName: {claim}\n")
}

pub(super) fn drivers() -> &'static str {
    "      - name: virtio\n        containerDisk:\n          image: $(params.virtioContainerDiskName)\n"
}

pub(super) fn answers() -> String {
    "      - name: sysprep\n        sysprep:\n          configMap:\n            name: $(tasks.prepare.results.answers)\n".to_owned()
}
