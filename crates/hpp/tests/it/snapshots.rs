//! Snapshots and copies of volumes.

use std::fs;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;

use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use rpc::csi::{
    CapacityRange, CreateSnapshotRequest, CreateVolumeRequest, DeleteSnapshotRequest, DeleteVolumeRequest,
    ListSnapshotsRequest, ListVolumesRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest, Snapshot,
    VolumeContentSource,
};
use tonic::Code;

use crate::plugin::{Plugin, capability, request};

fn of_volume(id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource { r#type: Some(Type::Volume(VolumeSource { volume_id: id.into() })) })
}

fn of_snapshot(id: &str) -> Option<VolumeContentSource> {
    Some(VolumeContentSource { r#type: Some(Type::Snapshot(SnapshotSource { snapshot_id: id.into() })) })
}

fn filled(name: &str, block: bool, size: i64, source: Option<VolumeContentSource>) -> CreateVolumeRequest {
    CreateVolumeRequest { volume_content_source: source, ..request(name, block, size) }
}

fn snap(name: &str, volume: &str) -> CreateSnapshotRequest {
    CreateSnapshotRequest { name: name.into(), source_volume_id: volume.into(), ..Default::default() }
}

impl Plugin {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join("one").join(name)
    }

    async fn snapshot(&mut self, name: &str, volume: &str) -> Snapshot {
        self.controller.create_snapshot(snap(name, volume)).await.unwrap().into_inner().snapshot.unwrap()
    }

    async fn listed(&mut self, request: ListSnapshotsRequest) -> (Vec<String>, String) {
        let page = self.controller.list_snapshots(request).await.unwrap().into_inner();
        (page.entries.into_iter().map(|entry| entry.snapshot.unwrap().snapshot_id).collect(), page.next_token)
    }
}

#[tokio::test]
async fn a_snapshot_is_what_the_volume_was() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("v", false, 1 << 20)).await;
    fs::write(plugin.path("v/f"), "before").unwrap();
    let taken = plugin.snapshot("s", "v").await;
    assert_eq!((taken.size_bytes, taken.source_volume_id.as_str(), taken.ready_to_use), (1 << 20, "v", true));
    assert!(taken.creation_time.is_some_and(|time| time.seconds > 1_700_000_000));
    fs::write(plugin.path("v/f"), "after").unwrap();
    assert_eq!(plugin.snapshot("s", "v").await, taken, "it was taken again");

    let mut plugin = plugin.restarted().ready().await;
    let delete = DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
    plugin.controller.delete_volume(delete).await.unwrap();
    for _ in 0..2 {
        let restored = plugin.create(filled("r", false, 2 << 20, of_snapshot("s"))).await;
        assert_eq!((restored.capacity_bytes, restored.content_source), (2 << 20, of_snapshot("s")));
    }
    assert_eq!(fs::read_to_string(plugin.path("r/f")).unwrap(), "before");
    for _ in 0..2 {
        let delete = DeleteSnapshotRequest { snapshot_id: "s".into(), ..Default::default() };
        plugin.controller.delete_snapshot(delete).await.unwrap();
        assert!(!plugin.path(".snapshots/s").exists());
    }
    assert_eq!(fs::read_to_string(plugin.path("r/f")).unwrap(), "before");
}

#[tokio::test]
async fn a_device_in_use_is_copied_as_it_is() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("v", true, 4 << 20)).await;
    let target = plugin.target("device");
    let publish = NodePublishVolumeRequest {
        volume_id: "v".into(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability(true, Mode::SingleNodeWriter)),
        ..Default::default()
    };
    plugin.node.node_publish_volume(publish).await.unwrap();
    let device = fs::File::options().write(true).open(&target).unwrap();
    device.write_all_at(b"first", 1 << 20).unwrap();
    // Not flushed by its writer: the device's cache holds it.
    plugin.create(filled("copy", true, 0, of_volume("v"))).await;
    plugin.snapshot("s", "v").await;
    device.write_all_at(b"later", 1 << 20).unwrap();
    plugin.create(filled("larger", true, 8 << 20, of_snapshot("s"))).await;
    for (name, length) in [("copy", 4 << 20), ("larger", 8 << 20)] {
        let file = fs::File::open(plugin.path(name)).unwrap();
        let mut text = [0; 5];
        file.read_exact_at(&mut text, 1 << 20).unwrap();
        let meta = file.metadata().unwrap();
        assert_eq!((&text, meta.len()), (b"first", length), "{name}");
        assert!(meta.blocks() * 512 < 1 << 20, "{name} has no holes: {} bytes", meta.blocks() * 512);
    }
    drop(device);
    let unpublish = NodeUnpublishVolumeRequest { volume_id: "v".into(), target_path: target.display().to_string() };
    plugin.node.node_unpublish_volume(unpublish).await.unwrap();
}

#[tokio::test]
async fn copies_go_from_pool_to_pool_and_many_at_a_time() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("golden", true, 8 << 20)).await;
    fs::File::options().write(true).open(plugin.path("golden")).unwrap().write_all_at(b"gold", 4 << 20).unwrap();
    let copies = (0..10).map(|number| {
        let (mut controller, mut request) =
            (plugin.controller.clone(), filled(&format!("copy{number}"), true, 0, of_volume("golden")));
        request.parameters.insert("storagePool".into(), "two".into());
        tokio::spawn(async move { controller.create_volume(request).await })
    });
    for copy in copies.collect::<Vec<_>>() {
        let made = copy.await.unwrap().unwrap().into_inner().volume.unwrap();
        let file = fs::read(plugin.dir.path().join("two").join(made.volume_id)).unwrap();
        assert_eq!(&file[4 << 20..][..4], b"gold");
    }
}

#[tokio::test]
async fn invalid_snapshot_requests_are_refused() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("v", false, 1 << 20)).await;
    plugin.create(request("w", false, 1 << 20)).await;
    plugin.snapshot("s", "v").await;
    for (request, code) in [
        (snap("", "v"), Code::InvalidArgument),
        (snap("t", ""), Code::InvalidArgument),
        (snap("t", "none"), Code::NotFound),
        (snap("t", "../one"), Code::NotFound),
        (snap("s", "w"), Code::AlreadyExists),
    ] {
        let text = format!("{request:?}");
        assert_eq!(plugin.controller.create_snapshot(request).await.unwrap_err().code(), code, "{text}");
    }
    let nameless = plugin.controller.delete_snapshot(DeleteSnapshotRequest::default()).await.unwrap_err();
    assert_eq!(nameless.code(), Code::InvalidArgument);
    let strange = DeleteSnapshotRequest { snapshot_id: "../one".into(), ..Default::default() };
    plugin.controller.delete_snapshot(strange).await.unwrap();

    plugin.create(filled("copy", false, 0, of_volume("v"))).await;
    let beyond = CreateVolumeRequest {
        capacity_range: Some(CapacityRange { required_bytes: 0, limit_bytes: 1 << 10 }),
        ..filled("c", false, 0, of_volume("v"))
    };
    for (request, code, part) in [
        (filled("c", false, 0, of_volume("none")), Code::NotFound, "does not exist on node"),
        (filled("c", false, 0, of_snapshot("none")), Code::NotFound, "does not exist on node"),
        (filled("c", false, 0, of_snapshot("../one")), Code::NotFound, "does not exist on node"),
        (filled("c", false, 0, of_volume("")), Code::InvalidArgument, "volume_id is required"),
        (filled("c", false, 0, of_snapshot("")), Code::InvalidArgument, "snapshot_id is required"),
        (filled("c", true, 0, of_volume("v")), Code::InvalidArgument, "cannot become a block device"),
        (filled("c", false, 1 << 10, of_volume("v")), Code::OutOfRange, "volume_content_source has 1048576"),
        (beyond, Code::OutOfRange, "volume_content_source has 1048576"),
        (filled("copy", false, 0, of_volume("w")), Code::AlreadyExists, "exists already"),
        (filled("copy", false, 1 << 20, None), Code::AlreadyExists, "exists already"),
        (filled("v", false, 1 << 20, of_snapshot("s")), Code::AlreadyExists, "exists already"),
    ] {
        let refused = plugin.controller.create_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(part), "{refused}");
    }
    let left = plugin.controller.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
    assert_eq!(left.entries.len(), 3, "what was refused left something: {left:?}");
    assert!(!plugin.path("c").exists());
}

#[tokio::test]
async fn lists_have_pages_and_filters() {
    let mut plugin = Plugin::start().ready().await;
    for volume in ["v", "w"] {
        plugin.create(request(volume, false, 1)).await;
    }
    for (name, volume) in [("a", "v"), ("b", "w"), ("c", "v")] {
        plugin.snapshot(name, volume).await;
    }
    let (first, token) = plugin.listed(ListSnapshotsRequest { max_entries: 2, ..Default::default() }).await;
    assert_eq!(first, ["a", "b"]);
    let (rest, token) = plugin.listed(ListSnapshotsRequest { starting_token: token, ..Default::default() }).await;
    assert_eq!((rest, token.as_str()), (vec!["c".to_owned()], ""));
    for (snapshot, volume, expect) in
        [("b", "", &["b"][..]), ("", "v", &["a", "c"]), ("b", "v", &[]), ("none", "", &[]), ("", "none", &[])]
    {
        let request = ListSnapshotsRequest {
            snapshot_id: snapshot.into(),
            source_volume_id: volume.into(),
            ..Default::default()
        };
        assert_eq!(plugin.listed(request).await.0, expect);
    }
    let negative = ListSnapshotsRequest { max_entries: -1, ..Default::default() };
    assert_eq!(plugin.controller.list_snapshots(negative).await.unwrap_err().code(), Code::InvalidArgument);
    let strange = ListSnapshotsRequest { starting_token: "not/one".into(), ..Default::default() };
    assert_eq!(plugin.controller.list_snapshots(strange).await.unwrap_err().code(), Code::Aborted);
}
