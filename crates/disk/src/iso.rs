//! Seed disks: a small ISO 9660 writer with Joliet and Rock Ridge names, for cloud-init and for secrets as disks.
//!
//! The same files give the same bytes: there is no time and no random number in it.

use std::collections::BTreeMap;
use std::io::Write;

use crate::Error;

mod directory;

use directory::{Directory, Names};

pub(crate) const SECTOR: usize = 2048;
/// Seed disks are a multiple of this, as KubeVirt's are.
const GRAIN: usize = 1 << 20;
/// Longer names do not fit a directory record with its Rock Ridge fields.
const NAME_LIMIT: usize = 150;
/// Everything on a seed disk together.
const SIZE_LIMIT: u64 = 256 << 20;

/// Files by path (`openstack/latest/user_data`), with directories made as needed.
pub type Files = BTreeMap<String, Vec<u8>>;

/// Writes a disk with this volume label, which is what a guest finds it by. Returns its size.
pub fn write(out: &mut impl Write, label: &str, files: &Files) -> Result<u64, Error> {
    let total: u64 = files.values().map(|content| content.len() as u64).sum();
    if total > SIZE_LIMIT {
        return Err(Error::SeedSize(SIZE_LIMIT));
    }
    for path in files.keys() {
        let bad = |part: &str| part.is_empty() || part == "." || part == ".." || part.len() > NAME_LIMIT;
        if path.split('/').any(bad) || path.contains('\0') {
            return Err(Error::Name(path.clone()));
        }
    }
    let mut layout = Layout::plan(files);
    layout.render(label, files);
    // Guests' tools read ahead of what they look for, and take a disk that ends before that for a broken one.
    layout.image.resize(layout.image.len().next_multiple_of(GRAIN), 0);
    out.write_all(&layout.image)?;
    Ok(layout.image.len() as u64)
}

/// Where everything lies, and the bytes.
struct Layout {
    primary: Vec<Directory>,
    joliet: Vec<Directory>,
    image: Vec<u8>,
    sectors: u32,
    /// First sectors of the path tables: primary little and big endian, Joliet little and big endian.
    tables: [u32; 4],
}

fn sectors(bytes: usize) -> u32 {
    u32::try_from(bytes.div_ceil(SECTOR)).unwrap_or(u32::MAX)
}

impl Layout {
    fn plan(files: &Files) -> Self {
        let mut primary = directory::tree(files, Names::Primary);
        let mut joliet = directory::tree(files, Names::Joliet);
        // 16 sectors of nothing, two volume descriptors, the terminator.
        let mut next = 19;
        let mut tables = [0; 4];
        for (index, table) in tables.iter_mut().enumerate() {
            *table = next;
            let tree = if index < 2 { &primary } else { &joliet };
            next += sectors(directory::path_table(tree, index % 2 == 1).len());
        }
        for tree in [&mut primary, &mut joliet] {
            for directory in tree.iter_mut() {
                directory.sector = next;
                next += sectors(directory.size());
            }
        }
        let mut at = BTreeMap::new();
        for (path, content) in files {
            at.insert(path.as_str(), next);
            next += sectors(content.len()).max(1);
        }
        for tree in [&mut primary, &mut joliet] {
            directory::place_files(tree, &at, files);
        }
        Self { primary, joliet, image: Vec::new(), sectors: next, tables }
    }

    fn render(&mut self, label: &str, files: &Files) {
        self.image = vec![0; 16 * SECTOR];
        let primary = descriptor(1, label, self.sectors, &self.primary, [self.tables[0], self.tables[1]]);
        let joliet = descriptor(2, label, self.sectors, &self.joliet, [self.tables[2], self.tables[3]]);
        self.append(&primary);
        self.append(&joliet);
        self.append(b"\xffCD001\x01");
        for (index, big) in [(0, false), (1, true), (2, false), (3, true)] {
            let tree = if index < 2 { &self.primary } else { &self.joliet };
            let table = directory::path_table(tree, big);
            self.append(&table);
        }
        for index in 0..self.primary.len() {
            let records = directory::records(&self.primary, index);
            self.append(&records);
        }
        for index in 0..self.joliet.len() {
            let records = directory::records(&self.joliet, index);
            self.append(&records);
        }
        for content in files.values() {
            self.append(content);
            if content.is_empty() {
                self.append(&[0]);
            }
        }
    }

    fn append(&mut self, bytes: &[u8]) {
        self.image.extend_from_slice(bytes);
        self.image.resize(self.image.len().next_multiple_of(SECTOR), 0);
    }
}

/// A number in both byte orders, as the standard keeps most of them.
pub(crate) fn both32(value: u32) -> [u8; 8] {
    let mut out = [0; 8];
    out[..4].copy_from_slice(&value.to_le_bytes());
    out[4..].copy_from_slice(&value.to_be_bytes());
    out
}

pub(crate) fn both16(value: u16) -> [u8; 4] {
    let mut out = [0; 4];
    out[..2].copy_from_slice(&value.to_le_bytes());
    out[2..].copy_from_slice(&value.to_be_bytes());
    out
}

/// A text field: padded with blanks, on the Joliet side UCS-2 padded with zeros, where readers stop.
fn field(text: &str, width: usize, wide: bool) -> Vec<u8> {
    let mut out: Vec<u8> = if wide {
        text.encode_utf16().flat_map(u16::to_be_bytes).collect()
    } else {
        text.bytes().filter(u8::is_ascii).collect()
    };
    out.truncate(width);
    out.resize(width, if wide { 0 } else { b' ' });
    out
}

fn descriptor(kind: u8, label: &str, total: u32, tree: &[Directory], tables: [u32; 2]) -> Vec<u8> {
    let wide = kind == 2;
    let mut out = vec![kind];
    out.extend_from_slice(b"CD001\x01\0");
    out.extend(field("LINUX", 32, wide));
    out.extend(field(label, 32, wide));
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&both32(total));
    let mut escapes = [0; 32];
    if wide {
        escapes[..3].copy_from_slice(b"%/E");
    }
    out.extend_from_slice(&escapes);
    out.extend_from_slice(&both16(1));
    out.extend_from_slice(&both16(1));
    out.extend_from_slice(&both16(SECTOR as u16));
    out.extend_from_slice(&both32(u32::try_from(directory::path_table(tree, false).len()).unwrap_or(0)));
    out.extend_from_slice(&tables[0].to_le_bytes());
    out.extend_from_slice(&0_u32.to_le_bytes());
    out.extend_from_slice(&tables[1].to_be_bytes());
    out.extend_from_slice(&0_u32.to_be_bytes());
    out.extend(directory::root_record(&tree[0]));
    for width in [128, 128, 128, 128, 37, 37, 37] {
        out.extend(field("", width, wide));
    }
    for _ in 0..4 {
        out.extend_from_slice(b"0000000000000000\0");
    }
    out.push(1);
    out
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn made(label: &str, files: &[(&str, &str)]) -> Vec<u8> {
        let files = files.iter().map(|(path, text)| ((*path).to_owned(), text.as_bytes().to_vec())).collect();
        let mut out = Vec::new();
        write(&mut out, label, &files).unwrap();
        out
    }

    #[test]
    fn the_label_is_where_guests_look_for_it() {
        let image = made("cidata", &[("user-data", "#cloud-config\n"), ("meta-data", "instance-id: a\n")]);
        assert_eq!(&image[32769..32774], b"CD001");
        assert_eq!(&image[16 * SECTOR + 40..16 * SECTOR + 46], b"cidata");
        assert_eq!(image.len() % SECTOR, 0);
        let text = |needle: &[u8]| image.windows(needle.len()).any(|window| window == needle);
        assert!(text(b"#cloud-config\n") && text(b"user-data") && text(b"USER_DAT"));
    }

    #[test]
    fn same_files_same_bytes() {
        let files = [("openstack/latest/user_data", "x"), ("openstack/latest/meta_data.json", "{}")];
        assert_eq!(made("config-2", &files), made("config-2", &files));
    }

    #[test]
    fn names_that_leave_the_disk_are_refused() {
        for path in ["../a", "a//b", "", "a/.", "/a"] {
            let files = Files::from([(path.to_owned(), Vec::new())]);
            assert!(write(&mut Vec::new(), "x", &files).is_err(), "{path:?}");
        }
    }

    proptest! {
        #[test]
        fn any_set_of_files_is_laid_out(
            files in proptest::collection::btree_map("[a-zA-Z0-9._-]{1,40}(/[a-z]{1,9}){0,3}", ".{0,3000}", 0..30)
        ) {
            let files: Files = files.into_iter().map(|(path, text)| (path, text.into_bytes())).collect();
            let mut out = Vec::new();
            if let Ok(size) = write(&mut out, "label", &files) {
                prop_assert_eq!(size, out.len() as u64);
                let used = u32::from_le_bytes(out[16 * SECTOR + 80..16 * SECTOR + 84].try_into().unwrap()) as usize;
                prop_assert_eq!(out.len(), (used * SECTOR).next_multiple_of(GRAIN));
            }
        }
    }
}
