//! The objects of other operators that follow from the HyperConverged object: which they are, and where they lie. Pure.

/// The objects of other operators, in the order in which they are made.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Child {
    /// Virtual machines.
    KubeVirt,
    /// Disks.
    Cdi,
    /// Networks.
    NetworkAddons,
    /// Templates and boot images.
    Ssp,
}

/// What is known of a kind.
#[derive(Clone, Copy, Debug)]
pub struct Kind {
    /// `group/version`.
    pub api_version: &'static str,
    /// The kind, as conditions name it.
    pub kind: &'static str,
    /// Its plural.
    pub plural: &'static str,
    /// The name of the one object that is made.
    pub name: &'static str,
    /// Objects lie in a namespace.
    pub namespaced: bool,
    /// The annotation of a HyperConverged object with a patch for this one.
    pub patch: &'static str,
    /// What of the product it is, as labels say it.
    pub component: &'static str,
}

impl Child {
    /// All, in the order in which they are made.
    pub const ALL: [Child; 4] = [Child::KubeVirt, Child::Cdi, Child::NetworkAddons, Child::Ssp];

    /// What is known of its kind.
    pub const fn kind(self) -> Kind {
        match self {
            Child::KubeVirt => Kind {
                api_version: "kubevirt.io/v1",
                kind: "KubeVirt",
                plural: "kubevirts",
                name: "kubevirt-kubevirt-hyperconverged",
                namespaced: true,
                patch: "kubevirt.kubevirt.io/jsonpatch",
                component: "compute",
            },
            Child::Cdi => Kind {
                api_version: "cdi.kubevirt.io/v1beta1",
                kind: "CDI",
                plural: "cdis",
                name: "cdi-kubevirt-hyperconverged",
                namespaced: false,
                patch: "containerizeddataimporter.kubevirt.io/jsonpatch",
                component: "storage",
            },
            Child::NetworkAddons => Kind {
                api_version: "networkaddonsoperator.network.kubevirt.io/v1",
                kind: "NetworkAddonsConfig",
                plural: "networkaddonsconfigs",
                name: "cluster",
                namespaced: false,
                patch: "networkaddonsconfigs.kubevirt.io/jsonpatch",
                component: "network",
            },
            Child::Ssp => Kind {
                api_version: "ssp.kubevirt.io/v1beta3",
                kind: "SSP",
                plural: "ssps",
                name: "ssp-kubevirt-hyperconverged",
                namespaced: true,
                patch: "ssp.kubevirt.io/jsonpatch",
                component: "schedule",
            },
        }
    }
}
