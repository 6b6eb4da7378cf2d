//! Disk images: what a file is by its header, the small ones we make ourselves, why some are refused, and the way of one
//! from where it is to a volume.
//!
//! ```text
//! Source ──> fetch ──> unpack ──> window ──> layout (tables, extents) ──> decode ──> Target
//!            (again     (gz, xz,   (what is    (qcow2, vmdk, vdi,          (clusters)  (holes where
//!            by range)  zst, bz2)  kept)       vhd, vhdx, raw)                         it is zero)
//! ```
//!
//! Images are hostile. Headers are read with bounds, never trusted for sizes, and nothing here opens a file that another
//! file names.

mod ahead;
mod blank;
mod checksum;
mod copy;
mod decode;
mod detect;
mod fetch;
mod import;
mod inspect;
pub mod iso;
mod layout;
mod pack;
mod progress;
pub mod qcow2;
pub mod source;
mod target;
pub mod tracking;
mod unpack;
mod window;

pub use blank::blank;
pub use checksum::{Algorithm, Checksum, ChecksumError};
pub use copy::copy;
pub use detect::{Kind, detect};
pub use import::{ImportError, Imported, Options, Place, Resume, import};
pub use inspect::{Format, Image, Refusal, inspect, inspect_reader};
pub use pack::pack;
pub use progress::Progress;
pub use source::Source;
pub use target::Target;

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
