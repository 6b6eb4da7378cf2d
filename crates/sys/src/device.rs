//! Device nodes.

use std::path::Path;

use rustix::fs::{CWD, FileType, Mode};

use crate::beneath::{self, Dir};
use crate::{Error, Result, at, call};

/// Character or block device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Character device.
    Char,
    /// Block device.
    Block,
}

/// Makes a device node with exactly `mode`, whatever the umask; an existing node at `path` is replaced.
pub fn make(path: &Path, kind: Kind, major: u32, minor: u32, mode: u32) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(at("replace", path)(error)),
        _ => {}
    }
    let file_type = match kind {
        Kind::Char => FileType::CharacterDevice,
        Kind::Block => FileType::BlockDevice,
    };
    let mode = Mode::from_raw_mode(mode);
    rustix::fs::mknodat(CWD, path, file_type, mode, rustix::fs::makedev(major, minor))
        .map_err(at("make device node", path))?;
    rustix::fs::chmod(path, mode).map_err(at("set the mode of", path))
}

/// Kind, major and minor of the device node at `path`; None when nothing is there or it is no device.
pub fn numbers(path: &Path) -> Option<(Kind, u32, u32)> {
    let stat = rustix::fs::stat(path).ok()?;
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::CharacterDevice => Kind::Char,
        FileType::BlockDevice => Kind::Block,
        _ => return None,
    };
    Some((kind, rustix::fs::major(stat.st_rdev), rustix::fs::minor(stat.st_rdev)))
}

/// Major and minor of a device number, as file metadata give it.
pub fn split(number: u64) -> (u32, u32) {
    (rustix::fs::major(number), rustix::fs::minor(number))
}

/// Who may open a container's device after [`give`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Given {
    /// There is no such device.
    Absent,
    /// Its user: it is theirs, or everybody's.
    Usable,
}

/// Gives the device at `path` below `/dev` of the container whose file system is `root` to the user and the group with the
/// number `owner`, unless everybody may use it already. Container runtimes make a container's devices with the owners that
/// they have on the node.
///
/// Only a node of the container's own is given. In user namespaces runtimes bind the node's there, and giving that would
/// give it to the user everywhere; so would giving one of this process's own `/dev`.
pub fn give(root: &Dir, path: &str, owner: u32) -> Result<Given> {
    let place = Path::new("dev").join(path);
    let node = match root.reference(&place) {
        Err(error) if error.io_kind() == Some(std::io::ErrorKind::NotFound) => return Ok(Given::Absent),
        other => other?,
    };
    let found = rustix::fs::fstat(&node).map_err(at("look at", &place))?;
    if !matches!(FileType::from_raw_mode(found.st_mode), FileType::CharacterDevice | FileType::BlockDevice) {
        return Err(Error::Protocol(format!("/{} is not a device", place.display())));
    }
    if found.st_mode & 0o006 == 0o006 || (found.st_uid == owner && found.st_mode & 0o600 == 0o600) {
        return Ok(Given::Usable);
    }
    let dev = rustix::fs::fstat(root.dir("dev")?).map_err(call("look at a container's /dev"))?;
    let own = rustix::fs::stat("/dev").map_err(at("look at", Path::new("/dev")))?;
    if found.st_dev != dev.st_dev || (dev.st_dev, dev.st_ino) == (own.st_dev, own.st_ino) {
        let what = "is the node's own and not the container's: only the container runtime can give it to a user \
                    (containerd: device_ownership_from_security_context = true)";
        return Err(Error::Protocol(format!("/{} {what}", place.display())));
    }
    beneath::give(node, owner).map(|()| Given::Usable)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mount::{Propagation, bind, mount, propagate};
    use crate::namespace::{Namespace, unshare};
    use std::os::unix::fs::{MetadataExt as _, symlink};
    use std::os::unix::process::CommandExt as _;

    /// Whether a program of that user can read the device.
    fn may_open(node: &Path, user: u32) -> bool {
        let tried = std::process::Command::new("head").args(["-c", "1"]).arg(node).uid(user).gid(user).output();
        tried.unwrap().status.success()
    }

    #[test]
    fn a_containers_device_is_given_to_its_user_and_a_nodes_is_not() {
        if !rustix::process::geteuid().is_root() {
            return;
        }
        std::thread::spawn(|| {
            unshare(&[Namespace::Mount]).unwrap();
            propagate(Path::new("/"), Propagation::Private, true).unwrap();
            let scene = std::env::temp_dir().join(format!("device-{}", std::process::id()));
            let (root, node) = (scene.join("container"), scene.join("node"));
            for dir in [&root.join("dev"), &node] {
                std::fs::create_dir_all(dir).unwrap();
                mount("tmpfs", "tmpfs", dir, rustix::mount::MountFlags::empty(), "mode=755").unwrap();
            }
            std::fs::create_dir(root.join("dev/net")).unwrap();
            for name in ["container/dev/zero", "container/dev/net/zero", "node/bound"] {
                make(&scene.join(name), Kind::Char, 1, 5, 0o660).unwrap();
            }
            make(&root.join("dev/open"), Kind::Char, 1, 5, 0o666).unwrap();
            std::fs::write(root.join("dev/bound"), "").unwrap();
            bind(&node.join("bound"), &root.join("dev/bound")).unwrap();
            std::fs::write(root.join("dev/file"), "").unwrap();
            symlink("zero", root.join("dev/link")).unwrap();
            let beneath = Dir::open(&root).unwrap();
            let owner = |path: &str| std::fs::metadata(scene.join(path)).unwrap().uid();

            assert!(!may_open(&root.join("dev/net/zero"), 107));
            for path in ["zero", "net/zero"] {
                assert_eq!(give(&beneath, path, 107).unwrap(), Given::Usable);
                assert!(may_open(&root.join("dev").join(path), 107) && !may_open(&root.join("dev").join(path), 108));
            }
            assert_eq!(give(&beneath, "absent", 107).unwrap(), Given::Absent);
            assert_eq!(give(&beneath, "open", 107).unwrap(), Given::Usable);
            assert_eq!(owner("container/dev/open"), 0, "nothing to be done");
            let refused = give(&beneath, "bound", 107).unwrap_err().to_string();
            assert!(refused.contains("device_ownership_from_security_context = true"), "{refused}");
            assert_eq!(owner("node/bound"), 0);
            for path in ["file", "link", "../../node/bound"] {
                assert!(give(&beneath, path, 107).is_err(), "{path}");
            }
            for dir in [root.join("dev/bound"), root.join("dev"), node] {
                crate::mount::detach(&dir).unwrap();
            }
            std::fs::remove_dir_all(scene).unwrap();
        })
        .join()
        .unwrap();
    }

    #[test]
    fn numbers_of_known_devices() {
        assert_eq!(numbers(Path::new("/dev/null")), Some((Kind::Char, 1, 3)));
        assert_eq!(numbers(Path::new("/etc/passwd")), None);
        assert_eq!(numbers(Path::new("/nonexistent")), None);
    }
}
