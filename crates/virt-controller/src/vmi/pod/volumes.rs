//! Volumes of the launcher pod, and where the compute container finds them.
//!
//! | volume | where |
//! |---|---|
//! | persistentVolumeClaim, dataVolume, ephemeral | `/var/run/kubevirt-private/vmi-disks/NAME` (or `/dev/NAME` for block) |
//! | configMap, secret, downwardAPI, sysprep | `/var/run/kubevirt-private/{config-map,secret,downwardapi,sysprep}/NAME` |
//! | cloudInit* with secret references | `/var/run/kubevirt-private/secret/NAME` (userdata, networkdata) |
//! | what EFI, a TPM and layers over devices keep | `/var/run/kubevirt-private/vm-state-efi`, `vm-state-tpm` and `vm-state-cbt` |
//! | serviceAccount | `/var/run/secrets/kubernetes.io/serviceaccount` |
//! | access credentials | `/var/run/kubevirt-private/secret/SECRET-access-cred` |

use std::collections::BTreeSet;

use api::kubevirt::hotplug::is_hotplug;
use api::kubevirt::v1::{VirtualMachineInstance, Volume};
use serde_json::{Value, json};

use crate::facts::claims::{self, Claims};
use crate::facts::persistent_state;

const PRIVATE: &str = "/var/run/kubevirt-private";
/// Characters of the longest name of a pod's volume.
const LONGEST_NAME: usize = 63;

/// What the pod mounts.
#[derive(Debug, Default)]
pub(super) struct Mounts {
    pub(super) volumes: Vec<Value>,
    pub(super) mounts: Vec<Value>,
    pub(super) devices: Vec<Value>,
    pub(super) service_account: Option<String>,
}

impl Mounts {
    fn mount(&mut self, mut volume: Value, name: &str, path: &str, read_only: bool) {
        volume["name"] = json!(name);
        self.volumes.push(volume);
        let mut mount = json!({ "name": name, "mountPath": path });
        if read_only {
            mount["readOnly"] = json!(true);
        }
        self.mounts.push(mount);
    }
}

pub(super) fn of(vmi: &VirtualMachineInstance, claims: &Claims) -> Mounts {
    let mut out = Mounts::default();
    for (name, path) in [
        ("private", PRIVATE),
        ("public", "/var/run/kubevirt"),
        ("sockets", "/var/run/kubevirt/sockets"),
        ("ephemeral-disks", "/var/run/kubevirt-ephemeral-disks"),
        ("container-disks", "/var/run/kubevirt/container-disks"),
        ("hotplug-disks", "/var/run/kubevirt/hotplug-disks"),
    ] {
        out.mount(json!({ "emptyDir": {} }), name, path, false);
    }
    // libvirt writes down every change of the guest's state and waits until it lies on the disk, several times while the
    // guest stands still at the end of a migration. What is written is gone with the pod anyhow.
    let memory = json!({ "emptyDir": { "medium": "Memory", "sizeLimit": "16Mi" } });
    out.mount(memory, "libvirt-runtime", "/var/run/libvirt", false);
    out.volumes.push(json!({ "name": "virt-bin-share-dir", "emptyDir": {} }));
    for volume in vmi.spec.volumes.iter().filter(|volume| !is_hotplug(volume)) {
        add(&mut out, volume, claims);
    }
    if let Some(claim) = persistent_state::of(vmi, claims) {
        let name = "vm-state";
        out.volumes.push(json!({ "name": name, "persistentVolumeClaim": { "claimName": claim.metadata.name } }));
        // What is not mounted is not kept.
        for (path, kept) in [
            ("vm-state-efi", persistent_state::keeps_efi(&vmi.spec)),
            ("vm-state-tpm", persistent_state::keeps_tpm(&vmi.spec)),
            ("vm-state-cbt", persistent_state::keeps_tracking(vmi)),
        ] {
            if kept {
                out.mounts.push(json!({ "name": name, "mountPath": format!("{PRIVATE}/{path}") }));
            }
        }
    }
    let mut seen = BTreeSet::new();
    for secret in credentials(vmi) {
        if seen.insert(secret.clone()) {
            let directory = api::kubevirt::credentials::volume(&secret);
            let path = format!("{PRIVATE}/secret/{directory}");
            // A Secret's name may be longer than a volume's, and has dots.
            let fits = directory.len() <= LONGEST_NAME && !directory.contains('.');
            let name = if fits { directory } else { format!("{}-access-cred", seen.len()) };
            out.mount(json!({ "secret": { "secretName": secret } }), &name, &path, true);
        }
    }
    out
}

fn add(out: &mut Mounts, volume: &Volume, claims: &Claims) {
    let name = volume.name.as_str();
    if let Some(used) = claims::of_volume(volume) {
        let mut source = json!({ "persistentVolumeClaim": { "claimName": used.claim } });
        if used.read_only {
            source["persistentVolumeClaim"]["readOnly"] = json!(true);
        }
        if claims.get(used.claim).is_some_and(claims::is_block) {
            source["name"] = json!(name);
            out.volumes.push(source);
            out.devices.push(json!({ "name": name, "devicePath": format!("/dev/{name}") }));
        } else {
            out.mount(source, name, &format!("{PRIVATE}/vmi-disks/{name}"), used.read_only);
        }
    }
    if let Some(map) = &volume.config_map {
        let source = json!({ "configMap": { "name": map.name, "optional": map.optional } });
        out.mount(source, name, &format!("{PRIVATE}/config-map/{name}"), true);
    }
    if let Some(secret) = &volume.secret {
        let source = json!({ "secret": { "secretName": secret.secret_name, "optional": secret.optional } });
        out.mount(source, name, &format!("{PRIVATE}/secret/{name}"), true);
    }
    if let Some(downward) = &volume.downward_api {
        let source = json!({ "downwardAPI": { "items": downward.fields } });
        out.mount(source, name, &format!("{PRIVATE}/downwardapi/{name}"), true);
    }
    if let Some(sysprep) = &volume.sysprep {
        let source = match (&sysprep.config_map, &sysprep.secret) {
            (Some(map), _) => json!({ "configMap": { "name": map.name } }),
            (None, Some(secret)) => json!({ "secret": { "secretName": secret.name } }),
            (None, None) => return,
        };
        out.mount(source, name, &format!("{PRIVATE}/sysprep/{name}"), true);
    }
    if let Some(account) = &volume.service_account {
        out.service_account.clone_from(&account.service_account_name);
    }
    let secrets: Vec<String> = cloud_init_secrets(volume);
    if !secrets.is_empty() {
        let sources: Vec<Value> = secrets.iter().map(|secret| json!({ "secret": { "name": secret } })).collect();
        let source = json!({ "projected": { "sources": sources } });
        out.mount(source, &format!("{name}-cloudinit"), &format!("{PRIVATE}/secret/{name}"), true);
    }
}

fn cloud_init_secrets(volume: &Volume) -> Vec<String> {
    let no_cloud = volume.cloud_init_no_cloud.as_ref().map(|c| (&c.secret_ref, &c.network_data_secret_ref));
    let drive = volume.cloud_init_config_drive.as_ref().map(|c| (&c.secret_ref, &c.network_data_secret_ref));
    let Some((user, network)) = no_cloud.or(drive) else { return Vec::new() };
    let mut names: Vec<String> =
        [user, network].into_iter().flatten().map(|reference| reference.name.clone()).collect();
    names.dedup();
    names
}

fn credentials(vmi: &VirtualMachineInstance) -> Vec<String> {
    let credentials = json!(vmi.spec.access_credentials);
    credentials
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|credential| ["sshPublicKey", "userPassword"].map(|kind| credential.get(kind)))
        .flatten()
        .filter_map(|kind| kind.pointer("/source/secret/secretName")?.as_str().map(str::to_owned))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_with_credentials_is_mounted_once_whatever_its_name_is() {
        let source = |name: &str| json!({ "secret": { "secretName": name } });
        let agent = |rest: Value| json!({ "qemuGuestAgent": rest });
        let keys = |name: &str| json!({ "sshPublicKey": { "source": source(name), "propagationMethod": agent(json!({ "users": ["eve"] })) } });
        let words = json!({ "userPassword": { "source": source("words"), "propagationMethod": agent(json!({})) } });
        let long = "x".repeat(60);
        let vmi = json!({ "spec": {
            "domain": { "devices": {} },
            "accessCredentials": [keys("a"), keys("a"), words, keys("with.dots"), keys(&long)],
        } });
        let mounts = of(&serde_json::from_value(vmi).unwrap(), &Claims::default());
        let secret = |volume: &Value| volume["secret"]["secretName"].as_str().map(str::to_owned);
        let found: Vec<(String, &str, &str)> = mounts
            .volumes
            .iter()
            .filter_map(|volume| Some((secret(volume)?, volume["name"].as_str()?)))
            .map(|(secret, name)| {
                let path = mounts.mounts.iter().find(|mount| mount["name"] == name).unwrap();
                (secret, name, path["mountPath"].as_str().unwrap().rsplit('/').next().unwrap())
            })
            .collect();
        let own = |secret: &str, name, path| (secret.to_owned(), name, path);
        let last = format!("{long}-access-cred");
        let expect = [
            own("a", "a-access-cred", "a-access-cred"),
            own("words", "words-access-cred", "words-access-cred"),
            own("with.dots", "3-access-cred", "with.dots-access-cred"),
            own(&long, "4-access-cred", &last),
        ];
        assert_eq!(found, expect);
    }
}
