//! The tables of the CSI specification that tell a call made twice from another call, and names as they may be.

use std::path::Path;

use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::{
    self, CapacityRange, ControllerExpandVolumeRequest, CreateSnapshotRequest, CreateVolumeRequest, GetCapacityRequest,
    ListSnapshotsRequest, NodeExpandVolumeRequest, NodePublishVolumeRequest, NodeUnpublishVolumeRequest,
    ValidateVolumeCapabilitiesRequest,
};
use tonic::Code;

use crate::disk::Disk;
use crate::plugin::{Plugin, capability, request};

fn publish(id: &str, target: &Path, mode: Mode, block: bool, readonly: bool) -> NodePublishVolumeRequest {
    NodePublishVolumeRequest {
        volume_id: id.into(),
        target_path: target.display().to_string(),
        volume_capability: Some(capability(block, mode)),
        readonly,
        ..Default::default()
    }
}

/// "Same target path or another, same arguments or others": the answers of NodePublishVolume.
#[tokio::test]
async fn publishing_twice() {
    let mut plugin = Plugin::start().ready().await;
    let one = Mode::SingleNodeSingleWriter;
    let many = Mode::SingleNodeMultiWriter;
    for (mode, elsewhere) in [(one, Code::FailedPrecondition), (many, Code::Ok)] {
        for block in [false, true] {
            let id = format!("{}-{block}", mode.as_str_name());
            plugin
                .create(CreateVolumeRequest {
                    volume_capabilities: vec![capability(block, mode)],
                    ..request(&id, block, 1 << 20)
                })
                .await;
            let (first, second) = (plugin.target(&format!("{id}-1")), plugin.target(&format!("{id}-2")));
            for (target, readonly, expect) in [
                (&first, false, Code::Ok),
                (&first, false, Code::Ok),
                // A device is never read-only by its path.
                (&first, true, if block { Code::Ok } else { Code::AlreadyExists }),
                (&second, false, elsewhere),
                (&second, false, elsewhere),
            ] {
                let answer = plugin.node.node_publish_volume(publish(&id, target, mode, block, readonly)).await;
                let code = answer.as_ref().map_or_else(tonic::Status::code, |_| Code::Ok);
                assert_eq!(code, expect, "{id} at {} {readonly}: {answer:?}", target.display());
            }
            // What another volume is published at is not this one's.
            plugin.create(request(&format!("{id}-other"), block, 1 << 20)).await;
            let taken = publish(&format!("{id}-other"), &first, many, block, false);
            let refused = plugin.node.node_publish_volume(taken).await.unwrap_err();
            assert_eq!(refused.code(), Code::AlreadyExists, "{refused}");
            for target in [first, second] {
                let request =
                    NodeUnpublishVolumeRequest { volume_id: id.clone(), target_path: target.display().to_string() };
                for _ in 0..2 {
                    plugin.node.node_unpublish_volume(request.clone()).await.unwrap();
                }
            }
        }
    }
}

/// Names are up to 128 bytes of any characters; ids that come of them can be used wherever ids are.
#[tokio::test]
async fn names_of_every_kind() {
    let mut plugin = Plugin::start().ready().await;
    let longest = "é".repeat(64);
    let names =
        [&longest, "a/b", "..", ".", " ", "ÄÖ 漢字 🦀", "line\nbreak", ".hidden", "-rf", "UPPER", "a\\b", "x:y"];
    let mut ids = Vec::new();
    for name in names {
        let made = plugin.create(request(name, false, 1 << 20)).await;
        assert!(made.volume_id.len() <= 128 && !made.volume_id.contains('/'), "{name:?} -> {:?}", made.volume_id);
        assert_eq!(plugin.create(request(name, false, 1 << 20)).await, made, "{name:?}");
        let larger = plugin.controller.create_volume(request(name, false, 1 << 21)).await.unwrap_err();
        assert_eq!(larger.code(), Code::AlreadyExists);
        let snapshot =
            CreateSnapshotRequest { name: name.into(), source_volume_id: made.volume_id.clone(), ..Default::default() };
        let taken = plugin.controller.create_snapshot(snapshot).await.unwrap().into_inner().snapshot.unwrap();
        let of = ListSnapshotsRequest { snapshot_id: taken.snapshot_id, ..Default::default() };
        assert_eq!(plugin.controller.list_snapshots(of).await.unwrap().into_inner().entries.len(), 1, "{name:?}");
        ids.push(made.volume_id);
    }
    ids.sort();
    ids.dedup();
    assert_eq!(ids.len(), names.len(), "two names have one id");
    // An id is one of its own name: a volume that is asked for by it is another one, or none.
    let digest = ids.iter().find(|id| id.len() == 64).unwrap();
    let refused = plugin.controller.create_volume(request(digest, false, 1 << 20)).await.unwrap_err();
    assert_eq!(refused.code(), Code::AlreadyExists);
}

#[tokio::test]
async fn capabilities_are_confirmed_as_a_whole() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("v", false, 1 << 20)).await;
    let ask = |edit: &dyn Fn(&mut ValidateVolumeCapabilitiesRequest)| {
        let mut request = ValidateVolumeCapabilitiesRequest {
            volume_id: "v".into(),
            volume_capabilities: vec![capability(false, Mode::SingleNodeWriter)],
            parameters: [("storagePool".to_owned(), "one".to_owned())].into(),
            ..Default::default()
        };
        edit(&mut request);
        request
    };
    let both = vec![capability(false, Mode::SingleNodeWriter), capability(false, Mode::SingleNodeReaderOnly)];
    for (request, refusal) in [
        (ask(&|_| {}), ""),
        (ask(&|r| r.volume_capabilities = both.clone()), ""),
        (
            ask(&|r| r.volume_capabilities.push(capability(false, Mode::MultiNodeMultiWriter))),
            "MULTI_NODE_MULTI_WRITER",
        ),
        (ask(&|r| r.volume_capabilities.push(capability(true, Mode::SingleNodeWriter))), "not both"),
        (ask(&|r| drop(r.parameters.insert("storagePool".into(), "two".into()))), "in pool \"one\", not in \"two\""),
        (ask(&|r| drop(r.volume_context.insert("a".into(), "b".into()))), "no volume_context"),
    ] {
        let asked = request.clone();
        let answer = plugin.controller.validate_volume_capabilities(request).await.unwrap().into_inner();
        match answer.confirmed {
            Some(confirmed) => {
                assert_eq!((confirmed.volume_capabilities, refusal), (asked.volume_capabilities, ""));
            }
            None => assert!(!refusal.is_empty() && answer.message.contains(refusal), "{}", answer.message),
        }
    }
}

#[tokio::test]
async fn expansion_is_of_what_the_volume_is() {
    let mut plugin = Plugin::start().ready().await;
    plugin.create(request("dev", true, 1 << 20)).await;
    let target = plugin.target("dev");
    plugin.node.node_publish_volume(publish("dev", &target, Mode::SingleNodeWriter, true, false)).await.unwrap();
    let range = |required_bytes| Some(CapacityRange { required_bytes, limit_bytes: 0 });
    for (block, expect) in [(false, Code::InvalidArgument), (true, Code::Ok)] {
        let wanted = Some(capability(block, Mode::SingleNodeWriter));
        let request = ControllerExpandVolumeRequest {
            volume_id: "dev".into(),
            capacity_range: range(2 << 20),
            volume_capability: wanted.clone(),
            ..Default::default()
        };
        let answer = plugin.controller.controller_expand_volume(request).await;
        assert_eq!(answer.map_or_else(|status| status.code(), |_| Code::Ok), expect);
        let request = NodeExpandVolumeRequest {
            volume_id: "dev".into(),
            volume_path: target.display().to_string(),
            capacity_range: range(2 << 20),
            volume_capability: wanted,
            ..Default::default()
        };
        let answer = plugin.node.node_expand_volume(request).await;
        assert_eq!(answer.map_or_else(|status| status.code(), |_| Code::Ok), expect);
    }
    let device = std::fs::File::open(&target).unwrap();
    assert_eq!(std::io::Seek::seek(&mut &device, std::io::SeekFrom::End(0)).unwrap(), 2 << 20);
    let request = NodeUnpublishVolumeRequest { volume_id: "dev".into(), target_path: target.display().to_string() };
    plugin.node.node_unpublish_volume(request).await.unwrap();
}

/// A pool that nobody can write, and one that is full: each call says so, and volumes are said to be in danger.
#[tokio::test]
async fn pools_that_cannot_take_more() {
    let disk = Disk::new(64 << 20, &[("mkfs.ext4 -q", "loop")]);
    let mut plugin = Plugin::start_on(&disk.path).ready().await;
    let here = |name: &str| CreateVolumeRequest { parameters: Default::default(), ..request(name, false, 1 << 20) };
    plugin.create(here("v")).await;
    let condition = async |plugin: &mut Plugin| {
        let request = csi::ControllerGetVolumeRequest { volume_id: "v".into() };
        let found = plugin.controller.controller_get_volume(request).await.unwrap().into_inner();
        found.status.unwrap().volume_condition.unwrap()
    };
    assert!(!condition(&mut plugin).await.abnormal);

    let filler = plugin.dir.path().join("v/filler");
    let block = vec![1; 1 << 20];
    let mut file = std::fs::File::create(&filler).unwrap();
    while std::io::Write::write_all(&mut file, &block).is_ok() {}
    drop(file);
    let refused = plugin.controller.create_volume(here("w")).await.unwrap_err();
    assert_eq!(refused.code(), Code::ResourceExhausted, "{refused}");
    let said = condition(&mut plugin).await;
    assert!(said.abnormal && said.message.contains("bytes left"), "{}", said.message);
    std::fs::remove_file(filler).unwrap();

    rustix::mount::mount_remount(&disk.path, rustix::mount::MountFlags::RDONLY, "").unwrap();
    let refused = plugin.controller.create_volume(here("w")).await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition, "{refused}");
    assert!(refused.message().starts_with("pool \"one\" can only be read: mount "), "{refused}");
    let room = plugin.controller.get_capacity(GetCapacityRequest::default()).await.unwrap().into_inner();
    assert_eq!(room.available_capacity, 0);
    let said = condition(&mut plugin).await;
    assert!(said.abnormal && said.message.contains("can only be read"), "{}", said.message);
    rustix::mount::mount_remount(&disk.path, rustix::mount::MountFlags::empty(), "").unwrap();
    plugin.create(here("w")).await;
}
