//! All images and whatever else belongs to a version as one archive, for clusters without a network.

use std::fs::{self, File};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

use crate::layout::{Extra, Layout};
use crate::{Error, Workshop};

/// Writes every image of the store and `extra`, by path, to `target`, which is replaced when all is written. containerd can import the
/// archive as it is.
///
/// # Errors
/// When nothing is built, or the archive cannot be written.
pub fn write(shop: &Workshop, extra: &[(&str, Extra)], target: &Path) -> Result<(), Error> {
    let names: Vec<String> = shop.list()?.into_iter().map(|image| image.name).collect();
    if names.is_empty() {
        return Err(Error::NothingBuilt);
    }
    let mut partial = target.as_os_str().to_owned();
    partial.push(".partial");
    let partial = PathBuf::from(partial);
    let file = File::create(&partial).map_err(Error::io("write", &partial))?;
    let written = shop.layout().export(&names, extra, BufWriter::with_capacity(1 << 20, file));
    let written = written.and_then(|()| fs::rename(&partial, target).map_err(Error::io("write", target)));
    if written.is_err() {
        // What is left of it would be taken for one.
        let _gone = fs::remove_file(&partial);
    }
    written
}

/// Unpacks the images of the archive into `dir`, each blob compared with its digest.
///
/// # Errors
/// When it cannot be read, or holds no images, or a blob is another than its name says.
pub fn open(archive: &Path, dir: &Path) -> Result<Layout, Error> {
    let file = File::open(archive).map_err(Error::io("read", archive))?;
    let mut tar = tar::Archive::new(BufReader::with_capacity(1 << 20, file));
    for entry in tar.entries().map_err(Error::io("read", archive))? {
        let mut entry = entry.map_err(Error::io("read", archive))?;
        let path = entry.path().map_err(Error::io("read", archive))?.into_owned();
        let is_image = path == Path::new("index.json") || path.starts_with("blobs/sha256");
        if is_image && entry.header().entry_type().is_file() {
            entry.unpack_in(dir).map_err(Error::io("unpack", archive))?;
        }
    }
    let layout = Layout::at(dir.to_owned());
    let no_bundle = |_| Error::NoBundle { path: archive.to_owned() };
    if layout.list().map_err(no_bundle)?.is_empty() {
        return Err(Error::NoBundle { path: archive.to_owned() });
    }
    for entry in fs::read_dir(layout.blobs()).map_err(Error::io("read", layout.blobs()))?.flatten() {
        let mut hash = Sha256::new();
        let mut blob = File::open(entry.path()).map_err(Error::io("read", entry.path()))?;
        std::io::copy(&mut blob, &mut hash).map_err(Error::io("read", entry.path()))?;
        let digest: String = hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect();
        if entry.file_name().to_str() != Some(digest.as_str()) {
            let blob = entry.file_name().to_string_lossy().into_owned();
            return Err(Error::Altered { path: archive.to_owned(), blob });
        }
    }
    Ok(layout)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layer::Layer;
    use crate::layout::Start;

    fn shop(dir: &Path) -> Workshop {
        let none = PathBuf::new();
        let shop = Workshop {
            cache: dir.to_owned(),
            binary: none.clone(),
            launcher: none.clone(),
            virtctl: none.clone(),
            container_disk: none.clone(),
            cni: none,
        };
        let layout = shop.layout();
        fs::create_dir_all(layout.blobs()).unwrap();
        let mut layer = Layer::default();
        layer.bytes("etc/motd", b"hello", 0o644);
        let layer = layer.write(&layout.blobs()).unwrap();
        layout.add("ferrovirt.local/a:v1", &[layer], &Start::default(), "").unwrap();
        shop
    }

    #[test]
    fn what_is_written_is_opened_again() {
        let dir = tempfile::tempdir().unwrap();
        let (target, opened) = (dir.path().join("all.tar"), dir.path().join("opened"));
        let shop = shop(&dir.path().join("cache"));
        write(&shop, &[("manifests/a.yaml", Extra::Text("a: 1\n"))], &target).unwrap();
        write(&shop, &[], &target).unwrap();
        fs::create_dir(&opened).unwrap();
        assert_eq!(open(&target, &opened).unwrap().list().unwrap(), shop.list().unwrap());
        assert!(!dir.path().join("all.tar.partial").exists());
    }

    #[test]
    fn what_is_no_bundle_or_was_altered_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            path
        };
        let text = dir.path().join("text");
        fs::write(&text, "hello").unwrap();
        assert!(open(&text, &at("1")).is_err());
        assert!(matches!(open(&dir.path().join("none"), &at("2")), Err(Error::Io { .. })));
        let shop = shop(&at("cache"));
        let blob = fs::read_dir(shop.layout().blobs()).unwrap().flatten().next().unwrap();
        let mut bytes = fs::read(blob.path()).unwrap();
        bytes[0] ^= 1;
        fs::write(blob.path(), bytes).unwrap();
        let target = dir.path().join("altered.tar");
        // The manifest itself may be what was altered.
        if write(&shop, &[], &target).is_ok() {
            assert!(open(&target, &at("3")).is_err());
        }
        let target = dir.path().join("empty.tar");
        tar::Builder::new(File::create(&target).unwrap()).finish().unwrap();
        assert!(matches!(open(&target, &at("4")), Err(Error::NoBundle { .. })));
    }
}
