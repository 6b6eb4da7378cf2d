//! Mounts the volume of a pool where the pool is to be, for as long as it runs.

mod device;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use kit::shutdown;
use sys::mount;

use crate::Error;
use crate::pool::MARK;

/// Command line of the mounter.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The volume, a directory.
    #[arg(long, required_unless_present = "device")]
    pub source: Option<PathBuf>,
    /// The volume, a block device.
    #[arg(long, conflicts_with = "source")]
    pub device: Option<PathBuf>,
    /// The directory it is to be at; shared with the node.
    #[arg(long)]
    pub target: PathBuf,
}

/// Mounts, waits until it is told to stop, and takes the mount away.
///
/// # Errors
/// When the kernel refuses.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::file("listen for signals in", "this process"))?;
    let target = &args.target;
    match (&args.device, &args.source) {
        (Some(device), _) => {
            device::mount(device, target)?;
            mark(target)?;
        }
        (None, Some(source)) => {
            mark(source)?;
            // An earlier life may have been killed before it took its mount away.
            if !is_same(source, target).map_err(Error::file("look at", target))? {
                mount::bind(source, target).map_err(Error::Kernel)?;
                tracing::info!(target = %target.display(), "the pool's volume is mounted");
            }
        }
        (None, None) => return Err(Error::Argument("one of --source and --device is required".into())),
    }
    stop.cancelled().await;
    mount::detach(target).map_err(Error::Kernel)
}

/// By this the driver knows the volume from the directory beneath it.
fn mark(volume: &Path) -> Result<(), Error> {
    let mark = volume.join(MARK);
    std::fs::write(&mark, "").map_err(Error::file("write", mark))
}

fn is_same(one: &Path, other: &Path) -> std::io::Result<bool> {
    let (one, other) = (std::fs::metadata(one)?, std::fs::metadata(other)?);
    Ok((one.dev(), one.ino()) == (other.dev(), other.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_is_itself() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("a")).unwrap();
        std::os::unix::fs::symlink("a", dir.path().join("b")).unwrap();
        assert!(is_same(&dir.path().join("a"), &dir.path().join("b")).unwrap());
        assert!(!is_same(dir.path(), &dir.path().join("b")).unwrap());
    }
}
