//! Disk images: what a file is by its header, the small ones we make ourselves, and why some are refused.
//!
//! Images are hostile. Headers are read with bounds, never trusted for sizes, and nothing here opens a file that another
//! file names.

mod detect;
mod inspect;
pub mod iso;
pub mod qcow2;

pub use detect::{Kind, detect};
pub use inspect::{Format, Image, Refusal, inspect, inspect_reader};

/// Why a file could not be made.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("writing an image")]
    Write(#[from] std::io::Error),
    #[error("a backing path of {0} bytes is longer than the 1023 that an image can name")]
    BackingPath(usize),
    #[error("a disk of {0} bytes is too large")]
    Size(u64),
    #[error("{0:?} cannot be a file's name on a seed disk")]
    Name(String),
    #[error("the files of a seed disk are larger than {0} bytes")]
    SeedSize(u64),
}
