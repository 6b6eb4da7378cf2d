//! One image in a tar archive, in the layout that the OCI specifies: `oci-layout`, `index.json`, `blobs/sha256/...`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use bytes::Bytes;

use super::manifest::algorithm;
use crate::source::{Error, Source};

/// More parts than any image has.
const ENTRIES: usize = 10_000;

/// An archive, and where in it each part lies.
pub(super) struct Archive {
    path: PathBuf,
    file: Arc<File>,
    parts: HashMap<String, (u64, u64)>,
}

impl Archive {
    pub(super) fn open(path: &Path) -> Result<Self, Error> {
        let unreadable = |source| Error::File { path: path.to_owned(), source };
        let file = File::open(path).map_err(unreadable)?;
        let mut parts = HashMap::new();
        let mut archive = tar::Archive::new(&file);
        for entry in archive.entries_with_seek().map_err(unreadable)? {
            let entry = entry.map_err(unreadable)?;
            if !entry.header().entry_type().is_file() {
                continue;
            }
            let name = String::from_utf8_lossy(&entry.path_bytes()).trim_start_matches("./").to_owned();
            parts.insert(name, (entry.raw_file_position(), entry.size()));
            if parts.len() > ENTRIES {
                return Err(Error::Image(format!("{} has more than {ENTRIES} entries", path.display())));
            }
        }
        Ok(Self { path: path.to_owned(), file: Arc::new(file), parts })
    }

    pub(super) fn name(&self) -> String {
        self.path.display().to_string()
    }

    pub(super) fn index(&self, limit: usize) -> Result<Bytes, Error> {
        self.whole("index.json", limit)
    }

    pub(super) fn read(&self, digest: &str, limit: usize) -> Result<Bytes, Error> {
        self.whole(&part(digest)?, limit)
    }

    pub(super) fn blob(&self, digest: &str) -> Result<Section, Error> {
        let (start, size) = self.find(&part(digest)?)?;
        Ok(Section { file: self.file.clone(), start, size })
    }

    fn find(&self, name: &str) -> Result<(u64, u64), Error> {
        self.parts.get(name).copied().ok_or_else(|| {
            Error::Image(format!(
                "{} has no {name}: it is not an archive of an image in the OCI layout",
                self.path.display()
            ))
        })
    }

    fn whole(&self, name: &str, limit: usize) -> Result<Bytes, Error> {
        let (start, size) = self.find(name)?;
        let length = usize::try_from(size).ok().filter(|size| *size <= limit);
        let length = length.ok_or(Error::Large { url: self.name(), what: "a manifest", limit })?;
        let mut text = vec![0; length];
        let unreadable = |source| Error::File { path: self.path.clone(), source };
        self.file.read_exact_at(&mut text, start).map_err(unreadable)?;
        Ok(text.into())
    }
}

fn part(digest: &str) -> Result<String, Error> {
    algorithm(digest)?;
    Ok(format!("blobs/{}", digest.replacen(':', "/", 1)))
}

/// A part of a file, as a source.
pub(super) struct Section {
    file: Arc<File>,
    start: u64,
    size: u64,
}

impl Source for Section {
    fn size(&self) -> Option<u64> {
        Some(self.size)
    }

    fn ranged(&self) -> bool {
        true
    }

    fn open(&self, offset: u64) -> io::Result<Box<dyn Read + Send>> {
        let (start, end) = (self.start + offset.min(self.size), self.start + self.size);
        Ok(Box::new(SectionReader { file: self.file.clone(), at: start, end }))
    }
}

struct SectionReader {
    file: Arc<File>,
    at: u64,
    end: u64,
}

impl Read for SectionReader {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let most = usize::try_from(self.end - self.at).unwrap_or(into.len()).min(into.len());
        let length = self.file.read_at(&mut into[..most], self.at)?;
        self.at += length as u64;
        Ok(length)
    }
}
