//! The client against QEMU's own server.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test that fails should panic")]

mod hostile;

use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use nbd::{ALLOCATION, Client, Error, Extent, HOLE, ZERO};
use tokio::net::UnixStream;

const SIZE: u64 = 4 << 20;

/// Ends with the test.
struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

async fn serve(image: &Path, socket: &Path) -> Server {
    let mut command = Command::new("qemu-nbd");
    command.args(["--read-only", "--persistent", "--shared=4", "--format=raw", "--export-name=root", "--socket"]);
    let server = Server(command.arg(socket).arg(image).stderr(Stdio::null()).spawn().unwrap());
    let listens = async {
        while UnixStream::connect(socket).await.is_err() {
            tokio::time::sleep(std::time::Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), listens).await.expect("qemu-nbd listens");
    server
}

#[tokio::test]
async fn a_disk_of_qemu_is_read_and_mapped() {
    let home = tempfile::tempdir().unwrap();
    let (image, socket) = (home.path().join("disk.img"), home.path().join("s"));
    let file = std::fs::File::create_new(&image).unwrap();
    file.set_len(SIZE).unwrap();
    file.write_all_at(&[7; 1 << 16], 1 << 20).unwrap();
    let _server = serve(&image, &socket).await;
    let connect = async |export: &str, contexts: &[&str]| {
        Client::connect(UnixStream::connect(&socket).await.unwrap(), export, contexts).await
    };
    let mut disk = connect("root", &[ALLOCATION]).await.unwrap();
    assert_eq!(disk.size(), SIZE);
    let bytes = disk.read((1 << 20) - 2, 5).await.unwrap();
    assert_eq!(bytes, [0, 0, 7, 7, 7]);
    let whole = disk.read(0, SIZE as u32).await.unwrap();
    assert!(whole == std::fs::read(&image).unwrap());
    let map = disk.status(0, SIZE as u32).await.unwrap().remove(0);
    let extent = |offset, length, flags| Extent { offset, length, flags };
    let rest = (1 << 20) + (1 << 16);
    let expect = [extent(0, 1 << 20, HOLE | ZERO), extent(1 << 20, 1 << 16, 0), extent(rest, SIZE - rest, HOLE | ZERO)];
    assert_eq!(map, expect);
    for (export, contexts) in [("other", &[][..]), ("root", &["qemu:dirty-bitmap:none"])] {
        assert!(matches!(connect(export, contexts).await.unwrap_err(), Error::Refused { .. }), "{export}");
    }
}
