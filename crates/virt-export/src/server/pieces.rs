//! Disks are read in pieces, at their places: several at once, and what is a hole not at all.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

/// The size of a piece.
pub(super) const PIECE: usize = 1 << 20;
/// A piece of nothing.
pub(super) static ZEROS: [u8; PIECE] = [0; PIECE];

/// The places of the pieces of `from..to`, with their lengths.
pub(super) fn places(from: u64, to: u64) -> impl Iterator<Item = (u64, usize)> {
    let mut at = from;
    std::iter::from_fn(move || {
        let length = usize::try_from(to.saturating_sub(at)).unwrap_or(PIECE).min(PIECE);
        let place = (at, length);
        at += length as u64;
        (length > 0).then_some(place)
    })
}

/// The bytes at `place`; none when they are all zero.
pub(super) fn read(file: &File, (at, length): (u64, usize)) -> io::Result<Option<Vec<u8>>> {
    if is_hole(file, at, length) {
        return Ok(None);
    }
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, at)?;
    Ok(Some(bytes).filter(|bytes| bytes[..] != ZEROS[..length]))
}

/// Whether the file system knows of no data there.
fn is_hole(file: &File, at: u64, length: usize) -> bool {
    match rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        Ok(data) => data >= at + length as u64,
        // No data from there to the end, which the place may lie beyond: that is no hole, but a disk that became shorter.
        Err(rustix::io::Errno::NXIO) => file.metadata().is_ok_and(|file| file.len() >= at + length as u64),
        // Not everything has holes.
        Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_cover_what_was_asked_for() {
        let piece = PIECE as u64;
        assert_eq!(places(5, 5).count(), 0);
        assert_eq!(places(9, 5).count(), 0);
        let found: Vec<_> = places(7, 2 * piece + 9).collect();
        assert_eq!(found, [(7, PIECE), (7 + piece, PIECE), (7 + 2 * piece, 2)]);
    }

    #[test]
    fn zeros_are_told_from_data() {
        let file = tempfile::tempfile().unwrap();
        let piece = PIECE as u64;
        file.set_len(3 * piece).unwrap();
        file.write_all_at(&[7], piece + 5).unwrap();
        file.write_all_at(&[0; 4096], 2 * piece).unwrap();
        assert_eq!(read(&file, (0, PIECE)).unwrap(), None);
        assert_eq!(read(&file, (piece, PIECE)).unwrap().unwrap()[5], 7);
        assert_eq!(read(&file, (2 * piece, PIECE)).unwrap(), None);
        read(&file, (3 * piece - 1, 2)).unwrap_err();
    }
}
