//! Images that remember which blocks of a raw disk were written when: a qcow2 layer without data of its own, whose data
//! file the raw disk is, and in which QEMU keeps its dirty bitmaps.
//!
//! ```text
//!   guest -> disk.img.cbt (tables, bitmaps) -> disk.img (every byte of the disk, raw as before)
//! ```
//! Each cluster is at the same place in both, for good, so the raw disk stays complete: whoever opens it without the layer
//! sees what the guest wrote. Where the disk has a hole the layer says that it reads as zero, which spares whoever copies
//! it the reading; QEMU takes that back before it writes there.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};

use rustix::fs::SeekFrom;

use crate::Error;
use crate::qcow2::{Header, MAX_VIRTUAL_SIZE};

const CLUSTER_BITS: u32 = 16;
const CLUSTER: u64 = 1 << CLUSTER_BITS;
/// Entries of one table that maps guest clusters.
const PER_TABLE: u64 = CLUSTER / 8;
/// Clusters that one block of two-byte refcounts counts.
const PER_REFCOUNT_BLOCK: u64 = CLUSTER / 2;
/// Nobody else refers to what the entry points to.
const COPIED: u64 = 1 << 63;
/// The cluster has its place, and reads as zero.
const ZERO: u64 = 1;
/// Where a table lies, in the entry that names it.
const OFFSET: u64 = 0x00ff_ffff_ffff_fe00;
const DIRTY: u64 = 1 << 0;
const EXTERNAL_DATA: u64 = 1 << 2;
const RAW_DATA: u64 = 1 << 1;
const DATA_FILE_NAME: u32 = 0x4441_5441;
/// Bytes of a header that matter.
const HEAD: usize = 4096;

/// What is known of the places of a disk that were never written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holes {
    /// They read as zero, and nobody writes the disk until the layer is used.
    Skipped,
    /// Whatever they hold now, it may be written by somebody else before the layer is used.
    Unknown,
}

/// Where the parts of a layer are, in clusters.
struct Layout {
    size: u64,
    tables: u64,
    table_of_tables: u64,
    refcount_blocks: u64,
}

impl Layout {
    fn of(size: u64) -> Result<Self, Error> {
        if size > MAX_VIRTUAL_SIZE {
            return Err(Error::Size(size));
        }
        let size = size.next_multiple_of(512);
        let tables = size.div_ceil(PER_TABLE * CLUSTER).max(1);
        let table_of_tables = (tables * 8).div_ceil(CLUSTER);
        let counted = 2 + table_of_tables + tables;
        // The blocks count themselves, too.
        let mut refcount_blocks = 1;
        while refcount_blocks * PER_REFCOUNT_BLOCK < counted + refcount_blocks {
            refcount_blocks += 1;
        }
        Ok(Self { size, tables, table_of_tables, refcount_blocks })
    }

    fn first_refcount_block(&self) -> u64 {
        2
    }

    fn top(&self) -> u64 {
        2 + self.refcount_blocks
    }

    fn first_table(&self) -> u64 {
        self.top() + self.table_of_tables
    }

    fn clusters(&self) -> u64 {
        self.first_table() + self.tables
    }

    fn header(&self, name: &str) -> Vec<u8> {
        let mut out = Vec::with_capacity(HEAD);
        let mut push = |bytes: &[u8]| out.extend_from_slice(bytes);
        push(b"QFI\xfb");
        push(&3_u32.to_be_bytes());
        push(&[0; 12]); // no backing file
        push(&CLUSTER_BITS.to_be_bytes());
        push(&self.size.to_be_bytes());
        push(&0_u32.to_be_bytes()); // no encryption
        push(&u32::try_from(self.tables).unwrap_or(u32::MAX).to_be_bytes());
        push(&(self.top() * CLUSTER).to_be_bytes());
        push(&CLUSTER.to_be_bytes()); // the table of refcount blocks
        push(&1_u32.to_be_bytes());
        push(&[0; 12]); // no snapshots
        push(&EXTERNAL_DATA.to_be_bytes());
        push(&0_u64.to_be_bytes());
        push(&RAW_DATA.to_be_bytes());
        push(&4_u32.to_be_bytes()); // refcounts of 2^4 bits
        push(&104_u32.to_be_bytes());
        push(&DATA_FILE_NAME.to_be_bytes());
        push(&u32::try_from(name.len()).unwrap_or(0).to_be_bytes());
        push(name.as_bytes());
        out.resize(out.len().next_multiple_of(8), 0);
        out.extend_from_slice(&[0; 8]); // end of extensions
        out
    }
}

/// Makes `layer` one over `data`, a disk of `size` bytes that is called `name` beside it. What was in `layer` is lost.
///
/// A power cut leaves a layer that [`fits`] nothing, or a whole one: the header comes last.
///
/// # Errors
/// When the disk is larger than any, or a file cannot be read or written.
pub fn create(layer: &File, data: &File, name: &str, size: u64, holes: Holes) -> Result<(), Error> {
    let layout = Layout::of(size)?;
    layer.set_len(0)?;
    layer.set_len(layout.clusters() * CLUSTER)?;
    for block in 0..layout.refcount_blocks {
        let at = layout.first_refcount_block() + block;
        layer.write_all_at(&(at * CLUSTER).to_be_bytes(), CLUSTER + block * 8)?;
        let counted = layout.clusters().saturating_sub(block * PER_REFCOUNT_BLOCK).min(PER_REFCOUNT_BLOCK);
        let ones = 1_u16.to_be_bytes().repeat(usize::try_from(counted).unwrap_or(0));
        layer.write_all_at(&ones, at * CLUSTER)?;
    }
    let mut written = Written::of(data, holes);
    let mut entries = Vec::with_capacity(CLUSTER as usize);
    for table in 0..layout.tables {
        let at = (layout.first_table() + table) * CLUSTER;
        layer.write_all_at(&(at | COPIED).to_be_bytes(), layout.top() * CLUSTER + table * 8)?;
        entries.clear();
        for cluster in table * PER_TABLE..(table + 1) * PER_TABLE {
            let start = cluster * CLUSTER;
            if start >= layout.size {
                break;
            }
            let zero = if start > 0 && written.is_hole(start, start + CLUSTER)? { ZERO } else { 0 };
            entries.extend_from_slice(&(start | COPIED | zero).to_be_bytes());
        }
        layer.write_all_at(&entries, at)?;
    }
    layer.sync_all()?;
    layer.write_all_at(&layout.header(name), 0)?;
    layer.sync_all()?;
    Ok(())
}

/// Whether `layer` was made for `data` as that is now, a disk of `size` bytes: it is whole, and nothing has been written to
/// the disk since the layer was closed, which is what a disk's writers do last.
///
/// # Errors
/// When a file cannot be read.
pub fn fits(layer: &File, data: &File, size: u64) -> io::Result<bool> {
    let changed = |file: &File| file.metadata().map(|found| (found.mtime(), found.mtime_nsec()));
    Ok(whole(layer, size)?.is_some() && changed(layer)? >= changed(data)?)
}

/// Whether `layer` is a whole one over a disk of `size` bytes that is a device: nobody knows when one was written last. What
/// the layer says of places that read as zero is taken back, as somebody else may have written there.
///
/// # Errors
/// When the layer cannot be read or written.
pub fn reopen(layer: &File, size: u64) -> io::Result<bool> {
    let Some(header) = whole(layer, size)? else { return Ok(false) };
    let (disk, length) = (header.virtual_size, layer.metadata()?.len());
    let tables = disk.div_ceil(PER_TABLE * CLUSTER).max(1);
    if u64::from(header.l1_entries) < tables {
        return Ok(false);
    }
    let mut top = vec![0; usize::try_from(tables * 8).unwrap_or(0)];
    if read_up_to(layer, &mut top, header.l1_offset)? < top.len() {
        return Ok(false);
    }
    let mut changed = false;
    for (table, entry) in (0..).zip(top.as_chunks::<8>().0) {
        let at = u64::from_be_bytes(*entry) & OFFSET;
        if at == 0 || !at.is_multiple_of(CLUSTER) || at.checked_add(CLUSTER).is_none_or(|end| end > length) {
            return Ok(false);
        }
        let places = (table * PER_TABLE..(table + 1) * PER_TABLE).map(|cluster| cluster * CLUSTER);
        let entries: Vec<u8> =
            places.take_while(|start| *start < disk).flat_map(|start| (start | COPIED).to_be_bytes()).collect();
        let mut known = vec![0; entries.len()];
        read_up_to(layer, &mut known, at)?;
        if known != entries {
            layer.write_all_at(&entries, at)?;
            changed = true;
        }
    }
    if changed {
        layer.sync_data()?;
    }
    Ok(true)
}

/// The header of a layer as [`create`] makes it, over a disk of `size` bytes, that was closed.
fn whole(layer: &File, size: u64) -> io::Result<Option<Header>> {
    let mut head = vec![0; HEAD];
    let length = read_up_to(layer, &mut head, 0)?;
    let head = &head[..length];
    if !head.starts_with(b"QFI\xfb") {
        return Ok(None);
    }
    let Ok(header) = Header::parse(head) else { return Ok(None) };
    let field = |at: usize| head.get(at..at + 8).and_then(|field| field.try_into().ok()).map(u64::from_be_bytes);
    // A layer that is dirty was not closed; its bitmaps are not what they say.
    let (dirty, raw) = (field(72).is_none_or(|features| features & DIRTY != 0), field(88));
    let ours = header.version == 3
        && header.external_data
        && raw.is_some_and(|features| features & RAW_DATA != 0)
        && header.backing.is_none()
        && header.crypt_method == 0
        && header.unknown_features == 0
        && !(header.corrupt || dirty || header.extended_l2)
        && header.cluster_bits == CLUSTER_BITS
        && header.virtual_size == size.next_multiple_of(512);
    Ok(ours.then_some(header))
}

fn read_up_to(file: &File, buffer: &mut [u8], start: u64) -> io::Result<usize> {
    let mut length = 0;
    while length < buffer.len() {
        match file.read_at(&mut buffer[length..], start.saturating_add(length as u64))? {
            0 => break,
            more => length += more,
        }
    }
    Ok(length)
}

/// The parts of a disk that hold data, found one after the other.
struct Written<'a> {
    data: &'a File,
    holes: Holes,
    /// The first part that does not end before what was asked for last.
    part: Option<(u64, u64)>,
    ended: bool,
}

impl<'a> Written<'a> {
    fn of(data: &'a File, holes: Holes) -> Self {
        Self { data, holes, part: None, ended: false }
    }

    /// Whether nothing is stored from `start` to `end`; each question is about what lies behind the one before.
    fn is_hole(&mut self, start: u64, end: u64) -> io::Result<bool> {
        if self.holes == Holes::Unknown {
            return Ok(false);
        }
        while !self.ended && self.part.is_none_or(|(_, part_end)| part_end <= start) {
            let from = self.part.map_or(start, |(_, part_end)| part_end.max(start));
            match rustix::fs::seek(self.data, SeekFrom::Data(from)) {
                Ok(at) => self.part = Some((at, rustix::fs::seek(self.data, SeekFrom::Hole(at))?)),
                Err(rustix::io::Errno::NXIO) => self.ended = true,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(self.ended || self.part.is_none_or(|(part_start, _)| part_start >= end))
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    struct Scene {
        dir: tempfile::TempDir,
        size: u64,
    }

    impl Scene {
        fn new(size: u64) -> Self {
            let scene = Self { dir: tempfile::tempdir().unwrap(), size };
            scene.data().set_len(size).unwrap();
            scene
        }

        fn open(&self, name: &str) -> File {
            let path = self.dir.path().join(name);
            File::options().read(true).write(true).create(true).truncate(false).open(path).unwrap()
        }

        fn data(&self) -> File {
            self.open("disk.img")
        }

        fn layer(&self) -> File {
            self.open("disk.img.cbt")
        }

        fn create(&self, holes: Holes) {
            create(&self.layer(), &self.data(), "disk.img", self.size, holes).unwrap();
        }

        #[track_caller]
        fn run(&self, program: &str, arguments: &[&str]) -> String {
            let done = Command::new(program).current_dir(&self.dir).args(arguments).output().unwrap();
            assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap()
        }
    }

    #[test]
    fn a_layer_shows_its_disk_and_writes_go_through() {
        let scene = Scene::new((600 << 20) + 1536);
        for at in [0, 70_000, 64 << 20, 599 << 20] {
            scene.data().write_all_at(b"something", at).unwrap();
        }
        for holes in [Holes::Skipped, Holes::Unknown] {
            scene.create(holes);
            scene.run("qemu-img", &["check", "disk.img.cbt"]);
            scene.run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", "disk.img.cbt", "disk.img"]);
        }
        scene.create(Holes::Skipped);
        let map = scene.run("qemu-img", &["map", "--output=json", "disk.img.cbt"]);
        assert!(map.contains("\"zero\": true"), "{map}");
        scene.run("qemu-io", &["-f", "qcow2", "-c", "write -P 7 10M 100k", "disk.img.cbt"]);
        scene.run("qemu-io", &["-f", "qcow2", "-c", "write -P 8 600M 1k", "disk.img.cbt"]);
        scene.run("qemu-img", &["check", "disk.img.cbt"]);
        scene.run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", "disk.img.cbt", "disk.img"]);
        let mut found = [0; 2];
        scene.data().read_exact_at(&mut found, (10 << 20) + 5000).unwrap();
        assert_eq!(found, [7, 7]);
    }

    #[test]
    fn a_layer_fits_the_disk_it_was_closed_with() {
        let scene = Scene::new(1 << 20);
        let fits = |size| fits(&scene.layer(), &scene.data(), size).unwrap();
        assert!(!fits(1 << 20), "there is none");
        scene.create(Holes::Skipped);
        assert!(fits(1 << 20));
        assert!(!fits(2 << 20), "the disk has grown");
        scene.run("qemu-img", &["bitmap", "--add", "disk.img.cbt", "b"]);
        assert!(fits(1 << 20));
        // Written by somebody who knows nothing of the layer.
        let later = scene.layer().metadata().unwrap().modified().unwrap() + std::time::Duration::from_secs(1);
        scene.data().set_modified(later).unwrap();
        assert!(!fits(1 << 20));
        scene.create(Holes::Skipped);
        scene.layer().set_modified(later).unwrap();
        assert!(fits(1 << 20));
        scene.layer().write_all_at(&[0; 8], 88).unwrap();
        scene.layer().set_modified(later).unwrap();
        assert!(!fits(1 << 20), "its disk would not be kept complete");
    }

    #[test]
    fn a_layer_of_a_device_hides_nothing_that_somebody_else_wrote() {
        let scene = Scene::new((600 << 20) + 1536);
        let reopen = |size| reopen(&scene.layer(), size).unwrap();
        assert!(!reopen(scene.size), "there is none");
        scene.create(Holes::Skipped);
        scene.run("qemu-img", &["bitmap", "--add", "disk.img.cbt", "b"]);
        scene.run("qemu-io", &["-f", "qcow2", "-c", "write -z -u 10M 1M", "disk.img.cbt"]);
        scene.data().write_all_at(b"something", 10 << 20).unwrap();
        scene.data().write_all_at(b"something", 599 << 20).unwrap();
        assert!(reopen(scene.size));
        scene.run("qemu-img", &["check", "disk.img.cbt"]);
        scene.run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", "disk.img.cbt", "disk.img"]);
        assert!(scene.run("qemu-img", &["info", "disk.img.cbt"]).contains("name: b"));
        assert!(!reopen(scene.size + (1 << 20)), "the device has grown");
        scene.layer().set_len(4 << 16).unwrap();
        assert!(!reopen(scene.size), "a part of it is missing");
    }

    #[test]
    fn a_layer_grows_with_its_disk() {
        let scene = Scene::new(3 << 20);
        scene.create(Holes::Skipped);
        scene.run("qemu-img", &["bitmap", "--add", "disk.img.cbt", "b"]);
        scene.run("qemu-img", &["resize", "-f", "qcow2", "disk.img.cbt", "1200M"]);
        assert!(reopen(&scene.layer(), 1200 << 20).unwrap());
        scene.run("qemu-img", &["check", "disk.img.cbt"]);
        scene.run("qemu-img", &["compare", "-f", "qcow2", "-F", "raw", "disk.img.cbt", "disk.img"]);
        assert!(scene.run("qemu-img", &["info", "disk.img.cbt"]).contains("name: b"));
    }

    #[test]
    fn sizes() {
        let layout = Layout::of(64 << 40).unwrap();
        assert_eq!((layout.tables, layout.table_of_tables, layout.refcount_blocks), (131_072, 16, 5));
        assert!(layout.refcount_blocks * PER_REFCOUNT_BLOCK >= layout.clusters());
        assert!(Layout::of((64 << 40) + 1).is_err());
    }
}

#[cfg(test)]
mod properties {
    use proptest::prelude::*;

    use super::*;

    const SIZE: u64 = 1 << 20;

    /// A layer of `bytes` over a disk, in files that nobody else has.
    fn scene(bytes: &[u8]) -> (File, File) {
        let (layer, data) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        layer.write_all_at(bytes, 0).unwrap();
        data.set_len(SIZE).unwrap();
        (layer, data)
    }

    /// The bytes of a whole layer.
    fn made() -> Vec<u8> {
        let (layer, data) = scene(&[]);
        create(&layer, &data, "disk.img", SIZE, Holes::Skipped).unwrap();
        let mut bytes = vec![0; usize::try_from(layer.metadata().unwrap().len()).unwrap()];
        layer.read_exact_at(&mut bytes, 0).unwrap();
        bytes
    }

    /// A layer is taken or not: it does not grow, and the disk is not written.
    fn judge(bytes: &[u8]) -> Result<(), TestCaseError> {
        let (layer, data) = scene(bytes);
        let before = data.metadata().unwrap();
        let _ = fits(&layer, &data, SIZE);
        if reopen(&layer, SIZE).unwrap_or(false) {
            prop_assert!(whole(&layer, SIZE).unwrap().is_some(), "it is not a layer any more");
        }
        let after = data.metadata().unwrap();
        prop_assert_eq!(
            (after.len(), after.mtime_nsec(), after.blocks()),
            (SIZE, before.mtime_nsec(), before.blocks())
        );
        prop_assert_eq!(layer.metadata().unwrap().len(), bytes.len() as u64);
        Ok(())
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(128))]

        #[test]
        fn any_file_is_a_tracking_layer_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..600), headed in any::<bool>()) {
            if headed && bytes.len() > 24 {
                bytes[..8].copy_from_slice(b"QFI\xfb\0\0\0\x03");
                bytes[20..24].copy_from_slice(&CLUSTER_BITS.to_be_bytes());
            }
            judge(&bytes)?;
        }

        /// Fields of the header, and the table of tables.
        #[test]
        fn a_layer_that_was_changed_is_one_or_none(
            changes in proptest::collection::vec((prop_oneof![0_usize..120, 3_usize << 16..(3 << 16) + 16], any::<u8>()), 1..12),
            cut in proptest::option::of(any::<prop::sample::Index>()),
        ) {
            let mut bytes = made();
            judge(&bytes)?;
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut.index(bytes.len()));
            }
            judge(&bytes)?;
        }

        #[test]
        fn a_layer_is_read_as_it_was_made(size in 1_u64..8 << 30) {
            let (layer, data) = scene(&[]);
            data.set_len(size).unwrap();
            create(&layer, &data, "disk.img", size, Holes::Unknown).unwrap();
            let header = whole(&layer, size).unwrap().unwrap();
            prop_assert_eq!(header.virtual_size, size.next_multiple_of(512));
            prop_assert!(reopen(&layer, size).unwrap());
        }
    }
}
