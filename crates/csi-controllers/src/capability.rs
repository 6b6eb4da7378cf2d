//! Kubernetes' access modes and volume modes as CSI's volume capabilities. Pure.

use k8s_openapi::api::core::v1::PersistentVolume;
use rpc::csi::VolumeCapability;
use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use super::facts;

/// The mode of one access mode; `fine` when the driver tells one pod from several on a node.
fn mode(name: &str, fine: bool) -> Result<Mode, String> {
    Ok(match (name, fine) {
        ("ReadWriteOnce", false) => Mode::SingleNodeWriter,
        ("ReadWriteOnce", true) => Mode::SingleNodeMultiWriter,
        ("ReadWriteOncePod", true) => Mode::SingleNodeSingleWriter,
        ("ReadOnlyMany", _) => Mode::MultiNodeReaderOnly,
        ("ReadWriteMany", _) => Mode::MultiNodeMultiWriter,
        ("ReadWriteOncePod", false) => {
            return Err(
                "access mode ReadWriteOncePod needs a driver with the capability SINGLE_NODE_MULTI_WRITER".into()
            );
        }
        _ => return Err(format!("unsupported access mode {name:?}")),
    })
}

/// The one mode that stands for all access modes of a volume.
fn strongest(names: &[String], fine: bool) -> Result<Mode, String> {
    let has = |name: &str| names.iter().any(|n| n == name);
    if has("ReadWriteMany") {
        return Ok(Mode::MultiNodeMultiWriter);
    }
    let single = names.iter().find(|n| matches!(n.as_str(), "ReadWriteOnce" | "ReadWriteOncePod"));
    match single {
        Some(_) if has("ReadOnlyMany") => Ok(Mode::MultiNodeSingleWriter),
        Some(name) => mode(name, fine),
        None => mode(names.first().map_or("", String::as_str), fine),
    }
}

fn with(mode: Mode, block: bool, fs_type: &str, flags: &[String]) -> VolumeCapability {
    let access_type = if block {
        AccessType::Block(BlockVolume {})
    } else {
        AccessType::Mount(MountVolume {
            fs_type: fs_type.to_owned(),
            mount_flags: flags.to_vec(),
            ..MountVolume::default()
        })
    };
    VolumeCapability { access_mode: Some(AccessMode { mode: mode as i32 }), access_type: Some(access_type) }
}

/// What a new volume is to be capable of: one entry for each access mode.
pub(crate) fn wanted(
    modes: &[String],
    block: bool,
    fs_type: &str,
    flags: &[String],
    fine: bool,
) -> Result<Vec<VolumeCapability>, String> {
    modes.iter().map(|name| Ok(with(mode(name, fine)?, block, fs_type, flags))).collect()
}

/// What an existing volume is used as.
pub(crate) fn of(volume: &PersistentVolume, fine: bool) -> Result<VolumeCapability, String> {
    let spec = volume.spec.as_ref();
    let block = facts::volume_mode(spec.and_then(|s| s.volume_mode.as_ref())) == "Block";
    let fs_type = spec.and_then(|s| s.csi.as_ref()?.fs_type.as_deref()).unwrap_or_default();
    let flags = spec.and_then(|s| s.mount_options.as_deref()).unwrap_or_default();
    Ok(with(strongest(facts::modes_of_volume(volume), fine)?, block, fs_type, flags))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes() {
        let check = |names: &[&str], fine: bool, expect: Option<Mode>| {
            let names: Vec<String> = names.iter().map(|n| (*n).to_owned()).collect();
            assert_eq!(strongest(&names, fine).ok(), expect, "{names:?}");
        };
        check(&["ReadWriteOnce"], false, Some(Mode::SingleNodeWriter));
        check(&["ReadWriteOnce"], true, Some(Mode::SingleNodeMultiWriter));
        check(&["ReadWriteOncePod"], true, Some(Mode::SingleNodeSingleWriter));
        check(&["ReadWriteOncePod"], false, None);
        check(&["ReadWriteOnce", "ReadOnlyMany"], false, Some(Mode::MultiNodeSingleWriter));
        check(&["ReadOnlyMany"], false, Some(Mode::MultiNodeReaderOnly));
        check(&["ReadWriteOnce", "ReadWriteMany"], true, Some(Mode::MultiNodeMultiWriter));
        check(&[], false, None);
    }

    #[test]
    fn a_new_volume_can_do_each_mode() {
        let names = ["ReadWriteOnce".to_owned(), "ReadOnlyMany".to_owned()];
        let wanted = wanted(&names, true, "", &[], false).unwrap();
        let modes: Vec<i32> = wanted.iter().map(|c| c.access_mode.as_ref().unwrap().mode).collect();
        assert_eq!(modes, [Mode::SingleNodeWriter as i32, Mode::MultiNodeReaderOnly as i32]);
        assert!(wanted.iter().all(|c| matches!(c.access_type, Some(AccessType::Block(_)))));
    }
}
