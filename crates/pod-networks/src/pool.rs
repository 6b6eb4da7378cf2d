//! Addresses that no two pods of the cluster have: `"ipam": {"type": "whereabouts"}`.
//!
//! Which are taken is in an IPPool of the API, one for each range, as the Whereabouts plugin keeps them; writes carry the
//! version they were computed from. The plugin that makes the interface gets what was found as static addresses.
//!
//! An address is held by the sandbox that took it, until it is stopped; or by a claim, until that is gone. Every pod that names the claim
//! gets the same one, also while another has it: the target of a migration is there before its source ends.

use std::net::IpAddr;

use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client};
use net::cni::Network;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::claim::{self, Claim};
use crate::range::{self, Range};
use crate::{Error, Result};

pub(crate) const KIND: &str = "whereabouts";
/// Where the pools are.
const NAMESPACE: &str = "kube-system";
/// Others write the same pool: as often is a write repeated that came too late.
const TRIES: u32 = 32;

/// An address that was taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Lease {
    pool: String,
    offset: String,
    /// The sandbox that took it.
    id: String,
}

/// For whom addresses are taken.
pub(crate) struct Taker<'a> {
    pub(crate) namespace: &'a str,
    pub(crate) pod: &'a str,
    pub(crate) sandbox: &'a str,
    pub(crate) interface: &'a str,
    /// What is to hold them instead of the sandbox.
    pub(crate) claim: Option<&'a Claim>,
}

impl Taker<'_> {
    /// What a pool says of who holds an address.
    fn allocation(&self) -> Value {
        match self.claim {
            Some(claim) => json!({ "id": claim.holder(), "podref": claim.path(), "ifname": self.interface }),
            None => {
                let podref = format!("{}/{}", self.namespace, self.pod);
                json!({ "id": self.sandbox, "podref": podref, "ifname": self.interface })
            }
        }
    }
}

/// Whether addresses on `network` can be held by a claim. The error is a sentence for the author of its definition.
pub(crate) fn keeps(network: &Network, persists: bool) -> std::result::Result<(), String> {
    if !persists {
        return Err(
            "addresses on this network do not outlive pods: write \"allowPersistentIPs\": true into its spec.config"
                .to_owned(),
        );
    }
    if !network.plugins.iter().any(|plugin| plugin["ipam"]["type"] == KIND) {
        return Err(format!(
            "addresses are kept in pools of the cluster alone: its spec.config needs \"ipam\": {{\"type\": {KIND:?}}}"
        ));
    }
    Ok(())
}

fn api(client: &Client) -> (Api<DynamicObject>, ApiResource) {
    let kind = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("whereabouts.cni.cncf.io", "v1alpha1", "IPPool"),
        "ippools",
    );
    (Api::namespaced_with(client.clone(), NAMESPACE, &kind), kind)
}

/// Takes an address of each range that the network names, and has the plugins use them. `leases` gets what was taken, also when
/// this fails later.
///
/// # Errors
/// When a range cannot be read, has no address left, or the API server cannot be asked.
pub(crate) async fn take(
    client: &Client,
    network: &mut Network,
    taker: &Taker<'_>,
    leases: &mut Vec<Lease>,
) -> Result<()> {
    let mut held: Vec<String> = Vec::new();
    for plugin in network.plugins.iter_mut().filter(|plugin| plugin["ipam"]["type"] == KIND) {
        let ranges = range::of(&plugin["ipam"]).map_err(Error::Invalid)?;
        let mut addresses = Vec::new();
        for range in &ranges {
            let address = allocate(client, range, taker, leases).await?;
            addresses.push(json!({ "address": address }));
            held.push(address);
        }
        if let (Some(first), Some(gateway)) = (addresses.first_mut(), plugin["ipam"]["gateway"].as_str()) {
            first["gateway"] = json!(gateway);
        }
        let routes = plugin["ipam"]["routes"].clone();
        plugin["ipam"] = json!({ "type": "static", "addresses": addresses });
        if routes.is_array() {
            plugin["ipam"]["routes"] = routes;
        }
    }
    match taker.claim {
        Some(claim) => claim::publish(client, claim, &held).await,
        None => Ok(()),
    }
}

async fn allocate(client: &Client, range: &Range, taker: &Taker<'_>, leases: &mut Vec<Lease>) -> Result<String> {
    let (api, kind) = api(client);
    let name = range.pool();
    for _ in 0..TRIES {
        let mut pool = match api.get_opt(&name).await.map_err(Error::api("read an IPPool"))? {
            Some(pool) => pool,
            None => {
                DynamicObject::new(&name, &kind).data(json!({ "spec": { "range": range.text(), "allocations": {} } }))
            }
        };
        if let Some(address) = taker.claim.and_then(|claim| held(&pool, range, claim)) {
            return Ok(address);
        }
        let said = taker.claim.map(|claim| said(range, claim)).transpose().map_err(Error::Invalid)?.flatten();
        let is_free = |pool: &DynamicObject| match &said {
            Some((offset, _)) => pool.data["spec"]["allocations"][offset].is_null(),
            None => range.free(&taken(pool)).is_some(),
        };
        if !is_free(&pool) {
            forget_the_gone(client, &mut pool).await;
        }
        let found = match (&said, taker.claim) {
            (Some((offset, address)), Some(claim)) if !is_free(&pool) => {
                return Err(Error::Invalid(of_another(claim, address, &pool.data["spec"]["allocations"][offset])));
            }
            (Some(said), _) => Some(said.clone()),
            (None, _) => range.free(&taken(&pool)),
        };
        let Some((offset, address)) = found else {
            return Err(Error::Invalid(format!("Could not allocate IP in range: {}: all are taken", range.text())));
        };
        pool.data["spec"]["allocations"][&offset] = taker.allocation();
        if write(&api, &name, &pool).await? {
            // What a claim holds stays when the sandbox goes.
            if taker.claim.is_none() {
                leases.push(Lease { pool: name, offset, id: taker.sandbox.to_owned() });
            }
            return Ok(address);
        }
    }
    Err(Error::Invalid(format!("IPPool {name}: others always write first")))
}

/// The address that the pool has for `claim`.
fn held(pool: &DynamicObject, range: &Range, claim: &Claim) -> Option<String> {
    let all = pool.data["spec"]["allocations"].as_object()?;
    let mine = all.iter().filter(|(_, allocation)| claim::uid_of(allocation) == Some(claim.uid.as_str()));
    mine.filter_map(|(offset, _)| offset.parse().ok()).find_map(|place| range.at(place))
}

/// The address that `claim` says it has in `range`, with its place. The error is a sentence for its owner.
fn said(range: &Range, claim: &Claim) -> std::result::Result<Option<(String, String)>, String> {
    let bare = |text: &String| text.split('/').next().and_then(|text| text.parse::<IpAddr>().ok());
    let all: Vec<IpAddr> = claim.ips.iter().filter_map(bare).collect();
    let found = all.iter().find_map(|address| range.place(*address));
    if let Some((place, address)) = found.and_then(|place| range.at(place).map(|address| (place, address))) {
        return Ok(Some((place.to_string(), address)));
    }
    match all.iter().find(|address| range.is_near(**address)) {
        None => Ok(None),
        Some(address) => Err(format!(
            "IPAMClaim {} has the address {address}, which the network's range {} does not give: widen the range, or delete the claim, and \
             there will be another",
            claim.path(),
            range.text()
        )),
    }
}

fn of_another(claim: &Claim, address: &str, allocation: &Value) -> String {
    let holder = match claim::uid_of(allocation) {
        Some(_) => "another IPAMClaim",
        None => "another pod",
    };
    format!(
        "IPAMClaim {} says that it has the address {address}, which {holder} has: delete the claim, and there will be another",
        claim.path()
    )
}

/// False when somebody else wrote meanwhile.
async fn write(api: &Api<DynamicObject>, name: &str, pool: &DynamicObject) -> Result<bool> {
    let params = PostParams::default();
    let written = match pool.metadata.resource_version {
        Some(_) => api.replace(name, &params, pool).await,
        None => api.create(&params, pool).await,
    };
    match written {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(false),
        Err(error) => Err(Error::api("write an IPPool")(error)),
    }
}

fn taken(pool: &DynamicObject) -> Vec<u128> {
    let all = pool.data["spec"]["allocations"].as_object();
    all.into_iter().flatten().filter_map(|(offset, _)| offset.parse().ok()).collect()
}

/// Drops what pods and claims hold that are no more: a pod's node may have been lost with it.
async fn forget_the_gone(client: &Client, pool: &mut DynamicObject) {
    let all = pool.data["spec"]["allocations"].as_object().cloned().unwrap_or_default();
    for (offset, allocation) in all {
        let podref = allocation["podref"].as_str().unwrap_or_default();
        let gone = match claim::uid_of(&allocation) {
            Some(uid) => claim::is_gone(client, podref, uid).await,
            None => pod_is_gone(client, podref).await,
        };
        if gone && let Some(left) = pool.data["spec"]["allocations"].as_object_mut() {
            left.remove(&offset);
        }
    }
}

async fn pod_is_gone(client: &Client, podref: &str) -> bool {
    let Some((namespace, name)) = podref.split_once('/') else { return false };
    let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client.clone(), namespace);
    // Whether a pod of another node is there may not be known here; that one is gone may.
    matches!(pods.get_opt(name).await, Ok(None))
}

/// Gives addresses back.
///
/// # Errors
/// When the API server cannot be asked.
pub(crate) async fn give_back(client: &Client, leases: &[Lease]) -> Result<()> {
    let (api, _) = api(client);
    for lease in leases {
        for _ in 0..TRIES {
            let Some(mut pool) = api.get_opt(&lease.pool).await.map_err(Error::api("read an IPPool"))? else { break };
            let own = |allocation: &Value| allocation["id"] == lease.id.as_str();
            let held = pool.data["spec"]["allocations"].as_object_mut();
            let removed =
                held.filter(|all| all.get(&lease.offset).is_some_and(own)).and_then(|all| all.remove(&lease.offset));
            if removed.is_none() || write(&api, &lease.pool, &pool).await? {
                break;
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
