//! Disks that boot in no time: their whole guest is one sector. It says on the serial port what the disk is called and what
//! its bytes add up to, and hands over to the machine's next disk.

use std::path::Path;
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, ensure};

/// Bytes of each disk.
pub const SIZE: usize = 4 << 20;
/// What the sector reads at once.
const PIECE: usize = 32 << 10;
const SECTOR: usize = 512;
/// Where the sector's fields are, as in its source.
const PIECES: usize = 0x1d0;
const NAME: usize = 0x1d5;
const LONGEST_NAME: usize = 39;
/// A sector of an ISO 9660 file system.
const ISO_SECTOR: usize = 2048;

static PROGRAM: LazyLock<Result<Vec<u8>, String>> =
    LazyLock::new(|| assemble().map_err(|error| format!("cannot assemble the boot sector: {error:#}")));

/// What the sector of a disk says: the name, and the sum of all its bytes.
#[must_use]
pub fn line(name: &str, disk: &[u8]) -> String {
    let word = |bytes: &[u8]| bytes.iter().rev().fold(0_u32, |word, byte| word << 8 | u32::from(*byte));
    let sum = disk.chunks(4).fold(0_u32, |sum, bytes| sum.wrapping_mul(31).wrapping_add(word(bytes)));
    format!("{name} {sum:08x}")
}

/// What the last of a machine's disks says.
pub const LAST: &str = "no more disks";
/// What a disk says that the firmware cannot read.
pub const UNREAD: &str = "cannot be read";

/// A disk that boots, with some data, much emptiness, and an end that would be missed.
pub fn disk(name: &str) -> Result<Vec<u8>> {
    ensure!(name.len() <= LONGEST_NAME, "the sector has no room for the name {name:?}");
    let mut disk = vec![0; SIZE];
    disk[..SECTOR].copy_from_slice(PROGRAM.as_ref().map_err(|error| anyhow::anyhow!("{error}"))?);
    let pieces = u32::try_from(SIZE / PIECE)?;
    disk[PIECES..PIECES + 4].copy_from_slice(&pieces.to_le_bytes());
    disk[NAME..NAME + name.len()].copy_from_slice(name.as_bytes());
    disk[NAME + name.len()] = b' ';
    // What no packer makes small, and differs from disk to disk.
    let mut state =
        name.bytes().fold(0x9e37_79b9_u32, |state, byte| (state ^ u32::from(byte)).wrapping_mul(16_777_619)) | 1;
    for byte in &mut disk[SIZE / 4..SIZE / 2] {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        *byte = state.to_le_bytes()[3];
    }
    let end = b"the end of the disk";
    disk[SIZE - end.len()..].copy_from_slice(end);
    Ok(disk)
}

/// The same as an ISO 9660 file system that boots from a disk: its descriptors say that it holds no file.
pub fn iso(name: &str) -> Result<Vec<u8>> {
    let mut disk = disk(name)?;
    let sectors = u32::try_from(SIZE / ISO_SECTOR)?;
    let both = |value: u32| [value.to_le_bytes(), value.to_be_bytes()].concat();
    let short = |value: u16| [value.to_le_bytes(), value.to_be_bytes()].concat();
    let mut put = |at: usize, bytes: &[u8]| disk[at..at + bytes.len()].copy_from_slice(bytes);
    let volume = 16 * ISO_SECTOR;
    put(volume, b"\x01CD001\x01");
    put(volume + 40, b"E2E                             ");
    put(volume + 80, &both(sectors));
    put(volume + 120, &short(1));
    put(volume + 124, &short(1));
    put(volume + 128, &short(2048));
    // The directory at its root: 34 bytes, in sector 18, of one sector.
    put(volume + 156, &[34]);
    put(volume + 158, &both(18));
    put(volume + 166, &both(2048));
    put(volume + 181, &[2]);
    put(volume + 188, &[1]);
    put(volume + ISO_SECTOR, b"\xffCD001\x01");
    Ok(disk)
}

/// The sector's program, by the assembler that comes with every C compiler.
fn assemble() -> Result<Vec<u8>> {
    let dir = tempfile::tempdir()?;
    let source = crate::root().join("tests/src/boot_sector.s");
    let (object, program) = (dir.path().join("o"), dir.path().join("program"));
    let run = |program: &str, words: &[&str], paths: [&Path; 2]| -> Result<()> {
        let output =
            Command::new(program).args(words).args(paths).output().with_context(|| format!("cannot run {program}"))?;
        ensure!(output.status.success(), "{program}: {}", String::from_utf8_lossy(&output.stderr));
        Ok(())
    };
    run("as", &["--32", "-o"], [&object, &source])?;
    run("ld", &["-m", "elf_i386", "-Ttext", "0x600", "-e", "0x600", "--oformat", "binary", "-o"], [&program, &object])?;
    let program = std::fs::read(program)?;
    ensure!(program.len() == SECTOR, "it has {} bytes", program.len());
    Ok(program)
}
