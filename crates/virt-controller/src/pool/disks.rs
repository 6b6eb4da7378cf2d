//! Disks that outlive their machine: the machine that gets its number later finds them.

use api::cdi::v1beta1::DataVolume;
use api::kubevirt::v1::VirtualMachine;
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::store::Key;
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use crate::context::Context;
use crate::error::Error;
use crate::facts::{data_volumes, persistent_state};
use crate::replicas;

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
            free::<DataVolume>(context, "datavolume", &namespace, name, &uid).await?;
        }
    }
    for name in &claims {
        free::<PersistentVolumeClaim>(context, "persistentvolumeclaim", &namespace, name, &uid).await?;
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
