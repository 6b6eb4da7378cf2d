//! What a pod's claims of devices say about where it can run: the one place where the scheduler looks at devices.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kit::controller::placement;
use kit::store::Key;

use super::verdict::{Plugin, Refusal};
use crate::context::Context;
use crate::devices::allocate::allocate;
use crate::devices::claims::{self, Named, belongs_to, consumers, is_used_by_others};
use crate::devices::inventory::{Id, Inventory};
use crate::devices::kinds::{Allocation, DeviceClass, ResourceClaim, ResourceSlice};
use crate::devices::order::{Order, REQUESTS};
use crate::devices::reserve::CONSUMERS;
pub(crate) use crate::devices::reserve::{Share, write};

/// The devices of the cluster, read off the slices once for each change of them, and what of them is being given.
#[derive(Default)]
pub(crate) struct Shelf {
    inventory: Mutex<Option<Arc<Inventory>>>,
    /// By the uid of the claim, from the decision until the store has what was written of it. In the store itself a decision
    /// would not last: whoever writes anything else of the claim meanwhile would take it away there.
    given: Mutex<Given>,
}

type Given = HashMap<String, (String, Allocation)>;

impl Shelf {
    /// The slices have changed.
    pub(crate) fn clear(&self) {
        *self.inventory.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    fn inventory(&self, ctx: &Context) -> Arc<Inventory> {
        let mut known = self.inventory.lock().unwrap_or_else(PoisonError::into_inner);
        known.get_or_insert_with(|| Arc::new(Inventory::of(&ctx.store::<ResourceSlice>().all()))).clone()
    }

    fn given(&self) -> MutexGuard<'_, Given> {
        self.given.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps the devices from other pods, before anything is written.
    pub(crate) fn give(&self, shares: &[Share], pod: &Pod) {
        let mut given = self.given();
        for share in shares {
            if let Some(allocation) = &share.allocation {
                given.insert(uid(&share.claim.metadata), (uid(&pod.metadata), allocation.clone()));
            }
        }
    }

    /// The store has what became of what the pod was given.
    pub(crate) fn settle(&self, pod: &Pod) {
        let user = uid(&pod.metadata);
        self.given().retain(|_, (known, _)| *known != user);
    }
}

fn uid(meta: &ObjectMeta) -> String {
    meta.uid.clone().unwrap_or_default()
}

/// The claims of a pod, and what they could have.
#[derive(Default)]
pub(crate) struct PodDevices {
    /// Those that have their devices.
    allocated: Vec<Arc<ResourceClaim>>,
    /// Those that need some.
    order: Order,
    inventory: Arc<Inventory>,
    taken: HashSet<Id>,
    /// Steps of the search on the nodes that were looked at.
    spent: Cell<usize>,
}

impl PodDevices {
    /// # Errors
    /// Why the pod can run nowhere now.
    pub(crate) fn read(ctx: &Context, shelf: &Shelf, pod: &Pod) -> Result<Self, String> {
        let mut devices = Self::default();
        // Before the store is read: what is no longer among it is there.
        let given = shelf.given().clone();
        let mut open: Vec<Arc<ResourceClaim>> = Vec::new();
        let many = claims::of(pod).count();
        if many > REQUESTS {
            return Err(format!("the pod has {many} resourceclaims, and may have {REQUESTS}"));
        }
        for (name, named) in claims::of(pod) {
            let claim = find(ctx, pod, name, named)?;
            if given.get(&uid(&claim.metadata)).is_some_and(|(user, _)| *user != uid(&pod.metadata)) {
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                return Err(format!("resourceclaim {name:?} is being given devices for another pod"));
            }
            let known = open.iter().chain(&devices.allocated).any(|other| other.metadata.uid == claim.metadata.uid);
            // What nobody else uses may get other devices: it is the pod's own from an earlier attempt, or no one's.
            let has = claim.status.as_ref().is_some_and(|status| status.allocation.is_some());
            match has && is_used_by_others(&claim, pod) {
                _ if known => {}
                true => devices.allocated.push(claim),
                false => open.push(claim),
            }
        }
        if open.is_empty() {
            return Ok(devices);
        }
        devices.inventory = shelf.inventory(ctx);
        devices.taken = taken(&ctx.store::<ResourceClaim>().all(), &given, &open);
        let class = |name: &str| ctx.store::<DeviceClass>().get(&Key::new("", name)).map(|class| class.spec.clone());
        devices.order = Order::of(open, &class, &devices.inventory)?;
        Ok(devices)
    }

    /// Why the devices cannot be had on the node.
    pub(crate) fn refusal(&self, node: &Node) -> Option<Refusal> {
        let refuse = |why: String| Some(Refusal::new(Plugin::Devices, format!("node(s) {why}"), false));
        for claim in &self.allocated {
            let allocation = claim.status.as_ref().and_then(|status| status.allocation.as_ref());
            let selector = allocation.and_then(|allocation| allocation.node_selector.as_ref());
            let here = selector.is_none_or(|s| s.node_selector_terms.iter().any(|t| placement::term_matches(t, node)));
            if !here {
                let name = claim.metadata.name.as_deref().unwrap_or_default();
                return refuse(format!("cannot reach the devices of resourceclaim {name:?}"));
            }
        }
        if self.order.items.is_empty() {
            return None;
        }
        allocate(&self.order, &self.inventory, &self.taken, node, &self.spent).err().and_then(refuse)
    }

    /// What the claims get if the pod goes to the node.
    pub(crate) fn choose(&self, node: &Node) -> Result<Vec<Share>, String> {
        let allocations = allocate(&self.order, &self.inventory, &self.taken, node, &Cell::new(0))?;
        let fresh = self.order.items.iter().zip(allocations);
        let fresh = fresh.map(|(item, allocation)| Share { claim: item.claim.clone(), allocation: Some(allocation) });
        let known = self.allocated.iter().map(|claim| Share { claim: claim.clone(), allocation: None });
        Ok(known.chain(fresh).collect())
    }
}

fn find(ctx: &Context, pod: &Pod, name: &str, named: Named) -> Result<Arc<ResourceClaim>, String> {
    let (claim_name, own) = match named {
        Named::Claim(claim, own) => (claim, own),
        Named::Awaited(template) => {
            return Err(format!("waiting for claim {name:?} to be made of resourceclaimtemplate {template:?}"));
        }
    };
    let key = Key::new(pod.metadata.namespace.clone().unwrap_or_default(), claim_name.clone());
    let Some(claim) = ctx.store::<ResourceClaim>().get(&key) else {
        return Err(format!("resourceclaim {claim_name:?} not found"));
    };
    if own && !belongs_to(&claim, pod) {
        return Err(format!("resourceclaim {claim_name:?} was not made for the pod"));
    }
    if claim.metadata.deletion_timestamp.is_some() {
        return Err(format!("resourceclaim {claim_name:?} is being deleted"));
    }
    let mine = consumers(&claim).iter().any(|consumer| Some(&consumer.uid) == pod.metadata.uid.as_ref());
    if !mine && consumers(&claim).len() >= CONSUMERS {
        return Err(format!("resourceclaim {claim_name:?} is used by {CONSUMERS} pods, and by no more at a time"));
    }
    Ok(claim)
}

/// The devices that claims have or are being given, but for those of `open`.
fn taken(all: &[Arc<ResourceClaim>], given: &Given, open: &[Arc<ResourceClaim>]) -> HashSet<Id> {
    let is_open = |claim: &str| open.iter().any(|own| own.metadata.uid.as_deref() == Some(claim));
    let others = all.iter().filter(|claim| !is_open(claim.metadata.uid.as_deref().unwrap_or_default()));
    let had = others.filter_map(|claim| claim.status.as_ref()?.allocation.as_ref());
    let given = given.iter().filter(|(claim, _)| !is_open(claim)).map(|(_, (_, allocation))| allocation);
    let results = had.chain(given).flat_map(|allocation| &allocation.devices.results);
    let exclusive = results.filter(|result| result.admin_access != Some(true));
    exclusive.map(|result| (result.driver.clone(), result.pool.clone(), result.device.clone())).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn allocation(device: &str) -> Value {
        json!({"devices": {"results": [{"request": "r", "driver": "d", "pool": "p", "device": device}]}})
    }

    #[test]
    fn devices_being_allocated_count_as_allocated() {
        let claim = |uid: &str, status: Value| -> Arc<ResourceClaim> {
            Arc::new(serde_json::from_value(json!({"metadata": {"uid": uid}, "status": status})).unwrap())
        };
        let (had, open) = (claim("had", json!({"allocation": allocation("a")})), claim("open", json!({})));
        let shelf = Shelf::default();
        let pod = |uid: &str| serde_json::from_value::<Pod>(json!({"metadata": {"uid": uid}})).unwrap();
        let share = Share { claim: open.clone(), allocation: serde_json::from_value(allocation("b")).unwrap() };
        shelf.give(&[share], &pod("p"));
        let check = |but: &[Arc<ResourceClaim>], expect: &[&str]| {
            let mut devices: Vec<_> = taken(&[had.clone(), open.clone()], &shelf.given(), but).into_iter().collect();
            devices.sort();
            assert_eq!(devices.iter().map(|(_, _, device)| device.as_str()).collect::<Vec<_>>(), expect);
        };
        check(&[], &["a", "b"]);
        check(std::slice::from_ref(&open), &["a"]);
        shelf.settle(&pod("other"));
        check(&[], &["a", "b"]);
        shelf.settle(&pod("p"));
        check(&[], &["a"]);
    }
}
