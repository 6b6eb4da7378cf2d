//! Gives addresses back that nobody has, by one replica at a time.

use std::fmt::Debug;
use std::time::Duration;

use api::kubevirt::v1::{VirtualMachine, VirtualMachineInstance};
use k8s_openapi::NamespaceResourceScope;
use k8s_openapi::api::core::v1::Pod;
use kit::queue::Next;
use kit::{Chain, clock};
use kube::api::ListParams;
use kube::core::PartialObjectMeta;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;

use super::grant::give_back;
use super::mac::Mac;
use super::mirror::Mirror;
use super::pool::Due;
use super::reservation::{Kind, Object, Reservation};
use super::{machine, pod};

/// How many objects are read at a time, where the owner's name is not known.
const PAGE: u32 = 100;
/// When to look again at what the API server says is used: the watch will have told by then.
const AGAIN: Duration = Duration::from_secs(60);

/// Gives `mac` back if nobody has it and no request with it can be stored any more; requests are over after `wait`.
pub(super) async fn look(mirror: &Mirror, mac: Mac, wait: Duration) -> Next {
    let due = mirror.pool().due(mac, clock::now(), wait);
    let reservation = match due {
        Due::Kept => return Next::Wait,
        Due::In(left) => return Next::After(left),
        Due::Now(reservation) => reservation,
    };
    match release(mirror, &reservation).await {
        Ok(true) => Next::Wait,
        Ok(false) => Next::After(AGAIN),
        Err(error) => {
            tracing::warn!(%mac, owner = %reservation.owner, error = %Chain(&error), "address not given back, will retry");
            Next::Retry
        }
    }
}

/// False when its owner has it after all.
async fn release(mirror: &Mirror, reservation: &Reservation) -> kube::Result<bool> {
    if owner_has(&mirror.client, reservation).await? {
        return Ok(false);
    }
    give_back(&Api::namespaced(mirror.client.clone(), &mirror.namespace), reservation).await?;
    Ok(true)
}

/// True when the owner has the address, as the API server says: the watches may be behind.
async fn owner_has(client: &Client, reservation: &Reservation) -> kube::Result<bool> {
    let (owner, mac) = (&reservation.owner, reservation.mac);
    match owner.kind {
        Kind::VirtualMachine => any(client, owner, |vm: &VirtualMachine| machine::addresses(vm).contains(&mac)).await,
        Kind::VirtualMachineInstance => {
            let has = |vmi: &VirtualMachineInstance| machine::running_addresses(vmi).contains(&mac);
            any(client, owner, has).await
        }
        Kind::Pod => any_pod(client, owner, mac).await,
    }
}

async fn any<K>(client: &Client, owner: &Object, has: impl Fn(&K) -> bool) -> kube::Result<bool>
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope> + Clone + DeserializeOwned + Debug,
{
    let api: Api<K> = Api::namespaced(client.clone(), &owner.namespace);
    if !owner.name.is_empty() {
        return Ok(api.get_opt(&owner.name).await?.is_some_and(|object| has(&object)));
    }
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = match api.list(&page).await {
            Ok(list) => list,
            // The kind is gone, and all objects with it.
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(false),
            Err(error) => return Err(error),
        };
        if list.items.iter().any(&has) {
            return Ok(true);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(false),
        }
    }
}

/// All there is to know of a pod is in its metadata.
async fn any_pod(client: &Client, owner: &Object, mac: Mac) -> kube::Result<bool> {
    let api: Api<Pod> = Api::namespaced(client.clone(), &owner.namespace);
    let has = |pod: &PartialObjectMeta<Pod>| {
        pod.annotations().get(pod::NETWORKS).is_some_and(|networks| pod::addresses(networks).contains(&mac))
    };
    if !owner.name.is_empty() {
        return Ok(api.get_metadata_opt(&owner.name).await?.is_some_and(|pod| has(&pod)));
    }
    let mut page = ListParams::default().limit(PAGE);
    loop {
        let list = api.list_metadata(&page).await?;
        if list.items.iter().any(has) {
            return Ok(true);
        }
        match list.metadata.continue_.filter(|token| !token.is_empty()) {
            Some(token) => page = page.continue_token(&token),
            None => return Ok(false),
        }
    }
}
