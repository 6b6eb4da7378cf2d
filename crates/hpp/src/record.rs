//! What is kept of volumes and snapshots: a JSON file for each, in a directory of its pool.

use std::fs::{self, File};
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;
use sha2::{Digest, Sha256};

/// The id that goes with a name: the name itself where it can be a file's, else a digest of it.
pub(crate) fn id(name: &str) -> String {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    if name.len() <= 128 && name.bytes().all(plain) && !name.starts_with('.') {
        return name.to_owned();
    }
    Sha256::digest(name.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Whether anything can have this id. What cannot be an id never becomes a path.
pub(crate) fn is_id(text: &str) -> bool {
    !text.is_empty() && id(text) == text
}

/// The record of that id, if there is one.
pub(crate) fn read<T: DeserializeOwned>(dir: &Path, id: &str) -> io::Result<Option<T>> {
    if !is_id(id) {
        return Ok(None);
    }
    match fs::read(dir.join(id)) {
        Ok(bytes) => Ok(Some(serde_json::from_slice(&bytes)?)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Keeps a record: all of it or none, and for good.
pub(crate) fn keep<T: Serialize>(dir: &Path, id: &str, record: &T) -> io::Result<()> {
    let new = dir.join(format!(".{id}"));
    fs::write(&new, serde_json::to_vec(record)?)?;
    File::open(&new)?.sync_all()?;
    fs::rename(&new, dir.join(id))
}

/// Removes a record; not being there is as good.
pub(crate) fn forget(dir: &Path, id: &str) -> io::Result<()> {
    match fs::remove_file(dir.join(id)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The ids of all records; of a directory that is not there, none.
pub(crate) fn ids(dir: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other?,
    };
    let names = entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned());
    Ok(names.filter(|name| is_id(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_become_ids_that_stay_in_the_pool() {
        assert_eq!(id("pvc-1a.b_c"), "pvc-1a.b_c");
        for name in ["../x", "a/b", ".volumes", "ü", &"x".repeat(129)] {
            let id = id(name);
            assert!(id.len() == 64 && id.bytes().all(|b| b.is_ascii_hexdigit()), "{name} -> {id}");
            assert!(!is_id(name), "{name} is taken for an id");
        }
        assert!(!is_id(""));
    }
}
