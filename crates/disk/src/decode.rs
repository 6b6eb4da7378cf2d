//! Compressed parts of an image: each is a stream of its own, and small.

use flate2::{Decompress, FlushDecompress, Status};
use zstd::zstd_safe::{DCtx, InBuffer, OutBuffer};

use crate::layout::Form;

/// What came of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Decoded {
    /// Bytes of the disk.
    pub(crate) made: usize,
    /// Stored bytes that they were made from.
    pub(crate) taken: usize,
}

/// Fills `disk` from `stored`; says how much of it there was. None: the stream is damaged.
///
/// A stream may go on behind what is wanted: a disk ends within its last cluster.
pub(crate) fn decode(form: Form, stored: &[u8], disk: &mut [u8]) -> Option<Decoded> {
    match form {
        Form::Plain => {
            let length = stored.len().min(disk.len());
            disk[..length].copy_from_slice(&stored[..length]);
            Some(Decoded { made: length, taken: length })
        }
        Form::Deflate(_) => inflate(false, stored, disk),
        Form::Zlib(_) => inflate(true, stored, disk),
        Form::Zstd(_) => zstd(stored, disk),
        Form::Grain(_) => {
            const MARKER: usize = 12;
            let length = u32::from_le_bytes(*stored.get(8..)?.first_chunk()?) as usize;
            let grain = stored.get(MARKER..MARKER.checked_add(length)?)?;
            inflate(true, grain, disk).map(|decoded| Decoded { taken: MARKER + length, ..decoded })
        }
    }
}

fn inflate(header: bool, stored: &[u8], disk: &mut [u8]) -> Option<Decoded> {
    let mut stream = Decompress::new(header);
    loop {
        let before = (stream.total_in() as usize, stream.total_out() as usize);
        let status = stream.decompress(&stored[before.0..], &mut disk[before.1..], FlushDecompress::None).ok()?;
        let (taken, made) = (stream.total_in() as usize, stream.total_out() as usize);
        if made == disk.len() || status == Status::StreamEnd || (taken, made) == before {
            return Some(Decoded { made, taken });
        }
    }
}

fn zstd(stored: &[u8], disk: &mut [u8]) -> Option<Decoded> {
    let wanted = disk.len();
    let mut context = DCtx::create();
    let (mut input, mut output) = (InBuffer::around(stored), OutBuffer::around(disk));
    loop {
        let before = (input.pos(), output.pos());
        let left = context.decompress_stream(&mut output, &mut input).ok()?;
        let (taken, made) = (input.pos(), output.pos());
        if left == 0 || made == wanted || (taken, made) == before {
            return Some(Decoded { made, taken });
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn deflated(bytes: &[u8]) -> Vec<u8> {
        let mut encoder = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::default());
        encoder.write_all(bytes).unwrap();
        encoder.finish().unwrap()
    }

    #[track_caller]
    fn check(form: Form, stored: &[u8], room: usize, expect: Option<&[u8]>) {
        let mut disk = vec![0xee; room];
        assert_eq!(decode(form, stored, &mut disk).map(|decoded| &disk[..decoded.made]), expect);
    }

    #[test]
    fn streams_fill_a_disk() {
        let bytes = b"a disk a disk a disk".repeat(50);
        let stored = deflated(&bytes);
        check(Form::Deflate(0), &stored, 1000, Some(&bytes));
        // Sectors end behind streams, disks within them.
        check(Form::Deflate(0), &[stored.as_slice(), &[0x55; 300]].concat(), 1000, Some(&bytes));
        check(Form::Deflate(0), &stored, 7, Some(&bytes[..7]));
        check(Form::Deflate(0), &stored, 2000, Some(&bytes));
        let framed = zstd::stream::encode_all(bytes.as_slice(), 3).unwrap();
        check(Form::Zstd(0), &[framed.as_slice(), &[0x55; 300]].concat(), 1000, Some(&bytes));
        check(Form::Zstd(0), &framed, 7, Some(&bytes[..7]));
    }

    #[test]
    fn damage_is_seen() {
        check(Form::Zlib(0), b"not zlib", 100, None);
        check(Form::Deflate(0), &[0xff; 50], 100, None);
        check(Form::Zstd(0), b"not zstd", 100, None);
        check(Form::Grain(0), &[1; 11], 100, None);
        check(Form::Grain(0), &[0xff; 40], 100, None);
    }
}
