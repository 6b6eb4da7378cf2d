//! Directories of a seed disk: the tree, its names in both alphabets, its records and path tables.

use std::collections::{BTreeMap, BTreeSet};

use super::{Files, SECTOR, both16, both32};

/// Which of the two trees: short upper-case names with Rock Ridge fields, or UCS-2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Primary,
    Joliet,
}

#[derive(Debug)]
pub(super) struct Directory {
    names: Names,
    /// Name on the disk; the root has none.
    identifier: Vec<u8>,
    parent: usize,
    pub(super) sector: u32,
    entries: Vec<Entry>,
}

#[derive(Debug)]
struct Entry {
    identifier: Vec<u8>,
    /// The name as it was given.
    name: String,
    /// From the root, to find a file's contents by.
    path: String,
    /// Index of the directory, for one.
    directory: Option<usize>,
    sector: u32,
    size: u32,
}

/// All directories, parents before children as the path tables want them; the root first.
pub(super) fn tree(files: &Files, names: Names) -> Vec<Directory> {
    let mut out = vec![Directory { names, identifier: vec![0], parent: 0, sector: 0, entries: Vec::new() }];
    let mut level = vec![(0_usize, String::new())];
    while !level.is_empty() {
        let mut next = Vec::new();
        for (index, path) in level {
            let mut taken = BTreeSet::new();
            let mut entries = Vec::new();
            for (name, is_directory) in children(files, &path) {
                let identifier = identifier(&name, names, is_directory, &mut taken);
                let path = if path.is_empty() { name.clone() } else { format!("{path}/{name}") };
                entries.push(Entry {
                    identifier,
                    name,
                    path,
                    directory: is_directory.then_some(0),
                    sector: 0,
                    size: 0,
                });
            }
            entries.sort_by(|a, b| a.identifier.cmp(&b.identifier));
            for entry in &mut entries {
                if entry.directory.is_some() {
                    entry.directory = Some(out.len());
                    next.push((out.len(), entry.path.clone()));
                    out.push(Directory {
                        names,
                        identifier: entry.identifier.clone(),
                        parent: index,
                        sector: 0,
                        entries: Vec::new(),
                    });
                }
            }
            out[index].entries = entries;
        }
        level = next;
    }
    out
}

/// Names directly below `path`, and whether each is a directory. A name that is both stays a directory.
fn children(files: &Files, path: &str) -> BTreeMap<String, bool> {
    let mut out = BTreeMap::new();
    for file in files.keys() {
        let below = if path.is_empty() {
            Some(file.as_str())
        } else {
            file.strip_prefix(path).and_then(|f| f.strip_prefix('/'))
        };
        if let Some(below) = below {
            let (name, deeper) = below.split_once('/').map_or((below, false), |(name, _)| (name, true));
            *out.entry(name.to_owned()).or_insert(false) |= deeper;
        }
    }
    out
}

fn identifier(name: &str, names: Names, is_directory: bool, taken: &mut BTreeSet<Vec<u8>>) -> Vec<u8> {
    for attempt in 0.. {
        let candidate = match names {
            Names::Primary => primary(name, is_directory, attempt),
            Names::Joliet => joliet(name, attempt),
        };
        if taken.insert(candidate.clone()) {
            return candidate;
        }
    }
    Vec::new()
}

/// Eight characters, a dot and three, of A-Z, 0-9 and `_`; a number at the end of what would not be unique.
fn primary(name: &str, is_directory: bool, attempt: u32) -> Vec<u8> {
    let clean = |part: &str, width: usize| -> String {
        let letter = |c: char| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' };
        part.chars().map(letter).take(width).collect()
    };
    let (stem, extension) = match name.rsplit_once('.') {
        Some((stem, extension)) if !stem.is_empty() && !is_directory => (stem, extension),
        _ => (name, ""),
    };
    let suffix = if attempt == 0 { String::new() } else { attempt.to_string() };
    let stem = clean(stem, 8_usize.saturating_sub(suffix.len()));
    if is_directory {
        format!("{stem}{suffix}").into_bytes()
    } else {
        format!("{stem}{suffix}.{};1", clean(extension, 3)).into_bytes()
    }
}

fn joliet(name: &str, attempt: u32) -> Vec<u8> {
    let letter = |c: char| if "*/:;?\\".contains(c) || c.is_control() { '_' } else { c };
    let suffix = if attempt == 0 { String::new() } else { format!("~{attempt}") };
    let wide = |text: &str| text.encode_utf16().collect::<Vec<u16>>();
    let cleaned: String = name.chars().map(letter).collect();
    let mut units = wide(&cleaned);
    units.truncate(64 - suffix.len());
    units.extend(wide(&suffix));
    units.into_iter().flat_map(u16::to_be_bytes).collect()
}

pub(super) fn place_files(tree: &mut [Directory], at: &BTreeMap<&str, u32>, files: &Files) {
    let places: Vec<(u32, u32)> =
        tree.iter().map(|directory| (directory.sector, u32::try_from(directory.size()).unwrap_or(0))).collect();
    for entry in tree.iter_mut().flat_map(|directory| &mut directory.entries) {
        (entry.sector, entry.size) = match entry.directory {
            Some(index) => places[index],
            None => (
                at.get(entry.path.as_str()).copied().unwrap_or(0),
                files.get(&entry.path).map_or(0, |content| u32::try_from(content.len()).unwrap_or(0)),
            ),
        };
    }
}

impl Directory {
    /// Bytes of the records, whole sectors: no record crosses from one sector to the next.
    pub(super) fn size(&self) -> usize {
        // Only the root has these, and a little room too much does no harm elsewhere.
        let root_extra = if self.names == Names::Primary { SP.len() + ER.len() } else { 0 };
        let fixed = [record_length(self.names, 1, None) + root_extra, record_length(self.names, 1, None)];
        let lengths = fixed.into_iter().chain(self.entries.iter().map(|entry| entry.length(self.names)));
        let mut at = 0_usize;
        for length in lengths {
            if at % SECTOR + length > SECTOR {
                at = at.next_multiple_of(SECTOR);
            }
            at += length;
        }
        at.next_multiple_of(SECTOR)
    }
}

impl Entry {
    fn length(&self, names: Names) -> usize {
        record_length(names, self.identifier.len(), Some(&self.name))
    }
}

/// Says that system-use fields follow, and which.
const SP: &[u8] = b"SP\x07\x01\xbe\xef\x00";
const ER: &[u8] = b"ER\x12\x01\x0a\x00\x00\x01RRIP_1991A";

fn record_length(names: Names, identifier: usize, name: Option<&str>) -> usize {
    let fixed = (33 + identifier).next_multiple_of(2);
    let extra = if names == Names::Primary { 36 + name.map_or(0, |name| 5 + name.len()) } else { 0 };
    (fixed + extra).next_multiple_of(2)
}

struct Target {
    sector: u32,
    size: u32,
    directory: bool,
}

fn record(names: Names, identifier: &[u8], name: Option<&str>, target: &Target, first: bool) -> Vec<u8> {
    let mut out = vec![0, 0];
    out.extend_from_slice(&both32(target.sector));
    out.extend_from_slice(&both32(target.size));
    out.extend_from_slice(&[80, 1, 1, 0, 0, 0, 0]);
    out.extend_from_slice(&[if target.directory { 2 } else { 0 }, 0, 0]);
    out.extend_from_slice(&both16(1));
    out.push(u8::try_from(identifier.len()).unwrap_or(0));
    out.extend_from_slice(identifier);
    out.resize(out.len().next_multiple_of(2), 0);
    if names == Names::Primary {
        if first {
            out.extend_from_slice(SP);
        }
        out.extend_from_slice(b"PX\x24\x01");
        out.extend_from_slice(&both32(if target.directory { 0o40_555 } else { 0o100_444 }));
        out.extend_from_slice(&both32(1));
        out.extend_from_slice(&both32(0));
        out.extend_from_slice(&both32(0));
        if let Some(name) = name {
            out.extend_from_slice(b"NM");
            out.extend_from_slice(&[u8::try_from(5 + name.len()).unwrap_or(0), 1, 0]);
            out.extend_from_slice(name.as_bytes());
        }
        if first {
            out.extend_from_slice(ER);
        }
    }
    out.resize(out.len().next_multiple_of(2), 0);
    out[0] = u8::try_from(out.len()).unwrap_or(0);
    out
}

/// The root's record in a volume descriptor, which has room for nothing but the bare record.
pub(super) fn root_record(root: &Directory) -> Vec<u8> {
    let target = Target { sector: root.sector, size: u32::try_from(root.size()).unwrap_or(0), directory: true };
    record(Names::Joliet, &[0], None, &target, false)
}

/// The contents of one directory: itself, its parent, its entries.
pub(super) fn records(tree: &[Directory], index: usize) -> Vec<u8> {
    let directory = &tree[index];
    let names = directory.names;
    let own = |index: usize| Target {
        sector: tree[index].sector,
        size: u32::try_from(tree[index].size()).unwrap_or(0),
        directory: true,
    };
    let mut out: Vec<u8> = Vec::new();
    let mut push = |record: Vec<u8>| {
        if out.len() % SECTOR + record.len() > SECTOR {
            out.resize(out.len().next_multiple_of(SECTOR), 0);
        }
        out.extend(record);
    };
    push(record(names, &[0], None, &own(index), index == 0));
    push(record(names, &[1], None, &own(directory.parent), false));
    for entry in &directory.entries {
        let target = Target { sector: entry.sector, size: entry.size, directory: entry.directory.is_some() };
        push(record(names, &entry.identifier, Some(&entry.name), &target, false));
    }
    out.resize(directory.size(), 0);
    out
}

pub(super) fn path_table(tree: &[Directory], big: bool) -> Vec<u8> {
    let mut out = Vec::new();
    for directory in tree {
        out.push(u8::try_from(directory.identifier.len()).unwrap_or(0));
        out.push(0);
        let parent = u16::try_from(directory.parent + 1).unwrap_or(1);
        if big {
            out.extend_from_slice(&directory.sector.to_be_bytes());
            out.extend_from_slice(&parent.to_be_bytes());
        } else {
            out.extend_from_slice(&directory.sector.to_le_bytes());
            out.extend_from_slice(&parent.to_le_bytes());
        }
        out.extend_from_slice(&directory.identifier);
        out.resize(out.len().next_multiple_of(2), 0);
    }
    out
}
