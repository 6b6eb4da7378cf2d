//! Where things are in the pod.

use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use crate::Error;

/// The directories of a launcher. Each is a volume of the pod.
#[derive(Clone, Debug)]
pub struct Dirs {
    run: PathBuf,
}

impl Dirs {
    /// In a pod: below `/var/run`.
    pub fn below(run: &Path) -> Self {
        Self { run: run.to_owned() }
    }

    /// What libvirt calls XDG_RUNTIME_DIR.
    pub(crate) fn runtime(&self) -> PathBuf {
        self.run.clone()
    }

    pub(crate) fn private(&self) -> PathBuf {
        self.run.join("kubevirt-private")
    }

    pub(crate) fn ephemeral(&self) -> PathBuf {
        self.run.join("kubevirt-ephemeral-disks")
    }

    pub(crate) fn container_disks(&self) -> PathBuf {
        self.run.join("kubevirt/container-disks")
    }

    /// Where claims with a file system are mounted, by the names of their volumes.
    pub(crate) fn claims(&self) -> PathBuf {
        self.private().join("vmi-disks")
    }

    /// Links to images on claims.
    pub(crate) fn claimed_disks(&self) -> PathBuf {
        self.private().join("claimed-disks")
    }

    pub fn launcher_socket(&self) -> PathBuf {
        self.run.join("kubevirt/sockets/launcher-sock")
    }

    /// Sockets and log of the guest's consoles.
    pub fn consoles(&self, uid: &str) -> PathBuf {
        self.private().join(uid)
    }

    pub(crate) fn libvirt_socket(&self) -> PathBuf {
        self.run.join("libvirt/libvirt-sock")
    }

    /// Where node agents connect that carry a migration out of the pod.
    pub(crate) fn channels_socket(&self) -> PathBuf {
        self.run.join("kubevirt/sockets/channels-sock")
    }

    pub(crate) fn migration_socket(&self, channel: domain::MigrationChannel) -> PathBuf {
        self.run.join("kubevirt/sockets").join(channel.socket())
    }

    pub(crate) fn create(&self, uid: &str) -> Result<(), Error> {
        let wanted = [
            self.private(),
            self.private().join("libvirt"),
            self.consoles(uid),
            self.ephemeral(),
            self.container_disks(),
            self.claimed_disks(),
            self.run.join("kubevirt/sockets"),
            self.run.join("libvirt"),
        ];
        for path in wanted {
            std::fs::DirBuilder::new()
                .recursive(true)
                .mode(0o750)
                .create(&path)
                .map_err(|source| Error::Prepare { path, source })?;
        }
        Ok(())
    }
}
