//! The CRDs, as the YAML that is committed under deploy/crds: sent as they are, never parsed.

macro_rules! crd {
    ($name:literal) => {
        ($name, include_str!(concat!("../../../../../deploy/crds/", $name, ".yaml")))
    };
}

/// File name and YAML of every CRD but the CDI object's own, which is installed with this operator.
pub const ALL: &[(&str, &str)] = &[
    crd!("cdiconfigs.cdi.kubevirt.io"),
    crd!("dataimportcrons.cdi.kubevirt.io"),
    crd!("datasources.cdi.kubevirt.io"),
    crd!("datavolumes.cdi.kubevirt.io"),
    crd!("objecttransfers.cdi.kubevirt.io"),
    crd!("openstackvolumepopulators.forklift.cdi.kubevirt.io"),
    crd!("ovirtvolumepopulators.forklift.cdi.kubevirt.io"),
    crd!("storageprofiles.cdi.kubevirt.io"),
    crd!("volumeclonesources.cdi.kubevirt.io"),
    crd!("volumeimportsources.cdi.kubevirt.io"),
    crd!("volumeuploadsources.cdi.kubevirt.io"),
];

/// The CDI object's own CRD, part of the install manifest.
pub const CDI: &str = crd!("cdis.cdi.kubevirt.io").1;
