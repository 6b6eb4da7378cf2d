//! Numbers within a table. What lies beyond its end reads as zero: each layout checks the length that it needs first.

fn at<const N: usize>(bytes: &[u8], offset: usize) -> [u8; N] {
    bytes.get(offset..).and_then(|rest| rest.first_chunk::<N>()).copied().unwrap_or([0; N])
}

pub(super) fn le16(bytes: &[u8], offset: usize) -> u16 {
    u16::from_le_bytes(at(bytes, offset))
}

pub(super) fn le32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_le_bytes(at(bytes, offset))
}

pub(super) fn le64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_le_bytes(at(bytes, offset))
}

pub(super) fn be32(bytes: &[u8], offset: usize) -> u32 {
    u32::from_be_bytes(at(bytes, offset))
}

pub(super) fn be64(bytes: &[u8], offset: usize) -> u64 {
    u64::from_be_bytes(at(bytes, offset))
}
