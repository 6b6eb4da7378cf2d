//! What is done with the bytes of an upload: they are an image, an archive, or the content of another claim.

use std::path::Path;

use axum::http::StatusCode;
use disk::source::{Links, file_in, unpack};
use disk::{ImportError, Imported, Options, Progress};
use kit::Chain;

use super::body::Sent;
use crate::volume::{DISK, Volume};

/// Where an upload goes.
#[derive(Clone, Debug)]
pub(super) struct Destination {
    pub(super) volume: Volume,
    /// What was requested of the volume.
    pub(super) size: Option<u64>,
    pub(super) overhead: f64,
    pub(super) preallocate: bool,
}

/// What a client sends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// A disk image, in any format.
    Image,
    /// A tar archive, compressed or not.
    Archive,
    /// The files of a claim: a tar archive in frames of snappy.
    FileSystem,
    /// The bytes of a claim that is a device, in frames of snappy.
    Device,
}

impl Content {
    /// Whether another pod of ours sends it.
    pub(super) fn is_clone(self) -> bool {
        matches!(self, Self::FileSystem | Self::Device)
    }
}

/// Why an upload was not stored, and whose fault it is.
#[derive(Clone, Debug)]
pub(super) struct Refused {
    pub(super) status: StatusCode,
    pub(super) message: String,
}

impl Refused {
    fn server(error: &(dyn std::error::Error + 'static)) -> Self {
        Self { status: StatusCode::INTERNAL_SERVER_ERROR, message: Chain(error).to_string() }
    }

    fn client(message: String) -> Self {
        Self { status: StatusCode::BAD_REQUEST, message }
    }
}

impl From<ImportError> for Refused {
    fn from(error: ImportError) -> Self {
        match error {
            error @ ImportError::TooLarge { .. } => Self::client(format!(
                "effective image size is larger than the reported available storage. A larger PVC is required: {error}"
            )),
            error @ (ImportError::Refused(_) | ImportError::Source { .. }) => Self::client(Chain(&error).to_string()),
            error => Self::server(&error),
        }
    }
}

impl Destination {
    /// Stores what is sent, and returns when it is on stable storage. Blocks.
    pub(super) fn store(&self, sent: &Sent, content: Content, progress: &Progress) -> Result<Imported, Refused> {
        let stored = match (content, &self.volume) {
            (Content::Image, _) => self.image(sent, progress)?,
            (Content::Device, _) => {
                let mut stream = snappy(sent)?;
                self.copy(&mut stream, progress)?
            }
            // The disk among the files becomes the device.
            (Content::FileSystem, Volume::Device(_)) => {
                file_in(snappy(sent)?, DISK, |file, _| self.copy(file, progress))
                    .map_err(|e| Refused::client(Chain(&e).to_string()))??
            }
            (Content::FileSystem, Volume::Directory(path)) => {
                files(unpack(snappy(sent)?, path, Links::Anywhere, None))?
            }
            (Content::Archive, Volume::Directory(path)) => {
                let stream = sent.take().map_err(|e| Refused::server(&e))?;
                files(unpack(stream, path, Links::Inside, None))?
            }
            (Content::Archive, Volume::Device(_)) => {
                return Err(Refused::client("an archive needs a volume of mode Filesystem".into()));
            }
        };
        self.volume.settle().map_err(|e| Refused::server(&e))?;
        Ok(stored)
    }

    fn usable(&self) -> Result<u64, Refused> {
        self.volume.usable(self.size, self.overhead).map_err(|e| Refused::server(&e))
    }

    fn image(&self, sent: &Sent, progress: &Progress) -> Result<Imported, Refused> {
        let usable = self.usable()?;
        let target = self.volume.target(usable).map_err(|e| Refused::server(&e))?;
        let spool = self.volume.directory().map(Path::to_owned);
        let options = Options { size: Some(usable), preallocate: self.preallocate, spool, ..Options::default() };
        Ok(disk::import(sent, &target, &options, progress)?)
    }

    fn copy(&self, stream: &mut dyn std::io::Read, progress: &Progress) -> Result<Imported, Refused> {
        let usable = self.usable()?;
        let target = self.volume.target(usable).map_err(|e| Refused::server(&e))?;
        Ok(disk::copy(stream, &target, usable, self.preallocate, progress)?)
    }
}

fn snappy(sent: &Sent) -> Result<Box<dyn std::io::Read + Send>, Refused> {
    let stream = sent.take().map_err(|e| Refused::server(&e))?;
    Ok(Box::new(snap::read::FrameDecoder::new(stream)))
}

fn files(unpacked: Result<u64, disk::source::Error>) -> Result<Imported, Refused> {
    match unpacked {
        Ok(bytes) => Ok(Imported::raw(bytes, bytes, bytes, false)),
        Err(error @ disk::source::Error::Entry { .. }) => Err(Refused::client(Chain(&error).to_string())),
        Err(error) => Err(Refused::server(&error)),
    }
}
