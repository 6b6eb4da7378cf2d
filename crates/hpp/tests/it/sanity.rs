//! What every CSI driver has to answer to calls that lack something, or are about what is not there.

use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::{self, CapacityRange};
use tonic::{Code, Response, Status};

use crate::plugin::{Plugin, capability, request};

#[track_caller]
fn is<T: std::fmt::Debug>(answer: Result<Response<T>, Status>, expect: Code) {
    match answer {
        Ok(answer) => assert_eq!(expect, Code::Ok, "{answer:?}"),
        Err(status) => assert_eq!(status.code(), expect, "{status}"),
    }
}

fn range(required_bytes: i64) -> Option<CapacityRange> {
    Some(CapacityRange { required_bytes, limit_bytes: 0 })
}

#[tokio::test]
async fn the_controller_answers_with_the_code_that_fits() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("v", false, 1 << 20)).await;
    let long = "n".repeat(128);
    is(plugin.controller.create_volume(request(&long, false, 1)).await, Code::Ok);
    is(plugin.controller.delete_volume(csi::DeleteVolumeRequest::default()).await, Code::InvalidArgument);
    let gone = csi::DeleteVolumeRequest { volume_id: "none".into(), ..Default::default() };
    is(plugin.controller.delete_volume(gone).await, Code::Ok);

    let caps = vec![capability(false, Mode::SingleNodeWriter)];
    for (id, caps, expect) in [
        ("", caps.clone(), Code::InvalidArgument),
        ("v", Vec::new(), Code::InvalidArgument),
        ("none", caps.clone(), Code::NotFound),
        ("v", caps, Code::Ok),
    ] {
        let request = csi::ValidateVolumeCapabilitiesRequest {
            volume_id: id.into(),
            volume_capabilities: caps,
            ..Default::default()
        };
        is(plugin.controller.validate_volume_capabilities(request).await, expect);
    }
    for (id, range, expect) in [
        ("", range(1 << 20), Code::InvalidArgument),
        ("v", None, Code::InvalidArgument),
        ("none", range(1 << 20), Code::NotFound),
        ("v", range(1 << 20), Code::Ok),
        ("v", range(1 << 62), Code::OutOfRange),
    ] {
        let request =
            csi::ControllerExpandVolumeRequest { volume_id: id.into(), capacity_range: range, ..Default::default() };
        is(plugin.controller.controller_expand_volume(request).await, expect);
    }
    for (id, expect) in [("", Code::InvalidArgument), ("none", Code::NotFound), ("v", Code::Ok)] {
        let request = csi::ControllerGetVolumeRequest { volume_id: id.into() };
        is(plugin.controller.controller_get_volume(request).await, expect);
    }
    is(
        plugin.controller.controller_publish_volume(csi::ControllerPublishVolumeRequest::default()).await,
        Code::Unimplemented,
    );
    is(
        plugin.controller.controller_unpublish_volume(csi::ControllerUnpublishVolumeRequest::default()).await,
        Code::Unimplemented,
    );
    is(
        plugin.controller.controller_modify_volume(csi::ControllerModifyVolumeRequest::default()).await,
        Code::Unimplemented,
    );
    is(plugin.controller.create_snapshot(csi::CreateSnapshotRequest::default()).await, Code::InvalidArgument);
    let longest = csi::CreateSnapshotRequest { name: long, source_volume_id: "v".into(), ..Default::default() };
    is(plugin.controller.create_snapshot(longest).await, Code::Ok);
    is(plugin.controller.delete_snapshot(csi::DeleteSnapshotRequest::default()).await, Code::InvalidArgument);
    let gone = csi::DeleteSnapshotRequest { snapshot_id: "none".into(), ..Default::default() };
    is(plugin.controller.delete_snapshot(gone).await, Code::Ok);
}

#[tokio::test]
async fn the_node_answers_with_the_code_that_fits() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("v", false, 1 << 20)).await;
    let at = plugin.target("t").display().to_string();
    for (id, path, expect) in [
        ("", at.as_str(), Code::InvalidArgument),
        ("v", "", Code::InvalidArgument),
        ("none", &at, Code::NotFound),
        ("v", &at, Code::NotFound),
    ] {
        let stats =
            csi::NodeGetVolumeStatsRequest { volume_id: id.into(), volume_path: path.into(), ..Default::default() };
        is(plugin.node.node_get_volume_stats(stats).await, expect);
        let expand = csi::NodeExpandVolumeRequest {
            volume_id: id.into(),
            volume_path: path.into(),
            capacity_range: range(1 << 20),
            ..Default::default()
        };
        is(plugin.node.node_expand_volume(expand).await, expect);
    }
    for (id, path, expect) in [
        ("", at.as_str(), Code::InvalidArgument),
        ("v", "", Code::InvalidArgument),
        ("none", &at, Code::Ok),
        ("v", &at, Code::Ok),
    ] {
        let request = csi::NodeUnpublishVolumeRequest { volume_id: id.into(), target_path: path.into() };
        is(plugin.node.node_unpublish_volume(request).await, expect);
    }
    is(plugin.node.node_stage_volume(csi::NodeStageVolumeRequest::default()).await, Code::Unimplemented);
    is(plugin.node.node_unstage_volume(csi::NodeUnstageVolumeRequest::default()).await, Code::Unimplemented);
}

#[tokio::test]
async fn announced_capabilities_are_implemented() {
    let mut plugin = Plugin::start().ready().await;
    let said = plugin
        .controller
        .controller_get_capabilities(csi::ControllerGetCapabilitiesRequest::default())
        .await
        .unwrap()
        .into_inner();
    let said: Vec<i32> = said
        .capabilities
        .into_iter()
        .filter_map(|capability| match capability.r#type? {
            csi::controller_service_capability::Type::Rpc(rpc) => Some(rpc.r#type),
        })
        .collect();
    use csi::controller_service_capability::rpc::Type as Can;
    for can in [
        Can::CreateDeleteVolume,
        Can::CloneVolume,
        Can::CreateDeleteSnapshot,
        Can::ListSnapshots,
        Can::ListVolumes,
        Can::GetCapacity,
        Can::GetVolume,
        Can::VolumeCondition,
        Can::ExpandVolume,
    ] {
        assert!(said.contains(&(can as i32)), "{} is not announced", can.as_str_name());
    }
    assert!(!said.contains(&(Can::PublishUnpublishVolume as i32)));
    let services = plugin
        .identity
        .get_plugin_capabilities(csi::GetPluginCapabilitiesRequest::default())
        .await
        .unwrap()
        .into_inner();
    assert_eq!(services.capabilities.len(), 3);
    assert_eq!(plugin.identity.probe(csi::ProbeRequest::default()).await.unwrap().into_inner().ready, Some(true));
}
