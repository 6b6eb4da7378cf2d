//! Files that change all at once: a new directory is written and a symbolic link moved to it.
//!
//! ```text
//! <volume>/..2026_11_21_…/key     the data
//! <volume>/..data -> ..2026_…     renamed over, which is the moment of change
//! <volume>/key -> ..data/key
//! ```

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::{PermissionsExt, chown, symlink};
use std::path::{Component, Path};
use std::{fs, io};

use crate::error::{Error, Result};

const DATA: &str = "..data";
const NEW_DATA: &str = "..data_tmp";

/// A file to be, below the volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) data: Vec<u8>,
    pub(crate) mode: u32,
    pub(crate) owner: Option<u32>,
}

/// By relative path.
pub(crate) type Payload = BTreeMap<String, Entry>;

/// Makes the volume at `root` hold exactly `payload`. Nothing is touched when it already does.
pub(crate) fn write(root: &Path, payload: &Payload, fs_group: Option<u32>) -> Result<()> {
    for path in payload.keys() {
        if path.is_empty()
            || Path::new(path).components().any(|c| !matches!(c, Component::Normal(_)))
            || path.starts_with("..")
        {
            return Err(Error::Invalid(format!("{path:?} is not a path inside a volume")));
        }
    }
    fs::create_dir_all(root).map_err(Error::file("create", root))?;
    if read(root).is_some_and(|current| holds(&current, payload)) {
        return Ok(());
    }
    let stamp = format!("..{}", uuid::Uuid::new_v4().simple());
    let fresh = root.join(&stamp);
    let fail = |source| Error::File { what: "write volume", path: root.into(), source };
    fill(&fresh, payload, fs_group).map_err(fail)?;
    let old = fs::read_link(root.join(DATA)).ok();
    switch(root, &stamp, payload).map_err(fail)?;
    if let Some(old) = old {
        fs::remove_dir_all(root.join(old)).map_err(fail)?;
    }
    own(root, fs_group).map_err(fail)
}

/// A directory that everybody may read and nobody but root may write: what is in it is another object's.
fn own(dir: &Path, fs_group: Option<u32>) -> io::Result<()> {
    chown(dir, None, fs_group)?;
    fs::set_permissions(dir, fs::Permissions::from_mode(if fs_group.is_some() { 0o2755 } else { 0o755 }))
}

fn fill(fresh: &Path, payload: &Payload, fs_group: Option<u32>) -> io::Result<()> {
    fs::create_dir(fresh)?;
    own(fresh, fs_group)?;
    for (path, entry) in payload {
        let target = fresh.join(path);
        if let Some(parent) = Path::new(path).parent() {
            let mut dir = fresh.to_path_buf();
            for part in parent.components() {
                dir.push(part);
                if !dir.exists() {
                    fs::create_dir(&dir)?;
                    own(&dir, fs_group)?;
                }
            }
        }
        fs::write(&target, &entry.data)?;
        let mut mode = entry.mode & 0o777;
        if let Some(owner) = entry.owner {
            chown(&target, Some(owner), None)?;
        }
        if let Some(group) = fs_group {
            chown(&target, None, Some(group))?;
            mode |= 0o440;
        }
        fs::set_permissions(&target, fs::Permissions::from_mode(mode))?;
    }
    Ok(())
}

fn switch(root: &Path, stamp: &str, payload: &Payload) -> io::Result<()> {
    let next = root.join(NEW_DATA);
    match fs::remove_file(&next) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    symlink(stamp, &next)?;
    fs::rename(&next, root.join(DATA))?;
    let names: BTreeSet<&str> = payload.keys().map(|path| path.split('/').next().unwrap_or(path)).collect();
    for name in &names {
        let link = root.join(name);
        if link.symlink_metadata().is_err() {
            symlink(Path::new(DATA).join(name), link)?;
        }
    }
    for entry in fs::read_dir(root)? {
        let entry = entry?;
        let name = entry.file_name();
        let name = name.to_string_lossy();
        if !name.starts_with("..") && !names.contains(name.as_ref()) {
            fs::remove_file(entry.path())?;
        }
    }
    Ok(())
}

/// What the volume holds now, if it was ever written.
pub(crate) fn read(root: &Path) -> Option<BTreeMap<String, Vec<u8>>> {
    let mut found = BTreeMap::new();
    walk(&root.join(DATA), "", &mut found).ok()?;
    Some(found)
}

fn walk(dir: &Path, prefix: &str, found: &mut BTreeMap<String, Vec<u8>>) -> io::Result<()> {
    for entry in fs::read_dir(dir)? {
        let entry = entry?;
        let name = format!("{prefix}{}", entry.file_name().to_string_lossy());
        if entry.file_type()?.is_dir() {
            walk(&entry.path(), &format!("{name}/"), found)?;
        } else {
            found.insert(name, fs::read(entry.path())?);
        }
    }
    Ok(())
}

fn holds(current: &BTreeMap<String, Vec<u8>>, payload: &Payload) -> bool {
    current.len() == payload.len() && payload.iter().all(|(path, entry)| current.get(path) == Some(&entry.data))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn payload(list: &[(&str, &str)]) -> Payload {
        list.iter()
            .map(|(path, data)| {
                ((*path).to_owned(), Entry { data: data.as_bytes().to_vec(), mode: 0o644, owner: None })
            })
            .collect()
    }

    #[test]
    fn changes_all_at_once_and_removes_what_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("v");
        write(&root, &payload(&[("a", "1"), ("sub/b", "2")]), None).unwrap();
        assert_eq!(fs::read_to_string(root.join("sub/b")).unwrap(), "2");
        let before = fs::read_link(root.join(DATA)).unwrap();
        write(&root, &payload(&[("a", "1"), ("sub/b", "2")]), None).unwrap();
        assert_eq!(fs::read_link(root.join(DATA)).unwrap(), before, "unchanged contents are not rewritten");
        write(&root, &payload(&[("a", "3")]), None).unwrap();
        assert_eq!(fs::read_to_string(root.join("a")).unwrap(), "3");
        assert!(!root.join("sub").exists() && root.join("sub").symlink_metadata().is_err());
        assert!(!root.join(before).exists());
    }

    #[test]
    fn only_root_writes_into_volumes_of_objects() {
        let dir = tempfile::tempdir().unwrap();
        for (name, group) in [("plain", None), ("grouped", Some(107))] {
            let root = dir.path().join(name);
            write(&root, &payload(&[("a", "1"), ("sub/b", "2")]), group).unwrap();
            let data = fs::read_link(root.join(DATA)).unwrap();
            for path in [root.clone(), root.join(&data), root.join(&data).join("sub"), root.join(&data).join("a")] {
                let mode = fs::metadata(&path).unwrap().permissions().mode();
                assert_eq!(mode & 0o022, 0, "{} has {mode:o}", path.display());
            }
        }
    }

    #[test]
    fn paths_stay_inside() {
        let dir = tempfile::tempdir().unwrap();
        for path in ["../x", "/x", "a/../../x", "..x", ""] {
            assert!(write(dir.path(), &payload(&[(path, "")]), None).is_err(), "{path}");
        }
    }
}
