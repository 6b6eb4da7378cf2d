//! libguestfs: its tools, and the appliance they work in, made by the recipe in `guestfs/`, which travels inside the binary.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::layer::Layer;
use crate::layout::Start;
use crate::parts::{USERS, common, is_ours, matching, programs};
use crate::sysroot::{self, Sysroot};
use crate::{Error, Workshop};

/// The tools with all that libguestfs depends on, which is what its appliance takes. Essential packages, on which nothing depends,
/// have to be named.
pub(crate) const PACKAGES: [&str; 24] = [
    "libc6",
    "libgcc-s1",
    "busybox-static",
    "base-files",
    "base-passwd",
    "bash",
    "bsdutils",
    "findutils",
    "grep",
    "gzip",
    "hostname",
    "libc-bin",
    "ncurses-base",
    "ncurses-bin",
    "util-linux",
    "guestfs-tools",
    "guestfish",
    "libguestfs0",
    "xfsprogs",
    "linux-image-cloud-amd64",
    "qemu-system-x86",
    "qemu-utils",
    "seabios",
    "xorriso",
];

/// What the image has; those of libguestfs that are written in Perl stay out. libguestfs itself asks `file` and `blkid` about its
/// appliance.
const PROGRAMS: [&str; 38] = [
    "bin/bash",
    "usr/bin/bash",
    "usr/bin/file",
    "sbin/blkid",
    "usr/sbin/blkid",
    "usr/bin/xorriso",
    "usr/bin/qemu-img",
    "usr/bin/qemu-io",
    "usr/bin/qemu-system-x86_64",
    "usr/bin/guestfish",
    "usr/bin/virt-alignment-scan",
    "usr/bin/virt-cat",
    "usr/bin/virt-copy-in",
    "usr/bin/virt-copy-out",
    "usr/bin/virt-customize",
    "usr/bin/virt-df",
    "usr/bin/virt-diff",
    "usr/bin/virt-edit",
    "usr/bin/virt-filesystems",
    "usr/bin/virt-format",
    "usr/bin/virt-get-kernel",
    "usr/bin/virt-inspector",
    "usr/bin/virt-log",
    "usr/bin/virt-ls",
    "usr/bin/virt-make-fs",
    "usr/bin/virt-resize",
    "usr/bin/virt-sparsify",
    "usr/bin/virt-sysprep",
    "usr/bin/virt-tail",
    "usr/bin/virt-tar-in",
    "usr/bin/virt-tar-out",
    // What tools call beside libguestfs.
    "bin/tar",
    "usr/bin/tar",
    "usr/bin/curl",
    "usr/bin/xz",
    "usr/bin/zstd",
    "bin/gzip",
    "usr/bin/gzip",
];

/// Where the tools find the appliance; `virtctl guestfs` says the same to the images of others.
const APPLIANCE: &str = "/usr/local/lib/guestfs/appliance";
/// What the appliance is of.
const PARTS: [&str; 4] = ["kernel", "initrd", "root", "README.fixed"];

/// The files of `guestfs/`, by path.
const FILES: [(&str, &str); 2] =
    [("build.sh", include_str!("../../../guestfs/build.sh")), ("init", include_str!("../../../guestfs/init"))];

/// The whole recipe as one text, for telling whether it changed.
pub(crate) fn recipe() -> String {
    let files = FILES.map(|(path, text)| format!("{path}\n{text}")).concat();
    files + include_str!("guestfs.rs")
}

/// How a container starts where nothing else is asked for.
pub(crate) fn start() -> Start {
    Start {
        entrypoint: vec!["/entrypoint.sh".to_owned()],
        user: "1001:1001".to_owned(),
        env: vec![
            "PATH=/usr/sbin:/usr/bin".to_owned(),
            "LIBGUESTFS_BACKEND=direct".to_owned(),
            format!("LIBGUESTFS_PATH={APPLIANCE}"),
        ],
    }
}

/// The tools, the appliance, and the program of steps, from what seldom changes to what changes with each build.
pub(crate) fn layers(shop: &Workshop, tree: &Sysroot, say: &mut dyn FnMut(&str)) -> Result<[Layer; 3], Error> {
    let made = appliance(shop, tree, say)?;
    say("making guestfs");
    let mut appliance = Layer::default();
    for part in PARTS {
        appliance.file(Path::new(APPLIANCE).join(part), made.join(part), 0o444, 0);
    }
    let mut ours = Layer::default();
    ours.file("usr/bin/ferrovirt", &shop.binary, 0o755, 0);
    ours.link("usr/bin/tekton-task", "ferrovirt");
    Ok([tools(&tree.root, &shop.binary)?, appliance, ours])
}

fn tools(root: &Path, binary: &Path) -> Result<Layer, Error> {
    let mut layer = Layer::default();
    common(&mut layer, root);
    layer.bytes("etc/passwd", format!("{USERS}task:x:1001:1001:task:/tmp:/bin/sh\n"), 0o644);
    layer.directory("var/tmp", 0o1777, 0);
    let mut wanted: Vec<PathBuf> = PROGRAMS.iter().map(PathBuf::from).collect();
    // Debian moves programs from /bin to /usr/bin.
    wanted.retain(|path| root.join(path).exists());
    wanted.extend(matching(root, Path::new("usr/lib/x86_64-linux-gnu/qemu"), &["accel-tcg"])?);
    programs(&mut layer, root, &wanted, &[binary])?;
    for script in ["usr/bin/virt-copy-in", "usr/bin/virt-copy-out", "usr/bin/virt-tar-in", "usr/bin/virt-tar-out"] {
        layer.file(script, root.join(script), 0o755, 0);
    }
    let trees = [
        "usr/share/qemu",
        "usr/share/seabios",
        "usr/lib/ipxe/qemu",
        "usr/share/osinfo",
        "usr/lib/file",
        "lib/terminfo",
    ];
    for tree in trees {
        if root.join(tree).is_dir() {
            layer.tree(Path::new(tree), &root.join(tree), &is_ours)?;
        }
    }
    layer.link("usr/share/misc/magic.mgc", "../../lib/file/magic.mgc");
    // What `virtctl guestfs` runs.
    layer.bytes("entrypoint.sh", &b"#!/bin/sh\nexec /bin/bash\n"[..], 0o755);
    Ok(layer)
}

/// The directory of the appliance, which is kept for as long as nothing of it changes.
fn appliance(shop: &Workshop, tree: &Sysroot, say: &mut dyn FnMut(&str)) -> Result<PathBuf, Error> {
    let (here, out) = (shop.cache.join("guestfs-recipe"), shop.cache.join("guestfs"));
    let stamp = shop.cache.join("guestfs.inputs");
    let inputs = format!("{}\n{}", tree.identity, recipe());
    let whole = || PARTS.iter().all(|part| out.join(part).is_file());
    if fs::read_to_string(&stamp).is_ok_and(|had| had == inputs) && whole() {
        return Ok(out);
    }
    say("making the appliance of libguestfs");
    fs::create_dir_all(&here).map_err(Error::io("create", &here))?;
    for (path, text) in FILES {
        let to = here.join(path);
        fs::write(&to, text).map_err(Error::io("write", &to))?;
        fs::set_permissions(&to, fs::Permissions::from_mode(0o755)).map_err(Error::io("write", &to))?;
    }
    sysroot::run(Command::new("sh").arg(here.join("build.sh")).arg(&tree.root).arg(&out))?;
    if let Some(missing) = PARTS.iter().find(|part| !out.join(part).is_file()) {
        return Err(Error::Missing { wanted: (*missing).to_owned(), image: out.display().to_string() });
    }
    fs::write(&stamp, &inputs).map_err(Error::io("write", &stamp))?;
    Ok(out)
}
