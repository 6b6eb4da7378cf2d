//! What of a claim outlives the kubelet: who prepared it, for which pods, and what containers get of it.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// A claim that drivers were asked to prepare.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) namespace: String,
    pub(crate) name: String,
    pub(crate) uid: String,
    /// Who was asked.
    pub(crate) drivers: Vec<String>,
    /// The uids of the pods that use it here.
    pub(crate) pods: BTreeSet<String>,
    /// Whether all drivers have answered.
    pub(crate) prepared: bool,
    pub(crate) devices: Vec<Prepared>,
}

/// A device as its driver prepared it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Prepared {
    /// For which requests of the claim; none: for all.
    pub(crate) requests: Vec<String>,
    pub(crate) cdi: Vec<String>,
}

impl Prepared {
    /// Whether it is for the request, or for one of its alternatives.
    pub(crate) fn is_for(&self, request: Option<&str>) -> bool {
        let Some(request) = request.filter(|request| !request.is_empty()) else { return true };
        let main = |name: &String| name.split('/').next() == Some(request);
        self.requests.is_empty() || self.requests.iter().any(main)
    }
}

fn path(dir: &Path, uid: &str) -> PathBuf {
    dir.join(format!("{uid}.json"))
}

/// All of them; what cannot be read is told of and left.
pub(crate) fn all(dir: &Path) -> Vec<Record> {
    let paths = fs::read_dir(dir).into_iter().flatten().flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|ending| ending == "json"));
    paths.filter_map(|path| read(&path)).collect()
}

/// That of one claim.
pub(crate) fn of(dir: &Path, uid: &str) -> Option<Record> {
    read(&path(dir, uid))
}

fn read(path: &Path) -> Option<Record> {
    let text = match fs::read(path) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return None,
        other => other,
    };
    let parsed = text.map_err(|error| error.to_string());
    let parsed = parsed.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
    parsed
        .inspect_err(|error| tracing::warn!(path = %path.display(), error, "the record of a claim is not readable"))
        .ok()
}

/// Writes it so that it is there whole or as before.
pub(crate) fn write(dir: &Path, record: &Record) -> Result<()> {
    fs::create_dir_all(dir).map_err(Error::file("create", dir))?;
    let (to, fresh) = (path(dir, &record.uid), dir.join(format!(".{}", record.uid)));
    let text = serde_json::to_vec(record).unwrap_or_default();
    fs::write(&fresh, text).map_err(Error::file("write", &fresh))?;
    fs::rename(&fresh, &to).map_err(Error::file("write", &to))
}

pub(crate) fn remove(dir: &Path, uid: &str) -> Result<()> {
    let path = path(dir, uid);
    match fs::remove_file(&path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(Error::file("remove", &path)(error)),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_and_go() {
        let dir = tempfile::tempdir().unwrap();
        let record = Record { uid: "u".into(), pods: ["p".to_owned()].into(), ..Record::default() };
        write(dir.path(), &record).unwrap();
        fs::write(dir.path().join("broken.json"), "{").unwrap();
        assert_eq!((all(dir.path()), of(dir.path(), "u")), (vec![record.clone()], Some(record)));
        remove(dir.path(), "u").unwrap();
        remove(dir.path(), "u").unwrap();
        assert!(all(dir.path()).is_empty());
    }

    #[test]
    fn a_device_belongs_to_its_requests() {
        let check = |requests: &[&str], request: Option<&str>, expect: bool| {
            let requests = requests.iter().map(|r| (*r).to_owned()).collect();
            assert_eq!(Prepared { requests, cdi: Vec::new() }.is_for(request), expect);
        };
        check(&[], Some("a"), true);
        check(&["a"], None, true);
        check(&["a"], Some("a"), true);
        check(&["a/b"], Some("a"), true);
        check(&["b"], Some("a"), false);
    }
}
