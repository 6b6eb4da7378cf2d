//! Secrets as the kubelet shows them to the pod: each a directory whose files change all at once, when the link `..data` is
//! swapped.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, File};
use std::io::{self, Read as _};
use std::path::Path;

use api::kubevirt::credentials::volume;

use super::wanted::Values;

/// Bytes of a Secret, by the API's own limit.
const LIMIT: u64 = 1 << 20;
/// How often a Secret that changed meanwhile is read again.
const TRIES: usize = 3;

/// The Secrets called so, below `directory`, as they are now.
pub(super) fn read(directory: &Path, names: &BTreeSet<&str>) -> BTreeMap<String, Result<Values, String>> {
    let one = |name: &str| values(&directory.join(volume(name))).map_err(|error| error.to_string());
    names.iter().map(|name| ((*name).to_owned(), one(name))).collect()
}

/// All of one moment: the files of the next are in another directory, and those of the last are taken away while they may be being
/// read. A part of them would look like keys that are not wanted any more.
fn values(directory: &Path) -> io::Result<Values> {
    let moment = || fs::canonicalize(directory.join("..data"));
    for _ in 0..TRIES {
        let now = moment()?;
        let values = files(&now);
        if moment()? == now {
            return values;
        }
    }
    Err(io::Error::other("it changes all the time"))
}

fn files(now: &Path) -> io::Result<Values> {
    let mut values = Values::new();
    let mut left = LIMIT;
    for entry in fs::read_dir(now)? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with("..") || !path.is_file() {
            continue;
        }
        let mut value = Vec::new();
        File::open(&path)?.take(left + 1).read_to_end(&mut value)?;
        left = left
            .checked_sub(value.len().try_into().unwrap_or(u64::MAX))
            .ok_or_else(|| io::Error::other(format!("it is larger than {LIMIT} bytes")))?;
        values.insert(name, value);
    }
    Ok(values)
}

#[cfg(test)]
pub(super) mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    /// Shows a Secret with these values below `directory`, in place of what it had before, as a kubelet does.
    pub(in super::super) fn show(directory: &Path, name: &str, moment: &str, given: &[(&str, &str)]) {
        let volume = directory.join(volume(name));
        fs::create_dir_all(volume.join(moment)).unwrap();
        for (key, value) in given {
            fs::write(volume.join(moment).join(key), value).unwrap();
            let _ = symlink(Path::new("..data").join(key), volume.join(key));
        }
        symlink(moment, volume.join("..next")).unwrap();
        fs::rename(volume.join("..next"), volume.join("..data")).unwrap();
    }

    #[test]
    fn a_secret_is_read_as_it_is_at_one_moment() {
        let home = tempfile::tempdir().unwrap();
        let check = |expect: &[(&str, &str)]| {
            let found = read(home.path(), &BTreeSet::from(["s"])).remove("s").unwrap().unwrap();
            let own = |(key, value): &(&str, &str)| ((*key).to_owned(), value.as_bytes().to_vec());
            assert_eq!(found, expect.iter().map(own).collect::<Values>());
        };
        show(home.path(), "s", "..2026_1", &[("a", "1"), ("b", "2")]);
        check(&[("a", "1"), ("b", "2")]);
        // The links of keys that are gone are taken away after the swap.
        show(home.path(), "s", "..2026_2", &[("b", "3")]);
        check(&[("b", "3")]);
    }

    #[test]
    fn what_is_no_secret_is_said() {
        let home = tempfile::tempdir().unwrap();
        let found = read(home.path(), &BTreeSet::from(["none"])).remove("none").unwrap();
        assert!(found.is_err_and(|why| why.contains("No such file")));
        // A directory that holds nothing yet is no Secret without keys.
        fs::create_dir(home.path().join(volume("none"))).unwrap();
        assert!(read(home.path(), &BTreeSet::from(["none"])).remove("none").unwrap().is_err());
        show(home.path(), "large", "..1", &[("a", &"x".repeat(800 << 10)), ("b", &"x".repeat(800 << 10))]);
        let found = read(home.path(), &BTreeSet::from(["large"])).remove("large").unwrap();
        assert_eq!(found, Err("it is larger than 1048576 bytes".to_owned()));
    }
}
