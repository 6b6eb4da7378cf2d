//! What is known of storage by the name of its provisioner: which claims it fulfils, in order of preference, and how it clones. Pure.

use std::collections::BTreeMap;

use api::cdi::v1beta1::ClaimPropertySet;
use k8s_openapi::api::storage::v1::StorageClass;

/// One kind of storage.
#[derive(Debug, PartialEq, Eq)]
pub struct Known {
    /// Access and volume modes, the preferred first: `RWX Block`.
    modes: &'static [Mode],
    /// How it clones best, when that is known.
    pub clone: Option<&'static str>,
    /// A golden image is kept as a snapshot: many clones of one snapshot cost it less than many of one volume.
    pub snapshots: bool,
    /// The smallest volume it makes.
    pub least: Option<&'static str>,
}

type Mode = (&'static str, &'static str);
const B: &str = "Block";
const F: &str = "Filesystem";
const RWX_B: Mode = ("ReadWriteMany", B);
const RWO_B: Mode = ("ReadWriteOnce", B);
const ROX_B: Mode = ("ReadOnlyMany", B);
const RWX_F: Mode = ("ReadWriteMany", F);
const RWO_F: Mode = ("ReadWriteOnce", F);
const ROX_F: Mode = ("ReadOnlyMany", F);

const LOCAL: &[Mode] = &[RWO_F];
const SHARED: &[Mode] = &[RWX_F];
const SHARED_OR_OWN: &[Mode] = &[RWX_F, RWO_F];
const SHARED_ALL: &[Mode] = &[RWX_F, RWO_F, ROX_F];
const DISK: &[Mode] = &[RWO_B];
const DISK_OR_FILES: &[Mode] = &[RWO_B, RWO_F];
const ARRAY: &[Mode] = &[RWX_B, RWO_B, RWO_F];
const ARRAY_READ: &[Mode] = &[RWX_B, RWO_B, RWO_F, ROX_B];
const ARRAY_ALL: &[Mode] = &[RWX_B, RWO_B, RWO_F, ROX_B, ROX_F];
const EVERYTHING: &[Mode] = &[RWX_B, RWX_F, RWO_B, RWO_F];

const COPY: Option<&str> = Some("copy");
const SNAPSHOT: Option<&str> = Some("snapshot");
const CSI: Option<&str> = Some("csi-clone");

const fn of(modes: &'static [Mode]) -> Known {
    Known { modes, clone: None, snapshots: false, least: None }
}

const fn cloning(modes: &'static [Mode], clone: Option<&'static str>) -> Known {
    Known { modes, clone, snapshots: false, least: None }
}

const fn golden(modes: &'static [Mode], clone: Option<&'static str>, least: Option<&'static str>) -> Known {
    Known { modes, clone, snapshots: true, least }
}

const fn sized(modes: &'static [Mode], least: &'static str) -> Known {
    Known { modes, clone: None, snapshots: false, least: Some(least) }
}

/// By provisioner, or by provisioner and variant, as [`key`] names it.
const TABLE: &[(&str, Known)] = &[
    ("block.csi.ibm.com", cloning(ARRAY, CSI)),
    ("blockvolume.csi.oraclecloud.com", of(ARRAY)),
    ("cephfs.csi.ceph.com", cloning(SHARED, CSI)),
    ("cinder.csi.openstack.org", of(DISK_OR_FILES)),
    ("csi-isilon.dellemc.com", cloning(SHARED_ALL, CSI)),
    ("csi-powermax.dellemc.com", cloning(ARRAY_READ, CSI)),
    ("csi-powermax.dellemc.com/nfs", of(SHARED_ALL)),
    ("csi-powerstore.dellemc.com", cloning(ARRAY_READ, COPY)),
    ("csi-powerstore.dellemc.com/nfs", of(SHARED_ALL)),
    ("csi-unity.dellemc.com", of(ARRAY_ALL)),
    ("csi-unity.dellemc.com/nfs", of(SHARED_ALL)),
    ("csi-vxflexos.dellemc.com", cloning(ARRAY_ALL, CSI)),
    ("csi-vxflexos.dellemc.com/nfs", of(SHARED_ALL)),
    ("csi.hpe.com", cloning(ARRAY, CSI)),
    ("csi.huawei.com", of(ARRAY_ALL)),
    ("csi.huawei.com/nfs", of(SHARED_ALL)),
    ("csi.ovirt.org", of(DISK_OR_FILES)),
    ("csi.trident.netapp.io/gcnv-flex", golden(SHARED_OR_OWN, SNAPSHOT, Some("1Gi"))),
    ("csi.trident.netapp.io/ontap-nas", golden(SHARED_OR_OWN, SNAPSHOT, None)),
    ("csi.trident.netapp.io/ontap-san", golden(&[RWX_B], SNAPSHOT, None)),
    ("csi.vsphere.vmware.com", of(DISK_OR_FILES)),
    ("csi.vsphere.vmware.com/nfs", of(&[RWX_F, RWO_B, RWO_F])),
    ("disk.csi.azure.com", of(DISK)),
    ("driver.longhorn.io", of(DISK)),
    ("driver.longhorn.io/fs", of(LOCAL)),
    ("driver.longhorn.io/migratable", of(&[RWX_B, RWO_B])),
    ("driver.longhorn.io/nfs", of(SHARED_OR_OWN)),
    ("ebs.csi.aws.com", of(DISK)),
    ("ebs.csi.aws.com/gp", sized(DISK, "1Gi")),
    ("ebs.csi.aws.com/io1", sized(DISK, "4Gi")),
    ("ebs.csi.aws.com/io2", sized(ARRAY, "4Gi")),
    ("efs.csi.aws.com", of(SHARED_OR_OWN)),
    ("file.csi.azure.com", of(SHARED)),
    ("hspc.csi.hitachi.com", cloning(ARRAY, CSI)),
    ("infinibox-csi-driver/iscsiorfibrechannel", cloning(ARRAY, CSI)),
    ("infinibox-csi-driver/nfs", cloning(SHARED_OR_OWN, CSI)),
    ("infinibox-csi-driver/nvme", cloning(ARRAY, CSI)),
    ("k8s-sigs.io/nfs-subdir-external-provisioner", of(SHARED)),
    ("k8s.io/minikube-hostpath", of(LOCAL)),
    ("kubernetes.io/aws-ebs", of(DISK)),
    ("kubernetes.io/azure-disk", of(DISK)),
    ("kubernetes.io/azure-file", of(SHARED)),
    ("kubernetes.io/gce-pd", of(DISK)),
    ("kubernetes.io/portworx-volume", of(EVERYTHING)),
    ("kubernetes.io/portworx-volume/nfs", of(SHARED_OR_OWN)),
    ("kubernetes.io/rbd", of(ARRAY)),
    ("kubernetes.io/storageos", of(LOCAL)),
    ("kubesan.gitlab.io", cloning(&[RWX_B, ROX_B, RWO_B, RWO_F], CSI)),
    ("kubevirt.io.hostpath-provisioner", of(&[RWO_F, RWO_B])),
    ("kubevirt.io/hostpath-provisioner", of(LOCAL)),
    ("linstor.csi.linbit.com", of(ARRAY_ALL)),
    ("manila.csi.openstack.org", of(SHARED)),
    ("nfs.csi.k8s.io", of(SHARED)),
    ("openshift-storage.cephfs.csi.ceph.com", cloning(SHARED, CSI)),
    ("openshift-storage.rbd.csi.ceph.com", golden(ARRAY, CSI, None)),
    ("pd.csi.storage.gke.io", golden(DISK, SNAPSHOT, None)),
    ("pd.csi.storage.gke.io/hyperdisk", golden(ARRAY, SNAPSHOT, Some("4Gi"))),
    ("pxd.portworx.com", cloning(EVERYTHING, CSI)),
    ("pxd.portworx.com/nfs", cloning(SHARED_OR_OWN, CSI)),
    ("pxd.portworx.com/pure_block", of(ARRAY)),
    ("pxd.portworx.com/pure_fa_file", of(SHARED_OR_OWN)),
    ("rbd.csi.ceph.com", of(ARRAY)),
    ("rook-ceph.rbd.csi.ceph.com", golden(ARRAY, CSI, None)),
    ("spectrumscale.csi.ibm.com", cloning(SHARED_OR_OWN, CSI)),
    ("storageos", of(LOCAL)),
    ("topolvm.cybozu.com", cloning(DISK_OR_FILES, COPY)),
    ("topolvm.io", cloning(DISK_OR_FILES, COPY)),
];

/// Provisioner of classes whose volumes are made by hand.
pub const BY_HAND: &str = "kubernetes.io/no-provisioner";

/// Provisioners of things that are no disks.
pub const UNSUPPORTED: [&str; 5] = [
    BY_HAND,
    "openshift-storage.ceph.rook.io/bucket",
    "openshift-storage.noobaa.io/obc",
    "rook-ceph.ceph.rook.io/bucket",
    "stork-snapshot",
];

/// What is known of the storage of `class`.
pub fn known(class: &StorageClass) -> Option<&'static Known> {
    let key = key(class);
    let at = TABLE.binary_search_by(|(name, _)| (*name).cmp(key.as_str())).ok()?;
    TABLE.get(at).map(|(_, known)| known)
}

impl Known {
    /// The claims it fulfils, the preferred first.
    pub fn sets(&self) -> Vec<ClaimPropertySet> {
        let set = |&(access, volume): &Mode| ClaimPropertySet {
            access_modes: vec![access.to_owned()],
            volume_mode: volume.to_owned(),
        };
        self.modes.iter().map(set).collect()
    }
}

/// The provisioner's name, and its variant where the parameters of a class decide what its volumes can do.
fn key(class: &StorageClass) -> String {
    let none = BTreeMap::new();
    let parameters = class.parameters.as_ref().unwrap_or(&none);
    let parameter = |name: &str| parameters.get(name).map_or("", String::as_str);
    let name = class.provisioner.as_str();
    let filesystem = parameter("csi.storage.k8s.io/fstype").to_lowercase();
    let variant = match name {
        "kubernetes.io/portworx-volume" if shared_v3(parameter("sharedv4_mount_options")) => "nfs",
        "pxd.portworx.com" => match parameter("backend") {
            backend @ ("pure_block" | "pure_fa_file") => backend,
            "" if shared_v3(parameter("sharedv4_mount_options")) => "nfs",
            _ => "",
        },
        "csi.trident.netapp.io" => match parameter("backendType") {
            backend if backend.starts_with("ontap-nas") => "ontap-nas",
            backend if backend.starts_with("ontap-san") => "ontap-san",
            "google-cloud-netapp-volumes"
                if parameter("selector").split([';', ',']).any(|part| part.trim() == "performance=flex") =>
            {
                "gcnv-flex"
            }
            _ => "",
        },
        "infinibox-csi-driver" => match parameter("storage_protocol") {
            "iscsi" | "fc" => "iscsiorfibrechannel",
            "nvme" => "nvme",
            "nfs" | "nfs_treeq" => "nfs",
            _ => "",
        },
        "csi.vsphere.vmware.com" if filesystem.contains("nfs") => "nfs",
        "csi-powerstore.dellemc.com" | "csi-vxflexos.dellemc.com" | "csi-powermax.dellemc.com"
            if filesystem == "nfs" =>
        {
            "nfs"
        }
        "csi-unity.dellemc.com" if parameter("protocol").eq_ignore_ascii_case("nfs") => "nfs",
        "csi.huawei.com" if parameter("protocol") == "nfs" => "nfs",
        "driver.longhorn.io" if parameter("migratable") == "true" => "migratable",
        "driver.longhorn.io" if !parameter("nfsOptions").is_empty() => "nfs",
        "driver.longhorn.io" if !parameter("fsType").is_empty() => "fs",
        "ebs.csi.aws.com" => match parameter("type") {
            kind @ ("io1" | "io2") => kind,
            "gp2" | "gp3" => "gp",
            _ => "",
        },
        "pd.csi.storage.gke.io" => match parameter("type") {
            "hyperdisk-balanced" | "hyperdisk-balanced-high-availability" => "hyperdisk",
            _ => "",
        },
        _ => "",
    };
    if variant.is_empty() { name.to_owned() } else { format!("{name}/{variant}") }
}

fn shared_v3(options: &str) -> bool {
    let has = |wanted: &str| options.split(',').any(|option| option == wanted);
    has("vers=3.0") && has("nolock")
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(provisioner: &str, parameters: Value, expect: Option<(&str, &str)>) {
        let class = serde_json::from_value(json!({ "provisioner": provisioner, "parameters": parameters })).unwrap();
        assert_eq!(known(&class).map(|known| known.modes[0]), expect);
    }

    #[test]
    fn the_table_is_sorted() {
        assert!(TABLE.is_sorted_by(|(a, _), (b, _)| a < b));
    }

    #[test]
    fn parameters_decide_between_variants() {
        check("kubevirt.io.hostpath-provisioner", json!({}), Some(RWO_F));
        check("example.com/unknown", json!({}), None);
        check("csi.trident.netapp.io", json!({ "backendType": "ontap-san-economy" }), Some(RWX_B));
        check("csi.trident.netapp.io", json!({ "backendType": "solidfire" }), None);
        check(
            "csi.trident.netapp.io",
            json!({ "backendType": "google-cloud-netapp-volumes", "selector": "a=b; performance=flex" }),
            Some(RWX_F),
        );
        check("pxd.portworx.com", json!({ "sharedv4_mount_options": "vers=3.0,nolock" }), Some(RWX_F));
        check(
            "pxd.portworx.com",
            json!({ "backend": "pure_block", "sharedv4_mount_options": "vers=3.0,nolock" }),
            Some(RWX_B),
        );
        check("csi-vxflexos.dellemc.com", json!({ "csi.storage.k8s.io/fstype": "NFS" }), Some(RWX_F));
        check("driver.longhorn.io", json!({ "migratable": "true" }), Some(RWX_B));
        check("driver.longhorn.io", json!({ "fsType": "ext4" }), Some(RWO_F));
        check("ebs.csi.aws.com", json!({ "type": "io2" }), Some(RWX_B));
        check("pd.csi.storage.gke.io", json!({ "type": "hyperdisk-balanced" }), Some(RWX_B));
        check("infinibox-csi-driver", json!({ "storage_protocol": "smb" }), None);
    }
}
