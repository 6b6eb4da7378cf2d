//! The guests' disks, made by the recipe in `guest/`, which travels inside the binary.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::sysroot::{self, Sysroot};
use crate::{Error, Workshop, closure};

pub(crate) const PACKAGES: [&str; 8] = [
    "busybox-static",
    "dropbear-bin",
    "openssh-sftp-server",
    "dhcpcd-base",
    "qemu-guest-agent",
    "linux-image-amd64",
    "systemd-boot-efi",
    "syslinux-common",
];

/// Programs of the guest that need shared libraries.
const PROGRAMS: [&str; 5] =
    ["usr/sbin/dropbear", "usr/sbin/qemu-ga", "sbin/dhcpcd", "usr/sbin/dhcpcd", "usr/lib/openssh/sftp-server"];

/// The files of `guest/`, by path.
const FILES: &[(&str, &str)] = &[
    ("build.sh", include_str!("../../../guest/build.sh")),
    ("initramfs/init", include_str!("../../../guest/initramfs/init")),
    ("rootfs/etc/inittab", include_str!("../../../guest/rootfs/etc/inittab")),
    ("rootfs/etc/init.d/rcS", include_str!("../../../guest/rootfs/etc/init.d/rcS")),
    ("rootfs/etc/init.d/rcK", include_str!("../../../guest/rootfs/etc/init.d/rcK")),
    ("rootfs/etc/acpi/PWRF/00000080", include_str!("../../../guest/rootfs/etc/acpi/PWRF/00000080")),
    ("rootfs/etc/dhcpcd.conf", include_str!("../../../guest/rootfs/etc/dhcpcd.conf")),
    ("rootfs/etc/passwd", include_str!("../../../guest/rootfs/etc/passwd")),
    ("rootfs/etc/group", include_str!("../../../guest/rootfs/etc/group")),
    ("rootfs/etc/hostname", include_str!("../../../guest/rootfs/etc/hostname")),
    ("rootfs/etc/hosts", include_str!("../../../guest/rootfs/etc/hosts")),
    ("rootfs/etc/shells", include_str!("../../../guest/rootfs/etc/shells")),
    ("rootfs/etc/issue", include_str!("../../../guest/rootfs/etc/issue")),
    ("rootfs/etc/os-release", include_str!("../../../guest/rootfs/etc/os-release")),
    ("rootfs/srv/www/index.html", include_str!("../../../guest/rootfs/srv/www/index.html")),
    ("rootfs/srv/www/cgi-bin/hello", include_str!("../../../guest/rootfs/srv/www/cgi-bin/hello")),
    ("rootfs/usr/lib/guest/cloud-init", include_str!("../../../guest/rootfs/usr/lib/guest/cloud-init")),
    ("rootfs/usr/sbin/chpasswd", include_str!("../../../guest/rootfs/usr/sbin/chpasswd")),
];

/// The whole recipe as one text, for telling whether it changed.
pub(crate) fn recipe() -> String {
    FILES.iter().map(|(path, text)| format!("{path}\n{text}")).collect::<Vec<_>>().concat()
}

/// Builds the guest and returns the directory with `disk.qcow2`, `vmlinuz` and `initrd`.
pub(crate) fn build(shop: &Workshop, sysroot: &Sysroot, say: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    say("making the guest's kernel and disk");
    let here = shop.cache.join("guest-recipe");
    for (path, text) in FILES {
        let to = here.join(path);
        let dir = to.parent().unwrap_or(&here);
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        fs::write(&to, text).map_err(Error::io("write", &to))?;
    }
    let script = here.join("build.sh");
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).map_err(Error::io("write", &script))?;

    let programs: Vec<PathBuf> =
        PROGRAMS.iter().map(PathBuf::from).filter(|p| sysroot.root.join(p).is_file()).collect();
    let mut list: Vec<String> =
        closure::libraries(&sysroot.root, &programs)?.iter().map(|p| p.display().to_string()).collect();
    list.push("lib64/ld-linux-x86-64.so.2".into());
    // Name service modules are opened by name, which no ELF header tells.
    list.push("lib/x86_64-linux-gnu/libnss_files.so.2".into());
    list.push("lib/x86_64-linux-gnu/libnss_dns.so.2".into());
    let libs = shop.cache.join("guest-libraries");
    fs::write(&libs, list.join("\n") + "\n").map_err(Error::io("write", &libs))?;

    let out = shop.cache.join("guest");
    sysroot::run(Command::new("sh").arg(&script).arg(&sysroot.root).arg(&out).arg(&libs))?;
    for file in ["disk.qcow2", "vmlinuz", "initrd"] {
        if !out.join(file).is_file() {
            return Err(Error::Missing { wanted: file.into(), image: out.display().to_string() });
        }
    }
    Ok(PathBuf::from(Path::new(&out)))
}
