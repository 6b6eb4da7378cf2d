//! The stand-ins of a migration, made before its target pod is; claims that somebody chose are taken as they are.

use std::collections::BTreeMap;

use api::kubevirt::v1::{VirtualMachineInstance, VirtualMachineInstanceMigration as Migration};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Key;
use kube::api::PostParams;
use kube::{Api, ResourceExt};

use super::steps;
use crate::context::{Context, reference};
use crate::error::Error;
use crate::facts::claims::Claims;
use crate::facts::{stand_ins, volumes_change};

/// The claims of `guest`, and the stand-ins that `migration` has for them as far as they are there.
pub(crate) fn claims(context: &Context, guest: &VirtualMachineInstance, migration: &str) -> Claims {
    let mut known = context.claims_of(guest);
    let namespace = guest.namespace().unwrap_or_default();
    let mut names: Vec<String> =
        known.values().map(|source| stand_ins::name(&stand_ins::root(source), migration)).collect();
    names.extend(volumes_change::asked(guest).iter().map(|moved| volumes_change::destination(moved).to_owned()));
    for name in names {
        if let Some(stand_in) = context.stores.claims.get(&Key::new(namespace.as_str(), &*name)) {
            known.insert(name, stand_in);
        }
    }
    known
}

/// Makes the stand-ins of `migration` that are not there; `guest` as it will be on the target.
pub(crate) async fn stand_ins(
    context: &Context,
    migration: &Migration,
    guest: &VirtualMachineInstance,
) -> Result<VirtualMachineInstance, Error> {
    let (job, namespace) = (migration.uid().unwrap_or_default(), guest.namespace().unwrap_or_default());
    let known = context.claims_of(guest);
    let mut renamed = BTreeMap::new();
    for used in stand_ins::copied(guest, &known) {
        let Some(source) = known.get(used.claim) else { continue };
        if let Some(chosen) = volumes_change::destination_of(guest, used.volume) {
            renamed.insert(used.volume.to_owned(), chosen.to_owned());
            continue;
        }
        let name = stand_ins::root(source);
        // One that is gone meanwhile takes the guest's disk with it as soon as the guest ends.
        let Some(root) = context.stores.claims.get(&Key::new(namespace.as_str(), &*name)) else { continue };
        let wanted = stand_ins::stand_in(&root, source, &guest.uid().unwrap_or_default(), &job);
        renamed.insert(used.volume.to_owned(), wanted.name_any());
        create(context, migration, &wanted).await?;
    }
    Ok(stand_ins::on(guest, |used| renamed.get(used.volume).cloned()))
}

async fn create(context: &Context, migration: &Migration, claim: &PersistentVolumeClaim) -> Result<(), Error> {
    let (namespace, name) = (claim.namespace().unwrap_or_default(), claim.name_any());
    let api: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), &namespace);
    let created = match api.create(&PostParams::default(), claim).await {
        Ok(created) => {
            let said = format!("Created claim {name}, to copy the disk on claim {} into", stand_ins::root(claim));
            context.recorder.normal(&reference(migration), "SuccessfulCreate", said);
            created
        }
        Err(kube::Error::Api(status)) if status.code == 409 && status.reason == "AlreadyExists" => {
            api.get(&name).await.map_err(Error::api("read", "persistentvolumeclaim", &namespace, &name))?
        }
        Err(error) => return Err(Error::api("create", "persistentvolumeclaim", &namespace, &name)(error)),
    };
    steps::known(context, created);
    Ok(())
}
