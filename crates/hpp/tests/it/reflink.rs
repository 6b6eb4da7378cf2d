//! Copies on a file system that shares blocks: XFS in a file.

use std::fs::File;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::time::{Duration, Instant};

use rpc::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use rpc::csi::{CreateSnapshotRequest, CreateVolumeRequest, VolumeContentSource};

use crate::disk::Disk;
use crate::plugin::{Plugin, request};

const GIB: i64 = 1 << 30;
/// What the disk has, and what its largest volume is.
const DISK: u64 = 12 << 30;
const DATA: u64 = 256 << 20;

fn of(kind: Type, request: CreateVolumeRequest) -> CreateVolumeRequest {
    CreateVolumeRequest {
        parameters: Default::default(),
        volume_content_source: Some(VolumeContentSource { r#type: Some(kind) }),
        ..request
    }
}

/// What the whole file system has given away, in bytes.
fn used(disk: &Disk) -> u64 {
    rustix::fs::syncfs(File::open(&disk.path).unwrap()).unwrap();
    let stat = rustix::fs::statvfs(&disk.path).unwrap();
    (stat.f_blocks - stat.f_bfree) * stat.f_frsize
}

#[tokio::test]
async fn copies_share_their_blocks_and_nothing_else() {
    let disk = Disk::new(DISK, &[("mkfs.xfs -q", "loop")]);
    let mut plugin = Plugin::start_on(&disk.path).ready().await;
    plugin.create(CreateVolumeRequest { parameters: Default::default(), ..request("golden", true, 10 * GIB) }).await;
    let golden = File::options().read(true).write(true).open(plugin.dir.path().join("golden")).unwrap();
    let block = vec![0xA5; 1 << 20];
    // Spread over the image, as an installed system is.
    let places: Vec<u64> = (0..DATA >> 20).map(|number| number * (36 << 20)).collect();
    for at in &places {
        golden.write_all_at(&block, *at).unwrap();
    }
    golden.sync_all().unwrap();
    let before = used(&disk);
    assert!(golden.metadata().unwrap().blocks() * 512 >= DATA);

    let volume = |id: &str| Type::Volume(VolumeSource { volume_id: id.into() });
    let mut slowest = Duration::ZERO;
    for number in 0..10 {
        let began = Instant::now();
        plugin.create(of(volume("golden"), request(&format!("copy{number}"), true, 10 * GIB))).await;
        slowest = slowest.max(began.elapsed());
    }
    let snapshot = CreateSnapshotRequest { name: "s".into(), source_volume_id: "golden".into(), ..Default::default() };
    plugin.controller.create_snapshot(snapshot).await.unwrap();
    let restored = Type::Snapshot(SnapshotSource { snapshot_id: "s".into() });
    plugin.create(of(restored, request("restored", true, 10 * GIB))).await;
    let taken = used(&disk).saturating_sub(before);
    println!(
        "10 GiB with {} MiB of data: the slowest of 10 copies took {slowest:?}, all take {taken} bytes",
        DATA >> 20
    );
    assert!(taken < DATA / 8, "twelve copies of {DATA} bytes take {taken}");
    // Data that is copied takes longer than blocks that are shared; the bound is far from both.
    assert!(slowest < Duration::from_secs(10), "a copy took {slowest:?}");

    // Who writes to one changes no other.
    let copy = File::options().read(true).write(true).open(plugin.dir.path().join("copy0")).unwrap();
    copy.write_all_at(b"changed", places[1]).unwrap();
    golden.write_all_at(b"renewed", places[2]).unwrap();
    for (name, expect) in
        [("golden", [0xA5, b'r']), ("copy0", [b'c', 0xA5]), ("copy1", [0xA5; 2]), ("restored", [0xA5; 2])]
    {
        let file = File::open(plugin.dir.path().join(name)).unwrap();
        for (at, byte) in places[1..3].iter().zip(expect) {
            let mut got = [0];
            file.read_exact_at(&mut got, *at).unwrap();
            assert_eq!(got[0], byte, "{name} at {at}");
        }
    }
}
