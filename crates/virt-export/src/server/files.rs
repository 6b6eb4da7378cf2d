//! The files of a volume, one by one, and the listings of its directories.

use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, percent_decode_str, utf8_percent_encode};
use rustix::fs::{FileType, OFlags};
use sys::beneath::Dir;

use super::volume::{Disk, plain};

/// In links of listings.
const IN_PATH: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// What is at a path of a volume.
#[derive(Debug)]
pub(super) enum Found {
    /// A file.
    File(Disk),
    /// The page with the names in a directory.
    Listing(String),
    /// A directory that was asked for as if it were a file.
    Directory,
}

/// What lies at `path`, as it stands in a URL, beneath `root`. No link is followed.
pub(super) fn find(root: &Path, path: &str) -> io::Result<Found> {
    let path = percent_decode_str(path).decode_utf8().map_err(|e| io::Error::new(io::ErrorKind::NotFound, e))?;
    let parts: Vec<&str> = path.split('/').filter(|part| !part.is_empty() && *part != ".").collect();
    if parts.contains(&"..") {
        return Err(io::ErrorKind::NotFound.into());
    }
    let dir = Dir::open(root).map_err(plain)?;
    let place = if parts.is_empty() { ".".to_owned() } else { parts.join("/") };
    // Pipes and devices are not opened to find out what they are.
    let reference = File::from(dir.reference(&place).map_err(plain)?);
    let found = reference.metadata()?;
    if found.is_dir() {
        let names = dir.openat(Path::new(&place), OFlags::RDONLY | OFlags::DIRECTORY).map_err(plain)?;
        let whole = path.is_empty() || path.ends_with('/');
        return if whole { listing(&names).map(Found::Listing) } else { Ok(Found::Directory) };
    }
    if !found.is_file() {
        return Err(io::ErrorKind::NotFound.into());
    }
    let file = dir.read(&place).map_err(plain)?;
    let tag = format!("{:x}-{:x}-{:x}.{:x}", found.ino(), found.size(), found.mtime(), found.mtime_nsec());
    Ok(Found::File(Disk { size: file.metadata()?.len(), file, tag }))
}

fn listing(directory: &impl std::os::fd::AsFd) -> io::Result<String> {
    let mut names = Vec::new();
    for entry in rustix::fs::Dir::read_from(directory)? {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if !matches!(name.as_str(), "." | ".." | "lost+found") {
            names.push(name + if entry.file_type() == FileType::Directory { "/" } else { "" });
        }
    }
    names.sort();
    Ok(page(&names))
}

fn page(names: &[String]) -> String {
    let mut out = "<!doctype html>\n<meta name=\"viewport\" content=\"width=device-width\">\n<pre>\n".to_owned();
    for name in names {
        let (bare, slash) = name.strip_suffix('/').map_or((name.as_str(), ""), |bare| (bare, "/"));
        let link = utf8_percent_encode(bare, IN_PATH);
        let text = name.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&#34;");
        out.push_str(&format!("<a href=\"{link}{slash}\">{text}</a>\n"));
    }
    out.push_str("</pre>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_is_in_the_volume_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("volume");
        std::fs::create_dir_all(root.join("sub dir")).unwrap();
        std::fs::create_dir_all(root.join("lost+found")).unwrap();
        std::fs::write(root.join("sub dir/a&b"), "text").unwrap();
        std::fs::write(dir.path().join("secret"), "x").unwrap();
        std::os::unix::fs::symlink("../secret", root.join("link")).unwrap();
        std::os::unix::fs::symlink("/", root.join("top")).unwrap();
        let listed = |path: &str| match find(&root, path).unwrap() {
            Found::Listing(page) => page,
            other => panic!("{path}: {other:?}"),
        };
        let page = listed("");
        assert!(page.contains("<a href=\"sub%20dir/\">sub dir/</a>\n") && !page.contains("lost+found"), "{page}");
        assert!(listed("sub%20dir/").contains("<a href=\"a%26b\">a&amp;b</a>\n"));
        assert!(matches!(find(&root, "sub%20dir").unwrap(), Found::Directory));
        assert!(matches!(find(&root, "sub%20dir/a%26b").unwrap(), Found::File(disk) if disk.size == 4));
        for path in ["link", "top/", "top/etc/passwd", "../secret", "sub%20dir/%2e%2e/%2e%2e/secret", "nothing", "%ff"]
        {
            find(&root, path).unwrap_err();
        }
    }
}
