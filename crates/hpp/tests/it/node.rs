//! The Node service: real mounts and loop devices.

use std::collections::HashMap;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;

use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::volume_usage::Unit;
use rpc::csi::{
    CapacityRange, ControllerExpandVolumeRequest, DeleteVolumeRequest, NodeExpandVolumeRequest, NodeGetInfoRequest,
    NodeGetVolumeStatsRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest,
};
use tonic::Code;

use crate::plugin::{NODE, Plugin, capability, request};

fn publish(id: &str, target: &Path, block: bool) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: id.into(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability(block, Mode::SingleNodeWriter)),
        ..Default::default()
    }
}

fn unpublish(id: &str, target: &Path) -> NodeUnpublishVolumeRequest {
    NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: target.display().to_string() }
}

fn is_mounted(path: &Path) -> bool {
    sys::mount::points().unwrap().iter().any(|point| point == path)
}

#[tokio::test]
async fn a_directory_is_published_and_taken_back() {
    let mut plugin = Plugin::start().ready().await;
    let info = plugin.node.node_get_info(NodeGetInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.node_id, NODE);
    plugin.create(request("v", false, 1)).await;
    let (one, two) = (plugin.target("one"), plugin.target("two"));
    for _ in 0..2 {
        plugin.node.node_publish_volume(publish("v", &one, false)).await.unwrap();
    }
    std::fs::write(one.join("f"), "data").unwrap();
    let read_only = NodePublishVolumeRequest { readonly: true, ..publish("v", &two, false) };
    plugin.node.node_publish_volume(read_only).await.unwrap();
    assert_eq!(std::fs::read_to_string(two.join("f")).unwrap(), "data");
    assert!(std::fs::write(two.join("g"), "").is_err(), "written through a read-only volume");

    let mut plugin = plugin.restarted().ready().await;
    let used = DeleteVolumeRequest { volume_id: "v".into(), ..Default::default() };
    let refused = plugin.controller.delete_volume(used.clone()).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);

    let stats = |path: &Path| NodeGetVolumeStatsRequest {
        volume_id: "v".into(),
        volume_path: path.display().to_string(),
        ..Default::default()
    };
    let got = plugin.node.node_get_volume_stats(stats(&one)).await.unwrap().into_inner();
    assert!(got.usage.iter().any(|usage| usage.unit() == Unit::Bytes && usage.total > 0));
    assert!(got.usage.iter().any(|usage| usage.unit() == Unit::Inodes && usage.total >= 0));
    assert!(!got.volume_condition.unwrap().abnormal);
    let elsewhere = plugin.node.node_get_volume_stats(stats(&plugin.target("no"))).await.unwrap_err();
    assert_eq!(elsewhere.code(), Code::NotFound);

    for target in [&one, &two, &one] {
        plugin.node.node_unpublish_volume(unpublish("v", target)).await.unwrap();
        assert!(!target.exists() && !is_mounted(target));
    }
    assert!(plugin.dir.path().join("one/v/f").exists(), "unpublishing takes no data");
    plugin.controller.delete_volume(used).await.unwrap();
}

#[tokio::test]
async fn a_device_is_published_grown_and_taken_back() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("v", true, 1 << 20)).await;
    let (one, two) = (plugin.target("one"), plugin.target("two"));
    for target in [&one, &two, &one] {
        plugin.node.node_publish_volume(publish("v", target, true)).await.unwrap();
        assert!(std::fs::metadata(target).unwrap().file_type().is_block_device());
    }
    // Whoever the pod runs as may open its own node of the device, and nobody the one that the host has.
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let file = std::fs::File::open(plugin.dir.path().join("one/v")).unwrap();
    let hosts = sys::loop_device::find(&file, Path::new("/dev")).unwrap().unwrap();
    assert_eq!((mode(&one), mode(&two), mode(&hosts) & 0o006), (0o666, 0o666, 0));
    assert!(!Path::new("/dev/.hostpath-v").exists());
    let length = |path: &Path| {
        use std::io::Seek;
        std::fs::File::open(path).unwrap().seek(std::io::SeekFrom::End(0)).unwrap()
    };
    assert_eq!(length(&one), 1 << 20);
    let range = Some(CapacityRange { required_bytes: 1 << 21, limit_bytes: 0 });
    let on_node = NodeExpandVolumeRequest {
        volume_id: "v".into(),
        volume_path: one.display().to_string(),
        capacity_range: range,
        ..Default::default()
    };
    let early = plugin.node.node_expand_volume(on_node.clone()).await.unwrap_err();
    assert_eq!(early.code(), Code::OutOfRange);
    let request = ControllerExpandVolumeRequest { volume_id: "v".into(), capacity_range: range, ..Default::default() };
    plugin.controller.controller_expand_volume(request).await.unwrap();
    let mut plugin = plugin.restarted().ready().await;
    for _ in 0..2 {
        let grown = plugin.node.node_expand_volume(on_node.clone()).await.unwrap().into_inner();
        assert_eq!(grown.capacity_bytes, 1 << 21);
    }
    assert_eq!(length(&two), 1 << 21);
    let file = std::fs::File::open(plugin.dir.path().join("one/v")).unwrap();
    let attached = || sys::loop_device::find(&file, Path::new("/dev")).unwrap().is_some();
    plugin.node.node_unpublish_volume(unpublish("v", &one)).await.unwrap();
    assert!(attached() && !one.exists());
    for _ in 0..2 {
        plugin.node.node_unpublish_volume(unpublish("v", &two)).await.unwrap();
        assert!(!attached() && !two.exists());
    }
}

#[tokio::test]
async fn a_volume_of_a_pods_own_ends_with_it() {
    let mut plugin = Plugin::start().ready().await;
    let target = plugin.target("own");
    let context = HashMap::from([
        ("csi.storage.k8s.io/ephemeral".to_owned(), "true".to_owned()),
        ("storagePool".to_owned(), "two".to_owned()),
    ]);
    let own = NodePublishVolumeRequest { volume_context: context, ..publish("csi-1", &target, false) };
    plugin.node.node_publish_volume(own).await.unwrap();
    std::fs::write(target.join("f"), "data").unwrap();
    assert!(plugin.dir.path().join("two/csi-1/f").exists());
    for _ in 0..2 {
        plugin.node.node_unpublish_volume(unpublish("csi-1", &target)).await.unwrap();
        assert!(!target.exists() && !plugin.dir.path().join("two/csi-1").exists());
    }
}

#[tokio::test]
async fn invalid_node_requests_are_refused() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("dir", false, 1)).await;
    plugin.create(request("dev", true, 1 << 20)).await;
    let target = plugin.target("t");
    for (request, code) in [
        (publish("", &target, false), Code::InvalidArgument),
        (publish("dir", Path::new(""), false), Code::InvalidArgument),
        (publish("dir", Path::new("/a/../b"), false), Code::InvalidArgument),
        (publish("none", &target, false), Code::NotFound),
        (publish("../one", &target, false), Code::NotFound),
        (publish("dir", &target, true), Code::FailedPrecondition),
        (publish("dev", &target, false), Code::FailedPrecondition),
        (NodePublishVolumeRequest { volume_capability: None, ..publish("dir", &target, false) }, Code::InvalidArgument),
    ] {
        let text = format!("{request:?}");
        assert_eq!(plugin.node.node_publish_volume(request).await.unwrap_err().code(), code, "{text}");
    }
    assert!(!target.exists());
    let refused = plugin.node.node_unpublish_volume(unpublish("", &target)).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
}
