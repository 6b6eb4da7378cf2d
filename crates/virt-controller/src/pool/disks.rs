//! Disks that outlive their machine: the machine that gets its number later finds them.

use api::cdi::v1beta1::DataVolume;
use api::kubevirt::constants::label;
use api::kubevirt::v1::VirtualMachine;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Key;
use kube::api::{Patch, PatchParams};
use kube::core::{NamespaceResourceScope, ObjectMeta};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::context::Context;
use crate::error::Error;
use crate::facts::{data_volumes, persistent_state};
use crate::{replicas, vm};

const DATA: &str = "datavolume";
const CLAIM: &str = "persistentvolumeclaim";

/// Makes the disks of `vm`, and what its guest keeps beside them, nobody's.
pub(crate) async fn keep(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
    let Key { namespace, name } = Key::of(vm);
    let uid = vm.uid().unwrap_or_default();
    let volumes = vm.spec.template.spec.iter().flat_map(|spec| &spec.volumes);
    let mut claims: Vec<String> = volumes.filter_map(|volume| volume.own_claim()).map(str::to_owned).collect();
    let state = persistent_state::find(&context.stores.claims, &namespace, &name);
    claims.extend(state.map(|claim| claim.name_any()));
    let data: Vec<String> = data_volumes::names(vm).map(str::to_owned).collect();
    for name in &data {
        // Where there are no data volumes, none is known.
        if context.stores.data_volumes.contains(&Key::new(namespace.as_str(), name.as_str())) {
            free::<DataVolume>(context, DATA, &namespace, name, &uid).await?;
        }
    }
    for name in &claims {
        free::<PersistentVolumeClaim>(context, CLAIM, &namespace, name, &uid).await?;
    }
    Ok(())
}

async fn free<K>(context: &Context, kind: &'static str, namespace: &str, name: &str, uid: &str) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let api: Api<K> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(Error::api("read", kind, namespace, name))?;
    let Some(object) = found.filter(|object| object.owner_references().iter().any(|owner| owner.uid == uid)) else {
        return Ok(());
    };
    let left = object.owner_references().iter().filter(|owner| owner.uid != uid).cloned().collect();
    replicas::set_owners(&context.client, (kind, &object), left).await.map(drop)
}

/// Gives the data volumes that machines with the numbers of `machines` left behind to these.
pub(crate) async fn take_in(context: &Context, machines: &[VirtualMachine]) -> Option<Error> {
    let there = machines.iter().filter(|vm| vm.metadata.deletion_timestamp.is_none());
    let left = there.flat_map(|vm| {
        let namespace = vm.namespace().unwrap_or_default();
        let found = move |name: &str| context.stores.data_volumes.get(&Key::new(namespace.as_str(), name));
        templates(vm).filter_map(found).filter(move |data| is_left(&data.metadata, vm)).map(move |data| (vm, data))
    });
    let (taken, failure) =
        replicas::each(left.collect(), |(vm, data)| async move { give(context, DATA, &data, vm).await }).await;
    for mut data in taken.into_iter().flatten() {
        data.metadata.managed_fields = None;
        context.stores.data_volumes.put(&data, Vec::new());
    }
    failure
}

/// Gives the claims without data volumes that a machine with the number of `vm`, which was made just now, left behind to it, and what its guest kept.
pub(crate) async fn take_in_claims(context: &Context, vm: &VirtualMachine) -> Result<(), Error> {
    let Key { namespace, name: machine } = Key::of(vm);
    let key = |name: &str| Key::new(namespace.as_str(), name);
    let bare = templates(vm).map(key).filter(|key| !context.stores.data_volumes.contains(key));
    let mut left: Vec<String> = bare.filter(|key| context.stores.claims.contains(key)).map(|key| key.name).collect();
    left.extend(persistent_state::find(&context.stores.claims, &namespace, &machine).map(|claim| claim.name_any()));
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    for name in left {
        let found = api.get_opt(&name).await.map_err(Error::api("read", CLAIM, &namespace, &name))?;
        let holds_state = |claim: &PersistentVolumeClaim| {
            claim.labels().get(persistent_state::LABEL) == Some(&machine) && is_free(&claim.metadata)
        };
        if let Some(claim) = found.filter(|claim| is_left(&claim.metadata, vm) || holds_state(claim)) {
            give(context, CLAIM, &claim, vm).await?;
        }
    }
    Ok(())
}

/// The names of the data volumes that are made for `vm`.
fn templates(vm: &VirtualMachine) -> impl Iterator<Item = &str> {
    let all = vm.spec.data_volume_templates.iter();
    all.filter_map(|template| template.metadata.as_ref()?.name.as_deref()).filter(|name| !name.is_empty())
}

fn is_free(metadata: &ObjectMeta) -> bool {
    metadata.owner_references.as_ref().is_none_or(Vec::is_empty) && metadata.deletion_timestamp.is_none()
}

/// True when this was made for a machine before `vm`, and is nobody's any more. What users made has no such label, and stays theirs.
fn is_left(metadata: &ObjectMeta, vm: &VirtualMachine) -> bool {
    let made_for = metadata.labels.as_ref().and_then(|labels| labels.get(label::CREATED_BY));
    is_free(metadata) && made_for.is_some_and(|uid| Some(uid) != vm.metadata.uid.as_ref())
}

/// Makes `object`, of this kind, a part of `vm`. None when it is gone.
async fn give<K>(context: &Context, kind: &'static str, object: &K, vm: &VirtualMachine) -> Result<Option<K>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let Key { namespace, name } = Key::of(object);
    let mut patch = json!({ "metadata": {
        "uid": object.uid(), "resourceVersion": object.resource_version(),
        "ownerReferences": [vm::instance::owner(vm)],
    } });
    if object.labels().contains_key(label::CREATED_BY) {
        patch["metadata"]["labels"] = json!({ (label::CREATED_BY): vm.uid() });
    }
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(given) => Ok(Some(given)),
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(Error::api("patch", kind, &namespace, &name)(error)),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, from_value};

    use super::*;

    #[test]
    fn only_what_was_made_for_a_machine_before_is_taken_in() {
        let vm: VirtualMachine =
            from_value(json!({ "metadata": { "name": "p-0", "uid": "new" }, "spec": { "template": {} } })).unwrap();
        let check = |metadata: Value, expect: bool| {
            assert_eq!(is_left(&from_value(metadata.clone()).unwrap(), &vm), expect, "{metadata}");
        };
        let by = |uid: &str| json!({ (label::CREATED_BY): uid });
        check(json!({ "labels": by("old") }), true);
        // Somebody made it their own, or let it go on purpose.
        check(json!({}), false);
        check(json!({ "labels": by("new") }), false);
        check(json!({ "labels": by("old"), "deletionTimestamp": "2026-01-01T00:00:00Z" }), false);
        let owner = json!([{ "apiVersion": "v1", "kind": "X", "name": "x", "uid": "x" }]);
        check(json!({ "labels": by("old"), "ownerReferences": owner }), false);
    }
}
