//! Every image of the product and how it is put together.

use std::fs;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::layer::Layer;
use crate::layout::Start;
use crate::parts::{USERS, common, is_ours, links, matching, programs};
use crate::{Error, Workshop, guest, guestfs, sysroot};

/// Tag of all images: the version of the product.
pub const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// The images.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Image {
    /// Holds a pod's namespaces.
    Pause,
    /// Every component except the launcher.
    Component,
    /// virt-launcher with libvirt and QEMU.
    Launcher,
    /// The component image, with what steps of Tekton's tasks call beside it: clients of SSH, and virtctl.
    TektonTasks,
    /// The demo guest as a containerDisk.
    GuestDemo,
    /// The same guest as a kernelBoot image.
    GuestKernel,
    /// libguestfs with its tools and appliance, and the program of tasks' steps.
    Guestfs,
}

impl Image {
    /// Those that a cluster with virtual machines takes.
    pub const DEFAULT: [Self; 6] =
        [Self::Pause, Self::Component, Self::Launcher, Self::TektonTasks, Self::GuestDemo, Self::GuestKernel];
    /// Those that are made for who asks for them: they are large, and few need them.
    pub const ON_DEMAND: [Self; 1] = [Self::Guestfs];

    /// All.
    pub fn all() -> Vec<Self> {
        [&Self::DEFAULT[..], &Self::ON_DEMAND].concat()
    }

    /// Last part of the name.
    pub fn short(self) -> &'static str {
        match self {
            Self::Pause => "pause",
            Self::Component => "component",
            Self::Launcher => "launcher",
            Self::TektonTasks => "tekton-tasks",
            Self::GuestDemo => "guest-demo",
            Self::GuestKernel => "guest-kernel",
            Self::Guestfs => "guestfs",
        }
    }
    /// Full name with tag as manifests use it.
    pub fn name(self) -> String {
        format!("ferrovirt.local/{}:{VERSION}", self.short())
    }
}

const COMPONENT_PACKAGES: [&str; 8] =
    ["libc6", "libgcc-s1", "nftables", "ca-certificates", "busybox-static", "e2fsprogs", "curl", "openssh-client"];
const LAUNCHER_PACKAGES: [&str; 16] = [
    "libc6",
    "libgcc-s1",
    "busybox-static",
    "bash",
    "coreutils",
    "qemu-system-x86",
    "qemu-utils",
    "libvirt-daemon",
    "libvirt-clients",
    "libvirt-daemon-driver-qemu",
    "ovmf",
    "seabios",
    "ipxe-qemu",
    "swtpm",
    "swtpm-tools",
    "tzdata",
];

/// Who a component is, by number: a kubelet has to see that it is not root. What has to be root says so in its pod.
const COMPONENT_USER: &str = "1001:1001";

/// Links of the multicall binary in the image of the components.
pub const COMPONENTS: [&str; 37] = [
    "operators",
    "multus-daemon",
    "macvtap-device-plugin",
    "secondary-dns",
    "hyperconverged-cluster-cli-download",
    "installer",
    "ssp-operator",
    "template-validator",
    "vm-console-proxy",
    "bridge-marker",
    "cluster-network-addons-operator",
    "kubemacpool",
    "kubevirt-ipam-controller",
    "virt-network-resources-injector",
    "hyperconverged-cluster-operator",
    "hyperconverged-cluster-webhook",
    "virt-operator",
    "virt-api",
    "virt-controller",
    "virt-handler",
    "virt-exportserver",
    "virt-exportproxy",
    "cdi-operator",
    "cdi-controller",
    "cdi-apiserver",
    "cdi-uploadproxy",
    "cdi-uploadserver",
    "cdi-importer",
    "cdi-poller",
    "ovirt-populator",
    "openstack-populator",
    "cdi-cloner",
    "hostpath-provisioner-operator",
    "hostpath-csi",
    "hostpath-provisioner",
    "hostpath-pool",
    "csi-controller",
];
/// Links of the launcher: programs that ask it, and one that asks libvirt what the node can do.
const ASKING: [&str; 3] = ["virt-probe", "virt-freezer", "virt-node-capabilities"];

pub(crate) fn build(shop: &Workshop, wanted: &[Image], say: &mut dyn FnMut(&str)) -> Result<(), Error> {
    let layout = shop.layout();
    let blobs = layout.blobs();
    fs::create_dir_all(&blobs).map_err(Error::io("create", &blobs))?;

    let component = sysroot::prepare(&shop.cache, "component", &COMPONENT_PACKAGES, false, say)?;
    let launcher = sysroot::prepare(&shop.cache, "launcher", &LAUNCHER_PACKAGES, true, say)?;
    let guest = sysroot::prepare(&shop.cache, "guest", &guest::PACKAGES, false, say)?;
    let guestfs = if wanted.contains(&Image::Guestfs) {
        Some(sysroot::prepare(&shop.cache, "guestfs", &guestfs::PACKAGES, false, say)?)
    } else {
        None
    };

    let recipe = hash(&[include_bytes!("catalog.rs"), include_bytes!("parts.rs"), include_bytes!("layer.rs")]);
    let binary = hash_files(&[&shop.binary, &shop.container_disk, &shop.cni, &shop.virtctl])?;
    let launching = hash_files(&[&shop.launcher, &shop.container_disk])?;
    let inputs = |image: Image| match image {
        Image::Pause => format!("{recipe} {}", hash(&[component.identity.as_bytes()])),
        Image::Component | Image::TektonTasks => {
            format!("{recipe} {binary} {}", hash(&[component.identity.as_bytes()]))
        }
        Image::Launcher => format!("{recipe} {launching} {}", hash(&[launcher.identity.as_bytes()])),
        Image::GuestDemo | Image::GuestKernel => {
            format!("{recipe} {}", hash(&[guest.identity.as_bytes(), guest::recipe().as_bytes()]))
        }
        Image::Guestfs => {
            let identity = guestfs.as_ref().map(|tree| tree.identity.as_str()).unwrap_or_default();
            format!("{recipe} {binary} {}", hash(&[identity.as_bytes(), guestfs::recipe().as_bytes()]))
        }
    };
    let stale: Vec<Image> =
        wanted.iter().copied().filter(|image| layout.inputs(&image.name()) != Some(inputs(*image))).collect();
    let has = |image: Image| stale.contains(&image);

    if has(Image::Pause) {
        say("making pause");
        let mut layer = Layer::default();
        layer.file("usr/bin/busybox", component.root.join("bin/busybox"), 0o755, 0);
        let start = Start {
            entrypoint: strings(&["/usr/bin/busybox", "sleep", "infinity"]),
            user: "65535:65535".into(),
            ..Start::default()
        };
        layout.add(&Image::Pause.name(), &[layer.write(&blobs)?], &start, &inputs(Image::Pause))?;
    }
    let path = vec!["PATH=/usr/sbin:/usr/bin".to_owned()];
    if has(Image::Component) || has(Image::TektonTasks) {
        say("making component and tekton-tasks");
        let base = component_layer(&component.root, &shop.binary)?.write(&blobs)?;
        let mut ours = Layer::default();
        ours.file("usr/bin/ferrovirt", &shop.binary, 0o755, 0);
        // Lent to images of disks that the kubelet pulls for an importer.
        ours.file("usr/bin/cdi-image-server", &shop.container_disk, 0o755, 0);
        // Put on nodes by a pod of this image.
        ours.file("usr/bin/ferrovirt-cni", &shop.cni, 0o755, 0);
        offer(&mut ours, &shop.virtctl)?;
        links(&mut ours, &COMPONENTS, "ferrovirt");
        let entrypoint = strings(&["/usr/bin/ferrovirt"]);
        let start = Start { entrypoint, user: COMPONENT_USER.into(), env: path.clone() };
        let layers = [base, ours.write(&blobs)?];
        layout.add(&Image::Component.name(), &layers, &start, &inputs(Image::Component))?;
        let more = task_layer(&component.root, &shop.virtctl)?.write(&blobs)?;
        let layers = [layers.as_slice(), &[more]].concat();
        layout.add(&Image::TektonTasks.name(), &layers, &start, &inputs(Image::TektonTasks))?;
    }
    if has(Image::Launcher) {
        say("making launcher");
        let base = launcher_layer(&launcher.root, &shop.launcher)?.write(&blobs)?;
        let mut ours = Layer::default();
        ours.file("usr/bin/virt-launcher", &shop.launcher, 0o755, 0);
        ours.file("usr/bin/container-disk", &shop.container_disk, 0o755, 0);
        links(&mut ours, &ASKING, "virt-launcher");
        let start = Start { entrypoint: strings(&["/usr/bin/virt-launcher"]), user: "107:107".into(), env: path };
        layout.add(&Image::Launcher.name(), &[base, ours.write(&blobs)?], &start, &inputs(Image::Launcher))?;
    }
    if has(Image::GuestDemo) || has(Image::GuestKernel) {
        let made = guest::build(shop, &guest, say)?;
        let mut disk = Layer::default();
        disk.directory("disk", 0o755, 107);
        disk.file("disk/disk.qcow2", made.join("disk.qcow2"), 0o440, 107);
        layout.add(&Image::GuestDemo.name(), &[disk.write(&blobs)?], &Start::default(), &inputs(Image::GuestDemo))?;
        let mut boot = Layer::default();
        boot.file("boot/vmlinuz", made.join("vmlinuz"), 0o444, 107);
        boot.file("boot/initrd", made.join("initrd"), 0o444, 107);
        layout.add(
            &Image::GuestKernel.name(),
            &[boot.write(&blobs)?],
            &Start::default(),
            &inputs(Image::GuestKernel),
        )?;
    }
    if let Some(tree) = guestfs.as_ref().filter(|_| has(Image::Guestfs)) {
        let mut layers = Vec::new();
        for layer in guestfs::layers(shop, tree, say)? {
            layers.push(layer.write(&blobs)?);
        }
        layout.add(&Image::Guestfs.name(), &layers, &guestfs::start(), &inputs(Image::Guestfs))?;
    }
    layout.sweep()
}

/// virtctl for download, packed, with its checksum as `sha256sum --check` reads it.
fn offer(layer: &mut Layer, virtctl: &Path) -> Result<(), Error> {
    let archive = PathBuf::from("amd64/linux/virtctl.tar.gz");
    let packed = || {
        let mut tar = tar::Builder::new(flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default()));
        // Of no time and no owner: the same program is the same archive.
        tar.mode(tar::HeaderMode::Deterministic);
        tar.append_path_with_name(virtctl, "virtctl")?;
        tar.into_inner()?.finish()
    };
    let bytes = packed().map_err(Error::io("pack", virtctl))?;
    let sum: String = Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
    let root = Path::new("usr/share/virtctl");
    layer.bytes(root.join("SHA256SUMS"), format!("{sum}  {}\n", archive.display()), 0o644);
    layer.bytes(root.join(archive), bytes, 0o644);
    Ok(())
}

fn component_layer(root: &Path, binary: &Path) -> Result<Layer, Error> {
    let mut layer = Layer::default();
    common(&mut layer, root);
    // curl asks a component what it serves, from where it serves.
    programs(&mut layer, root, &["usr/sbin/nft", "sbin/mke2fs", "usr/bin/curl"].map(PathBuf::from), &[binary])?;
    let mut bundle = Vec::new();
    let mozilla = root.join("usr/share/ca-certificates/mozilla");
    let mut files: Vec<PathBuf> =
        fs::read_dir(&mozilla).map_err(Error::io("read", &mozilla))?.flatten().map(|e| e.path()).collect();
    files.sort();
    for file in files {
        bundle.extend(fs::read(&file).map_err(Error::io("read", &file))?);
    }
    layer.bytes("etc/ssl/certs/ca-certificates.crt", bundle, 0o644);
    Ok(layer)
}

/// What steps of tasks call. SSH asks who its user is.
fn task_layer(root: &Path, virtctl: &Path) -> Result<Layer, Error> {
    let mut layer = Layer::default();
    programs(&mut layer, root, &["usr/bin/ssh", "usr/bin/ssh-keygen"].map(PathBuf::from), &[virtctl])?;
    layer.file("usr/bin/virtctl", virtctl, 0o755, 0);
    layer.link("usr/bin/tekton-task", "ferrovirt");
    layer.bytes("etc/passwd", format!("{USERS}task:x:1001:1001:task:/tmp:/bin/sh\n"), 0o644);
    Ok(layer)
}

fn launcher_layer(root: &Path, binary: &Path) -> Result<Layer, Error> {
    let mut layer = Layer::default();
    common(&mut layer, root);
    let mut wanted: Vec<PathBuf> = [
        "usr/sbin/libvirtd",
        // Writes what libvirt dumps of a guest's memory.
        "usr/lib/libvirt/libvirt_iohelper",
        "usr/bin/virsh",
        // That of busybox knows fewer options.
        "usr/bin/stat",
        // What clients of KubeVirt run in a launcher, they run with it; Debian has moved it.
        "bin/bash",
        "usr/bin/bash",
        "usr/bin/qemu-system-x86_64",
        "usr/bin/qemu-img",
        "usr/bin/qemu-io",
        "usr/bin/swtpm",
        "usr/bin/swtpm_setup",
        "usr/bin/swtpm_ioctl",
    ]
    .iter()
    .map(PathBuf::from)
    .collect();
    let lib = Path::new("usr/lib/x86_64-linux-gnu");
    // The session daemon loads the QEMU driver; the others would cost memory in every launcher.
    wanted.push(lib.join("libvirt/connection-driver/libvirt_driver_qemu.so"));
    // Device and accelerator modules of QEMU; the user interfaces and network block drivers stay out.
    wanted.extend(matching(
        root,
        &lib.join("qemu"),
        &[
            "accel-tcg",
            "hw-display-virtio",
            "hw-display-qxl",
            "hw-usb-redirect",
            "hw-usb-host",
            "hw-uefi",
            "ui-spice-core",
        ],
    )?);
    wanted.retain(|p| root.join(p).exists());
    programs(&mut layer, root, &wanted, &[binary])?;
    for tree in [
        "usr/share/qemu",
        "usr/share/seabios",
        "usr/share/OVMF",
        "usr/share/ovmf",
        "usr/share/libvirt/cpu_map",
        // What libvirt holds the descriptions of backups against.
        "usr/share/libvirt/schemas",
        "usr/lib/ipxe/qemu",
        // Clocks of guests that show a local time.
        "usr/share/zoneinfo",
    ] {
        if root.join(tree).is_dir() {
            layer.tree(Path::new(tree), &root.join(tree), &is_ours)?;
        }
    }
    // `virtctl guestfs --image` can run it: it has qemu-img, and is on the nodes already.
    layer.bytes("entrypoint.sh", &b"#!/bin/sh\nexec /bin/sh\n"[..], 0o755);
    layer.bytes("etc/swtpm_setup.conf", &b"create_certs_tool=\n"[..], 0o644);
    Ok(layer)
}

fn strings(list: &[&str]) -> Vec<String> {
    list.iter().map(|w| (*w).to_owned()).collect()
}

fn hash(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hash.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect()
}

fn hash_files(paths: &[&Path]) -> Result<String, Error> {
    let mut hashing = Sha256::new();
    for path in paths {
        let mut file = fs::File::open(path).map_err(Error::io("read", *path))?;
        std::io::copy(&mut file, &mut hashing).map_err(Error::io("read", *path))?;
    }
    Ok(hashing.finalize().iter().take(8).map(|b| format!("{b:02x}")).collect())
}
