//! What of a pod's size outlives the kubelet: what its node has set aside, and how far containers have it.
//!
//! It lies in the pod's own directory and goes with it.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::ResourceRequirements;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// Requests and limits by the name of the container: of regular containers and sidecars, which are those that can be
/// resized.
pub(crate) type Sizes = BTreeMap<String, ResourceRequirements>;

/// The record of one pod.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    /// What the node has set aside.
    pub(crate) allocated: Sizes,
    /// What the newest attempt of each container was started with, or changed to since.
    pub(crate) applied: Sizes,
    /// What the pod's own group was made or changed for; none while it has no group.
    pub(crate) grouped: Option<Sizes>,
    /// Ids of containers that are stopped to be started with another size.
    pub(crate) restarts: BTreeSet<String>,
    /// The generation of the pod whose size is being applied.
    pub(crate) under_way: Option<i64>,
}

fn path(dir: &Path) -> PathBuf {
    dir.join("resources.json")
}

/// The record in the directory of a pod; one that cannot be read is told of, and counts as none.
pub(crate) fn read(dir: &Path) -> Option<Record> {
    let path = path(dir);
    let text = match fs::read(&path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        other => other.map_err(|error| error.to_string()),
    };
    let parsed = text.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
    parsed
        .inspect_err(|error| tracing::warn!(path = %path.display(), error, "what a pod was given is not readable"))
        .ok()
}

/// Writes it so that it is there whole or as before.
///
/// # Errors
/// When the disk refuses.
pub(crate) fn write(dir: &Path, record: &Record) -> Result<()> {
    fs::create_dir_all(dir).map_err(Error::file("create", dir))?;
    let (to, fresh) = (path(dir), dir.join("resources.json.new"));
    fs::write(&fresh, serde_json::to_vec(record).unwrap_or_default()).map_err(Error::file("write", &fresh))?;
    fs::rename(&fresh, &to).map_err(Error::file("write", &to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_given_is_known_in_the_next_life() {
        let dir = tempfile::tempdir().unwrap();
        let pod = dir.path().join("uid");
        assert_eq!(read(&pod), None);
        let sizes = Sizes::from([("c".into(), ResourceRequirements::default())]);
        let record = Record { allocated: sizes.clone(), grouped: Some(sizes), under_way: Some(3), ..Record::default() };
        write(&pod, &record).unwrap();
        assert_eq!(read(&pod), Some(record));
        fs::write(path(&pod), "{").unwrap();
        assert_eq!(read(&pod), None);
    }
}
