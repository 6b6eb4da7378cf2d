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

    /// Where Secrets are shown.
    pub(crate) fn secrets(&self) -> PathBuf {
        self.private().join("secret")
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

    /// Links to images that were lent to a running guest.
    pub(crate) fn hotplugged_disks(&self) -> PathBuf {
        self.run.join("kubevirt/hotplug-disks")
    }

    /// Links to files that a backup is written to.
    pub(crate) fn backups(&self) -> PathBuf {
        self.private().join("backups")
    }

    /// Where QEMU serves the backup that [`api::export::lending::served_at`] names.
    pub(crate) fn served_backup(&self, name: &str) -> PathBuf {
        self.run.join("kubevirt/sockets").join(name)
    }

    /// Where node agents lend disks to a running guest.
    pub(crate) fn hotplug_socket(&self) -> PathBuf {
        self.run.join("kubevirt/sockets/hotplug-sock")
    }

    pub fn launcher_socket(&self) -> PathBuf {
        self.run.join("kubevirt/sockets/launcher-sock")
    }

    /// A claim with what the guest keeps beside its disks from one pod to the next, where the machine has one.
    fn kept(&self, what: &str) -> Option<PathBuf> {
        Some(self.private().join(what)).filter(|state| state.is_dir())
    }

    /// The variables of EFI.
    pub(crate) fn nvram(&self) -> PathBuf {
        self.kept("vm-state-efi").unwrap_or_else(|| self.private().join("libvirt")).join("nvram.fd")
    }

    /// Where the layers are kept that track what changes on devices.
    pub(crate) fn tracking(&self) -> Option<PathBuf> {
        self.kept("vm-state-cbt")
    }

    /// Has libvirt find the states of TPMs where they last.
    fn keep_tpm(&self) -> Result<(), Error> {
        let Some(state) = self.kept("vm-state-tpm") else { return Ok(()) };
        let (kept, place) = (state.join("swtpm"), self.private().join("libvirt/qemu/swtpm"));
        let made = std::fs::create_dir_all(&kept)
            .and_then(|()| std::fs::create_dir_all(self.private().join("libvirt/qemu")))
            .and_then(|()| std::os::unix::fs::symlink(&kept, &place));
        match made {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(|source| Error::Prepare { path: place, source }),
        }
    }

    /// Has the session daemon answer where people look for the daemon of one driver, too: `virsh -c
    /// qemu+unix:///session?socket=/var/run/libvirt/virtqemud-sock`.
    fn name_after_driver(&self) -> Result<(), Error> {
        let path = self.run.join("libvirt/virtqemud-sock");
        match std::os::unix::fs::symlink("libvirt-sock", &path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(()),
            made => made.map_err(|source| Error::Prepare { path, source }),
        }
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
            self.backups(),
            self.hotplugged_disks(),
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
        self.keep_tpm()?;
        self.name_after_driver()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::{UnixListener, UnixStream};

    use super::*;

    #[test]
    fn the_session_daemon_answers_under_the_name_of_its_driver() {
        let run = tempfile::tempdir().unwrap();
        let dirs = Dirs::below(run.path());
        dirs.create("u").unwrap();
        let _daemon = UnixListener::bind(dirs.libvirt_socket()).unwrap();
        UnixStream::connect(run.path().join("libvirt/virtqemud-sock")).unwrap();
        // The container is started again with the volumes that it had.
        dirs.create("u").unwrap();
    }
}
