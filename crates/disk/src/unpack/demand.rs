//! How much of what it unpacked a compressed stream wants kept: its dictionary or window, as its first bytes say.
//!
//! The default levels want little (xz -6: 8 MiB, zstd -3: 2 MiB, -19: 8 MiB), so that an importer stays within 64 MiB. The
//! highest that are in use (xz -9: 64 MiB, zstd --long=27: 128 MiB) are taken, and cost what they say.

use crate::detect::Kind;

/// The largest dictionary of each compression that is unpacked.
pub(crate) fn limit(kind: Kind) -> u64 {
    match kind {
        Kind::Zstd => 128 << 20,
        _ => 64 << 20,
    }
}

/// Bytes that the stream beginning with `head` wants kept. None where that is not told, or little.
pub(crate) fn demand(kind: Kind, head: &[u8]) -> Option<u64> {
    match kind {
        Kind::Xz => xz(head),
        Kind::Zstd => zstd(head),
        _ => None,
    }
}

/// The dictionary of the first block's last filter, which is LZMA2.
fn xz(head: &[u8]) -> Option<u64> {
    const STREAM_HEADER: usize = 12;
    const LZMA2: u64 = 0x21;
    let block = head.get(STREAM_HEADER..)?;
    let flags = *block.get(1)?;
    let mut rest = block.get(2..)?;
    for size in [0x40, 0x80] {
        if flags & size != 0 {
            number(&mut rest)?;
        }
    }
    for _ in 0..=flags & 3 {
        let (filter, length) = (number(&mut rest)?, usize::try_from(number(&mut rest)?).ok()?);
        let properties = rest.get(..length)?;
        rest = &rest[length..];
        if filter == LZMA2 {
            let bits = u32::from(*properties.first()? & 0x3f);
            return Some(if bits >= 40 { u64::from(u32::MAX) } else { u64::from(2 | bits & 1) << (bits / 2 + 11) });
        }
    }
    None
}

/// Seven bits in each byte, the lowest first.
fn number(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0;
    for shift in (0..63).step_by(7) {
        let (byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

/// The window of the first frame, or all of its content where that is one piece.
fn zstd(head: &[u8]) -> Option<u64> {
    const SINGLE: u8 = 0x20;
    let descriptor = *head.get(4)?;
    if descriptor & SINGLE == 0 {
        let window = u64::from(*head.get(5)?);
        let base = 1_u64 << (10 + (window >> 3));
        return Some(base + base / 8 * (window & 7));
    }
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size = head.get(5 + dictionary..)?;
    Some(match descriptor >> 6 {
        0 => u64::from(*size.first()?),
        1 => u64::from(u16::from_le_bytes(*size.first_chunk()?)) + 256,
        2 => u32::from_le_bytes(*size.first_chunk()?).into(),
        _ => u64::from_le_bytes(*size.first_chunk()?),
    })
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    #[track_caller]
    fn check(kind: Kind, stream: &[u8], expect: Option<u64>) {
        assert_eq!(demand(kind, stream), expect);
    }

    #[test]
    fn memory_demand_is_read_from_stream_headers() {
        for (level, mib) in [(1, 1), (6, 8), (9, 64)] {
            check(Kind::Xz, &liblzma::encode_all(&b"a disk"[..], level).unwrap(), Some(mib << 20));
        }
        for (log, bytes) in [(17, 128 << 10), (27, 128 << 20), (30, 1 << 30)] {
            let mut encoder = zstd::stream::Encoder::new(Vec::new(), 1).unwrap();
            encoder.window_log(log).unwrap();
            encoder.write_all(&vec![7; 300_000]).unwrap();
            check(Kind::Zstd, &encoder.finish().unwrap(), Some(bytes));
        }
        // In one piece, of known size.
        check(Kind::Zstd, &zstd::bulk::compress(&[7; 100], 1).unwrap(), Some(100));
        check(Kind::Zstd, &zstd::bulk::compress(&[7; 1000], 1).unwrap(), Some(1000));
    }

    #[test]
    fn truncated_headers_give_no_demand() {
        let stream = liblzma::encode_all(&b"a disk"[..], 6).unwrap();
        check(Kind::Xz, &stream[..14], None);
        check(Kind::Xz, &[stream[..13].to_vec(), vec![0xff; 30]].concat(), None);
        check(Kind::Zstd, &[0x28, 0xb5, 0x2f, 0xfd], None);
        check(Kind::Gzip, &[0x1f, 0x8b], None);
    }
}
