//! Pure: what is asked of a driver for one volume of one pod, from the PersistentVolume or the pod's own words and from
//! what the CSIDriver object says.

use std::collections::{BTreeMap, HashMap};

use k8s_openapi::api::core::v1::{CSIVolumeSource, PersistentVolume, Pod, SecretReference};
use k8s_openapi::api::storage::v1::{CSIDriver, TokenRequest};
use rpc::csi::VolumeCapability;
use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};

use crate::drivers::driver::Abilities;
use crate::drivers::places;
use crate::error::{Error, Result};

/// Who made the volume and how long it lives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Life {
    /// A PersistentVolume.
    #[default]
    Persistent,
    /// The pod's own.
    Ephemeral,
}

impl Life {
    /// As in `CSIDriver.spec.volumeLifecycleModes`.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Life::Persistent => "Persistent",
            Life::Ephemeral => "Ephemeral",
        }
    }
}

/// A secret by namespace and name.
pub(crate) type SecretName = (String, String);

/// A volume as its driver is to see it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Volume {
    /// The PersistentVolume's name, or the volume's in the pod.
    pub(crate) name: String,
    pub(crate) driver: String,
    pub(crate) handle: String,
    pub(crate) life: Life,
    pub(crate) block: bool,
    pub(crate) read_only: bool,
    pub(crate) fs_type: String,
    pub(crate) mount_options: Vec<String>,
    pub(crate) access_modes: Vec<String>,
    pub(crate) attributes: BTreeMap<String, String>,
    pub(crate) stage_secret: Option<SecretName>,
    pub(crate) publish_secret: Option<SecretName>,
    pub(crate) expand_secret: Option<SecretName>,
}

/// The volume of a PersistentVolume of type csi.
pub(crate) fn persistent(volume: &PersistentVolume, read_only: bool) -> Option<Volume> {
    let spec = volume.spec.as_ref()?;
    let csi = spec.csi.as_ref()?;
    let secret = |reference: &Option<SecretReference>| {
        let reference = reference.as_ref()?;
        Some((reference.namespace.clone().unwrap_or_default(), reference.name.clone().unwrap_or_default()))
    };
    Some(Volume {
        name: volume.metadata.name.clone().unwrap_or_default(),
        driver: csi.driver.clone(),
        handle: csi.volume_handle.clone(),
        life: Life::Persistent,
        block: spec.volume_mode.as_deref() == Some("Block"),
        read_only: read_only || csi.read_only == Some(true),
        fs_type: csi.fs_type.clone().unwrap_or_default(),
        mount_options: spec.mount_options.clone().unwrap_or_default(),
        access_modes: spec.access_modes.clone().unwrap_or_default(),
        attributes: csi.volume_attributes.clone().unwrap_or_default(),
        stage_secret: secret(&csi.node_stage_secret_ref),
        publish_secret: secret(&csi.node_publish_secret_ref),
        expand_secret: secret(&csi.node_expand_secret_ref),
    })
}

/// The volume that a pod describes itself.
pub(crate) fn inline(pod: &Pod, name: &str, source: &CSIVolumeSource) -> Volume {
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let namespace = pod.metadata.namespace.clone().unwrap_or_default();
    let secret = source.node_publish_secret_ref.as_ref();
    Volume {
        name: name.to_owned(),
        driver: source.driver.clone(),
        handle: format!("csi-{}", places::hex(&[uid.as_bytes(), name.as_bytes()])),
        life: Life::Ephemeral,
        read_only: source.read_only == Some(true),
        fs_type: source.fs_type.clone().unwrap_or_default(),
        access_modes: vec!["ReadWriteOnce".into()],
        attributes: source.volume_attributes.clone().unwrap_or_default(),
        publish_secret: secret.map(|secret| (namespace, secret.name.clone())),
        ..Default::default()
    }
}

/// What the CSIDriver object says; the defaults are those of a driver without one.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Policy {
    pub(crate) attach: bool,
    pub(crate) pod_info: bool,
    pub(crate) republish: bool,
    fs_group: String,
    lives: Vec<String>,
    pub(crate) tokens: Vec<TokenRequest>,
}

pub(crate) fn policy(driver: Option<&CSIDriver>) -> Policy {
    let spec = driver.map(|driver| driver.spec.clone()).unwrap_or_default();
    let lives = spec.volume_lifecycle_modes.filter(|modes| !modes.is_empty());
    Policy {
        attach: spec.attach_required != Some(false),
        pod_info: spec.pod_info_on_mount == Some(true),
        republish: spec.requires_republish == Some(true),
        fs_group: spec.fs_group_policy.unwrap_or_else(|| "ReadWriteOnceWithFSType".into()),
        lives: lives.unwrap_or_else(|| vec!["Persistent".into()]),
        tokens: spec.token_requests.unwrap_or_default(),
    }
}

impl Policy {
    /// Refuses a volume of a kind that the driver does not offer.
    pub(crate) fn check(&self, volume: &Volume) -> Result<()> {
        let life = volume.life.word();
        if self.lives.iter().any(|known| known == life) {
            return Ok(());
        }
        let (driver, lives) = (&volume.driver, &self.lives);
        Err(Error::Invalid(format!("volume mode {life:?} not supported by driver {driver} (only supports {lives:?})")))
    }

    /// Whether the node gives the volume's files to the pod's group.
    pub(crate) fn gives_group(&self, volume: &Volume, abilities: Abilities) -> bool {
        if volume.block || volume.read_only || abilities.mounts_by_group {
            return false;
        }
        let once = |mode: &String| matches!(mode.as_str(), "ReadWriteOnce" | "ReadWriteOncePod");
        match self.fs_group.as_str() {
            "File" => true,
            "None" => false,
            _ => !volume.fs_type.is_empty() && volume.access_modes.iter().any(once),
        }
    }

    /// Whether the cluster must attach the volume before the node can have it.
    pub(crate) fn attaches(&self, volume: &Volume) -> bool {
        self.attach && volume.life == Life::Persistent
    }
}

impl Volume {
    /// How the volume is to be used.
    pub(crate) fn capability(&self, abilities: Abilities, fs_group: Option<i64>) -> VolumeCapability {
        let access_type = if self.block {
            AccessType::Block(BlockVolume {})
        } else {
            let group = fs_group.filter(|_| abilities.mounts_by_group).map(|group| group.to_string());
            AccessType::Mount(MountVolume {
                fs_type: self.fs_type.clone(),
                mount_flags: self.mount_options.clone(),
                volume_mount_group: group.unwrap_or_default(),
            })
        };
        let access_mode = Some(AccessMode { mode: self.mode(abilities).into() });
        VolumeCapability { access_mode, access_type: Some(access_type) }
    }

    fn mode(&self, abilities: Abilities) -> Mode {
        match (self.access_modes.first().map(String::as_str), abilities.counts_writers) {
            (Some("ReadOnlyMany"), _) => Mode::MultiNodeReaderOnly,
            (Some("ReadWriteMany"), _) => Mode::MultiNodeMultiWriter,
            (Some("ReadWriteOncePod"), true) => Mode::SingleNodeSingleWriter,
            (_, true) => Mode::SingleNodeMultiWriter,
            (_, false) => Mode::SingleNodeWriter,
        }
    }

    /// Its attributes, with what the driver asked to know of the pod.
    pub(crate) fn context(&self, policy: &Policy, pod: &Pod) -> HashMap<String, String> {
        let mut context: HashMap<String, String> = self.attributes.clone().into_iter().collect();
        if policy.pod_info {
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            let account = pod.spec.as_ref().and_then(|spec| spec.service_account_name.clone());
            for (key, value) in [
                ("pod.name", text(&pod.metadata.name)),
                ("pod.namespace", text(&pod.metadata.namespace)),
                ("pod.uid", text(&pod.metadata.uid)),
                ("serviceAccount.name", account.unwrap_or_default()),
                ("ephemeral", (self.life == Life::Ephemeral).to_string()),
            ] {
                context.insert(format!("csi.storage.k8s.io/{key}"), value);
            }
        }
        context
    }

    /// The name of the VolumeAttachment that attaches it to `node`.
    pub(crate) fn attachment(&self, node: &str) -> String {
        format!("csi-{}", places::hex(&[self.handle.as_bytes(), self.driver.as_bytes(), node.as_bytes()]))
    }

    /// Only one pod may use it at a time.
    pub(crate) fn is_of_one_pod(&self) -> bool {
        self.access_modes.iter().any(|mode| mode == "ReadWriteOncePod")
    }
}

#[cfg(test)]
#[expect(clippy::needless_pass_by_value, reason = "documents are written where they are used")]
mod tests {
    use serde_json::json;

    use super::*;

    fn volume(spec: serde_json::Value) -> Volume {
        let mut own = json!({"csi": {"driver": "d", "volumeHandle": "h"}, "accessModes": ["ReadWriteOnce"]});
        json_patch::merge(&mut own, &spec);
        let object = json!({"metadata": {"name": "pv"}, "spec": own});
        persistent(&serde_json::from_value(object).unwrap(), false).unwrap()
    }

    fn said(spec: serde_json::Value) -> Policy {
        policy(Some(&serde_json::from_value(json!({"metadata": {"name": "d"}, "spec": spec})).unwrap()))
    }

    #[test]
    fn access_modes() {
        let check = |mode: &str, counts_writers, expect| {
            let got = volume(json!({"accessModes": [mode]})).mode(Abilities { counts_writers, ..Default::default() });
            assert_eq!(got, expect, "{mode}");
        };
        check("ReadWriteOnce", false, Mode::SingleNodeWriter);
        check("ReadWriteOnce", true, Mode::SingleNodeMultiWriter);
        check("ReadWriteOncePod", false, Mode::SingleNodeWriter);
        check("ReadWriteOncePod", true, Mode::SingleNodeSingleWriter);
        check("ReadOnlyMany", true, Mode::MultiNodeReaderOnly);
        check("ReadWriteMany", false, Mode::MultiNodeMultiWriter);
    }

    #[test]
    fn the_fs_group_policy_decides_on_the_group_of_a_volume() {
        let ext4 = json!({"csi": {"fsType": "ext4"}});
        let many = json!({"csi": {"fsType": "ext4"}, "accessModes": ["ReadWriteMany"]});
        let check = |policy: serde_json::Value, spec: &serde_json::Value, expect| {
            assert_eq!(
                said(policy.clone()).gives_group(&volume(spec.clone()), Abilities::default()),
                expect,
                "{policy}"
            );
        };
        check(json!({}), &ext4, true);
        check(json!({}), &json!({}), false);
        check(json!({}), &many, false);
        check(json!({"fsGroupPolicy": "File"}), &many, true);
        check(json!({"fsGroupPolicy": "None"}), &ext4, false);
        check(json!({"fsGroupPolicy": "File"}), &json!({"volumeMode": "Block"}), false);
        let by_driver = Abilities { mounts_by_group: true, ..Default::default() };
        assert!(!said(json!({"fsGroupPolicy": "File"})).gives_group(&volume(ext4), by_driver));
    }

    #[test]
    fn inline_volumes_need_a_driver_that_has_them() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {"containers": [], "serviceAccountName": "sa"}}))
        .unwrap();
        let own = inline(&pod, "v", &CSIVolumeSource { driver: "d".into(), ..Default::default() });
        let refused = policy(None).check(&own).unwrap_err().to_string();
        assert_eq!(refused, r#"volume mode "Ephemeral" not supported by driver d (only supports ["Persistent"])"#);
        let offered = said(json!({"volumeLifecycleModes": ["Ephemeral"], "podInfoOnMount": true}));
        assert!(offered.check(&own).is_ok() && !offered.attaches(&own));
        let context = own.context(&offered, &pod);
        assert_eq!(context["csi.storage.k8s.io/ephemeral"], "true");
        assert_eq!(context["csi.storage.k8s.io/serviceAccount.name"], "sa");
        assert!(own.handle.starts_with("csi-") && own.handle.len() == 68, "{}", own.handle);
    }
}
