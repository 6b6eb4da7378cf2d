//! The node's /dev: what containers and virtual machines need, and nothing else of the host.

use std::path::Path;

use sys::device::{Kind, make, numbers};

use super::{Result, file, make_dir};

/// A device node to make.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Path below /dev.
    pub path: String,
    /// Character or block.
    pub kind: Kind,
    /// Major number.
    pub major: u32,
    /// Minor number.
    pub minor: u32,
    /// Permissions.
    pub mode: u32,
}

/// Always there; the numbers are the kernel's for good.
const FIXED: [(&str, u32, u32); 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];

/// There when the host has them, with the host's numbers. Open to all users, as on most machines: what may use it is decided
/// by the device cgroup of each container, not by the mode.
const OPTIONAL_OPEN: [&str; 1] = ["fuse"];

/// There when the host has them, for root. Machines differ in who else may use the devices of guests, and whoever runs guests
/// without privilege has to be given them: this node relies on no mode.
const OPTIONAL_ROOT: [&str; 7] = ["kmsg", "kvm", "loop-control", "net/tun", "userfaultfd", "vhost-net", "vhost-vsock"];

/// The group `disk`, which machines leave their block devices to.
const DISKS: u32 = 6;

/// The device nodes of a node on a host that answers `host` for a path below /dev.
pub fn plan(host: impl Fn(&str) -> Option<(Kind, u32, u32)>) -> Vec<Device> {
    let mut all: Vec<_> = FIXED
        .iter()
        .map(|(path, major, minor)| Device {
            path: (*path).to_owned(),
            kind: Kind::Char,
            major: *major,
            minor: *minor,
            mode: 0o666,
        })
        .collect();
    let mut optional = |path: &str, mode| {
        if let Some((kind, major, minor)) = host(path) {
            all.push(Device { path: path.to_owned(), kind, major, minor, mode });
        }
    };
    for path in OPTIONAL_OPEN {
        optional(path, 0o666);
    }
    for path in OPTIONAL_ROOT {
        optional(path, 0o600);
    }
    if all.iter().any(|device| device.path == "loop-control") {
        // The kernel makes loop devices on demand, but in a /dev that it manages there is nobody to make the nodes.
        all.extend((0..32).map(|minor| Device {
            path: format!("loop{minor}"),
            kind: Kind::Block,
            major: 7,
            minor,
            mode: 0o660,
        }));
    }
    all
}

/// Makes the device nodes and the usual links in the directory `dev`.
pub fn populate(dev: &Path) -> Result<()> {
    for device in plan(|path| numbers(&Path::new("/dev").join(path))) {
        let path = dev.join(&device.path);
        if let Some(parent) = path.parent() {
            make_dir(parent)?;
        }
        make(&path, device.kind, device.major, device.minor, device.mode)?;
        if device.kind == Kind::Block {
            std::os::unix::fs::chown(&path, None, Some(DISKS)).map_err(file("set the group of", &path))?;
        }
    }
    let links = [
        ("fd", "/proc/self/fd"),
        ("stdin", "/proc/self/fd/0"),
        ("stdout", "/proc/self/fd/1"),
        ("stderr", "/proc/self/fd/2"),
        ("ptmx", "pts/ptmx"),
    ];
    for (name, target) in links {
        let path = dev.join(name);
        std::os::unix::fs::symlink(target, &path).map_err(file("link", &path))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(host: &[(&str, (Kind, u32, u32))], expect: &[(&str, u32)]) {
        let devices = plan(|path| host.iter().find(|(name, _)| *name == path).map(|(_, numbers)| *numbers));
        let fixed = FIXED.len();
        assert!(devices[..fixed].iter().all(|device| device.mode == 0o666));
        let rest: Vec<_> =
            devices[fixed..].iter().filter(|d| d.major != 7).map(|d| (d.path.as_str(), d.mode)).collect();
        assert_eq!(rest, expect);
        let loops = devices.iter().filter(|device| device.major == 7).count();
        assert_eq!(loops, if host.iter().any(|(name, _)| *name == "loop-control") { 32 } else { 0 });
    }

    #[test]
    fn only_what_the_host_has() {
        check(&[], &[]);
        check(
            &[
                ("kvm", (Kind::Char, 10, 232)),
                ("net/tun", (Kind::Char, 10, 200)),
                ("loop-control", (Kind::Char, 10, 237)),
                ("sda", (Kind::Block, 8, 0)),
            ],
            &[("kvm", 0o600), ("loop-control", 0o600), ("net/tun", 0o600)],
        );
    }
}
