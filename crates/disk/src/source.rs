//! Where the bytes of an image come from. Whoever imports knows no protocol: a file, a web server and an object store
//! are all something that is opened at an offset and read forward.

mod answer;
mod archive;
mod compression;
mod connection;
mod error;
mod gcs;
mod http;
mod imageio;
mod openstack;
mod origin;
mod registry;
mod remote;
mod s3;
mod sigv4;

pub use archive::{Links, file_in, unpack};
pub use connection::{Connection, Patience, Proxies};
pub use error::Error;
pub use gcs::{Object as GcsObject, gcs};
pub use http::{Web, web};
pub use imageio::{EngineDisk, Transfer, imageio};
pub use openstack::{CloudImage, openstack};
pub use registry::{ContainerImage, ImageDisk, digest as image_digest, image};
pub use s3::{Object as S3Object, s3};

use std::fs::File;
use std::io::{self, Cursor, Read, Seek as _, SeekFrom};
use std::ops::Range;
use std::sync::Arc;

/// Bytes from somewhere.
pub trait Source: Send + Sync {
    /// How many bytes there are, as far as that is known before they are read.
    fn size(&self) -> Option<u64>;

    /// Whether [`open`](Self::open) takes any offset, at any time, from several threads at once.
    fn ranged(&self) -> bool;

    /// A reader of everything from `offset` on.
    ///
    /// A reader that fails or ends early is opened again where it stopped when the source is ranged, unless the failure
    /// is of a kind that asking again does not cure: `NotFound`, `PermissionDenied`, `InvalidInput`, `InvalidData`
    /// and `Unsupported`. A source that is not ranged is opened at 0 only; one that cannot be read a second time answers
    /// `Unsupported` to that.
    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>>;

    /// Where bytes may be that are not zero, in order, as far as the source knows that without being read.
    fn data(&self) -> Option<Vec<Range<u64>>> {
        None
    }

    /// What changes when the bytes do, such as an entity tag with the address. Without it an interrupted import starts
    /// anew, because nothing says that what is there now continues what was fetched.
    fn identity(&self) -> Option<String> {
        None
    }
}

/// An opened file, or a device.
#[derive(Debug)]
pub struct FileSource {
    file: File,
    size: u64,
}

impl FileSource {
    /// Takes the file's length as it is now.
    pub fn new(mut file: File) -> io::Result<Self> {
        let size = file.seek(SeekFrom::End(0))?;
        Ok(Self { file, size })
    }
}

impl Source for FileSource {
    fn size(&self) -> Option<u64> {
        Some(self.size)
    }

    fn ranged(&self) -> bool {
        true
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(FileReader { file: self.file.try_clone()?, offset }))
    }
}

/// Reads by position: clones of a file share one cursor.
struct FileReader {
    file: File,
    offset: u64,
}

impl Read for FileReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let got = std::os::unix::fs::FileExt::read_at(&self.file, buffer, self.offset)?;
        self.offset += got as u64;
        Ok(got)
    }
}

/// Bytes in memory.
#[derive(Clone, Debug)]
pub struct Memory(Arc<[u8]>);

impl Memory {
    /// A source of these bytes.
    pub fn new(bytes: impl Into<Arc<[u8]>>) -> Self {
        Self(bytes.into())
    }
}

impl Source for Memory {
    fn size(&self) -> Option<u64> {
        Some(self.0.len() as u64)
    }

    fn ranged(&self) -> bool {
        true
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let mut reader = Cursor::new(Arc::clone(&self.0));
        reader.set_position(offset);
        Ok(Box::new(reader))
    }
}

/// Asking again does not help.
pub(crate) fn is_final(error: &io::Error) -> bool {
    use io::ErrorKind::{InvalidData, InvalidInput, NotFound, PermissionDenied, Unsupported};
    matches!(error.kind(), NotFound | PermissionDenied | InvalidInput | InvalidData | Unsupported)
}
