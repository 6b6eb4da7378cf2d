//! What a launcher needs before its QEMU can let a guest run whose memory is still on another node.
//!
//! QEMU is told of each page that the guest touches and that is not there by a userfaultfd. It opens `/dev/userfaultfd`, which
//! the pod has as a device of its own and which is given to the pod's user here; where the kernel has no such device it makes
//! one by the system call, for which the node must allow it to the unprivileged.

use std::fs::File;
use std::os::unix::fs::FileTypeExt as _;

use kit::Chain;

use crate::Error;
use crate::device_plugin::USERFAULTFD;
use crate::launcher::Launcher;
use crate::storage::USER;

/// Whether processes without privilege may handle faults of pages that the kernel touches.
const UNPRIVILEGED: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// Prepares the pod of `launcher`. Without success QEMU refuses the migration, and says so.
pub(super) fn allow(launcher: &Launcher) {
    let Err(error) = give(launcher) else { return };
    let error = Chain(&error).to_string();
    tracing::info!(pod = launcher.pod, error, "the pod has no device for post-copy: it is allowed on the whole node");
    if let Err(error) = std::fs::write(UNPRIVILEGED, "1") {
        tracing::warn!(%error, path = UNPRIVILEGED, "post-copy is not possible on this node");
    }
}

/// Gives the pod's device to the pod's user.
fn give(launcher: &Launcher) -> Result<(), Error> {
    let root = launcher.root()?;
    let failed = |error| Error::Launcher(format!("{USERFAULTFD}: {}", Chain(&error)));
    let node = root.reference(USERFAULTFD.trim_start_matches('/')).map_err(failed)?;
    let node = File::from(node);
    let kind = node.metadata().map_err(|error| Error::Launcher(format!("{USERFAULTFD}: {error}")))?.file_type();
    if !kind.is_char_device() {
        return Err(Error::Launcher(format!("{USERFAULTFD} is not a device")));
    }
    sys::beneath::give(&node, USER).map_err(failed)
}
