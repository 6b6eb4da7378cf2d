//! Volumes as files that QEMU can open: overlays, empty disks, seed disks, and what the pod has mounted.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use api::kubevirt::credentials;
use api::kubevirt::hotplug::is_hotplug;
use api::kubevirt::v1::{VirtualMachineInstance, Volume};
use disk::iso::Files;
use disk::qcow2::{self, BackingFile};
use domain::{Backing, Format, ResolvedDisk, ResolvedKernel};
use meta::quantity::Amount;

use crate::cloud_init::{self, Secret, Seed};
use crate::dirs::Dirs;

pub(crate) mod claim;
pub(crate) mod lent;
pub(crate) mod tracked;

pub(crate) use claim::{Access, Claimed, Exclusive};
pub(crate) use lent::Lent;
use tracked::Below;
pub(crate) use tracked::Moment;

/// Why a volume cannot become a disk.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("volume {volume}: {source}")]
    Refused { volume: String, source: disk::Refusal },
    #[error("volume {volume}: {message}")]
    NotLent { volume: String, message: String },
    /// The container that has the image cannot lend a disk out of it.
    #[error("volume {volume}: {message}")]
    Unusable { volume: String, message: String },
    #[error("volume {volume}: cannot write its disk")]
    Write {
        volume: String,
        #[source]
        source: disk::Error,
    },
    #[error("volume {volume}: cannot read {path}")]
    Read {
        volume: String,
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("volume {volume}: {capacity:?} is not a capacity")]
    Capacity { volume: String, capacity: String },
    #[error("{0}")]
    CloudInit(#[from] cloud_init::Error),
    /// Another guest writes the disk.
    #[error(
        "volume {volume}: its disk is in use by another virtual machine; it is tried again until that one has ended"
    )]
    InUse { volume: String },
    #[error("volume {volume}: this kind of volume is not supported")]
    Unsupported { volume: String },
}

impl Error {
    /// The same VMI would fail in the same way again.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Refused { source, .. } => source.is_final(),
            Self::NotLent { .. } | Self::Write { .. } | Self::Read { .. } | Self::InUse { .. } => false,
            Self::Unusable { .. } | Self::Capacity { .. } | Self::CloudInit(_) | Self::Unsupported { .. } => true,
        }
    }
}

/// Everything a domain needs of the pod's files, and the borrowed files, open for as long as it runs.
#[derive(Default)]
pub(crate) struct Prepared {
    pub(crate) disks: BTreeMap<String, ResolvedDisk>,
    pub(crate) kernel: Option<ResolvedKernel>,
    pub(crate) lent: Vec<Lent>,
    /// Devices that are to be held while the guest writes them.
    pub(crate) devices: Exclusive,
}

pub(crate) async fn prepare(vmi: &VirtualMachineInstance, dirs: &Dirs, moment: Moment) -> Result<Prepared, Error> {
    let mut prepared = Prepared::default();
    if moment == Moment::Start {
        tracked::sweep(vmi, dirs);
    }
    for volume in &vmi.spec.volumes {
        // Those are lent when they come.
        if is_hotplug(volume) {
            continue;
        }
        // Volumes without a disk (downward metrics, memory dumps, service accounts for pods) need no file.
        if !vmi.spec.domain.devices.disks.iter().any(|disk| disk.name == volume.name) {
            continue;
        }
        let resolved = if volume.container_disk.is_some() {
            let mut lent = lent::borrow(dirs, &volume.name, &format!("{}.sock", volume.name), 1).await?;
            let lent = lent.pop().ok_or_else(|| not_lent(&volume.name, "its container lent no file"))?;
            let resolved = overlay(dirs, &volume.name, &lent)?;
            prepared.lent.push(lent);
            resolved
        } else if is_claim(volume) {
            claimed(vmi, volume, dirs, moment, &mut prepared)?
        } else {
            resolve(vmi, volume, dirs)?
        };
        prepared.disks.insert(volume.name.clone(), resolved);
    }
    prepared.kernel = kernel(vmi, dirs, &mut prepared.lent).await?;
    Ok(prepared)
}

fn is_claim(volume: &Volume) -> bool {
    volume.persistent_volume_claim.is_some() || volume.data_volume.is_some() || volume.ephemeral.is_some()
}

/// The disk on a claim, or the layer that takes the writes to it.
fn claimed(
    vmi: &VirtualMachineInstance,
    volume: &Volume,
    dirs: &Dirs,
    moment: Moment,
    prepared: &mut Prepared,
) -> Result<ResolvedDisk, Error> {
    let name = &volume.name;
    let disk = vmi.spec.domain.devices.disks.iter().find(|disk| disk.name == *name);
    let read_only = volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true));
    let access = Access {
        writable: !read_only && volume.ephemeral.is_none(),
        shareable: disk.is_some_and(|disk| disk.shareable == Some(true)),
    };
    let (claimed, mut resolved) = claim::open(dirs, name, access)?;
    if tracked::wanted(vmi, disk) && access.writable {
        let below = match &claimed {
            Claimed::Image(lent) => Below::Image(lent, None),
            Claimed::Device(_) => Below::Device(&resolved.path),
        };
        let layer = tracked::layer(vmi, name, dirs, below, moment)?;
        resolved = tracked::over(&layer, resolved);
        prepared.lent.push(layer);
    }
    let size = match claimed {
        Claimed::Image(lent) => {
            let size = lent.size;
            prepared.lent.push(lent);
            size
        }
        Claimed::Device(path) => {
            let size = if volume.ephemeral.is_some() { device_size(name, &path)? } else { 0 };
            if access.writable && !access.shareable {
                prepared.devices.want(name, path);
            }
            size
        }
    };
    if volume.ephemeral.is_none() {
        return Ok(resolved);
    }
    let path = dirs.ephemeral().join("disk-data").join(name).join("disk.qcow2");
    let backing = BackingFile { path: &resolved.path, format: resolved.format.word() };
    write(name, &path, |out| qcow2::create(out, size, Some(backing)))?;
    let backing = Some(Backing { path: resolved.path, format: resolved.format, block: resolved.block });
    Ok(ResolvedDisk { backing, ..ephemeral(&path, Format::Qcow2) })
}

fn device_size(volume: &str, path: &Path) -> Result<u64, Error> {
    let failed = |source| Error::Read { volume: volume.to_owned(), path: path.to_owned(), source };
    File::open(path).and_then(|mut device| std::io::Seek::seek(&mut device, std::io::SeekFrom::End(0))).map_err(failed)
}

fn not_lent(volume: &str, message: &str) -> Error {
    Error::NotLent { volume: volume.to_owned(), message: message.to_owned() }
}

async fn kernel(
    vmi: &VirtualMachineInstance,
    dirs: &Dirs,
    held: &mut Vec<Lent>,
) -> Result<Option<ResolvedKernel>, Error> {
    const NAME: &str = "kernel-boot";
    let boot = vmi.spec.domain.firmware.as_ref().and_then(|firmware| firmware.kernel_boot.as_ref()?.container.as_ref());
    let Some(container) = boot else {
        return Ok(None);
    };
    let wanted = [&container.kernel_path, &container.initrd_path];
    let count = wanted.iter().filter(|path| path.as_deref().is_some_and(|path| !path.is_empty())).count();
    let mut files = lent::borrow(dirs, NAME, "kernel-boot.sock", count).await?.into_iter();
    let mut next = |path: &Option<String>| {
        path.as_deref().filter(|path| !path.is_empty()).and_then(|_| files.next()).map(|lent| {
            let link = lent.link.display().to_string();
            held.push(lent);
            link
        })
    };
    Ok(Some(ResolvedKernel { kernel: next(wanted[0]), initrd: next(wanted[1]) }))
}

/// A writable layer over a borrowed image, whose header was judged first.
fn overlay(dirs: &Dirs, name: &str, lent: &Lent) -> Result<ResolvedDisk, Error> {
    let refused = |source| Error::Refused { volume: name.to_owned(), source };
    let image = disk::inspect(&lent.file, lent.size).map_err(refused)?;
    let format = match image.format {
        disk::Format::Raw => Format::Raw,
        disk::Format::Qcow2 => Format::Qcow2,
    };
    let base = lent.link.display().to_string();
    let path = dirs.ephemeral().join("disk-data").join(name).join("disk.qcow2");
    let backing = BackingFile { path: &base, format: format.word() };
    write(name, &path, |out| qcow2::create(out, image.virtual_size, Some(backing)))?;
    Ok(ResolvedDisk {
        path: path.display().to_string(),
        format: Format::Qcow2,
        backing: Some(Backing { path: base, format, block: false }),
        ephemeral: true,
        ..ResolvedDisk::default()
    })
}

/// The size of an empty disk: of what is asked for, the whole mebibytes, where there is one.
fn whole_mebibytes(bytes: u64) -> u64 {
    const MIB: u64 = 1 << 20;
    if bytes < MIB { bytes } else { bytes - bytes % MIB }
}

fn resolve(vmi: &VirtualMachineInstance, volume: &Volume, dirs: &Dirs) -> Result<ResolvedDisk, Error> {
    let name = &volume.name;
    let private = dirs.private();
    if let Some(empty) = &volume.empty_disk {
        let capacity = &empty.capacity;
        let bad = || Error::Capacity { volume: name.clone(), capacity: capacity.0.clone() };
        let bytes = whole_mebibytes(Amount::try_from(capacity).map_err(|_| bad())?.bytes());
        if bytes == 0 {
            return Err(bad());
        }
        let path = dirs.ephemeral().join("empty-disks").join(format!("{name}.qcow2"));
        write(name, &path, |out| qcow2::create(out, bytes, None))?;
        return Ok(ephemeral(&path, Format::Qcow2));
    }
    if volume.cloud_init_no_cloud.is_some() || volume.cloud_init_config_drive.is_some() {
        let secret = read_files(name, &private.join("secret").join(name), false)?;
        let keys = public_keys(vmi, &private)?;
        let seed = match (&volume.cloud_init_no_cloud, &volume.cloud_init_config_drive) {
            (Some(source), _) => cloud_init::no_cloud(vmi, name, source, &secret, &keys)?,
            (None, Some(source)) => cloud_init::config_drive(vmi, name, source, &secret, &keys)?,
            (None, None) => Seed { label: "cidata", files: Files::new() },
        };
        return seed_disk(dirs, name, "cloud-init-data", seed.label, &seed.files);
    }
    let mounted: Option<(&str, Option<&String>)> = if let Some(secret) = &volume.secret {
        Some(("secret", secret.volume_label.as_ref()))
    } else if let Some(map) = &volume.config_map {
        Some(("config-map", map.volume_label.as_ref()))
    } else if let Some(downward) = &volume.downward_api {
        Some(("downwardapi", downward.volume_label.as_ref()))
    } else if volume.sysprep.is_some() {
        Some(("sysprep", None))
    } else {
        None
    };
    if let Some((directory, label)) = mounted {
        let default = if directory == "sysprep" { "unattendCD" } else { "cfgdata" };
        let files = read_files(name, &private.join(directory).join(name), true)?;
        return seed_disk(dirs, name, "config-data", label.map_or(default, String::as_str), &files);
    }
    if volume.service_account.is_some() {
        let files = read_files(name, Path::new("/var/run/secrets/kubernetes.io/serviceaccount"), true)?;
        return seed_disk(dirs, name, "config-data", "cfgdata", &files);
    }
    Err(Error::Unsupported { volume: name.clone() })
}

fn ephemeral(path: &Path, format: Format) -> ResolvedDisk {
    ResolvedDisk { path: path.display().to_string(), format, ephemeral: true, ..ResolvedDisk::default() }
}

fn seed_disk(dirs: &Dirs, name: &str, directory: &str, label: &str, files: &Files) -> Result<ResolvedDisk, Error> {
    let path = dirs.ephemeral().join(directory).join(format!("{name}.iso"));
    write(name, &path, |out| disk::iso::write(out, label, files).map(drop))?;
    Ok(ephemeral(&path, Format::Raw))
}

/// Files of a mounted secret or config map: what kubelet links to, without its bookkeeping.
fn read_files(volume: &str, directory: &Path, required: bool) -> Result<Secret, Error> {
    let failed = |path: &Path| {
        let (volume, path) = (volume.to_owned(), path.to_owned());
        move |source| Error::Read { volume, path, source }
    };
    let entries = match fs::read_dir(directory) {
        Ok(entries) => entries,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !required => return Ok(Secret::new()),
        Err(error) => return Err(failed(directory)(error)),
    };
    let mut out = Secret::new();
    for entry in entries {
        let path = entry.map_err(failed(directory))?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if !name.starts_with("..") && path.is_file() {
            let content = fs::read(&path).map_err(failed(&path))?;
            out.insert(name, content);
        }
    }
    Ok(out)
}

/// SSH keys that the VMI's access credentials hand over by cloud-init.
fn public_keys(vmi: &VirtualMachineInstance, private: &Path) -> Result<Vec<String>, Error> {
    let mut keys = Vec::new();
    for credential in &vmi.spec.access_credentials {
        let Some(ssh) = &credential.ssh_public_key else { continue };
        let by_seed = ssh.propagation_method.config_drive.is_some() || ssh.propagation_method.no_cloud.is_some();
        let Some(secret) = ssh.source.secret.as_ref().filter(|_| by_seed) else { continue };
        let directory = private.join("secret").join(credentials::volume(&secret.secret_name));
        for content in read_files("access credentials", &directory, true)?.into_values() {
            let text = String::from_utf8_lossy(&content).into_owned();
            keys.extend(text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned));
        }
    }
    Ok(keys)
}

fn write(
    volume: &str,
    path: &Path,
    content: impl FnOnce(&mut BufWriter<File>) -> Result<(), disk::Error>,
) -> Result<(), Error> {
    let create = || -> std::io::Result<BufWriter<File>> {
        if let Some(directory) = path.parent() {
            fs::create_dir_all(directory)?;
        }
        let file = File::options().write(true).create(true).truncate(true).mode(0o660).open(path)?;
        Ok(BufWriter::with_capacity(64 << 10, file))
    };
    create()
        .map_err(disk::Error::from)
        .and_then(|mut out| {
            content(&mut out)?;
            std::io::Write::flush(&mut out)?;
            Ok(())
        })
        .map_err(|source| Error::Write { volume: volume.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// The size of the disk that an empty disk of this capacity is.
    fn size(capacity: &str) -> Result<u64, Error> {
        let run = tempfile::tempdir().unwrap();
        let volume = json!({ "name": "scratch", "emptyDisk": { "capacity": capacity } });
        let volume = serde_json::from_value(volume).unwrap();
        let found = resolve(&VirtualMachineInstance::default(), &volume, &Dirs::below(run.path()))?;
        let file = File::open(&found.path).unwrap();
        Ok(disk::inspect(&file, file.metadata().unwrap().len()).unwrap().virtual_size)
    }

    #[test]
    fn empty_disks_are_whole_mebibytes() {
        const MIB: u64 = 1 << 20;
        let check = |capacity: &str, expect: u64| assert_eq!(size(capacity).unwrap(), expect, "{capacity}");
        check("2Gi", 2048 * MIB);
        // 2Gi and some bytes, and what ends a byte before the next mebibyte.
        check("2147483749", 2048 * MIB);
        check("2148532223", 2048 * MIB);
        check("2148532224", 2049 * MIB);
        check("1G", 953 * MIB);
        check("1Mi", MIB);
        // There is no whole one in it.
        check("512Ki", MIB / 2);
        for capacity in ["0", "much"] {
            assert!(matches!(size(capacity), Err(Error::Capacity { .. })), "{capacity}");
        }
    }
}
