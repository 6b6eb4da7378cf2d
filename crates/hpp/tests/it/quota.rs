//! Volumes in a pool whose file system has quotas of projects are bounded by their size; in any other they have what
//! the
//! pool has, and say so.

use std::io::Write;
use std::path::Path;

use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::volume_content_source::{Type, VolumeSource};
use rpc::csi::{
    CapacityRange, ControllerExpandVolumeRequest, CreateVolumeRequest, DeleteVolumeRequest, NodeGetVolumeStatsRequest,
    NodePublishVolumeRequest, NodeUnpublishVolumeRequest, VolumeContentSource,
};

use crate::disk::Disk;
use crate::plugin::{Plugin, capability, request};

const MIB: i64 = 1 << 20;

fn here(request: CreateVolumeRequest) -> CreateVolumeRequest {
    CreateVolumeRequest { parameters: Default::default(), ..request }
}

/// Writes so many MiB as a container would, whose root may not go beyond quotas, and returns how many there was room
/// for.
fn write(path: &Path, mib: i64) -> i64 {
    let path = path.to_owned();
    let writing = std::thread::spawn(move || {
        let mut sets = rustix::thread::capabilities(None).unwrap();
        sets.effective.remove(rustix::thread::CapabilitySet::SYS_RESOURCE);
        rustix::thread::set_capabilities(None, sets).unwrap();
        fill(&path, mib)
    });
    writing.join().unwrap()
}

fn fill(path: &Path, mib: i64) -> i64 {
    let mut file = std::fs::File::create(path).unwrap();
    let block = vec![7; 1 << 20];
    let written = (0..mib).take_while(|_| file.write_all(&block).is_ok()).count();
    // Space is counted for good only now.
    let _ = file.sync_all();
    i64::try_from(written).unwrap()
}

async fn total(plugin: &mut Plugin, id: &str, at: &Path) -> i64 {
    let request =
        NodeGetVolumeStatsRequest { volume_id: id.into(), volume_path: at.display().to_string(), ..Default::default() };
    plugin.node.node_get_volume_stats(request).await.unwrap().into_inner().usage[0].total
}

async fn a_size_is_a_limit_where_it_can_be(disk: Disk) {
    let bounded = sys::quota::is_enforced(std::fs::File::open(&disk.path).unwrap());
    // A kernel without quotas must have said so: else something is wrong with how they are found.
    assert_eq!(bounded, disk.refused.is_none(), "{:?}", disk.refused);
    let mut plugin = Plugin::start_on(&disk.path).ready().await;
    plugin.create(here(request("v", false, 16 * MIB))).await;
    let target = plugin.target("v");
    let publish = |id: &str, target: &Path| NodePublishVolumeRequest {
        volume_id: id.into(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability(false, Mode::SingleNodeWriter)),
        ..Default::default()
    };
    plugin.node.node_publish_volume(publish("v", &target)).await.unwrap();
    let stat = rustix::fs::statvfs(&disk.path).unwrap();
    let whole = i64::try_from(stat.f_blocks * stat.f_frsize).unwrap();
    let check = |written: i64, limit: i64| {
        let expect = if bounded { limit - 1..=limit } else { 40..=40 };
        assert!(expect.contains(&written), "{written} MiB were written to a volume of {limit} MiB, bounded: {bounded}");
    };
    let said = |total: i64, limit: i64| assert_eq!(total, if bounded { limit * MIB } else { whole });
    check(write(&target.join("f"), 40), 16);
    said(total(&mut plugin, "v", &target).await, 16);

    let larger = ControllerExpandVolumeRequest {
        volume_id: "v".into(),
        capacity_range: Some(CapacityRange { required_bytes: 32 * MIB, limit_bytes: 0 }),
        ..Default::default()
    };
    plugin.controller.controller_expand_volume(larger).await.unwrap();
    check(write(&target.join("f"), 40), 32);
    said(total(&mut plugin, "v", &target).await, 32);

    // What a copy begins with counts.
    std::fs::File::create(target.join("f")).unwrap();
    assert_eq!(write(&target.join("f"), 8), 8);
    let source = VolumeContentSource { r#type: Some(Type::Volume(VolumeSource { volume_id: "v".into() })) };
    let copy = CreateVolumeRequest { volume_content_source: Some(source), ..here(request("copy", false, 36 * MIB)) };
    plugin.create(copy).await;
    let second = plugin.target("copy");
    plugin.node.node_publish_volume(publish("copy", &second)).await.unwrap();
    assert_eq!(std::fs::read(second.join("f")).unwrap(), std::fs::read(target.join("f")).unwrap());
    check(write(&second.join("g"), 40) + if bounded { 8 } else { 0 }, 36);

    for (id, target) in [("v", &target), ("copy", &second)] {
        let request = NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: target.display().to_string() };
        plugin.node.node_unpublish_volume(request).await.unwrap();
        let request = DeleteVolumeRequest { volume_id: id.into(), ..Default::default() };
        plugin.controller.delete_volume(request).await.unwrap();
    }
    // A volume of the same name is bounded anew, and by nothing of the old one.
    plugin.create(here(request("v", false, 24 * MIB))).await;
    plugin.node.node_publish_volume(publish("v", &target)).await.unwrap();
    check(write(&target.join("f"), 40), 24);
    let request = NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path: target.display().to_string() };
    plugin.node.node_unpublish_volume(request).await.unwrap();
}

#[tokio::test]
async fn on_xfs() {
    let disk = Disk::new(512 << 20, &[("mkfs.xfs -q", "loop,prjquota"), ("mkfs.xfs -q", "loop")]);
    a_size_is_a_limit_where_it_can_be(disk).await;
}

#[tokio::test]
async fn on_ext4() {
    // A kernel without quotas does not mount a file system that keeps them.
    let keeping = "mkfs.ext4 -q -O quota,project -E quotatype=prjquota";
    let disk = Disk::new(256 << 20, &[(keeping, "loop,prjquota"), ("mkfs.ext4 -q", "loop")]);
    a_size_is_a_limit_where_it_can_be(disk).await;
}
