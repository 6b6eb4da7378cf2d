//! The devices that QEMU opens, tried before it does: what it says of one that it may not open helps nobody.

use std::fs::File;
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The processor's virtualization.
pub(crate) const KVM: &str = "/dev/kvm";
/// The guest's end of its network.
pub(crate) const TUN: &str = "/dev/net/tun";

const LOOK: Duration = Duration::from_millis(20);

/// A device of the pod that cannot be used. Nothing that happens later changes that.
#[derive(Debug, thiserror::Error)]
#[error(
    "the pod cannot open its device {path}: {source}. The node agent gives a pod its devices; where it may not, as with user \
     namespaces, set device_ownership_from_security_context = true in the CRI settings of the node's containerd"
)]
pub(crate) struct Unusable {
    path: &'static str,
    source: std::io::Error,
}

pub(crate) fn is_there(path: &str) -> bool {
    Path::new(path).exists()
}

/// Refuses a device that the guest needs and this user may not open.
pub(crate) fn check(path: &'static str) -> Result<(), Unusable> {
    match open(path) {
        // What is not there, or not served by the kernel, QEMU names itself.
        Err(source) if source.kind() == ErrorKind::PermissionDenied => Err(Unusable { path, source }),
        _ => Ok(()),
    }
}

/// Whether this user may open it, at the latest after `limit`.
pub(crate) async fn given_within(path: &'static str, limit: Duration) -> bool {
    let deadline = Instant::now() + limit;
    while check(path).is_err() {
        if Instant::now() >= deadline {
            return false;
        }
        sleep(LOOK).await;
    }
    true
}

fn open(path: &str) -> std::io::Result<File> {
    File::options().read(true).write(true).open(path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn only_what_may_not_be_opened_is_refused() {
        assert!(check("/dev/null").is_ok());
        assert!(check("/dev/nonexistent").is_ok());
        assert!(given_within("/dev/zero", Duration::from_secs(1)).await);
        let refused = Unusable { path: TUN, source: ErrorKind::PermissionDenied.into() }.to_string();
        assert!(refused.starts_with("the pod cannot open its device /dev/net/tun: permission denied."), "{refused}");
        assert!(refused.contains("device_ownership_from_security_context = true"), "{refused}");
    }
}
