//! The CRDs, as the YAML that is committed under deploy/crds: sent as they are, never parsed, so that a megabyte of
//! schema costs no memory.

macro_rules! crd {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../deploy/crds/", $name, ".yaml")))
    };
}

/// File name and YAML of every CRD but KubeVirt's own, which is installed with this operator.
pub const ALL: &[(&str, &str)] = &[
    crd!("migrationpolicies.migrations.kubevirt.io"),
    crd!("plugins.plugin.kubevirt.io"),
    crd!("virtualmachinebackups.backup.kubevirt.io"),
    crd!("virtualmachinebackuptrackers.backup.kubevirt.io"),
    crd!("virtualmachineclones.clone.kubevirt.io"),
    crd!("virtualmachineclusterinstancetypes.instancetype.kubevirt.io"),
    crd!("virtualmachineclusterpreferences.instancetype.kubevirt.io"),
    crd!("virtualmachineexports.export.kubevirt.io"),
    crd!("virtualmachineinstancemigrations.kubevirt.io"),
    crd!("virtualmachineinstancepresets.kubevirt.io"),
    crd!("virtualmachineinstancereplicasets.kubevirt.io"),
    crd!("virtualmachineinstances.kubevirt.io"),
    crd!("virtualmachineinstancetypes.instancetype.kubevirt.io"),
    crd!("virtualmachinepools.pool.kubevirt.io"),
    crd!("virtualmachinepreferences.instancetype.kubevirt.io"),
    crd!("virtualmachinerestores.snapshot.kubevirt.io"),
    crd!("virtualmachines.kubevirt.io"),
    crd!("virtualmachinesnapshotcontents.snapshot.kubevirt.io"),
    crd!("virtualmachinesnapshots.snapshot.kubevirt.io"),
    crd!("virtualmachinetemplaterequests.template.kubevirt.io"),
    crd!("virtualmachinetemplates.template.kubevirt.io"),
];

/// KubeVirt's own CRD, part of the install manifest.
pub const KUBEVIRT: &str = crd!("kubevirts.kubevirt.io").1;
