//! The files of a directory as one stream: a tar archive that leaves holes out.

use std::collections::HashMap;
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The files below `root` as a tar archive. Holes are left out where `sparse` says so. `lost+found` is the file system's
/// own, and sockets, pipes and devices are no content.
///
/// # Errors
/// When something cannot be read, or `into` takes no more.
pub fn pack<W: Write>(root: &Path, sparse: bool, into: W) -> io::Result<W> {
    let mut archive = tar::Builder::new(into);
    archive.follow_symlinks(false);
    archive.sparse(sparse);
    let mut links = HashMap::new();
    for name in names(root)? {
        if name != Path::new("lost+found") {
            add(&mut archive, root, &name, &mut links)?;
        }
    }
    archive.into_inner()
}

fn add<W: Write>(
    archive: &mut tar::Builder<W>,
    root: &Path,
    path: &Path,
    links: &mut HashMap<(u64, u64), PathBuf>,
) -> io::Result<()> {
    let place = root.join(path);
    let found = place.symlink_metadata()?;
    let kind = found.file_type();
    if kind.is_dir() {
        archive.append_dir(path, &place)?;
        for name in names(&place)? {
            add(archive, root, &path.join(name), links)?;
        }
        return Ok(());
    }
    if !kind.is_file() && !kind.is_symlink() {
        return Ok(());
    }
    if kind.is_file()
        && found.nlink() > 1
        && let Some(first) = links.insert((found.dev(), found.ino()), path.to_owned())
    {
        let mut header = tar::Header::new_gnu();
        header.set_metadata(&found);
        header.set_entry_type(tar::EntryType::Link);
        header.set_size(0);
        archive.append_link(&mut header, path, &first)?;
        return Ok(());
    }
    archive.append_path_with_name(&place, path)
}

/// The names in a directory, in order, so that two clones of a volume are alike.
fn names(directory: &Path) -> io::Result<Vec<PathBuf>> {
    let mut names = std::fs::read_dir(directory)?
        .map(|entry| entry.map(|entry| PathBuf::from(entry.file_name())))
        .collect::<io::Result<Vec<_>>>()?;
    names.sort();
    Ok(names)
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;
    use crate::source::{Links, unpack};

    #[test]
    fn a_volume_comes_out_as_it_went_in() {
        let (from, to) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let at = |name: &str| from.path().join(name);
        std::fs::create_dir_all(at("dir/deep")).unwrap();
        std::fs::create_dir(at("lost+found")).unwrap();
        std::fs::write(at("dir/deep/file"), "content").unwrap();
        std::fs::hard_link(at("dir/deep/file"), at("again")).unwrap();
        std::os::unix::fs::symlink("/etc/anywhere", at("link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        let disk = File::create(at("disk.img")).unwrap();
        disk.set_len(64 << 20).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&disk, &[7; 4096], 32 << 20).unwrap();
        let stream = pack(from.path(), true, Vec::new()).unwrap();
        assert!(stream.len() < 1 << 20, "{} bytes for a disk that is a hole", stream.len());
        unpack(Box::new(io::Cursor::new(stream)), to.path(), Links::Anywhere, None).unwrap();
        let at = |name: &str| to.path().join(name);
        assert_eq!(std::fs::read(at("dir/deep/file")).unwrap(), b"content");
        assert_eq!(at("again").metadata().unwrap().ino(), at("dir/deep/file").metadata().unwrap().ino());
        assert_eq!(std::fs::read_link(at("link")).unwrap(), Path::new("/etc/anywhere"));
        assert!(!at("socket").exists() && !at("lost+found").exists());
        let disk = at("disk.img").metadata().unwrap();
        assert!(disk.len() == 64 << 20 && disk.blocks() * 512 < 1 << 20);
        let mut found = vec![0; 4096];
        let copied = File::open(at("disk.img")).unwrap();
        std::os::unix::fs::FileExt::read_exact_at(&copied, &mut found, 32 << 20).unwrap();
        assert_eq!(found, [7; 4096]);
    }
}
