//! Disks that are moved as they are: no format is looked for, because the bytes are a guest's own.

use std::io::{self, Read};

use crate::import::{ImportError, Imported};
use crate::target::Writer;
use crate::{Progress, Target};

/// Fills `target` with the bytes of `stream`, but for those that are zero, and returns when they are on stable storage. The
/// disk has at least `size` bytes afterwards.
///
/// # Errors
/// When the stream fails or is longer than the target, or the target cannot be written.
pub fn copy(
    stream: &mut dyn Read,
    target: &Target,
    size: u64,
    preallocate: bool,
    progress: &Progress,
) -> Result<Imported, ImportError> {
    let failed = |op| move |source: io::Error| ImportError::Target { op, source };
    // Zeros are not written, so nothing else may be there.
    target.discard().map_err(failed("clear"))?;
    let mut writer = Writer::new(target);
    let mut buffer = vec![0; 1 << 20];
    let (mut offset, mut written) = (0, 0);
    loop {
        let mut filled = 0;
        while filled < buffer.len() {
            match stream.read(&mut buffer[filled..]) {
                Ok(0) => break,
                Ok(length) => filled += length,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(ImportError::Source { offset: offset + filled as u64, source }),
            }
        }
        if filled == 0 {
            break;
        }
        if progress.is_cancelled() {
            return Err(ImportError::Cancelled);
        }
        let end = offset + filled as u64;
        if end > target.capacity() {
            return Err(ImportError::TooLarge { virtual_size: end, available: target.capacity(), at_least: true });
        }
        written += writer.write(offset, &buffer[..filled]).map_err(|source| match source.kind() {
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => ImportError::Full { written },
            _ => ImportError::Target { op: "write to", source },
        })?;
        progress.add_fetched(filled as u64);
        offset = end;
    }
    let size = offset.max(size.min(target.capacity()));
    target.resize(size).map_err(failed("resize"))?;
    if preallocate {
        target.preallocate(size).map_err(failed("claim the space of"))?;
    }
    target.sync_all().map_err(failed("flush"))?;
    Ok(Imported::raw(offset, size, written, preallocate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_arrive_as_they_are_even_if_they_look_like_an_image() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("disk.img");
        let target = Target::file(&path, 4 << 20).unwrap();
        let mut bytes = b"QFI\xfb".to_vec();
        bytes.resize(2 << 20, 0);
        bytes[(1 << 20) + 5] = 1;
        let progress = Progress::default();
        let copied = copy(&mut &bytes[..], &target, 3 << 20, false, &progress).unwrap();
        assert_eq!((copied.virtual_size, copied.size, copied.written), (2 << 20, 3 << 20, 8192));
        let found = std::fs::read(&path).unwrap();
        assert!(found[..2 << 20] == bytes && found[2 << 20..].iter().all(|byte| *byte == 0));
        let small = Target::file(&path, 1 << 20).unwrap();
        assert!(matches!(copy(&mut &bytes[..], &small, 0, false, &progress), Err(ImportError::TooLarge { .. })));
    }
}
