//! Disks as guests leave them, and what qemu-img makes of them.

use std::path::{Path, PathBuf};
use std::process::Command;

/// Data of some kinds, and holes between: a boot sector, text that compresses, noise that does not, zeros.
pub(crate) fn disk(size: usize) -> Vec<u8> {
    let mut disk = vec![0; size];
    let mut noise = Noise(size as u64 | 1);
    for (number, at) in (0..size).step_by(300_000).enumerate() {
        let end = size.min(at + 100_000);
        match number % 3 {
            0 => disk[at..end].iter_mut().for_each(|byte| *byte = noise.next()),
            1 => disk[at..end].iter_mut().enumerate().for_each(|(at, byte)| *byte = b"a line of a log\n"[at % 16]),
            _ => {}
        }
    }
    if size >= 512 {
        disk[510..512].copy_from_slice(&[0x55, 0xaa]);
    }
    disk
}

/// The same bytes each time.
pub(crate) struct Noise(pub(crate) u64);

impl Noise {
    pub(crate) fn next(&mut self) -> u8 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 32) as u8
    }
}

/// Runs qemu-img, which has to succeed.
#[track_caller]
pub(crate) fn qemu_img(arguments: &[&str]) {
    let output = Command::new("qemu-img").args(arguments).output().expect("qemu-img: run scripts/deps.sh");
    assert!(output.status.success(), "qemu-img {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}

/// `disk` as an image of this format in `dir`.
#[track_caller]
pub(crate) fn converted(dir: &Path, disk: &[u8], arguments: &[&str]) -> PathBuf {
    let (raw, image) = (dir.join("disk.raw"), dir.join("disk.image"));
    std::fs::write(&raw, disk).unwrap();
    let (raw, image) = (raw.to_str().unwrap(), image.to_str().unwrap());
    qemu_img(&[&["convert", "-f", "raw"], arguments, &[raw, image]].concat());
    image.into()
}
