//! The product's container images, made from Debian packages and our own binaries, without a container engine.
//!
//! ```text
//!  packages --sysroot--> files + ELF closure --layer--> OCI layout on disk --load--> containerd
//!                                                                        \--push--> a registry
//! ```
//! Invariants: this crate knows no Kubernetes; building needs no privilege beyond writing to its directory; the same
//! inputs give the same digests; only a closed list of names is ever built.

mod bundle;
mod catalog;
mod closure;
mod guest;
mod guestfs;
mod layer;
mod layout;
mod load;
mod parts;
mod push;
mod sysroot;

use std::path::PathBuf;

pub use bundle::{open as open_bundle, write as write_bundle};
pub use catalog::{COMPONENTS, Image, VERSION};
pub use layout::{Extra, Layout, Listed};
pub use load::load;
pub use push::push;

/// Why an image could not be made, loaded or pushed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file operation, with what was attempted and where.
    #[error("{action} {path}", path = path.display())]
    Io {
        /// "read", "write", …
        action: &'static str,
        /// The path.
        path: PathBuf,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// An external program could not be started.
    #[error("run {program} (is it installed? `make deps` installs it)")]
    Spawn {
        /// Program name.
        program: String,
        /// Cause.
        #[source]
        source: std::io::Error,
    },
    /// An external program failed; its last words follow.
    #[error("{program} failed: {words}")]
    Program {
        /// Program name.
        program: String,
        /// The end of its standard error.
        words: String,
    },
    /// A file that an image needs is not in the packages.
    #[error("{wanted} is in none of the packages of {image}")]
    Missing {
        /// Path or library name.
        wanted: String,
        /// Image or sysroot.
        image: String,
    },
    /// A file of the local image store does not parse.
    #[error("the image store is damaged at {path}; remove it and run `ferrovirt images build`", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
    },
    /// An image that was never built.
    #[error("image {0} is not built; run `ferrovirt images build`")]
    NotBuilt(String),
    /// There is nothing to load or push.
    #[error("no image is built; run `ferrovirt images build`")]
    NothingBuilt,
    /// A registry reference that does not parse.
    #[error("{0:?} is not a registry reference such as registry.example:5000/project")]
    Reference(String),
    /// An archive without images.
    #[error("{path} is no bundle: it was not written by `ferrovirt bundle`", path = path.display())]
    NoBundle {
        /// The archive.
        path: PathBuf,
    },
    /// An archive that is not as it was written.
    #[error("{path} is damaged: its blob {blob} is another; copy it again", path = path.display())]
    Altered {
        /// The archive.
        path: PathBuf,
        /// Named by its digest.
        blob: String,
    },
    /// The registry wants to know who asks.
    #[error("push {reference}: the registry asks for a user name and a password")]
    NeedsUser {
        /// Full reference.
        reference: String,
    },
    /// The registry does not know the user, or allows him nothing.
    #[error("push {reference}: the registry refuses this user name and password")]
    Denied {
        /// Full reference.
        reference: String,
    },
    /// The registry speaks HTTP without TLS.
    #[error("push {reference}: the registry does not speak TLS")]
    NoTls {
        /// Full reference.
        reference: String,
    },
    /// The registry refused or did not answer.
    #[error("push {reference}")]
    Push {
        /// Full reference.
        reference: String,
        /// Cause.
        #[source]
        source: Box<oci_client::errors::OciDistributionError>,
    },
}

impl Error {
    /// What to do about it, where there is more to say than the error does.
    #[must_use]
    pub fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NeedsUser { .. } => Some("give them with --username and --password-file"),
            Self::NoTls { .. } => Some("if it is to be trusted without, add --plain-http"),
            _ => None,
        }
    }

    pub(crate) fn io(action: &'static str, path: impl Into<PathBuf>) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.into();
        move |source| Self::Io { action, path, source }
    }
}

/// Where images are made.
#[derive(Clone, Debug)]
pub struct Workshop {
    /// Directory of downloaded packages, unpacked trees and the OCI layout. May be deleted at any time.
    pub cache: PathBuf,
    /// The `ferrovirt` binary that goes into the component image.
    pub binary: PathBuf,
    /// The `virt-launcher` binary.
    pub launcher: PathBuf,
    /// The `virtctl` binary, which is offered for download.
    pub virtctl: PathBuf,
    /// The static `container-disk` binary.
    pub container_disk: PathBuf,
    /// The static `ferrovirt-cni` binary, which is put on nodes from the component image.
    pub cni: PathBuf,
}

impl Workshop {
    /// Builds those of `wanted` whose inputs changed; says each step through `say`. Returns what the store holds afterwards.
    pub fn build(&self, wanted: &[Image], say: &mut dyn FnMut(&str)) -> Result<Vec<Listed>, Error> {
        catalog::build(self, wanted, say)?;
        self.list()
    }

    /// The images in the store, in the order of the catalog.
    pub fn list(&self) -> Result<Vec<Listed>, Error> {
        self.layout().list()
    }

    /// Where they are kept.
    pub fn layout(&self) -> Layout {
        Layout::at(self.cache.join("layout"))
    }
}
