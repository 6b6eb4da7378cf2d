//! One layer: an uncompressed tar with sorted entries and no times, so that equal content has an equal digest.

use std::collections::BTreeMap;
use std::fs;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::Error;

#[derive(Clone, Debug)]
enum Content {
    File { from: PathBuf, mode: u32 },
    Bytes { bytes: Vec<u8>, mode: u32 },
    Link(PathBuf),
    Directory { mode: u32 },
}

/// What will be in the layer, by path in the image (relative, no leading slash).
#[derive(Clone, Debug, Default)]
pub(crate) struct Layer {
    entries: BTreeMap<PathBuf, (Content, u64)>,
}

impl Layer {
    /// A file copied from the build machine, owned by `owner` (uid and gid).
    pub(crate) fn file(&mut self, to: impl AsRef<Path>, from: impl Into<PathBuf>, mode: u32, owner: u64) {
        self.entries.insert(usr_merged(to.as_ref()), (Content::File { from: from.into(), mode }, owner));
    }
    /// A file with this content.
    pub(crate) fn bytes(&mut self, to: impl AsRef<Path>, bytes: impl Into<Vec<u8>>, mode: u32) {
        self.entries.insert(usr_merged(to.as_ref()), (Content::Bytes { bytes: bytes.into(), mode }, 0));
    }
    /// A symbolic link.
    pub(crate) fn link(&mut self, at: impl AsRef<Path>, target: impl Into<PathBuf>) {
        self.entries.insert(usr_merged(at.as_ref()), (Content::Link(target.into()), 0));
    }
    /// A directory with a mode of its own.
    pub(crate) fn directory(&mut self, at: impl AsRef<Path>, mode: u32, owner: u64) {
        self.entries.insert(usr_merged(at.as_ref()), (Content::Directory { mode }, owner));
    }
    /// `bin`, `sbin`, `lib`, `lib64` as links into `usr`, as Debian has them.
    pub(crate) fn merged_usr(&mut self) {
        for dir in ["bin", "sbin", "lib", "lib64"] {
            self.entries.insert(dir.into(), (Content::Link(Path::new("usr").join(dir)), 0));
        }
    }
    /// Everything below a directory of the build machine whose file name `wanted` accepts, links kept.
    pub(crate) fn tree(&mut self, to: &Path, from: &Path, wanted: &dyn Fn(&str) -> bool) -> Result<(), Error> {
        let entries = fs::read_dir(from).map_err(Error::io("read", from))?;
        for entry in entries {
            let entry = entry.map_err(Error::io("read", from))?;
            if !wanted(&entry.file_name().to_string_lossy()) {
                continue;
            }
            let (path, to) = (entry.path(), to.join(entry.file_name()));
            let kind = entry.file_type().map_err(Error::io("read", &path))?;
            if kind.is_dir() {
                self.tree(&to, &path, wanted)?;
            } else if kind.is_symlink() {
                self.link(to, fs::read_link(&path).map_err(Error::io("read", &path))?);
            } else if kind.is_file() {
                self.file(to, &path, 0o644, 0);
            }
        }
        Ok(())
    }

    /// Writes the tar below `dir` and returns its digest (hex) and size in bytes. The file's name is the digest.
    pub(crate) fn write(&self, dir: &Path) -> Result<(String, u64), Error> {
        fs::create_dir_all(dir).map_err(Error::io("create", dir))?;
        let partial = dir.join(format!(".partial-{}", std::process::id()));
        let file = fs::File::create(&partial).map_err(Error::io("create", &partial))?;
        let mut tar = tar::Builder::new(Hashing { inner: io::BufWriter::new(file), hash: Sha256::new(), size: 0 });
        let mut made = std::collections::BTreeSet::new();
        for (path, (content, owner)) in &self.entries {
            for parent in
                path.ancestors().skip(1).filter(|p| !p.as_os_str().is_empty()).collect::<Vec<_>>().into_iter().rev()
            {
                if made.insert(parent.to_owned()) && !self.entries.contains_key(parent) {
                    append(&mut tar, parent, header(tar::EntryType::Directory, 0o755, 0, 0), &[][..])?;
                }
            }
            match content {
                Content::Directory { mode } => {
                    append(&mut tar, path, header(tar::EntryType::Directory, *mode, *owner, 0), &[][..])?;
                }
                Content::Link(target) => {
                    let mut head = header(tar::EntryType::Symlink, 0o777, *owner, 0);
                    tar.append_link(&mut head, path, target).map_err(Error::io("archive", path))?;
                }
                Content::Bytes { bytes, mode } => {
                    append(
                        &mut tar,
                        path,
                        header(tar::EntryType::Regular, *mode, *owner, bytes.len() as u64),
                        &bytes[..],
                    )?;
                }
                Content::File { from, mode } => {
                    let source = fs::File::open(from).map_err(Error::io("open", from))?;
                    let size = source.metadata().map_err(Error::io("read", from))?.len();
                    append(&mut tar, path, header(tar::EntryType::Regular, *mode, *owner, size), source)?;
                }
            }
        }
        let mut sink = tar.into_inner().map_err(Error::io("write", &partial))?;
        sink.flush().map_err(Error::io("write", &partial))?;
        let digest = sink.hash.finalize().iter().map(|b| format!("{b:02x}")).collect::<String>();
        let path = dir.join(&digest);
        fs::rename(&partial, &path).map_err(Error::io("write", &path))?;
        Ok((digest, sink.size))
    }
}

/// `/lib/x` and `/usr/lib/x` are one file in the image.
fn usr_merged(path: &Path) -> PathBuf {
    let path = path.strip_prefix("/").unwrap_or(path);
    if ["bin", "sbin", "lib", "lib64"].iter().any(|dir| path.starts_with(dir) && path != Path::new(dir)) {
        Path::new("usr").join(path)
    } else {
        path.to_owned()
    }
}

fn header(kind: tar::EntryType, mode: u32, owner: u64, size: u64) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(mode);
    header.set_uid(owner);
    header.set_gid(owner);
    header.set_mtime(0);
    header.set_size(size);
    header
}

fn append<W: Write>(
    tar: &mut tar::Builder<W>,
    path: &Path,
    mut header: tar::Header,
    data: impl io::Read,
) -> Result<(), Error> {
    tar.append_data(&mut header, path, data).map_err(Error::io("archive", path))
}

struct Hashing<W> {
    inner: W,
    hash: Sha256,
    size: u64,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hash.update(&bytes[..written]);
        self.size += written as u64;
        Ok(written)
    }
    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_content_has_an_equal_digest_and_lib_moves_below_usr() {
        let dir = tempfile::tempdir().unwrap();
        let make = |order: [&str; 2]| {
            let mut layer = Layer::default();
            layer.merged_usr();
            for path in order {
                layer.bytes(path, path.as_bytes(), 0o644);
            }
            layer.write(dir.path()).unwrap()
        };
        let first = make(["lib/a", "usr/bin/b"]);
        assert_eq!(first, make(["usr/bin/b", "lib/a"]));
        let mut archive = tar::Archive::new(fs::File::open(dir.path().join(&first.0)).unwrap());
        let paths: Vec<String> =
            archive.entries().unwrap().map(|e| e.unwrap().path().unwrap().display().to_string()).collect();
        assert_eq!(paths, ["bin", "lib", "lib64", "sbin", "usr", "usr/bin", "usr/bin/b", "usr/lib", "usr/lib/a"]);
    }
}
