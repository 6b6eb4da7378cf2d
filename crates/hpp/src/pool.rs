//! Pools: the directories volumes are kept in, each with a name that StorageClasses choose it by.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use serde::Deserialize;

use crate::Error;

/// The pool of a driver that was given one directory and no name.
const DEFAULT: &str = "legacy";

/// A file in volumes that are mounted as pools: where it is missing, the directory is not the pool yet.
pub(crate) const MARK: &str = ".hostpath-pool";

/// One directory for volumes.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Pool {
    /// The name that the parameter `storagePool` chooses.
    pub name: String,
    /// The directory.
    pub path: PathBuf,
    /// All nodes have the same directory: its volumes can be used on all of them.
    #[serde(default)]
    pub shared: bool,
    /// Something is mounted there, and until it is the pool is not what it is to be.
    #[serde(default)]
    pub mounted: bool,
}

impl Pool {
    /// A directory of this node alone.
    pub fn local(name: impl Into<String>, path: impl Into<PathBuf>) -> Self {
        Pool { name: name.into(), path: path.into(), shared: false, mounted: false }
    }

    /// Whether what is to be mounted there is.
    pub(crate) fn is_there(&self) -> bool {
        !self.mounted || self.path.join(MARK).exists()
    }
}

/// Pools as the command line gives them: one directory, or JSON.
pub(crate) fn parse(text: &str) -> Result<Vec<Pool>, Error> {
    if !text.trim_start().starts_with('[') {
        if !text.starts_with('/') {
            return Err(Error::Argument(format!(
                "--data-dir {text:?}: neither an absolute path nor a JSON list of pools"
            )));
        }
        return Ok(vec![Pool::local(DEFAULT, text)]);
    }
    let pools: Vec<Pool> = serde_json::from_str(text).map_err(|error| {
        Error::Argument(format!("--data-dir {text:?} is not a list of pools with name and path: {error}"))
    })?;
    if pools.is_empty() {
        return Err(Error::Argument("--data-dir names no pool".into()));
    }
    for (index, pool) in pools.iter().enumerate() {
        if pool.name.is_empty() || !pool.path.is_absolute() {
            return Err(Error::Argument(format!(
                "--data-dir: pool {:?} at {:?} needs a name and an absolute path",
                pool.name, pool.path
            )));
        }
        if pools[..index].iter().any(|other| other.name == pool.name || other.path == pool.path) {
            return Err(Error::Argument(format!(
                "--data-dir: pool {:?} shares its name or path with another",
                pool.name
            )));
        }
    }
    Ok(pools)
}

/// Bytes and inodes of a file system.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Space {
    pub(crate) total: i64,
    pub(crate) available: i64,
    pub(crate) used: i64,
    pub(crate) inodes: i64,
    pub(crate) inodes_free: i64,
}

/// What the file system at `path` has.
pub(crate) fn space(path: &Path) -> std::io::Result<Space> {
    let stat = rustix::fs::statvfs(path)?;
    let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    Ok(Space {
        total: bytes(stat.f_blocks),
        available: bytes(stat.f_bavail),
        used: bytes(stat.f_blocks.saturating_sub(stat.f_bfree)),
        inodes: count(stat.f_files),
        inodes_free: count(stat.f_ffree),
    })
}

/// Whether nobody can write there, because of the mount or of the file system; of what is not there nothing is said.
pub(crate) fn is_read_only(path: &Path) -> bool {
    rustix::fs::statvfs(path).is_ok_and(|stat| stat.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Whether what one takes the other has no more; of what is not there nothing is said.
pub(crate) fn is_on_same_file_system(one: &Path, other: &Path) -> bool {
    match (std::fs::metadata(one), std::fs::metadata(other)) {
        (Ok(one), Ok(other)) => one.dev() == other.dev(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_systems_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        assert!(is_on_same_file_system(dir.path(), &dir.path().join(".")));
        assert!(!is_on_same_file_system(dir.path(), Path::new("/proc")));
        assert!(!is_on_same_file_system(dir.path(), &dir.path().join("none")));
    }

    #[test]
    fn pools_as_they_are_given() {
        let check = |text: &str, expect: Result<&[(&str, &str)], &str>| {
            let got = parse(text)
                .map(|pools| pools.iter().map(|p| (p.name.clone(), p.path.display().to_string())).collect::<Vec<_>>());
            match (got, expect) {
                (Ok(got), Ok(expect)) => {
                    let expect: Vec<_> = expect.iter().map(|(n, p)| ((*n).to_owned(), (*p).to_owned())).collect();
                    assert_eq!(got, expect);
                }
                (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{error}"),
                (got, expect) => panic!("{text}: {got:?} instead of {expect:?}"),
            }
        };
        check("/data", Ok(&[("legacy", "/data")]));
        check(
            r#"[{"name":"a","path":"/a"},{"name":"b","path":"/b","snapshotPath":""}]"#,
            Ok(&[("a", "/a"), ("b", "/b")]),
        );
        check("data", Err("neither an absolute path"));
        check("[]", Err("names no pool"));
        check(r#"[{"name":"a"}]"#, Err("missing field `path`"));
        check(r#"[{"name":"a","path":"/a"},{"name":"a","path":"/b"}]"#, Err("shares its name"));
        check(r#"[{"name":"","path":"/a"}]"#, Err("needs a name"));
    }
}
