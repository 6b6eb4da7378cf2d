//! A PNG of the guest's screen.

use std::path::{Path, PathBuf};

use libvirt::Domain;

/// More than any screen QEMU emulates.
const LIMIT: u64 = 16 << 20;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("taking a screenshot")]
    Take(#[source] libvirt::Error),
    #[error("reading the screenshot {path}")]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("the screenshot has {0} bytes, more than any screen")]
    TooLarge(u64),
    #[error("QEMU gave {0} instead of a PNG")]
    Kind(String),
}

/// QEMU encodes it; `directory` is one that both QEMU and this process write to.
pub(crate) fn take(domain: &Domain, directory: &Path) -> Result<Vec<u8>, Error> {
    let path = directory.join("screenshot.png");
    let command = serde_json::json!({
        "execute": "screendump",
        "arguments": {"filename": path, "format": "png"},
    });
    if domain.monitor_command(&command.to_string()).is_ok() {
        let picture = read(&path);
        // A picture of somebody's screen is not left lying about.
        let _ = std::fs::remove_file(&path);
        return picture;
    }
    // A driver without QEMU behind it.
    let (picture, kind) = domain.screenshot().map_err(Error::Take)?;
    if kind == "image/png" { Ok(picture) } else { Err(Error::Kind(kind)) }
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Read { path: path.to_owned(), source };
    let length = std::fs::metadata(path).map_err(failed)?.len();
    if length > LIMIT {
        return Err(Error::TooLarge(length));
    }
    std::fs::read(path).map_err(failed)
}
