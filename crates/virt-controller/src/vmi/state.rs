//! What a guest keeps beside its disks: the variables of its EFI, the state of its TPM, and the layers that track what changes
//! on its devices. It is on a small claim of its own.
//!
//! The claim is found by its label and belongs to the machine, so it outlives its instances. A guest that moves gets a new
//! one, since only one node's TPM may write it; which of the two counts is decided by how the migration ended.

use api::cdi::v1beta1::StorageProfile;
use api::kubevirt::constants::migration_phase;
use api::kubevirt::v1::{
    VirtualMachineInstance, VirtualMachineInstanceMigration as Migration, VirtualMachineInstanceMigrationState,
};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::api::storage::v1::StorageClass;
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;
use kit::Chain;
use kit::store::Key;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::claims::Claims;
use crate::facts::persistent_state::{
    LABEL, MIGRATION, find, is_kept, is_kept_by, keeps_tracking, migration_index, of, word,
};
use crate::facts::{index, launcher, migration_state as moving, trim};

/// A copy of the variables and of the TPM's state, with room for the next.
const SIZE: &str = "10Mi";
/// With layers of devices, too: each takes an 8192nd part of its device, and a bit for each 64 KiB and backup.
const SIZE_WITH_LAYERS: &str = "512Mi";
const SHARED: &str = "ReadWriteMany";
const SINGLE: &str = "ReadWriteOnce";

/// Makes the claim `name` the one that holds the state of the machine called so; the others go.
pub(crate) async fn establish(context: &Context, namespace: &str, machine: &str, name: &str) -> Result<(), Error> {
    let mark = |labels: Value| async move {
        let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
        let patch = Patch::Merge(json!({ "metadata": { "labels": labels } }));
        match api.patch(name, &PatchParams::default(), &patch).await {
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(Error::api("label", "persistentvolumeclaim", namespace, name)(error)),
            Ok(written) => {
                remember(context, written);
                Ok(())
            }
        }
    };
    mark(json!({ (LABEL): machine })).await?;
    let all = context.stores.claims.by_index(&word(namespace, machine));
    for old in all.iter().map(ResourceExt::name_any).filter(|old| old != name) {
        delete(context, namespace, &old).await?;
    }
    mark(json!({ (MIGRATION): null })).await
}

/// Adds to `claims` the one that holds the state of `vmi`, made if it has to be.
pub(crate) async fn ensure(context: &Context, vmi: &VirtualMachineInstance, claims: &mut Claims) -> Result<(), Error> {
    if !is_kept_by(vmi) || of(vmi, claims).is_some() {
        return Ok(());
    }
    let suffix = launcher::suffix(&vmi.uid().unwrap_or_default());
    match create(context, vmi, &suffix, (LABEL, &vmi.name_any())).await {
        Ok(made) => {
            claims.insert(made.name_any(), made);
            Ok(())
        }
        // What changes on devices is tracked all the same, until the pod ends.
        Err(Error::NoStateStorage(_)) if !is_kept(&vmi.spec) => Ok(()),
        Err(error) => Err(error),
    }
}

/// The claims of `vmi` where `migration` takes it: with one of its own for the state.
pub(crate) async fn at_target(
    context: &Context,
    vmi: &VirtualMachineInstance,
    migration: &Migration,
    claims: &mut Claims,
) -> Result<(), Error> {
    // A guest that was started without one for its layers has none of them there either.
    if !is_kept(&vmi.spec) && (!keeps_tracking(vmi) || of(vmi, claims).is_none()) {
        return Ok(());
    }
    let suffix = launcher::suffix(&migration.uid().unwrap_or_default());
    let mut made = create(context, vmi, &suffix, (MIGRATION, &migration.name_any())).await?;
    // The target's pod finds it as every other finds its own.
    made.labels_mut().insert(LABEL.to_owned(), vmi.name_any());
    claims.retain(|_, claim| claim.labels().get(LABEL) != vmi.metadata.name.as_ref());
    claims.insert(made.name_any(), made);
    Ok(())
}

/// Says in `state` which claims hold what `guest` keeps, where it is and where `migration` takes it.
pub(crate) fn tell(
    context: &Context,
    (migration, guest): (&Migration, &VirtualMachineInstance),
    state: &mut VirtualMachineInstanceMigrationState,
) {
    if !is_kept_by(guest) {
        return;
    }
    let namespace = guest.namespace().unwrap_or_default();
    let made = context.stores.claims.by_index(&migration_index(&namespace, &migration.name_any()));
    state.source_persistent_state_pvc_name =
        find(&context.stores.claims, &namespace, &guest.name_any()).map(|claim| claim.name_any());
    state.target_persistent_state_pvc_name = made.first().map(ResourceExt::name_any);
    if let Some(source) = &mut state.source_state {
        source.persistent_state_pvc_name.clone_from(&state.source_persistent_state_pvc_name);
    }
    if let Some(target) = &mut state.target_state {
        target.persistent_state_pvc_name.clone_from(&state.target_persistent_state_pvc_name);
    }
}

/// Once `migration` is over: the claim that the guest's state is in now is the machine's, and the other goes.
pub(crate) async fn settle(
    context: &Context,
    migration: &Migration,
    guest: Option<&VirtualMachineInstance>,
) -> Result<(), Error> {
    let namespace = migration.namespace().unwrap_or_default();
    let made = context.stores.claims.by_index(&migration_index(&namespace, &migration.name_any()));
    let Some(made) = made.into_iter().next() else { return Ok(()) };
    let uid = migration.uid().unwrap_or_default();
    let arrived = guest.and_then(|guest| moving::ours(guest, &uid)).is_some_and(moving::moved);
    let phase = migration.status.as_ref().and_then(|status| status.phase.as_deref());
    if !arrived && phase != Some(migration_phase::SUCCEEDED) {
        return delete(context, &namespace, &made.name_any()).await;
    }
    let machine = migration.spec.vmi_name.clone().unwrap_or_default();
    establish(context, &namespace, &machine, &made.name_any()).await
}

fn remember(context: &Context, mut claim: PersistentVolumeClaim) -> PersistentVolumeClaim {
    claim.metadata.managed_fields = None;
    let words = index::claim_indexes(&claim);
    trim::claim(&mut claim);
    context.stores.claims.put(&claim, words);
    claim
}

async fn delete(context: &Context, namespace: &str, name: &str) -> Result<(), Error> {
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    match api.delete(name, &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("delete", "persistentvolumeclaim", namespace, name)(error)),
        Ok(_) => Ok(()),
    }
}

async fn create(
    context: &Context,
    vmi: &VirtualMachineInstance,
    suffix: &str,
    label: (&str, &str),
) -> Result<PersistentVolumeClaim, Error> {
    let namespace = vmi.namespace().unwrap_or_default();
    let (class, mode) = match storage(context).await? {
        Ok(storage) => storage,
        Err(why) => {
            context.recorder.warning(&reference(vmi), "FailedBackendStorageCreate", why.clone());
            return Err(Error::NoStateStorage(why));
        }
    };
    let claim = claim(vmi, suffix, label, (&class, mode));
    let name = claim.name_any();
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    let made = match api.create(&PostParams::default(), &claim).await {
        // Made by an earlier look whose result the watch has not brought yet.
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => api.get(&name).await,
        made => made,
    };
    made.map(|made| remember(context, made)).map_err(|error| {
        let message = format!("Failed to create backend storage PVC {name}: {}", Chain(&error));
        context.recorder.warning(&reference(vmi), "FailedBackendStorageCreate", message);
        Error::api("create", "persistentvolumeclaim", &namespace, &name)(error)
    })
}

/// The claim for the state of `vmi`. It goes with the machine; that of an instance that nobody made, with the instance. Pure.
fn claim(
    vmi: &VirtualMachineInstance,
    suffix: &str,
    label: (&str, &str),
    (class, mode): (&str, &str),
) -> PersistentVolumeClaim {
    let name = vmi.name_any();
    let room = 253 - LABEL.len() - suffix.len() - 2;
    let short = name[..name.len().min(room)].trim_end_matches(['-', '.']);
    let owners = match vmi.owner_references() {
        [] => vec![OwnerReference {
            api_version: "kubevirt.io/v1".to_owned(),
            kind: "VirtualMachineInstance".to_owned(),
            name: name.clone(),
            uid: vmi.uid().unwrap_or_default(),
            controller: Some(true),
            block_owner_deletion: Some(true),
        }],
        owners => owners.to_vec(),
    };
    let mut claim = PersistentVolumeClaim::default();
    claim.metadata.name = Some(format!("{LABEL}-{short}-{suffix}"));
    claim.metadata.namespace = vmi.namespace();
    claim.metadata.labels = Some([(label.0.to_owned(), label.1.to_owned())].into());
    claim.metadata.owner_references = Some(owners);
    let spec = claim.spec.get_or_insert_default();
    spec.access_modes = Some(vec![mode.to_owned()]);
    spec.storage_class_name = Some(class.to_owned());
    spec.volume_mode = Some("Filesystem".to_owned());
    let size = Quantity(if keeps_tracking(vmi) { SIZE_WITH_LAYERS } else { SIZE }.to_owned());
    spec.resources.get_or_insert_default().requests = Some([("storage".to_owned(), size)].into());
    claim
}

/// The class and the access mode of such claims; why there are none, where there is no class.
async fn storage(context: &Context) -> Result<Result<(String, &'static str), String>, Error> {
    context.stores.storage_classes.synced().await;
    let named = context.settings().vm_state_storage_class;
    let Some(class) = named.clone().or_else(|| default_class(&context.stores.storage_classes.list())) else {
        return Ok(Err("no default storage class found: name one in the KubeVirt object's \
                       spec.configuration.vmStateStorageClass"
            .to_owned()));
    };
    if !context.stores.storage_classes.contains(&Key::new("", class.as_str())) {
        return Ok(Err(format!(
            "storage class {class} of the KubeVirt object's spec.configuration.vmStateStorageClass does not exist"
        )));
    }
    let api: Api<StorageProfile> = Api::all(context.client.clone());
    let profile = match api.get_opt(&class).await {
        Ok(profile) => profile,
        // Where there is no such kind, nothing is known of the class.
        Err(kube::Error::Api(status)) if status.code == 404 => None,
        Err(error) => return Err(Error::api("read", "storageprofile", "", &class)(error)),
    };
    Ok(Ok((class, access(profile.as_ref(), named.is_some()))))
}

/// The class that is taken when nobody names one. Pure.
fn default_class(classes: &[StorageClass]) -> Option<String> {
    let marked = |key: &str| {
        let mut marked =
            classes.iter().filter(|class| class.annotations().get(key).is_some_and(|value| value == "true"));
        marked.next().map(ResourceExt::name_any)
    };
    marked("storageclass.kubevirt.io/is-default-virt-class")
        .or_else(|| marked("storageclass.kubernetes.io/is-default-class"))
}

/// The access mode that the profile of the class offers for file systems, the widest first. Pure.
fn access(profile: Option<&StorageProfile>, named: bool) -> &'static str {
    let sets = profile.and_then(|profile| profile.status.as_ref()).map(|status| status.claim_property_sets.as_slice());
    let of_files = sets.unwrap_or_default().iter().filter(|set| set.volume_mode == "Filesystem");
    let modes: Vec<&str> = of_files.flat_map(|set| &set.access_modes).map(String::as_str).collect();
    match modes.as_slice() {
        modes if modes.contains(&SHARED) => SHARED,
        modes if modes.contains(&SINGLE) => SINGLE,
        _ if named => SHARED,
        _ => SINGLE,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_class_of_virtual_machines_comes_first() {
        let class = |name: &str, mark: &str| -> StorageClass {
            let annotations = json!({ (mark): "true" });
            let object = json!({ "metadata": { "name": name, "annotations": annotations }, "provisioner": "p" });
            serde_json::from_value(object).unwrap()
        };
        let usual = class("a", "storageclass.kubernetes.io/is-default-class");
        let virt = class("b", "storageclass.kubevirt.io/is-default-virt-class");
        assert_eq!(default_class(&[usual.clone(), virt]).as_deref(), Some("b"));
        assert_eq!(default_class(&[usual]).as_deref(), Some("a"));
        assert_eq!(default_class(&[class("c", "else")]), None);
    }

    #[test]
    fn the_widest_access_that_the_class_offers() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(sets: Value, named: bool, expect: &str) {
            let object = json!({ "metadata": {}, "spec": {}, "status": { "claimPropertySets": sets } });
            let profile: StorageProfile = serde_json::from_value(object).unwrap();
            assert_eq!(access(Some(&profile), named), expect);
        }
        let set = |mode: &str, access: &str| json!({ "volumeMode": mode, "accessModes": [access] });
        check(json!([]), false, SINGLE);
        check(json!([]), true, SHARED);
        check(json!([set("Filesystem", SINGLE), set("Filesystem", SHARED)]), false, SHARED);
        check(json!([set("Filesystem", SINGLE), set("Block", SHARED)]), true, SINGLE);
    }

    #[test]
    fn a_claim_goes_with_its_machine() {
        let owner = json!([{ "apiVersion": "kubevirt.io/v1", "kind": "VirtualMachine", "name": "vm", "uid": "m" }]);
        let mut object = json!({ "metadata": { "name": "vm", "uid": "u", "ownerReferences": owner }, "spec": { "domain": { "devices": {} } } });
        let of = |object: &Value| {
            let vmi = serde_json::from_value(object.clone()).unwrap();
            claim(&vmi, "abcde", (LABEL, "vm"), ("fast", SINGLE))
        };
        let made = of(&object);
        assert_eq!(made.name_any(), "persistent-state-for-vm-abcde");
        assert_eq!(made.owner_references()[0].uid, "m");
        object["metadata"]["ownerReferences"] = json!([]);
        assert_eq!(of(&object).owner_references()[0].uid, "u");
        let size = |claim: &PersistentVolumeClaim| json!(claim)["spec"]["resources"]["requests"]["storage"].clone();
        assert_eq!(size(&made), "10Mi");
        object["status"] = json!({ "changedBlockTracking": { "state": "Initializing" } });
        assert_eq!(size(&of(&object)), "512Mi");
    }
}
