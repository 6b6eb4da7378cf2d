//! Pure but for the records: where things of CSI volumes lie below the kubelet's directory. The layout is upstream's,
//! because drivers look into it.
//!
//! ```text
//!  pods/UID/volumes/kubernetes.io~csi/NAME/mount            published file system, vol_data.json beside it
//!  plugins/kubernetes.io/csi/DRIVER/sha256(HANDLE)/globalmount   staged file system, vol_data.json beside it
//!  plugins/kubernetes.io/csi/volumeDevices/staging/NAME     staged block device
//!  plugins/kubernetes.io/csi/volumeDevices/publish/NAME/UID  published block device
//!  plugins/kubernetes.io/csi/volumeDevices/NAME/data        the block volume's vol_data.json
//!  pods/UID/volumeDevices/kubernetes.io~csi/NAME            link to the published device
//! ```
//!
//! NAME is the PersistentVolume's, or of an inline volume its name in the pod.

use std::path::{Path, PathBuf};
use std::{fs, io};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use crate::error::{Error, Result};

const PLUGIN: &str = "kubernetes.io~csi";
const RECORD: &str = "vol_data.json";

/// What is kept of a volume beside it: enough to give it back without the API.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Record {
    #[serde(rename = "specVolID")]
    pub(crate) name: String,
    #[serde(rename = "volumeHandle")]
    pub(crate) handle: String,
    #[serde(rename = "driverName")]
    pub(crate) driver: String,
    #[serde(rename = "nodeName")]
    pub(crate) node: String,
    /// The VolumeAttachment's name; empty for volumes that are not attached.
    #[serde(rename = "attachmentID")]
    pub(crate) attachment: String,
    #[serde(rename = "volumeLifecycleMode")]
    pub(crate) life: String,
}

/// The directories of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places<'a> {
    root: &'a Path,
}

impl<'a> Places<'a> {
    pub(crate) fn new(root: &'a Path) -> Self {
        Places { root }
    }

    fn plugin(self) -> PathBuf {
        self.root.join("plugins/kubernetes.io/csi")
    }

    fn devices(self) -> PathBuf {
        self.plugin().join("volumeDevices")
    }

    /// The directory of a published file system, for `mount` and the record.
    pub(crate) fn published(self, uid: &str, name: &str) -> PathBuf {
        self.root.join("pods").join(uid).join("volumes").join(PLUGIN).join(name)
    }

    /// The directory of a staged file system, for `globalmount` and the record.
    pub(crate) fn staged(self, driver: &str, handle: &str) -> PathBuf {
        self.plugin().join(driver).join(hex(&[handle.as_bytes()]))
    }

    pub(crate) fn staged_device(self, name: &str) -> PathBuf {
        self.devices().join("staging").join(name)
    }

    pub(crate) fn published_device(self, uid: &str, name: &str) -> PathBuf {
        self.devices().join("publish").join(name).join(uid)
    }

    /// The directory of a block volume's record.
    pub(crate) fn device_record(self, name: &str) -> PathBuf {
        self.devices().join(name).join("data")
    }

    /// The link by which a pod's block volume is found.
    pub(crate) fn device_link(self, uid: &str, name: &str) -> PathBuf {
        self.root.join("pods").join(uid).join("volumeDevices").join(PLUGIN).join(name)
    }

    /// The pods that have anything on the node.
    pub(crate) fn pods(self) -> Vec<String> {
        names(&self.root.join("pods"))
    }

    /// The file system volumes of a pod: each with its directory, and its record if that is readable.
    pub(crate) fn volumes_of(self, uid: &str) -> Vec<(PathBuf, Option<Record>)> {
        let dir = self.root.join("pods").join(uid).join("volumes").join(PLUGIN);
        names(&dir).iter().map(|name| dir.join(name)).map(|dir| (dir.clone(), read(&dir))).collect()
    }

    /// The block volumes of a pod.
    pub(crate) fn devices_of(self, uid: &str) -> Vec<(String, Option<Record>)> {
        let dir = self.root.join("pods").join(uid).join("volumeDevices").join(PLUGIN);
        names(&dir).into_iter().map(|name| (name.clone(), read(&self.device_record(&name)))).collect()
    }

    /// Every staged file system and every block volume, by the directory of its record.
    pub(crate) fn staged_volumes(self) -> Vec<(PathBuf, Record, bool)> {
        let mut found = Vec::new();
        let plugin = self.plugin();
        for driver in names(&plugin).into_iter().filter(|name| name != "volumeDevices") {
            for volume in names(&plugin.join(&driver)) {
                let dir = plugin.join(&driver).join(volume);
                found.extend(read(&dir).map(|record| (dir, record, false)));
            }
        }
        for name in names(&self.devices()) {
            let dir = self.device_record(&name);
            found.extend(read(&dir).map(|record| (dir, record, true)));
        }
        found
    }

    /// Whether a pod other than `except` uses the volume.
    pub(crate) fn is_used(self, volume: &Record, except: &str) -> bool {
        let same = |other: &Record| other.driver == volume.driver && other.handle == volume.handle;
        self.pods().iter().filter(|uid| *uid != except).any(|uid| {
            self.volumes_of(uid).iter().any(|(_, record)| record.as_ref().is_some_and(same))
                || self.devices_of(uid).iter().any(|(_, record)| record.as_ref().is_some_and(same))
        })
    }
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// The record in `dir`, if it is there and whole.
pub(crate) fn read(dir: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(dir.join(RECORD)).ok()?).ok()
}

/// Keeps the record: all of it or none.
pub(crate) fn write(dir: &Path, record: &Record) -> Result<()> {
    let path = dir.join(RECORD);
    let keep = || -> io::Result<()> {
        use std::os::unix::fs::DirBuilderExt;
        fs::DirBuilder::new().recursive(true).mode(0o750).create(dir)?;
        let new = dir.join(format!(".{RECORD}"));
        fs::write(&new, serde_json::to_vec(record)?)?;
        fs::rename(&new, &path)
    };
    keep().map_err(Error::file("keep", &path))
}

/// Removes the record, and the directory when nothing else is in it.
pub(crate) fn forget(dir: &Path) -> Result<()> {
    let path = dir.join(RECORD);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(Error::file("remove", path)(error)),
        _ => {}
    }
    remove_empty(dir)
}

/// Removes a directory or file that a driver left behind; a directory with something in it is an error, because it may
/// still be somebody's data.
pub(crate) fn remove_empty(path: &Path) -> Result<()> {
    let removed = match fs::symlink_metadata(path) {
        Ok(meta) if meta.is_dir() => fs::remove_dir(path),
        Ok(_) => fs::remove_file(path),
        Err(error) => Err(error),
    };
    match removed {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}

/// The digest that names things derived from what may be too long or have slashes.
pub(crate) fn hex(parts: &[&[u8]]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part);
    }
    hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(handle: &str) -> Record {
        Record { name: "pv".into(), handle: handle.into(), driver: "d".into(), ..Default::default() }
    }

    #[test]
    fn the_layout_is_upstreams() {
        let places = Places::new(Path::new("/k"));
        let check = |got: PathBuf, expect: &str| assert_eq!(got, Path::new(expect));
        check(places.published("u", "pv"), "/k/pods/u/volumes/kubernetes.io~csi/pv");
        let digest = "2c70e12b7a0646f92279f427c7b38e7334d8e5389cff167a1dc30e73f826b683";
        check(places.staged("d", "key"), &format!("/k/plugins/kubernetes.io/csi/d/{digest}"));
        check(places.published_device("u", "pv"), "/k/plugins/kubernetes.io/csi/volumeDevices/publish/pv/u");
        check(places.device_link("u", "pv"), "/k/pods/u/volumeDevices/kubernetes.io~csi/pv");
    }

    #[test]
    fn a_volume_is_used_until_the_last_record_goes() {
        let dir = tempfile::tempdir().unwrap();
        let places = Places::new(dir.path());
        write(&places.published("one", "pv"), &record("h")).unwrap();
        write(&places.published("two", "pv"), &record("h")).unwrap();
        write(&places.published("two", "other"), &record("i")).unwrap();
        assert!(places.is_used(&record("h"), "one"));
        assert!(!places.is_used(&record("i"), "two"));
        forget(&places.published("two", "pv")).unwrap();
        assert!(!places.is_used(&record("h"), "one"));
        let text = fs::read_to_string(places.published("one", "pv").join(RECORD)).unwrap();
        assert!(text.contains(r#""specVolID":"pv","volumeHandle":"h","driverName":"d""#), "{text}");
    }

    #[test]
    fn data_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("precious"), "").unwrap();
        assert!(remove_empty(dir.path()).is_err());
        assert!(dir.path().join("precious").exists());
    }
}
