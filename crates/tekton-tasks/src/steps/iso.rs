//! modify-windows-iso-file: an installation medium of Windows starts without asking for a key, in three steps: unpack and exchange the
//! programs that ask, pack again, write onto the disk. The tools are of the image.

use std::fs::Permissions;
use std::io::{BufReader, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{disk_tools, program};
use crate::Error;

const PATIENCE: Duration = Duration::from_secs(3600);
/// What asks for a key, and what does not.
const EXCHANGED: [(&str, &str); 2] = [
    ("efi/microsoft/boot/efisys_noprompt.bin", "efi/microsoft/boot/efisys.bin"),
    ("efi/microsoft/boot/cdboot_noprompt.efi", "efi/microsoft/boot/cdboot.efi"),
];

/// Where the parts lie.
#[derive(Clone, Debug, clap::Args)]
pub struct Modify {
    /// The medium
    #[arg(long, default_value = "/tmp/target-pvc/disk.img")]
    disk: PathBuf,
    /// Where it is unpacked
    #[arg(long, default_value = "/tmp/extracted-iso")]
    directory: PathBuf,
}

/// Where the parts lie.
#[derive(Clone, Debug, clap::Args)]
pub struct Create {
    /// Where it is unpacked
    #[arg(long, default_value = "/tmp/extracted-iso")]
    directory: PathBuf,
    /// The new medium
    #[arg(long, default_value = "/tmp/new-iso/image.iso")]
    image: PathBuf,
}

/// Where the parts lie.
#[derive(Clone, Debug, clap::Args)]
pub struct Convert {
    /// The new medium
    #[arg(long, default_value = "/tmp/new-iso/image.iso")]
    image: PathBuf,
    /// The disk that it is written to
    #[arg(long, default_value = "/tmp/target-pvc/disk.img")]
    disk: PathBuf,
}

/// Unpacks the medium and exchanges what asks for a key.
///
/// # Errors
/// When it cannot be unpacked, or is no medium of Windows.
pub async fn modify(args: &Modify) -> Result<u8, Error> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let words = ["--ro", "--format=raw", "-a", &text(&args.disk), "-m", "/dev/sda", "tar-out", "/", "-"];
    let directory = args.directory.clone();
    // The archive goes by a pipe: there is no room for the medium twice.
    let unpacking = move |archive| unpack(archive, &directory);
    let variables = disk_tools::variables(false);
    let code = program::piped("guestfish", &words.map(str::to_owned), &variables, PATIENCE, unpacking).await?;
    if code != 0 {
        return Ok(code);
    }
    exchange(&args.directory)?;
    Ok(0)
}

fn unpack(archive: impl Read, directory: &Path) -> Result<(), Error> {
    let mut tar = tar::Archive::new(BufReader::with_capacity(1 << 20, archive));
    // Files of a medium may not be written to, and are to be exchanged.
    tar.set_preserve_permissions(false);
    tar.unpack(directory).map_err(Error::file("unpack into", directory))?;
    // Who writes it fails if nobody reads the end, which is filled up with zeros.
    std::io::copy(&mut tar.into_inner(), &mut std::io::sink()).map(drop).map_err(Error::file("unpack into", directory))
}

fn exchange(directory: &Path) -> Result<(), Error> {
    for (from, to) in EXCHANGED {
        let (from, to) = (directory.join(from), directory.join(to));
        if !from.is_file() {
            let message = format!("{} is not there: this is no installation medium of Windows", from.display());
            return Err(Error::Failed(message));
        }
        // Of a medium neither files nor directories may be written to.
        if let Some(parent) = to.parent() {
            std::fs::set_permissions(parent, Permissions::from_mode(0o755)).map_err(Error::file("write", parent))?;
        }
        let _ = std::fs::remove_file(&to);
        std::fs::copy(&from, &to).map_err(Error::file("write", &to))?;
    }
    Ok(())
}

/// Packs the medium, to be started by BIOS and by UEFI.
///
/// # Errors
/// When there is no program to do so.
pub async fn create(args: &Create) -> Result<u8, Error> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let words = [
        "-as",
        "mkisofs",
        "-no-emul-boot",
        "-b",
        "boot/etfsboot.com",
        "-boot-load-size",
        "8",
        "-eltorito-alt-boot",
        "-e",
        "efi/microsoft/boot/efisys.bin",
        "-no-emul-boot",
        "-J",
        "-iso-level",
        "3",
        "-V",
        "ISO_IMAGE",
        "-o",
        &text(&args.image),
        &text(&args.directory),
    ];
    program::run("xorriso", &words.map(str::to_owned), &[], PATIENCE).await
}

/// Writes the medium onto its disk.
///
/// # Errors
/// When there is no program to do so.
pub async fn convert(args: &Convert) -> Result<u8, Error> {
    let text = |path: &Path| path.to_string_lossy().into_owned();
    let words = ["convert", "-f", "raw", "-O", "raw", &text(&args.image), &text(&args.disk)].map(str::to_owned);
    program::run("qemu-img", &words, &[], PATIENCE).await
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_archive_is_unpacked_as_it_is_read_and_takes_no_room() {
        let dir = tempfile::tempdir().unwrap();
        let mut tar = tar::Builder::new(Vec::new());
        let mut header = tar::Header::new_gnu();
        header.set_mode(0o444);
        header.set_size(3);
        tar.append_data(&mut header, "boot/a", &b"abc"[..]).unwrap();
        let mut bytes = tar.into_inner().unwrap();
        bytes.extend([0; 100_000]);
        let mut archive = &bytes[..];
        unpack(&mut archive, dir.path()).unwrap();
        assert!(archive.is_empty(), "it is read to its end");
        assert_eq!(std::fs::read_to_string(dir.path().join("boot/a")).unwrap(), "abc");
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        assert!(unpack(&bytes[..600], dir.path()).is_err(), "an archive that breaks off is no medium");
    }

    #[test]
    fn what_asks_for_a_key_is_exchanged() {
        let dir = tempfile::tempdir().unwrap();
        let error = exchange(dir.path()).unwrap_err().to_string();
        assert!(error.contains("no installation medium of Windows"), "{error}");
        let boot = dir.path().join("efi/microsoft/boot");
        std::fs::create_dir_all(&boot).unwrap();
        for (name, content) in
            [("efisys_noprompt.bin", "a"), ("cdboot_noprompt.efi", "b"), ("efisys.bin", "x"), ("cdboot.efi", "y")]
        {
            std::fs::write(boot.join(name), content).unwrap();
        }
        std::fs::set_permissions(&boot, Permissions::from_mode(0o555)).unwrap();
        exchange(dir.path()).unwrap();
        // Whoever is not root could not have written otherwise.
        assert_ne!(std::fs::metadata(&boot).unwrap().permissions().mode() & 0o200, 0);
        assert_eq!(std::fs::read_to_string(boot.join("efisys.bin")).unwrap(), "a");
        assert_eq!(std::fs::read_to_string(boot.join("cdboot.efi")).unwrap(), "b");
    }
}
