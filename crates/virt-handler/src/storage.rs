//! Disks on claims, made ready for the guest's user before the launcher opens them: an image where there is none, and the
//! user's own where the cluster left it to root.
//!
//! A launcher has no privilege: what its volumes' groups do not give it, this node agent does. It reaches the volumes
//! through the launcher's own mounts, without following a link (rule R3), and touches nothing but regular files and block
//! devices.
//!
//! A disk that is copied from another node has to be exactly as large here as there: a guest would notice.

use std::fs::File;
use std::io::{Seek as _, SeekFrom};
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileTypeExt as _, MetadataExt as _};

use api::kubevirt::constants::tracking;
use api::kubevirt::hotplug::is_hotplug;
use api::kubevirt::v1::{KubeVirtConfiguration, VirtualMachineInstance, Volume};
use meta::quantity::Amount;
use sys::beneath::{self, Dir};

use crate::Error;
use crate::launcher::Launcher;

/// uid and gid of everything in a launcher pod.
pub(crate) const USER: u32 = 107;
/// The name of a disk on a claim with a file system.
const IMAGE: &str = "disk.img";
/// Where the volumes are mounted, below what the pod specification calls /var/run.
const MOUNTS: &str = "run/kubevirt-private/vmi-disks";
/// Images end on a boundary that every file system can read around its page cache.
const BOUNDARY: u64 = 1 << 20;

/// A disk on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ClaimedDisk {
    volume: String,
    block: bool,
    writable: bool,
    /// What changes on it is tracked in a layer beside it.
    tracked: bool,
    /// The claim's size; an image that is not there is made as large.
    capacity: u64,
    /// The size of the disk that is copied into this one.
    copied: Option<u64>,
}

impl ClaimedDisk {
    /// The volume's name.
    pub(crate) fn volume(&self) -> &str {
        &self.volume
    }

    /// It is a device, and not an image on a file system.
    pub(crate) fn is_block(&self) -> bool {
        self.block
    }

    /// The guest writes to it.
    pub(crate) fn is_writable(&self) -> bool {
        self.writable
    }
}

/// Why a disk is made ready.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The guest starts.
    Start(Tolerance),
    /// The guest comes from another node, and some of its disks with it.
    Arrival,
}

/// How much less room than promised a volume may have, as the administrator chose.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Tolerance {
    percent: u64,
    reserve: u64,
}

impl Tolerance {
    /// KubeVirt's defaults where nothing is chosen.
    pub(crate) fn of(configuration: &KubeVirtConfiguration) -> Self {
        let developer = configuration.developer_configuration.as_ref();
        let percent = developer.and_then(|d| d.pvc_tolerate_less_space_up_to_percent);
        let reserve = developer.and_then(|d| d.minimum_reserve_pvc_bytes);
        Self {
            percent: percent.and_then(|percent| u64::try_from(percent).ok()).unwrap_or(10).min(100),
            reserve: reserve.and_then(|bytes| u64::try_from(bytes).ok()).unwrap_or(128 << 10),
        }
    }
}

/// The disks that `vmi` is started with and that lie on claims. Pure.
pub(crate) fn disks(vmi: &VirtualMachineInstance, purpose: Purpose) -> Vec<ClaimedDisk> {
    let listed = |name: &str| vmi.spec.domain.devices.disks.iter().any(|disk| disk.name == name);
    let volumes = vmi.spec.volumes.iter().filter(|volume| listed(&volume.name) && !is_hotplug(volume));
    volumes.filter_map(|volume| claimed(vmi, volume, purpose)).collect()
}

/// The disk of a volume that comes while the guest runs, or comes along on its way out. Pure.
pub(crate) fn hotplugged(vmi: &VirtualMachineInstance, name: &str, purpose: Purpose) -> Option<ClaimedDisk> {
    let Some(volume) = vmi.spec.volumes.iter().find(|known| known.name == name) else {
        let entry = api::kubevirt::hotplug::status(vmi, name)?;
        let leaves = api::kubevirt::hotplug::is_leaving(vmi, entry);
        return claimed(vmi, &Volume { name: name.to_owned(), ..Volume::default() }, purpose).filter(|_| leaves);
    };
    let mut disk = claimed(vmi, volume, purpose)?;
    // The media of drives are only read.
    disk.writable &= api::kubevirt::hotplug::disk(&vmi.spec, name).is_some_and(|disk| disk.cdrom.is_none());
    disk.tracked &= disk.writable;
    Some(disk)
}

fn claimed(vmi: &VirtualMachineInstance, volume: &Volume, purpose: Purpose) -> Option<ClaimedDisk> {
    let mut moved =
        vmi.status.iter().filter(|_| purpose == Purpose::Arrival).flat_map(|status| &status.migrated_volumes);
    let status = api::kubevirt::hotplug::status(vmi, &volume.name)?;
    let target = moved.find(|moved| moved.volume_name == volume.name);
    let info = target.and_then(|moved| moved.destination_pvc_info.as_ref());
    let info = info.or(status.persistent_volume_claim_info.as_ref())?;
    let read_only = volume.persistent_volume_claim.as_ref().is_some_and(|claim| claim.read_only == Some(true));
    let capacity = info.capacity.get("storage").and_then(|size| Amount::try_from(size).ok());
    let tracking = vmi.status.as_ref().and_then(|status| status.changed_block_tracking.as_ref());
    let tracks = tracking.is_some_and(|known| [tracking::INITIALIZING, tracking::ENABLED].contains(&&*known.state));
    let writable = !read_only && volume.ephemeral.is_none();
    Some(ClaimedDisk {
        volume: volume.name.clone(),
        block: info.volume_mode.as_deref() == Some("Block"),
        writable,
        tracked: tracks && writable,
        capacity: capacity.map_or(0, Amount::bytes),
        copied: target.and(status.size).and_then(|size| u64::try_from(size).ok()),
    })
}

/// The size of a new image, and whether it is less than promised. Pure.
fn image_size(disk: &ClaimedDisk, free: u64, tolerance: Tolerance) -> Result<(u64, bool), String> {
    let available = free.saturating_sub(tolerance.reserve);
    let align = |size: u64| if size > BOUNDARY { size - size % BOUNDARY } else { size - size % 512 };
    if disk.capacity <= available {
        return Ok((align(disk.capacity), false));
    }
    if disk.capacity / 100 * (100 - tolerance.percent) > available {
        return Err(format!(
            "unable to create {IMAGE} of volume {}, not enough space, demanded size {} B is bigger than available space \
             {available} B, also after taking {} % toleration into account",
            disk.volume, disk.capacity, tolerance.percent
        ));
    }
    Ok((align(available), true))
}

/// Makes the disks of `vmi` ready in the pod of `launcher`. Returns warnings for the user. Blocks as long as the volumes do.
pub(crate) fn prepare(
    vmi: &VirtualMachineInstance,
    launcher: &Launcher,
    purpose: Purpose,
) -> Result<Vec<String>, Error> {
    let wanted = disks(vmi, purpose);
    if wanted.is_empty() {
        return Ok(Vec::new());
    }
    let root = launcher.root()?;
    let mut warnings = Vec::new();
    for disk in &wanted {
        warnings.extend(if disk.block { device(&root, disk).map(|()| None)? } else { image(&root, disk, purpose)? });
    }
    Ok(warnings)
}

/// A device of the pod belongs to the pod's user.
fn device(root: &Dir, disk: &ClaimedDisk) -> Result<(), Error> {
    let failed_to = |source| Error::disk(&disk.volume)(sys::Error::Call { op: "look at it", source });
    let node = root.reference(format!("dev/{}", disk.volume)).map_err(Error::disk(&disk.volume))?;
    if !File::from(node).metadata().map_err(failed_to)?.file_type().is_block_device() {
        return Err(Error::Disk(format!("volume {}: its disk is not a block device", disk.volume)));
    }
    sys::device::give(root, &disk.volume, USER).map_err(Error::disk(&disk.volume))?;
    let Some(size) = disk.copied else { return Ok(()) };
    let failed = |source| Error::disk(&disk.volume)(sys::Error::Call { op: "find its size", source });
    let mut opened = root.read(format!("dev/{}", disk.volume)).map_err(Error::disk(&disk.volume))?;
    let there = opened.seek(SeekFrom::End(0)).map_err(failed)?;
    if there < size {
        return Err(Error::NoRoom { volume: disk.volume.clone(), size, there });
    }
    Ok(())
}

/// A file system has the image, and the image belongs to the pod's user.
fn image(root: &Dir, disk: &ClaimedDisk, purpose: Purpose) -> Result<Option<String>, Error> {
    // In most images /var/run is a link, and none is followed here.
    let path = format!("{MOUNTS}/{}", disk.volume);
    let dir = root.dir(&path).or_else(|_| root.dir(format!("var/{path}"))).map_err(Error::disk(&disk.volume))?;
    image_in(&dir, disk, purpose)
}

/// An image in the directory of its volume.
pub(crate) struct Opened {
    pub(crate) image: File,
    /// The file beside it that is to track what changes on it, if something is to.
    pub(crate) layer: Option<File>,
    /// For the user.
    pub(crate) warning: Option<String>,
}

/// The image in the directory of its volume, made ready and open.
pub(crate) fn open_image(dir: &Dir, disk: &ClaimedDisk, purpose: Purpose) -> Result<Opened, Error> {
    let warning = image_in(dir, disk, purpose)?;
    let opened = if disk.writable { dir.write(IMAGE) } else { dir.read(IMAGE) };
    let image = opened.map_err(Error::disk(&disk.volume))?;
    let layer = disk.tracked.then(|| dir.write(tracking::LAYER)).transpose().map_err(Error::disk(&disk.volume))?;
    Ok(Opened { image, layer, warning })
}

fn image_in(dir: &Dir, disk: &ClaimedDisk, purpose: Purpose) -> Result<Option<String>, Error> {
    let failed = || Error::disk(&disk.volume);
    if !disk.writable {
        return dir.reference(IMAGE).map(|_| None).map_err(failed());
    }
    for name in [Some(IMAGE), disk.tracked.then_some(tracking::LAYER)].into_iter().flatten() {
        match dir.create(name, 0o660) {
            Ok(_new) => {}
            Err(error) if error.io_kind() == Some(std::io::ErrorKind::AlreadyExists) => {}
            Err(error) => return Err(failed()(error)),
        }
        let found = dir.reference(name).map_err(failed())?;
        own(found, disk)?;
    }
    // One without a size was made a moment ago, here or before a power cut.
    let file = dir.write(IMAGE).map_err(failed())?;
    let io = |op: &'static str| move |source| failed()(sys::Error::Call { op, source });
    let there = file.metadata().map_err(io("look at it"))?.len();
    let free = dir.free_bytes().map_err(failed())?;
    if let Some(size) = disk.copied {
        // One of this size may be half full by now: it is left as it is.
        if there != size && free < size {
            return Err(Error::NoRoom { volume: disk.volume.clone(), size, there: free });
        }
        return if there == size { Ok(()) } else { file.set_len(size) }.map(|()| None).map_err(io("set its size"));
    }
    if there > 0 {
        return Ok(None);
    }
    let Purpose::Start(tolerance) = purpose else {
        // It was there when the guest started, and a guest that goes on must not lose it.
        return Err(Error::Disk(format!("volume {}: {IMAGE} is not on the claim any more", disk.volume)));
    };
    let (size, less) = image_size(disk, free, tolerance).map_err(Error::Disk)?;
    file.set_len(size).map_err(io("set its size"))?;
    Ok(less.then(|| {
        format!(
            "PV size too small: expected {} B, found {size} B. Using it anyway, it is within {} % toleration",
            disk.capacity, tolerance.percent
        )
    }))
}

fn own(found: OwnedFd, disk: &ClaimedDisk) -> Result<(), Error> {
    let found = File::from(found);
    let facts = found.metadata();
    let facts = facts.map_err(|source| Error::disk(&disk.volume)(sys::Error::Call { op: "look at it", source }))?;
    // A second name of the file may lie where the guest has no business.
    if !facts.is_file() || facts.nlink() > 1 {
        return Err(Error::Disk(format!("volume {}: its disk is not a regular file with one name", disk.volume)));
    }
    if facts.uid() == USER {
        return Ok(());
    }
    beneath::give(&found, USER).map_err(Error::disk(&disk.volume))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const MI: u64 = 1 << 20;

    fn disk(capacity: u64) -> ClaimedDisk {
        ClaimedDisk { volume: "root".into(), block: false, writable: true, tracked: false, capacity, copied: None }
    }

    #[track_caller]
    fn check(capacity: u64, free: u64, expect: Option<(u64, bool)>) {
        let tolerance = Tolerance::of(&KubeVirtConfiguration::default());
        assert_eq!(image_size(&disk(capacity), free, tolerance).ok(), expect);
    }

    #[test]
    fn an_image_is_as_large_as_its_claim_or_a_little_less() {
        check(100 * MI, 1 << 40, Some((100 * MI, false)));
        check(100 * MI + 700, 1 << 40, Some((100 * MI, false)));
        check(100 * MI, 95 * MI, Some((94 * MI, true)));
        check(100 * MI, 80 * MI, None);
        check(1024, 1 << 20, Some((1024, false)));
    }

    #[test]
    fn disks_on_claims_and_no_others() {
        let info = json!({ "capacity": { "storage": "1Gi" }, "volumeMode": "Filesystem" });
        let device = json!({ "capacity": { "storage": "1Gi" }, "volumeMode": "Block" });
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "spec": {
                "domain": { "devices": { "disks": [{ "name": "a" }, { "name": "b" }, { "name": "c" }, { "name": "d" }] } },
                "volumes": [
                    { "name": "a", "persistentVolumeClaim": { "claimName": "x" } },
                    { "name": "b", "dataVolume": { "name": "y" } },
                    { "name": "c", "ephemeral": { "persistentVolumeClaim": { "claimName": "x" } } },
                    { "name": "d", "emptyDisk": { "capacity": "1Gi" } },
                    { "name": "unused", "persistentVolumeClaim": { "claimName": "x" } },
                ],
            },
            "status": { "volumeStatus": [
                { "name": "a", "target": "", "persistentVolumeClaimInfo": info },
                { "name": "b", "target": "", "persistentVolumeClaimInfo": device },
                { "name": "c", "target": "", "persistentVolumeClaimInfo": info },
                { "name": "unused", "target": "", "persistentVolumeClaimInfo": info },
            ] },
        }))
        .unwrap();
        let start = Purpose::Start(Tolerance::of(&KubeVirtConfiguration::default()));
        let found: Vec<_> =
            disks(&vmi, start).into_iter().map(|d| (d.volume, d.block, d.writable, d.capacity)).collect();
        let gi = 1 << 30;
        assert_eq!(
            found,
            [("a".into(), false, true, gi), ("b".into(), true, true, gi), ("c".into(), false, false, gi)]
        );
    }

    #[test]
    fn a_symbolic_link_in_a_volume_is_not_given_to_the_guest() {
        let dir = std::env::temp_dir().join(format!("storage-{}", std::process::id()));
        let volume = dir.join(MOUNTS).join("root");
        std::fs::create_dir_all(&volume).unwrap();
        let root = Dir::open(&dir).unwrap();
        let start = Purpose::Start(Tolerance::of(&KubeVirtConfiguration::default()));
        std::fs::write(dir.join("secret"), "s").unwrap();
        std::os::unix::fs::symlink("../../../../secret", volume.join(IMAGE)).unwrap();
        assert!(image(&root, &disk(MI), start).is_err());
        std::fs::remove_file(volume.join(IMAGE)).unwrap();
        std::fs::hard_link(dir.join("secret"), volume.join(IMAGE)).unwrap();
        assert!(image(&root, &disk(MI), start).is_err());
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn disks_that_come_and_go() {
        let info = json!({ "capacity": { "storage": "1Gi" }, "volumeMode": "Filesystem" });
        let entry = |name: &str, target: &str| json!({ "name": name, "target": target, "persistentVolumeClaimInfo": info, "hotplugVolume": {} });
        let later =
            |name: &str| json!({ "name": name, "persistentVolumeClaim": { "claimName": name, "hotpluggable": true } });
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "spec": {
                "domain": { "devices": { "disks": [{ "name": "data" }, { "name": "medium", "cdrom": {} }] } },
                "volumes": [later("data"), later("medium")],
            },
            "status": {
                "volumeStatus": [entry("data", "sda"), entry("medium", "sdb"), entry("leaving", "sdc"), entry("gone", "")],
                "changedBlockTracking": { "state": "Enabled" },
            },
        }))
        .unwrap();
        let found = |name: &str| {
            let disk = hotplugged(&vmi, name, Purpose::Arrival);
            disk.map(|disk| (disk.writable, disk.tracked))
        };
        assert_eq!(found("data"), Some((true, true)));
        assert_eq!(found("medium"), Some((false, false)));
        assert_eq!(found("leaving"), Some((true, true)));
        assert_eq!((found("gone"), found("unknown")), (None, None));
    }

    #[test]
    fn a_tracked_image_comes_with_the_file_beside_it() {
        let run = std::env::temp_dir().join(format!("storage-tracked-{}", std::process::id()));
        std::fs::create_dir_all(&run).unwrap();
        let dir = Dir::open(&run).unwrap();
        let start = Purpose::Start(Tolerance::of(&KubeVirtConfiguration::default()));
        let opened = |tracked| open_image(&dir, &ClaimedDisk { tracked, ..disk(MI) }, start).unwrap();
        assert!(opened(false).layer.is_none() && !run.join(tracking::LAYER).exists());
        assert!(opened(true).layer.is_some() && run.join(tracking::LAYER).exists());
        std::fs::remove_dir_all(run).unwrap();
    }

    #[test]
    fn a_disk_that_comes_here_is_as_large_as_it_was_there() {
        let dir = std::env::temp_dir().join(format!("storage-copied-{}", std::process::id()));
        let volume = dir.join(MOUNTS).join("root");
        std::fs::create_dir_all(&volume).unwrap();
        let root = Dir::open(&dir).unwrap();
        let size = || std::fs::metadata(volume.join(IMAGE)).unwrap().len();
        let copied = |size: u64| ClaimedDisk { copied: Some(size), ..disk(4 * MI) };
        assert!(image(&root, &copied(3 * MI + 512), Purpose::Arrival).unwrap().is_none());
        assert_eq!(size(), 3 * MI + 512);
        // Asked again in the middle of the copy, it stays.
        std::fs::write(volume.join(IMAGE), "half ").unwrap();
        image(&root, &copied(5), Purpose::Arrival).unwrap();
        assert_eq!(std::fs::read(volume.join(IMAGE)).unwrap(), b"half ");
        std::fs::remove_file(volume.join(IMAGE)).unwrap();
        let refused = image(&root, &copied(1 << 60), Purpose::Arrival).unwrap_err().to_string();
        assert!(refused.starts_with("volume root: its disk of 1152921504606846976 B does not fit"), "{refused}");
        // A disk that is not copied is there, or the guest does not come.
        let missing = image(&root, &disk(MI), Purpose::Arrival).unwrap_err().to_string();
        assert_eq!(missing, "volume root: disk.img is not on the claim any more");
        std::fs::remove_dir_all(dir).unwrap();
    }

    #[test]
    fn sizes_of_migrated_volumes_come_from_the_target() {
        let info = |size: &str| json!({ "capacity": { "storage": size }, "volumeMode": "Filesystem" });
        let vmi: VirtualMachineInstance = serde_json::from_value(json!({
            "spec": {
                "domain": { "devices": { "disks": [{ "name": "a" }, { "name": "b" }] } },
                "volumes": [
                    { "name": "a", "persistentVolumeClaim": { "claimName": "x" } },
                    { "name": "b", "persistentVolumeClaim": { "claimName": "y" } },
                ],
            },
            "status": {
                "volumeStatus": [
                    { "name": "a", "target": "", "size": 7, "persistentVolumeClaimInfo": info("1Gi") },
                    { "name": "b", "target": "", "size": 8, "persistentVolumeClaimInfo": info("1Gi") },
                ],
                "migratedVolumes": [{ "volumeName": "a", "destinationPVCInfo": info("2Gi") }],
            },
        }))
        .unwrap();
        let found = |purpose| disks(&vmi, purpose).into_iter().map(|d| (d.capacity, d.copied)).collect::<Vec<_>>();
        let gi = 1 << 30;
        assert_eq!(found(Purpose::Arrival), [(2 * gi, Some(7)), (gi, None)]);
        // What an earlier migration did is none of a start's business.
        let start = Purpose::Start(Tolerance::of(&KubeVirtConfiguration::default()));
        assert_eq!(found(start), [(gi, None), (gi, None)]);
    }
}
