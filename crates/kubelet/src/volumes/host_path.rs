//! hostPath: the path is the node's own; its type says what must be there or is made.

use std::fs;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use crate::error::{Error, Result};

/// Checks or makes what `kind` demands at `path`.
pub(crate) fn check(path: &Path, kind: &str) -> Result<()> {
    let found = fs::metadata(path).ok().map(|meta| meta.file_type());
    let create = |made: std::io::Result<()>, mode: u32| {
        made.and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(mode)))
            .map_err(Error::file("create", path))
    };
    match (kind, found) {
        ("DirectoryOrCreate", None) => return create(fs::create_dir_all(path), 0o755),
        ("FileOrCreate", None) => return create(fs::write(path, ""), 0o644),
        // As docker did: a path that is not there becomes a directory.
        ("", None) => return create(fs::create_dir_all(path), 0o755),
        _ => {}
    }
    let (good, what) = match (kind, &found) {
        ("", _) => (true, ""),
        ("Directory" | "DirectoryOrCreate", found) => (found.is_some_and(|t| t.is_dir()), "a directory"),
        ("File" | "FileOrCreate", found) => (found.is_some_and(|t| t.is_file()), "a file"),
        ("Socket", found) => (found.is_some_and(|t| t.is_socket()), "a socket file"),
        ("CharDevice", found) => (found.is_some_and(|t| t.is_char_device()), "a character device"),
        ("BlockDevice", found) => (found.is_some_and(|t| t.is_block_device()), "a block device"),
        _ => return Err(Error::Invalid(format!("hostPath type {kind:?} is not known"))),
    };
    if good {
        Ok(())
    } else {
        Err(Error::Invalid(format!("hostPath type check failed: {} is not {what}", path.display())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds() {
        let dir = tempfile::tempdir().unwrap();
        let here = |name: &str| dir.path().join(name);
        check(&here("d"), "DirectoryOrCreate").unwrap();
        check(&here("d"), "Directory").unwrap();
        check(&here("f"), "FileOrCreate").unwrap();
        check(&here("f"), "File").unwrap();
        check(Path::new("/dev/null"), "CharDevice").unwrap();
        check(&here("any"), "").unwrap();
        let refused = check(&here("f"), "Directory").unwrap_err().to_string();
        assert_eq!(refused, format!("hostPath type check failed: {} is not a directory", here("f").display()));
        assert!(check(&here("none"), "Socket").is_err());
    }
}
