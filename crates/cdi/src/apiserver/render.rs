//! A plain claim that asks for it gets what the profile of its storage class adds, as a DataVolume's would.

use api::cdi::constants::{CONFIG, annotation};
use api::cdi::v1beta1::{CDIConfig, StorageProfile};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, PersistentVolumeClaimSpec};
use k8s_openapi::api::storage::v1::StorageClass;
use kit::admission::Verdict;
use kube::api::ListParams;
use kube::{Api, Client};
use serde_json::json;

use super::validate::deny;
use crate::controller::settings::Settings;
use crate::controller::storage::{self, Storage};

/// The profiles, the classes and the configuration of the cluster.
struct Held {
    classes: Vec<StorageClass>,
    profiles: Vec<StorageProfile>,
    settings: Settings,
}

async fn look(client: &Client) -> kube::Result<Held> {
    let all = ListParams::default();
    let config = Api::<CDIConfig>::all(client.clone()).get_opt(CONFIG).await?;
    Ok(Held {
        classes: Api::<StorageClass>::all(client.clone()).list(&all).await?.items,
        profiles: Api::<StorageProfile>::all(client.clone()).list(&all).await?.items,
        settings: Settings::of(config.as_ref()),
    })
}

/// Completes `claim`, which is about to be created.
///
/// # Errors
/// When the cluster cannot be asked.
pub(crate) async fn claim(client: &Client, claim: PersistentVolumeClaim) -> kube::Result<Verdict> {
    if is_complete(&claim) {
        return Ok(Verdict::allow());
    }
    let held = look(client).await?;
    let spec = claim.spec.unwrap_or_default();
    let annotations = claim.metadata.annotations.unwrap_or_default();
    let archive = annotations.get(annotation::CONTENT_TYPE).is_some_and(|content| content == "archive");
    Ok(match complete(&held, spec.clone(), archive) {
        Ok(rendered) if rendered == spec => Verdict::allow(),
        Ok(rendered) => Verdict::Patch(json!([{ "op": "replace", "path": "/spec", "value": rendered }])),
        Err(why) => deny(why),
    })
}

/// The claim of a DataVolume comes as its own storage makes it: once more, and it would grow twice by what a file system takes.
fn is_complete(claim: &PersistentVolumeClaim) -> bool {
    let mut owners = claim.metadata.owner_references.iter().flatten();
    owners.any(|owner| owner.controller == Some(true) && owner.kind == "DataVolume")
}

fn complete(held: &Held, spec: PersistentVolumeClaimSpec, archive: bool) -> Result<PersistentVolumeClaimSpec, String> {
    let from = spec.data_source_ref.as_ref().map(|reference| reference.kind.as_str());
    let clone = matches!(from, Some("VolumeCloneSource" | "PersistentVolumeClaim" | "VolumeSnapshot"));
    // No volume made by hand is looked for: whoever names one says what it is like.
    let storage = Storage { classes: &held.classes, profiles: &held.profiles, volumes: &[], settings: &held.settings };
    storage::complete(spec, archive, &storage, None, clone).map_err(|refusal| refusal.0)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(spec: Value, expect: Result<Value, &str>) {
        let class = json!({ "metadata": { "name": "fast" }, "provisioner": "p" });
        let profile = json!({
            "metadata": { "name": "fast" }, "spec": {},
            "status": { "claimPropertySets": [{ "accessModes": ["ReadWriteMany"], "volumeMode": "Block" }] },
        });
        let held = Held {
            classes: vec![serde_json::from_value(class).unwrap()],
            profiles: vec![serde_json::from_value(profile).unwrap()],
            settings: Settings::of(None),
        };
        let found = complete(&held, serde_json::from_value(spec).unwrap(), false).map(|spec| json!(spec));
        assert_eq!(found.as_ref().map_err(String::as_str), expect.as_ref().map_err(|why| *why));
    }

    #[test]
    fn the_claim_of_a_data_volume_is_left_as_it_is() {
        let owned = |kind: &str| {
            let owner = json!({ "apiVersion": "v", "kind": kind, "name": "n", "uid": "u", "controller": true });
            is_complete(&serde_json::from_value(json!({ "metadata": { "ownerReferences": [owner] } })).unwrap())
        };
        assert!(owned("DataVolume"));
        assert!(!owned("VirtualMachineInstance"));
        assert!(!is_complete(&PersistentVolumeClaim::default()));
    }

    #[test]
    fn the_storage_profile_completes_a_claim() {
        let asked =
            |class: &str| json!({ "storageClassName": class, "resources": { "requests": { "storage": "1Gi" } } });
        let mut rendered = asked("fast");
        rendered["accessModes"] = json!(["ReadWriteMany"]);
        rendered["volumeMode"] = json!("Block");
        check(asked("fast"), Ok(rendered));
        let gone = "PVC spec is missing accessMode and no storageClass to choose profile: StorageClass none does not exist: make it, or name another";
        check(asked("none"), Err(gone));
    }
}
