//! What images are put together from: a shell and users, programs of a sysroot with their libraries, firmware.

use std::fs;
use std::path::{Path, PathBuf};

use crate::layer::Layer;
use crate::{Error, closure};

/// Users of every image.
pub(crate) const USERS: &str = "root:x:0:0:root:/root:/bin/sh\nqemu:x:107:107:qemu:/var/run/kubevirt-private:/bin/sh\nnobody:x:65534:65534:nobody:/:/bin/false\n";

/// Applets that make `kubectl exec` useful.
const APPLETS: [&str; 52] = [
    "sh",
    "ls",
    "cat",
    "ps",
    "ip",
    "grep",
    "sleep",
    "cp",
    "mkdir",
    "rm",
    "df",
    "env",
    "id",
    "tail",
    "tar",
    "vi",
    "stat",
    "find",
    "head",
    "wc",
    "du",
    "md5sum",
    "sha256sum",
    "readlink",
    "hostname",
    "uname",
    "mount",
    "which",
    "test",
    "true",
    "false",
    "echo",
    "touch",
    "date",
    "sed",
    "awk",
    "sort",
    "cut",
    "tr",
    "xargs",
    "kill",
    "pidof",
    "dd",
    "nslookup",
    "nsenter",
    "chmod",
    "ln",
    "mv",
    "tee",
    "timeout",
    "nc",
    "netstat",
];

/// Firmware that QEMU ships for machines other than x86.
const OTHER_MACHINES: [&str; 17] = [
    "QEMU,",
    "bamboo",
    "canyonlands",
    "hppa",
    "npcm",
    "openbios",
    "palcode",
    "s390",
    "skiboot",
    "slof",
    "trace-events",
    "u-boot",
    "vof",
    "petalogix",
    "opensbi",
    "ast27",
    "qemu_vga",
];

/// Whether a file of QEMU's, by its name, is for machines such as this one.
pub(crate) fn is_ours(name: &str) -> bool {
    !OTHER_MACHINES.iter().any(|other| name.starts_with(other))
}

pub(crate) fn links(layer: &mut Layer, names: &[&str], to: &str) {
    for name in names {
        layer.link(Path::new("usr/bin").join(name), to);
    }
}

/// What every image of ours has: users, name service configuration, directories, a shell.
pub(crate) fn common(layer: &mut Layer, root: &Path) {
    layer.merged_usr();
    layer.bytes("etc/passwd", USERS, 0o644);
    layer.bytes("etc/group", &b"root:x:0:\nqemu:x:107:\nnogroup:x:65534:\n"[..], 0o644);
    layer.bytes("etc/nsswitch.conf", &b"passwd: files\ngroup: files\nhosts: files dns\n"[..], 0o644);
    layer.bytes("etc/protocols", &b"ip 0 IP\nicmp 1 ICMP\ntcp 6 TCP\nudp 17 UDP\n"[..], 0o644);
    for (path, mode, owner) in [
        ("tmp", 0o1777, 0),
        ("run", 0o755, 0),
        ("root", 0o700, 0),
        ("proc", 0o555, 0),
        ("sys", 0o555, 0),
        ("dev", 0o755, 0),
        ("var/lib", 0o755, 0),
        ("var/log", 0o755, 0),
        ("run/kubevirt", 0o755, 107),
        ("run/kubevirt-private", 0o755, 107),
        ("run/libvirt", 0o755, 107),
        ("run/kubevirt-ephemeral-disks", 0o755, 107),
    ] {
        layer.directory(path, mode, owner);
    }
    layer.link("var/run", "/run");
    layer.file("usr/bin/busybox", root.join("bin/busybox"), 0o755, 0);
    for applet in APPLETS {
        layer.link(Path::new("usr/bin").join(applet), "busybox");
    }
}

/// Programs of the sysroot and the libraries that they and `ours` need.
pub(crate) fn programs(layer: &mut Layer, root: &Path, wanted: &[PathBuf], ours: &[&Path]) -> Result<(), Error> {
    let mut all = wanted.to_vec();
    all.extend(ours.iter().map(|p| p.to_path_buf()));
    for library in closure::libraries(root, &all)? {
        let name = library.file_name().map(PathBuf::from).unwrap_or_default();
        let private = library.components().count() > 4;
        let to = if private { Path::new("usr/lib/x86_64-linux-gnu").join(&name) } else { library.clone() };
        layer.file(to, root.join(&library), 0o755, 0);
    }
    for program in wanted {
        let from = root.join(program);
        let bytes = fs::read(&from).map_err(Error::io("read", &from))?;
        layer.file(program, &from, if closure::is_elf(&bytes) { 0o755 } else { 0o644 }, 0);
    }
    layer.link("lib64/ld-linux-x86-64.so.2", "../lib/x86_64-linux-gnu/ld-linux-x86-64.so.2");
    Ok(())
}

/// Files of a directory whose names start with one of `prefixes`.
pub(crate) fn matching(root: &Path, dir: &Path, prefixes: &[&str]) -> Result<Vec<PathBuf>, Error> {
    let full = root.join(dir);
    let mut files: Vec<PathBuf> = fs::read_dir(&full)
        .map_err(Error::io("read", &full))?
        .flatten()
        .map(|e| e.file_name().to_string_lossy().into_owned())
        .filter(|name| prefixes.iter().any(|p| name.starts_with(p)))
        .map(|name| dir.join(name))
        .collect();
    files.sort();
    Ok(files)
}
