//! What a machine had chosen when it was snapshotted: a snapshot keeps copies of the revisions of its instance type and its preference, and a
//! restore gives copies of those to its target, which goes on with them whatever becomes of snapshot and source.
//!
//! ```text
//! revision of the source --keep--> vmsnapshot-UID-…, of the snapshot --give--> TARGET-…, of the restore --hand over--> of the target
//! ```

use api::kubevirt::v1::{VirtualMachine, VirtualMachineSpec};
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot};
use instancetype::{Family, find, revision};
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;

use crate::context::Context;
use crate::error::Error;

const KIND: &str = "controllerrevision";

/// What the revisions of `snapshot` are called after.
fn holder(snapshot: &VirtualMachineSnapshot) -> String {
    format!("vmsnapshot-{}", snapshot.uid().unwrap_or_default())
}

/// The revision that `spec` names, or that the status of `vm` has of what it names.
fn chosen(spec: &VirtualMachineSpec, vm: Option<&VirtualMachine>, family: Family) -> Option<String> {
    let matcher = family.named_by(spec)?;
    let named = Some(matcher.revision.as_str()).filter(|name| !name.is_empty());
    named.or_else(|| find::kept(vm?, family, &matcher)).map(str::to_owned)
}

fn choose(spec: &mut VirtualMachineSpec, family: Family, revision: String) {
    match family {
        Family::Instancetype => {
            if let Some(matcher) = &mut spec.instancetype {
                matcher.revision_name = Some(revision);
            }
        }
        Family::Preference => {
            if let Some(matcher) = &mut spec.preference {
                matcher.revision_name = Some(revision);
            }
        }
    }
}

/// Whose `object` is, for as long as it is there.
fn owned_by<K: Resource<DynamicType = ()>>(object: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: object.meta().name.clone().unwrap_or_default(),
        uid: object.meta().uid.clone().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// `held` once more, called after `holder`; none where it keeps no instance type and no preference.
fn copy(held: &ControllerRevision, holder: &str, owner: OwnerReference) -> Option<ControllerRevision> {
    held.labels().get(&revision::label("object-kind"))?;
    let data = held.data.clone()?;
    Some(ControllerRevision {
        metadata: ObjectMeta {
            name: Some(revision::name(holder, &data.0)),
            namespace: held.metadata.namespace.clone(),
            labels: held.metadata.labels.clone(),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        },
        data: Some(data),
        revision: 0,
    })
}

/// Makes `wanted`; one that is there already has to keep the same.
async fn make(client: &Client, wanted: &ControllerRevision) -> Result<(), Error> {
    let (namespace, name) = (wanted.namespace().unwrap_or_default(), wanted.name_any());
    let api: Api<ControllerRevision> = Api::namespaced(client.clone(), &namespace);
    match api.create(&PostParams::default(), wanted).await {
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {}
        made => return made.map(drop).map_err(Error::api("create", KIND, &namespace, &name)),
    }
    let held = api.get(&name).await.map_err(Error::api("read", KIND, &namespace, &name))?;
    if wanted.data.as_ref().is_some_and(|data| revision::is_of(&held, &data.0)) {
        return Ok(());
    }
    Err(Error::Chosen(format!("found existing ControllerRevision with unexpected data: {name}")))
}

/// Has `spec`, which `snapshot` keeps of `vm`, name revisions of the snapshot's own. What names no revision that is there is kept as it is.
pub(crate) async fn keep(
    context: &Context,
    snapshot: &VirtualMachineSnapshot,
    vm: &VirtualMachine,
    spec: &mut VirtualMachineSpec,
) -> Result<(), Error> {
    let namespace = snapshot.namespace().unwrap_or_default();
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    for family in Family::ALL {
        let Some(name) = chosen(spec, Some(vm), family) else { continue };
        let held = api.get_opt(&name).await.map_err(Error::api("read", KIND, &namespace, &name))?;
        let Some(wanted) = held.and_then(|held| copy(&held, &holder(snapshot), owned_by(snapshot))) else { continue };
        make(&context.client, &wanted).await?;
        choose(spec, family, wanted.name_any());
    }
    Ok(())
}

/// Has `wanted`, the machine that `restore` makes of `snapshot`, name revisions of its own, which are the restore's until they are handed over.
pub(crate) async fn give(
    context: &Context,
    restore: &VirtualMachineRestore,
    snapshot: &VirtualMachineSnapshot,
    wanted: &mut VirtualMachine,
) -> Result<(), Error> {
    let (namespace, target) = (restore.namespace().unwrap_or_default(), wanted.name_any());
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    let prefix = format!("{}-", holder(snapshot));
    for family in Family::ALL {
        let Some(name) = chosen(&wanted.spec, None, family).filter(|name| name.starts_with(&prefix)) else { continue };
        let held = api.get(&name).await.map_err(Error::api("read", KIND, &namespace, &name))?;
        let Some(given) = copy(&held, &target, owned_by(restore)) else { continue };
        make(&context.client, &given).await?;
        choose(&mut wanted.spec, family, given.name_any());
    }
    Ok(())
}

/// Has the revisions that `restore` has given to `vm` go with it.
pub(crate) async fn hand_over(
    context: &Context,
    restore: &VirtualMachineRestore,
    vm: &VirtualMachine,
) -> Result<(), Error> {
    let namespace = restore.namespace().unwrap_or_default();
    let api: Api<ControllerRevision> = Api::namespaced(context.client.clone(), &namespace);
    for name in Family::ALL.into_iter().filter_map(|family| chosen(&vm.spec, None, family)) {
        let held = api.get_opt(&name).await.map_err(Error::api("read", KIND, &namespace, &name))?;
        let ours = |held: &ControllerRevision| {
            held.owner_references().iter().any(|owner| Some(&owner.uid) == restore.metadata.uid.as_ref())
        };
        let Some(held) = held.filter(ours) else { continue };
        let metadata = json!({ "resourceVersion": held.resource_version(), "ownerReferences": [owned_by(vm)] });
        let patch = Patch::Merge(json!({ "metadata": metadata }));
        let written = api.patch(&name, &PatchParams::default(), &patch).await;
        written.map_err(Error::api("hand over", KIND, &namespace, &name))?;
    }
    Ok(())
}
