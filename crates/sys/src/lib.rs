//! What the kernel offers and the standard library does not: namespaces, mounts, paths opened beneath a directory, file
//! descriptors passed over sockets, peer credentials, cgroups, device nodes and who may open them, quotas and the question
//! whether KVM is usable.
//!
//! Invariants: the surface is safe; `unsafe` lives in the modules that say so, each block with its reason; nothing here
//! knows Kubernetes, libvirt or the layout of a node.

pub mod beneath;
pub mod cgroup;
pub mod code;
pub mod device;
pub mod device_access;
pub mod fdpass;
pub mod heap;
pub mod inherited;
pub mod kvm;
pub mod limits;
pub mod lock;
pub mod loop_device;
pub mod mount;
pub mod namespace;
pub mod packet;
pub mod peer;
pub mod process;
pub mod quota;
pub mod signal;
pub mod tap;

use std::io;
use std::path::{Path, PathBuf};

/// A refused system call: what was tried, on what, and the kernel's answer as the source.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A call that names a path.
    #[error("cannot {op} {}", path.display())]
    Path {
        /// What was tried, as a verb.
        op: &'static str,
        /// On what.
        path: PathBuf,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// A call that names no path.
    #[error("cannot {op}")]
    Call {
        /// What was tried, as a verb.
        op: &'static str,
        /// The kernel's answer.
        #[source]
        source: io::Error,
    },
    /// The other side of a socket sent something that is not what the protocol says.
    #[error("unexpected message: {0}")]
    Protocol(String),
}

impl Error {
    /// The kernel's answer, if there was one.
    pub fn io_kind(&self) -> Option<io::ErrorKind> {
        match self {
            Self::Path { source, .. } | Self::Call { source, .. } => Some(source.kind()),
            Self::Protocol(_) => None,
        }
    }
}

/// The result of everything in this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// Turns a kernel answer into an [`Error`] that names the path.
pub(crate) fn at<E: Into<io::Error>>(op: &'static str, path: &Path) -> impl FnOnce(E) -> Error {
    let path = path.to_owned();
    move |source| Error::Path { op, path, source: source.into() }
}

/// Turns a kernel answer into an [`Error`] without a path.
pub(crate) fn call<E: Into<io::Error>>(op: &'static str) -> impl FnOnce(E) -> Error {
    move |source| Error::Call { op, source: source.into() }
}
