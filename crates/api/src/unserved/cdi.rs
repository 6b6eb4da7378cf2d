//! Of the containerized data importer: the CDI object with its configuration, and DataVolumes.

use super::{Row, When, warned};

/// The feature gates that something asks for.
pub const CDI_FEATURE_GATES: [&str; 2] = ["DataVolumeClaimAdoption", "HonorWaitForFirstConsumer"];

/// Of the whole CDI object.
pub const CDI: &[Row] = &[
    warned("spec.config.dataVolumeTTLSeconds", When::Present, "a DataVolume stays until it is deleted"),
    warned("spec.config.scratchSpaceStorageClass", When::Set, "disks are imported without scratch space"),
];

/// Of the whole DataVolume.
pub const DATA_VOLUME: &[Row] = &[warned(
    "spec.source.vddk",
    When::Present,
    "there is no VDDK library to read the disk with, and the import fails: convert the disk, and use source http or upload",
)];
