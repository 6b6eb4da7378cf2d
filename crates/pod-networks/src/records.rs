//! What was made in which sandbox, on the node's disk: `<sandbox>.json`, and `<pod>.begun` for a pod whose
//! sandbox may lack something.

use std::path::{Path, PathBuf};

use net::cni::{Attachment, Network};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::pool::Lease;
use crate::{Error, Result};

const MADE: &str = "json";
const BEGUN: &str = "begun";

/// Everything that was made in one sandbox.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// The pod's own network, where the container runtime leaves that to us.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) own: Option<Entry>,
    pub(crate) entries: Vec<Entry>,
}

/// The device that an interface is made of.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Device {
    pub(crate) resource: String,
    pub(crate) id: String,
}

/// One interface.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Entry {
    /// `namespace/name` of the definition; empty in records of earlier versions.
    #[serde(default)]
    pub(crate) title: String,
    pub(crate) network: Network,
    pub(crate) attachment: Attachment,
    /// Addresses of the cluster's pools.
    #[serde(default)]
    pub(crate) leases: Vec<Lease>,
    /// What the interface is made of, where the pod has brought it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) device: Option<Device>,
    /// Null until the plugins have made it.
    pub(crate) result: Value,
}

#[derive(Clone, Debug)]
pub(crate) struct Records {
    dir: PathBuf,
}

impl Records {
    pub(crate) fn new(dir: PathBuf) -> Self {
        Self { dir }
    }

    fn path(&self, name: &str, kind: &str) -> PathBuf {
        self.dir.join(format!("{name}.{kind}"))
    }

    /// A sandbox is about to be made for this pod.
    pub(crate) fn begin(&self, uid: &str) -> Result<()> {
        self.write(&self.path(uid, BEGUN), b"")
    }

    /// The pod's sandbox has everything, or is gone.
    pub(crate) fn end(&self, uid: &str) -> Result<()> {
        remove(&self.path(uid, BEGUN))
    }

    pub(crate) fn save(&self, sandbox: &str, record: &Record) -> Result<()> {
        let text = serde_json::to_vec(record).unwrap_or_default();
        self.write(&self.path(sandbox, MADE), &text)
    }

    pub(crate) fn load(&self, sandbox: &str) -> Result<Option<Record>> {
        let path = self.path(sandbox, MADE);
        match std::fs::read(&path) {
            // One that was cut short by a power cut says nothing that could be undone.
            Ok(text) => Ok(Some(serde_json::from_slice(&text).unwrap_or_default())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::file("read", path)(error)),
        }
    }

    pub(crate) fn remove(&self, sandbox: &str) -> Result<()> {
        remove(&self.path(sandbox, MADE))
    }

    /// Sandboxes with a record.
    pub(crate) fn sandboxes(&self) -> Result<Vec<String>> {
        self.names(MADE)
    }

    /// Pods whose sandbox may lack something.
    pub(crate) fn begun(&self) -> Result<Vec<String>> {
        self.names(BEGUN)
    }

    fn names(&self, kind: &str) -> Result<Vec<String>> {
        let entries = match std::fs::read_dir(&self.dir) {
            Ok(entries) => entries,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::file("list", &self.dir)(error)),
        };
        let suffix = format!(".{kind}");
        Ok(entries.flatten().filter_map(|e| Some(e.file_name().to_str()?.strip_suffix(&suffix)?.to_owned())).collect())
    }

    fn write(&self, path: &Path, text: &[u8]) -> Result<()> {
        std::fs::create_dir_all(&self.dir).map_err(Error::file("create", &self.dir))?;
        let partial = path.with_extension("partial");
        std::fs::write(&partial, text).map_err(Error::file("write", &partial))?;
        std::fs::rename(&partial, path).map_err(Error::file("write", path))
    }
}

fn remove(path: &Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file("remove", path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_outlive_the_process() {
        let dir = tempfile::tempdir().unwrap();
        let records = Records::new(dir.path().join("networks"));
        assert_eq!((records.begun().unwrap(), records.load("s").unwrap()), (vec![], None));
        records.begin("u").unwrap();
        let record = Record { own: None, entries: vec![Entry::default()] };
        records.save("s", &record).unwrap();
        let later = Records::new(dir.path().join("networks"));
        assert_eq!((later.begun().unwrap(), later.sandboxes().unwrap()), (vec!["u".to_owned()], vec!["s".to_owned()]));
        assert_eq!(later.load("s").unwrap(), Some(record));
        for _ in 0..2 {
            later.end("u").unwrap();
            later.remove("s").unwrap();
        }
        assert!(later.begun().unwrap().is_empty() && later.sandboxes().unwrap().is_empty());
    }
}
