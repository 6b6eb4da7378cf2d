//! A pool that two nodes share: their drivers know nothing of one another but what lies in it.

use std::os::unix::fs::FileTypeExt;

use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::{
    CreateVolumeRequest, DeleteVolumeRequest, GetCapacityRequest, ListVolumesRequest, NodePublishVolumeRequest,
    NodeUnpublishVolumeRequest, Topology,
};
use tonic::Code;

use crate::plugin::{Plugin, capability, request};

fn many(name: &str, block: bool) -> CreateVolumeRequest {
    CreateVolumeRequest {
        volume_capabilities: vec![capability(block, Mode::MultiNodeMultiWriter)],
        parameters: Default::default(),
        ..request(name, block, 1 << 20)
    }
}

#[tokio::test]
async fn a_volume_is_on_both_nodes() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("pods")).unwrap();
    let other = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(other.path().join("pods")).unwrap();
    std::os::unix::fs::symlink(dir.path().join("shared"), other.path().join("shared")).unwrap();
    let mut one = Plugin::start_at(dir, "node1").ready().await;
    let mut two = Plugin::start_at(other, "node2").ready().await;

    for block in [false, true] {
        let name = if block { "device" } else { "dir" };
        let made = one.create(many(name, block)).await;
        assert!(made.accessible_topology.is_empty(), "it is said to be on one node");
        assert_eq!(two.create(many(name, block)).await, made, "the other node made another");
        let publish = |plugin: &Plugin| NodePublishVolumeRequest {
            volume_id: name.into(),
            target_path: plugin.target(name).display().to_string(),
            volume_capability: Some(capability(block, Mode::MultiNodeMultiWriter)),
            ..Default::default()
        };
        let unpublish = |plugin: &Plugin| NodeUnpublishVolumeRequest {
            volume_id: name.into(),
            target_path: plugin.target(name).display().to_string(),
        };
        let (first, second) = (publish(&one), publish(&two));
        one.node.node_publish_volume(first).await.unwrap();
        two.node.node_publish_volume(second).await.unwrap();
        let listed = one.controller.list_volumes(ListVolumesRequest::default()).await.unwrap().into_inner();
        let nodes = &listed.entries.iter().find(|e| e.volume.as_ref().unwrap().volume_id == name).unwrap().status;
        assert_eq!(nodes.as_ref().unwrap().published_node_ids, ["node1", "node2"]);

        // What one lets go of the other still has.
        let request = unpublish(&one);
        one.node.node_unpublish_volume(request).await.unwrap();
        let left = two.target(name);
        if block {
            assert!(std::fs::metadata(&left).unwrap().file_type().is_block_device());
            std::fs::File::open(&left).unwrap();
            assert_eq!(std::fs::read(&left).unwrap().len(), 1 << 20, "the device lost its file");
        } else {
            std::fs::write(left.join("f"), "data").unwrap();
        }
        let request = unpublish(&two);
        two.node.node_unpublish_volume(request).await.unwrap();
        let delete = DeleteVolumeRequest { volume_id: name.into(), ..Default::default() };
        one.controller.delete_volume(delete).await.unwrap();
        assert!(!two.dir.path().join("shared").join(name).exists());
    }
    let elsewhere = Topology { segments: [("topology.hostpath.csi/node".to_owned(), "other".to_owned())].into() };
    let ask = GetCapacityRequest { accessible_topology: Some(elsewhere), ..Default::default() };
    assert!(one.controller.get_capacity(ask).await.unwrap().into_inner().available_capacity > 0);
}

#[tokio::test]
async fn a_pool_that_is_not_mounted_yet_holds_up_no_other() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::create_dir_all(dir.path().join("mounted")).unwrap();
    let mut plugin = Plugin::start_mounted(dir).ready().await;
    let of = |pool: &str| CreateVolumeRequest {
        parameters: [("storagePool".to_owned(), pool.to_owned())].into(),
        ..request(&format!("in-{pool}"), false, 1)
    };
    plugin.create(of("plain")).await;
    let early = plugin.controller.create_volume(of("mounted")).await.unwrap_err();
    assert_eq!((early.code(), early.message()), (Code::Unavailable, "nothing is mounted at pool \"mounted\""));
    let parameters = of("mounted").parameters;
    let ask = GetCapacityRequest { parameters, ..Default::default() };
    let room = plugin.controller.get_capacity(ask.clone()).await.unwrap().into_inner();
    assert_eq!(room.available_capacity, 0);
    // It may lie where nobody can look: it is not said to be gone.
    let delete = DeleteVolumeRequest { volume_id: "in-mounted".into(), ..Default::default() };
    assert_eq!(plugin.controller.delete_volume(delete.clone()).await.unwrap_err().code(), Code::Unavailable);
    std::fs::write(plugin.dir.path().join("mounted/.hostpath-pool"), "").unwrap();
    plugin.create(of("mounted")).await;
    assert!(plugin.controller.get_capacity(ask).await.unwrap().into_inner().available_capacity > 0);
    plugin.controller.delete_volume(delete).await.unwrap();
}
