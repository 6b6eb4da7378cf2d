//! The Controller service.

use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::{
    self, CapacityRange, ControllerExpandVolumeRequest, ControllerGetVolumeRequest, CreateVolumeRequest,
    DeleteVolumeRequest, GetCapacityRequest, ListVolumesRequest, Topology, TopologyRequirement,
    ValidateVolumeCapabilitiesRequest,
};
use tonic::Code;

use crate::plugin::{NODE, Plugin, capability, request};

fn on(node: &str) -> Topology {
    Topology { segments: [("topology.hostpath.csi/node".to_owned(), node.to_owned())].into() }
}

#[tokio::test]
async fn volumes_are_made_once() {
    let mut plugin = Plugin::start().ready().await;
    let made = plugin.create(request("dir", false, 1 << 20)).await;
    assert_eq!(made.accessible_topology, [on(NODE)]);
    assert_eq!(made.capacity_bytes, 1 << 20);
    assert!(plugin.dir.path().join("one").join(&made.volume_id).is_dir());
    assert_eq!(plugin.create(request("dir", false, 1 << 20)).await, made);
    let device = plugin.create(request("device", true, (1 << 20) + 1)).await;
    assert_eq!(device.capacity_bytes, (1 << 20) + 4096);
    let file = std::fs::metadata(plugin.dir.path().join("one").join(&device.volume_id)).unwrap();
    assert!(file.is_file() && file.len() == (1 << 20) + 4096);
    for (name, block, size) in [("dir", false, 1 << 21), ("dir", true, 1 << 20), ("device", true, 1 << 22)] {
        let refused = plugin.controller.create_volume(request(name, block, size)).await.unwrap_err();
        assert_eq!(refused.code(), Code::AlreadyExists, "{name} {size}: {refused}");
    }
}

#[tokio::test]
async fn invalid_volume_requests_are_refused() {
    let mut plugin = Plugin::start().ready().await;
    let with = |edit: &dyn Fn(&mut CreateVolumeRequest)| {
        let mut request = request("v", false, 1 << 20);
        edit(&mut request);
        request
    };
    for (request, code, part) in [
        (with(&|r| r.name.clear()), Code::InvalidArgument, "name is required"),
        (with(&|r| r.volume_capabilities.clear()), Code::InvalidArgument, "volume_capabilities are required"),
        (
            with(&|r| r.volume_capabilities = vec![capability(false, Mode::MultiNodeMultiWriter)]),
            Code::InvalidArgument,
            "MULTI_NODE_MULTI_WRITER is not supported",
        ),
        (with(&|r| r.parameters.clear()), Code::InvalidArgument, "one of one, two"),
        (
            with(&|r| {
                r.parameters.insert("storagePool".into(), "three".into());
            }),
            Code::InvalidArgument,
            "\"three\" is not one of: one, two",
        ),
        (
            with(&|r| {
                r.accessibility_requirements =
                    Some(TopologyRequirement { requisite: vec![on("other")], preferred: vec![] });
            }),
            Code::InvalidArgument,
            "not correct node",
        ),
        (
            with(&|r| r.capacity_range = Some(CapacityRange { required_bytes: 2, limit_bytes: 1 })),
            Code::OutOfRange,
            "more than limit_bytes",
        ),
        (
            with(&|r| r.capacity_range = Some(CapacityRange { required_bytes: 1 << 60, limit_bytes: 0 })),
            Code::OutOfRange,
            "bytes are asked for",
        ),
        (
            with(&|r| r.volume_content_source = Some(csi::VolumeContentSource::default())),
            Code::InvalidArgument,
            "one of volume and snapshot is required",
        ),
    ] {
        let refused = plugin.controller.create_volume(request).await.unwrap_err();
        assert_eq!(refused.code(), code, "{refused}");
        assert!(refused.message().contains(part), "{refused}");
    }
    let here = with(&|r| {
        r.accessibility_requirements =
            Some(TopologyRequirement { requisite: vec![on("other"), on(NODE)], preferred: vec![on(NODE)] });
    });
    plugin.create(here).await;
    let strange = plugin.create(request("../../etc", false, 1)).await;
    assert_eq!(strange.volume_id.len(), 64, "a name that is no file name becomes one: {}", strange.volume_id);
}

#[tokio::test]
async fn removal_takes_the_data_and_may_be_repeated() {
    let mut plugin = Plugin::start().ready().await;
    let volume = plugin.create(request("v", false, 1)).await;
    let data = plugin.dir.path().join("one").join(&volume.volume_id);
    std::fs::create_dir(data.join("d")).unwrap();
    std::fs::write(data.join("d/f"), "data").unwrap();
    std::os::unix::fs::symlink(plugin.dir.path(), data.join("out")).unwrap();
    for _ in 0..2 {
        let request = DeleteVolumeRequest { volume_id: volume.volume_id.clone(), ..Default::default() };
        plugin.controller.delete_volume(request).await.unwrap();
        assert!(!data.exists() && plugin.dir.path().join("csi.sock").exists());
    }
    let refused = plugin.controller.delete_volume(DeleteVolumeRequest::default()).await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    // An id that leads out of the pool is no volume's.
    let request = DeleteVolumeRequest { volume_id: "../csi.sock".into(), ..Default::default() };
    plugin.controller.delete_volume(request).await.unwrap();
    assert!(plugin.dir.path().join("csi.sock").exists());
}

#[tokio::test]
async fn lists_have_pages() {
    let mut plugin = Plugin::start().ready().await;
    for name in ["a", "b", "c"] {
        plugin.create(request(name, false, 1)).await;
    }
    let mut plugin = plugin.restarted().ready().await;
    let mut ids = Vec::new();
    let mut token = String::new();
    loop {
        let request = ListVolumesRequest { max_entries: 2, starting_token: token };
        let page = plugin.controller.list_volumes(request).await.unwrap().into_inner();
        ids.extend(page.entries.into_iter().map(|entry| entry.volume.unwrap().volume_id));
        token = page.next_token;
        if token.is_empty() {
            break;
        }
    }
    assert_eq!(ids, ["a", "b", "c"]);
    let negative = ListVolumesRequest { max_entries: -1, ..Default::default() };
    assert_eq!(plugin.controller.list_volumes(negative).await.unwrap_err().code(), Code::InvalidArgument);
    let strange = ListVolumesRequest { starting_token: "not/one".into(), ..Default::default() };
    assert_eq!(plugin.controller.list_volumes(strange).await.unwrap_err().code(), Code::Aborted);
}

#[tokio::test]
async fn volumes_are_judged_and_grown() {
    let mut plugin = Plugin::start().ready().await;
    let device = plugin.create(request("device", true, 1 << 20)).await;
    let validate = |id: &str, block| ValidateVolumeCapabilitiesRequest {
        volume_id: id.into(),
        volume_capabilities: vec![capability(block, Mode::SingleNodeWriter)],
        ..Default::default()
    };
    let good = plugin.controller.validate_volume_capabilities(validate("device", true)).await.unwrap().into_inner();
    assert!(good.confirmed.is_some() && good.message.is_empty());
    let bad = plugin.controller.validate_volume_capabilities(validate("device", false)).await.unwrap().into_inner();
    assert!(bad.confirmed.is_none() && !bad.message.is_empty());
    let missing = plugin.controller.validate_volume_capabilities(validate("none", true)).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);

    let expand = |id: &str, required_bytes, limit_bytes| ControllerExpandVolumeRequest {
        volume_id: id.into(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes }),
        ..Default::default()
    };
    for _ in 0..2 {
        let grown =
            plugin.controller.controller_expand_volume(expand("device", 1 << 21, 0)).await.unwrap().into_inner();
        assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (1 << 21, true));
    }
    // A directory's size is what was asked for, whatever its pool has: growth shows.
    plugin.create(request("dir", false, 1 << 20)).await;
    let grown = plugin.controller.controller_expand_volume(expand("dir", 3 << 20, 0)).await.unwrap().into_inner();
    assert_eq!((grown.capacity_bytes, grown.node_expansion_required), (3 << 20, false));
    let smaller = plugin.controller.controller_expand_volume(expand("device", 1, 4096)).await.unwrap_err();
    assert_eq!(smaller.code(), Code::OutOfRange);
    let missing = plugin.controller.controller_expand_volume(expand("none", 1, 0)).await.unwrap_err();
    assert_eq!(missing.code(), Code::NotFound);

    let get = ControllerGetVolumeRequest { volume_id: device.volume_id.clone() };
    let found = plugin.controller.controller_get_volume(get.clone()).await.unwrap().into_inner();
    assert!(!found.status.unwrap().volume_condition.unwrap().abnormal);
    std::fs::remove_file(plugin.dir.path().join("one").join(&device.volume_id)).unwrap();
    let found = plugin.controller.controller_get_volume(get).await.unwrap().into_inner();
    assert!(found.status.unwrap().volume_condition.unwrap().abnormal);
    let missing = ControllerGetVolumeRequest { volume_id: "none".into() };
    assert_eq!(plugin.controller.controller_get_volume(missing).await.unwrap_err().code(), Code::NotFound);
}

#[tokio::test]
async fn capacity_is_the_pools_and_this_nodes() {
    let mut plugin = Plugin::start().ready().await;
    let parameters = std::collections::HashMap::from([("storagePool".to_owned(), "two".to_owned())]);
    let ask = |node: &str| GetCapacityRequest {
        parameters: parameters.clone(),
        accessible_topology: Some(on(node)),
        ..Default::default()
    };
    assert!(plugin.controller.get_capacity(ask(NODE)).await.unwrap().into_inner().available_capacity > 0);
    assert_eq!(plugin.controller.get_capacity(ask("other")).await.unwrap().into_inner().available_capacity, 0);
    let publish = csi::ControllerPublishVolumeRequest::default();
    assert_eq!(plugin.controller.controller_publish_volume(publish).await.unwrap_err().code(), Code::Unimplemented);
}
