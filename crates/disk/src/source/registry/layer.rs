//! The one file of a layer that is a disk, read out of the middle of a compressed archive.

use std::io::{self, Read};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use ring::digest::Context;
use tar::EntryType;

use super::manifest::{algorithm, compare};
use crate::source::compression::plain;
use crate::source::{Error, Source};

/// A disk in an image, as a source.
pub struct ImageDisk {
    blob: Arc<dyn Source>,
    digest: String,
    /// Where the file's bytes begin in the decompressed layer.
    start: u64,
    size: u64,
    /// Whether the whole layer was read once and is what its name says.
    confirmed: Arc<AtomicBool>,
    environment: Vec<String>,
}

impl std::fmt::Debug for ImageDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ImageDisk").field("digest", &self.digest).field("size", &self.size).finish_non_exhaustive()
    }
}

impl ImageDisk {
    /// Looks for the file in a layer; none is there in most.
    pub(super) fn find(blob: Arc<dyn Source>, digest: String) -> Result<Option<Self>, Error> {
        algorithm(&digest)?;
        let read = |source| Error::Io { what: "read a layer of the image", source };
        let mut archive = tar::Archive::new(plain(blob.open(0).map_err(read)?).map_err(read)?);
        for entry in archive.entries().map_err(read)? {
            let entry = entry.map_err(read)?;
            let path = entry.path_bytes();
            let name = String::from_utf8_lossy(&path);
            let Some(file) = name.trim_start_matches("./").trim_start_matches('/').strip_prefix("disk/") else {
                continue;
            };
            // Names that begin so take files of lower layers away.
            if file.is_empty() || file.starts_with(".wh.") {
                continue;
            }
            match entry.header().entry_type() {
                EntryType::Regular | EntryType::Continuous => {}
                EntryType::GNUSparse => {
                    return Err(Error::Image(format!(
                        "/disk/{file} is stored as a sparse file, which layers of images cannot hold; build the image with another tool"
                    )));
                }
                _ => continue,
            }
            let (start, size) = (entry.raw_file_position(), entry.size());
            let confirmed = Arc::default();
            return Ok(Some(Self { blob, digest, start, size, confirmed, environment: Vec::new() }));
        }
        Ok(None)
    }

    pub(super) fn with(self, environment: Vec<String>) -> Self {
        Self { environment, ..self }
    }

    /// What the image sets for those who run it, `NAME=value`.
    pub fn environment(&self) -> &[String] {
        &self.environment
    }

    /// Makes sure that the layer is the one that the image names. Costs nothing when the disk was read to its end; blocks.
    ///
    /// # Errors
    /// When it is not, or cannot be read.
    pub fn confirm(&self) -> io::Result<()> {
        if self.confirmed.load(Ordering::Acquire) {
            return Ok(());
        }
        let mut reader = Checked::new(self.blob.open(0)?, &self.digest, self.confirmed.clone())?;
        reader.finish()
    }
}

impl Source for ImageDisk {
    fn size(&self) -> Option<u64> {
        Some(self.size)
    }

    fn ranged(&self) -> bool {
        false
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let checked = Checked::new(self.blob.open(0)?, &self.digest, self.confirmed.clone())?;
        let shared = Shared(Arc::new(Mutex::new(checked)));
        let mut file = plain(Box::new(shared.clone()))?;
        let skip = self.start + offset.min(self.size);
        if io::copy(&mut (&mut file).take(skip), &mut io::sink())? < skip {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(Box::new(FileReader { file, layer: shared, left: self.size - offset.min(self.size), ended: false }))
    }

    fn identity(&self) -> Option<String> {
        Some(format!("{}#{}", self.digest, self.start))
    }
}

/// A layer as it comes, and the digest of what has come.
struct Checked {
    blob: Box<dyn Read + Send>,
    expected: String,
    context: Option<Context>,
    confirmed: Arc<AtomicBool>,
}

impl Checked {
    fn new(blob: Box<dyn Read + Send>, expected: &str, confirmed: Arc<AtomicBool>) -> io::Result<Self> {
        let context = Some(Context::new(algorithm(expected)?));
        Ok(Self { blob, expected: expected.to_owned(), context, confirmed })
    }

    /// Reads what is left and compares.
    fn finish(&mut self) -> io::Result<()> {
        io::copy(self, &mut io::sink()).map(|_| ())
    }
}

impl Read for Checked {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let length = self.blob.read(into)?;
        if let Some(context) = &mut self.context {
            context.update(&into[..length]);
        }
        if length == 0
            && !into.is_empty()
            && let Some(context) = self.context.take()
        {
            compare("the image's layer", &self.expected, context.finish())
                .map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
            self.confirmed.store(true, Ordering::Release);
        }
        Ok(length)
    }
}

/// The layer in two hands: the decoder's, and that of whoever reads the rest.
#[derive(Clone)]
struct Shared(Arc<Mutex<Checked>>);

impl Read for Shared {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).read(into)
    }
}

/// The file, and at its end the rest of the layer, which is read for its digest.
struct FileReader {
    file: Box<dyn Read + Send>,
    layer: Shared,
    left: u64,
    ended: bool,
}

impl Read for FileReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            if !self.ended {
                self.ended = true;
                self.layer.0.lock().unwrap_or_else(PoisonError::into_inner).finish()?;
            }
            return Ok(0);
        }
        let most = usize::try_from(self.left).unwrap_or(into.len()).min(into.len());
        let length = self.file.read(&mut into[..most])?;
        if length == 0 && most > 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.left -= length as u64;
        Ok(length)
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;
    use crate::source::Memory;

    fn layer(name: &str, content: &[u8]) -> Vec<u8> {
        let mut archive = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_size(content.len() as u64);
        archive.append_data(&mut header, name, content).unwrap();
        archive.into_inner().unwrap()
    }

    proptest! {
        /// A layer that was changed anywhere holds a disk within itself, holds none, or is refused.
        #[test]
        fn any_layer_holds_a_disk_or_is_refused(changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..24), cut in any::<prop::sample::Index>()) {
            let mut bytes = layer("disk/disk.img", &[7; 700]);
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.index(bytes.len() + 1));
            let digest = format!("sha256:{}", "0".repeat(64));
            if let Ok(Some(disk)) = ImageDisk::find(Arc::new(Memory::new(bytes)), digest) {
                let opened = disk.open(0).and_then(|reader| io::copy(&mut reader.take(1 << 20), &mut io::sink()));
                prop_assert!(opened.is_err() || disk.size().is_some());
            }
        }
    }
}
