//! What a disk is a copy of, and who may have the copy.
//!
//! A DataVolume names a claim, a snapshot or a DataSource, each perhaps of another namespace. Whoever makes it in somebody else's name, with
//! rights of its own, goes three steps, and nothing can be exchanged between them:
//!
//! ```text
//! follow (to the end) ─▶ leave (may the one it is made for?) ─▶ the DataVolume, with that end spelled out
//! ```
//!
//! Networks are the other thing that machines have of other namespaces: [`network`].

pub mod follow;
pub mod leave;
pub mod network;

use std::fmt;

use api::cdi::v1beta1::{DataVolumeSource, DataVolumeSourcePVC, DataVolumeSourceSnapshot};

/// What is copied.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Source {
    /// A snapshot, else a claim.
    pub snapshot: bool,
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl Source {
    /// As a DataVolume spells it.
    pub fn spelled(&self) -> DataVolumeSource {
        let (name, namespace) = (self.name.clone(), self.namespace.clone());
        if self.snapshot {
            let snapshot = Some(DataVolumeSourceSnapshot { name, namespace });
            return DataVolumeSource { snapshot, ..DataVolumeSource::default() };
        }
        DataVolumeSource { pvc: Some(DataVolumeSourcePVC { name, namespace }), ..DataVolumeSource::default() }
    }
}

impl fmt::Display for Source {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = if self.snapshot { "volumesnapshots" } else { "persistentvolumeclaims" };
        write!(out, "{kind}/{}/{}", self.namespace, self.name)
    }
}
