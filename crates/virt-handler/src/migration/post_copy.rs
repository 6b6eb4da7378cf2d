//! What a launcher needs before its QEMU can let a guest run whose memory is still on another node.
//!
//! QEMU is told of each page that the guest touches and that is not there by a userfaultfd. It opens `/dev/userfaultfd`, which
//! the pod has as a device of its own and which is given to the pod's user here. Where the kernel has no such device, QEMU
//! makes one by the system call, if the administrator of the node lets everybody there do so: that is not switched on here.

use kit::Chain;
use sys::device::Given;

use crate::Error;
use crate::device_plugin::USERFAULTFD;
use crate::launcher::Launcher;
use crate::storage::USER;

/// Whether processes without privilege may handle faults of pages that the kernel touches.
const UNPRIVILEGED: &str = "/proc/sys/vm/unprivileged_userfaultfd";

/// Prepares the pod of `launcher` on this `node`.
pub(crate) fn allow(launcher: &Launcher, node: &str) -> Result<(), Error> {
    let root = launcher.root()?;
    let given = sys::device::give(&root, USERFAULTFD.trim_start_matches("/dev/"), USER);
    let everybody = std::fs::read_to_string(UNPRIVILEGED).unwrap_or_default();
    verdict(given, &everybody).map_err(|why| Error::PostCopy { node: node.to_owned(), why })
}

/// Whether QEMU gets its userfaultfd, by what became of the pod's device and what the node lets everybody do.
fn verdict(given: sys::Result<Given>, everybody: &str) -> Result<(), String> {
    let why = match given {
        Ok(Given::Usable) => return Ok(()),
        Ok(Given::Absent) => format!("its kernel has no {USERFAULTFD}, which Linux 6.1 brought"),
        Err(error) => Chain(&error).to_string(),
    };
    if everybody.trim() == "1" { Ok(()) } else { Err(why) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_without_post_copy_is_told_and_not_changed() {
        let bound = || Err(sys::Error::Protocol("/dev/userfaultfd is the node's own".into()));
        assert_eq!(verdict(Ok(Given::Usable), "0\n"), Ok(()));
        assert_eq!(verdict(Ok(Given::Absent), "1\n"), Ok(()));
        assert_eq!(verdict(bound(), "1\n"), Ok(()));
        assert!(verdict(Ok(Given::Absent), "0\n").unwrap_err().contains("no /dev/userfaultfd"));
        assert!(verdict(bound(), "").unwrap_err().contains("the node's own"));
    }
}
