//! Pure: whether a volume can be what is asked for.

use rpc::csi::volume_capability::AccessType;
use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::{CapacityRange, VolumeCapability};
use tonic::Status;

/// Sectors of block volumes.
const SECTOR: i64 = 4096;
/// What a volume gets when no size is asked for.
const DEFAULT: i64 = 1 << 30;

/// True for a block volume, false for a file system; the modes must be such that a volume of one node can have them,
/// or one
/// that all nodes share.
pub(super) fn is_block(capabilities: &[VolumeCapability], shared: bool) -> Result<bool, Status> {
    if capabilities.is_empty() {
        return Err(Status::invalid_argument("volume_capabilities are required"));
    }
    let mut block = None;
    for capability in capabilities {
        let own = is_block_one(capability, shared)?;
        if block.is_some_and(|other| other != own) {
            return Err(Status::invalid_argument("a volume is either a block device or a file system, not both"));
        }
        block = Some(own);
    }
    Ok(block.unwrap_or_default())
}

pub(super) fn is_block_one(capability: &VolumeCapability, shared: bool) -> Result<bool, Status> {
    match mode(capability) {
        None | Some(Mode::Unknown) => {
            return Err(Status::invalid_argument("volume_capability.access_mode is required"));
        }
        Some(mode @ (Mode::MultiNodeMultiWriter | Mode::MultiNodeSingleWriter | Mode::MultiNodeReaderOnly))
            if !shared =>
        {
            return Err(Status::invalid_argument(format!(
                "access mode {} is not supported: a volume is on one node",
                mode.as_str_name()
            )));
        }
        Some(_) => {}
    }
    match &capability.access_type {
        Some(AccessType::Block(_)) => Ok(true),
        Some(AccessType::Mount(_)) => Ok(false),
        None => Err(Status::invalid_argument("volume_capability: one of block and mount is required")),
    }
}

/// The mode that is asked for, when it is one of the specification's.
pub(super) fn mode(capability: &VolumeCapability) -> Option<Mode> {
    capability.access_mode.as_ref().map(rpc::csi::volume_capability::AccessMode::mode)
}

/// Whether a volume of that kind can be used as a call says that it is; many say nothing.
pub(super) fn check_kind(capability: Option<&VolumeCapability>, block: bool) -> Result<(), Status> {
    let Some(capability) = capability else { return Ok(()) };
    if is_block_one(capability, true)? == block {
        return Ok(());
    }
    let is = if block { "a block device, not a file system" } else { "a file system, not a block device" };
    Err(Status::invalid_argument(format!("volume_capability: the volume is {is}")))
}

/// The size to make a volume of: what is required, in whole sectors for a block device. What holds a copy is no smaller
/// than the original.
pub(super) fn size(range: Option<&CapacityRange>, block: bool, original: Option<i64>) -> Result<i64, Status> {
    let CapacityRange { required_bytes: required, limit_bytes: limit } = range.copied().unwrap_or_default();
    if required < 0 || limit < 0 {
        return Err(Status::invalid_argument("capacity_range is negative"));
    }
    if limit > 0 && required > limit {
        return Err(Status::out_of_range(format!("required_bytes {required} are more than limit_bytes {limit}")));
    }
    let wanted = match (required, limit, original) {
        (0, _, Some(original)) => original,
        (0, 0, None) => DEFAULT,
        (0, limit, None) => DEFAULT.min(limit),
        (required, ..) => required,
    };
    if let Some(original) = original.filter(|original| wanted < *original || (limit > 0 && limit < *original)) {
        let asked = if required > 0 { required } else { limit };
        return Err(Status::out_of_range(format!(
            "{asked} bytes are asked for, and volume_content_source has {original}"
        )));
    }
    if !block {
        return Ok(wanted);
    }
    let whole = wanted.checked_add(SECTOR - 1).map_or(i64::MAX - SECTOR + 1, |sum| sum / SECTOR * SECTOR);
    if limit > 0 && whole > limit {
        return Err(Status::out_of_range(format!("no multiple of {SECTOR} lies between {required} and {limit} bytes")));
    }
    Ok(whole)
}

/// Whether a volume of `size` is what the range asks for.
pub(super) fn fits(range: Option<&CapacityRange>, size: i64) -> bool {
    let CapacityRange { required_bytes: required, limit_bytes: limit } = range.copied().unwrap_or_default();
    size >= required && (limit == 0 || size <= limit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes() {
        let check = |required_bytes, limit_bytes, block, expect: Result<i64, tonic::Code>| {
            let got = size(Some(&CapacityRange { required_bytes, limit_bytes }), block, None);
            assert_eq!(got.map_err(|status| status.code()), expect, "{required_bytes}..{limit_bytes}");
        };
        check(0, 0, true, Ok(1 << 30));
        check(1, 0, true, Ok(4096));
        check(1, 0, false, Ok(1));
        check(0, 8192, true, Ok(8192));
        check(5000, 8192, true, Ok(8192));
        check(5000, 6000, true, Err(tonic::Code::OutOfRange));
        check(2, 1, false, Err(tonic::Code::OutOfRange));
        check(-1, 0, false, Err(tonic::Code::InvalidArgument));
        check(i64::MAX, 0, true, Ok(i64::MAX - 4095));
    }

    #[test]
    fn copies_are_no_smaller() {
        let check = |required_bytes, limit_bytes, expect: Option<i64>| {
            let got = size(Some(&CapacityRange { required_bytes, limit_bytes }), false, Some(100));
            assert_eq!(got.ok(), expect, "{required_bytes}..{limit_bytes}");
        };
        check(0, 0, Some(100));
        check(0, 100, Some(100));
        check(0, 99, None);
        check(99, 0, None);
        check(101, 0, Some(101));
    }

    #[test]
    fn a_size_that_fits() {
        let range = CapacityRange { required_bytes: 10, limit_bytes: 20 };
        assert!(fits(Some(&range), 10) && fits(Some(&range), 20) && fits(None, 1));
        assert!(!fits(Some(&range), 9) && !fits(Some(&range), 21));
    }
}
