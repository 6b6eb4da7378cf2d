//! Addresses that no two pods of the cluster have: `"ipam": {"type": "whereabouts"}`.
//!
//! Which are taken is in an IPPool of the API, one for each range, as the Whereabouts plugin keeps them; writes carry the
//! version they were computed from. The plugin that makes the interface gets what was found as static addresses.

use kube::{Api, Client};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use net::cni::Network;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

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
    for plugin in network.plugins.iter_mut().filter(|plugin| plugin["ipam"]["type"] == KIND) {
        let ranges = range::of(&plugin["ipam"]).map_err(Error::Invalid)?;
        let mut addresses = Vec::new();
        for range in &ranges {
            addresses.push(json!({ "address": allocate(client, range, taker, leases).await? }));
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
    Ok(())
}

async fn allocate(client: &Client, range: &Range, taker: &Taker<'_>, leases: &mut Vec<Lease>) -> Result<String> {
    let (api, kind) = api(client);
    let name = range.pool();
    let podref = format!("{}/{}", taker.namespace, taker.pod);
    for _ in 0..TRIES {
        let mut pool = match api.get_opt(&name).await.map_err(Error::api("read an IPPool"))? {
            Some(pool) => pool,
            None => {
                DynamicObject::new(&name, &kind).data(json!({ "spec": { "range": range.text(), "allocations": {} } }))
            }
        };
        let mut taken = taken(&pool);
        if range.free(&taken).is_none() {
            forget_the_gone(client, &mut pool).await;
            taken = self::taken(&pool);
        }
        let Some((offset, address)) = range.free(&taken) else {
            return Err(Error::Invalid(format!("Could not allocate IP in range: {}: all are taken", range.text())));
        };
        let mine = json!({ "id": taker.sandbox, "podref": podref, "ifname": taker.interface });
        pool.data["spec"]["allocations"][&offset] = mine;
        if write(&api, &name, &pool).await? {
            leases.push(Lease { pool: name, offset, id: taker.sandbox.to_owned() });
            return Ok(address);
        }
    }
    Err(Error::Invalid(format!("IPPool {name}: others always write first")))
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

/// Drops what pods hold that are no more: their node may have been lost with them.
async fn forget_the_gone(client: &Client, pool: &mut DynamicObject) {
    let all = pool.data["spec"]["allocations"].as_object().cloned().unwrap_or_default();
    for (offset, allocation) in all {
        let Some((namespace, name)) = allocation["podref"].as_str().and_then(|podref| podref.split_once('/')) else {
            continue;
        };
        let pods: Api<k8s_openapi::api::core::v1::Pod> = Api::namespaced(client.clone(), namespace);
        // Whether a pod of another node is there may not be known here; that one is gone may.
        if matches!(pods.get_opt(name).await, Ok(None))
            && let Some(left) = pool.data["spec"]["allocations"].as_object_mut()
        {
            left.remove(&offset);
        }
    }
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
