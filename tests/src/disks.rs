//! Disks in the forms in which people have them.

use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use flate2::Compression;
use flate2::write::GzEncoder;

use crate::boot_sector;

/// A disk that boots and says `name`, and the same as a file of a format: `raw`, `iso` or one that qemu-img knows, packed if
/// `.gz`, `.xz`, `.zst` or `.bz2` follows.
pub fn image(name: &str, format: &str) -> Result<(Vec<u8>, Vec<u8>)> {
    let (inner, packing) = format.split_once('.').unwrap_or((format, ""));
    let disk = if inner == "iso" { boot_sector::iso(name)? } else { boot_sector::disk(name)? };
    let file = match inner {
        "raw" | "iso" => disk.clone(),
        other => converted(&disk, other)?,
    };
    let file = packed(file, packing)?;
    Ok((disk, file))
}

/// The disk as qemu-img writes it.
fn converted(disk: &[u8], format: &str) -> Result<Vec<u8>> {
    let words: &[&str] = match format {
        // Else its size is rounded to what a drive of cylinders could have.
        "vhd" => &["-O", "vpc", "-o", "force_size=on"],
        "vmdk" => &["-O", "vmdk", "-o", "subformat=streamOptimized"],
        "qcow2" | "vdi" | "vhdx" => &["-O", format],
        other => bail!("nobody makes a {other} image here"),
    };
    let dir = tempfile::tempdir()?;
    let (from, to) = (dir.path().join("raw"), dir.path().join("image"));
    std::fs::write(&from, disk)?;
    let run = |words: &[&str], paths: [&Path; 2]| Command::new("qemu-img").args(words).args(paths).output();
    let output = run(&[&["convert", "-f", "raw"], words].concat(), [&from, &to]).context("cannot run qemu-img")?;
    ensure!(output.status.success(), "qemu-img: {}", String::from_utf8_lossy(&output.stderr));
    Ok(std::fs::read(to)?)
}

fn packed(file: Vec<u8>, packing: &str) -> Result<Vec<u8>> {
    let mut out = Vec::new();
    match packing {
        "" => return Ok(file),
        "gz" => {
            let mut packer = GzEncoder::new(&mut out, Compression::fast());
            packer.write_all(&file)?;
            packer.finish()?;
        }
        "xz" => drop(liblzma::read::XzEncoder::new(&file[..], 0).read_to_end(&mut out)?),
        "zst" => out = zstd::encode_all(&file[..], 1)?,
        "bz2" => drop(bzip2::read::BzEncoder::new(&file[..], bzip2::Compression::fast()).read_to_end(&mut out)?),
        other => bail!("nobody packs with {other} here"),
    }
    Ok(out)
}
