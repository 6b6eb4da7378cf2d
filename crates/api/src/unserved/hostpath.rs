//! Of the HostPathProvisioner object.

use super::{Row, When, warned};

/// Of the whole object.
pub const HOSTPATH: &[Row] = &[
    warned("spec.featureGates", When::Set, "nothing waits for a gate"),
    warned("spec.storagePools[].overlayClassName", When::Set, "volumes are directories or files of their pool"),
    warned("spec.storagePools[].snapshotProvider", When::Set, "the driver takes the snapshots of its volumes"),
];
