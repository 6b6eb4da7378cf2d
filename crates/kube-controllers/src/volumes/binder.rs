//! The scheduler's side of storage: which nodes a pod's claims allow, and the binding of those that wait for their consumer.
//!
//! Claims are read once for a pod and judged against every node; the choice for the best node is then reserved (in the
//! stores), written, and waited for until the volume controller and the provisioner have done their part.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use csi_controllers::names::{BOUND_BY_CONTROLLER, NO_PROVISIONER, SELECTED_NODE};
use csi_controllers::{capacity, facts, place, topology};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod, VolumeNodeAffinity};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use kit::controller::{During, Result, pod, write};
use kit::store::Key;
use kube::runtime::wait::await_condition;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::{ephemeral, fit};
use crate::context::Context;
use crate::protection::claims_of;

/// How long the pod waits for its volumes before it is placed anew.
const PATIENCE: Duration = Duration::from_secs(600);

const NO_VOLUME: &str = "node(s) didn't find available persistent volumes to bind";
const ELSEWHERE: &str = "node(s) had volume node affinity conflict";
const MISSING: &str = "node(s) unavailable due to one or more pvc(s) bound to non-existent pv(s)";
const NO_SPACE: &str = "node(s) did not have enough free storage";
const FULL: &str = "node(s) exceed max volume count";
const EXCLUSIVE: &str = "node has pod using PersistentVolumeClaim with the same name and ReadWriteOncePod access mode";

/// Whether a refusal would end if other pods left the node.
pub(crate) fn is_curable(reason: &str) -> bool {
    matches!(reason, FULL | EXCLUSIVE)
}

/// The claims of one pod, as far as they limit its choice of nodes.
#[derive(Clone, Debug, Default)]
pub(crate) struct PodVolumes {
    bound: Vec<Arc<PersistentVolume>>,
    missing: bool,
    exclusive: bool,
    /// Claims that wait for the pod to be placed, largest first: they are the hardest to satisfy.
    open: Vec<(Arc<PersistentVolumeClaim>, Arc<StorageClass>)>,
    /// Where open claims can be filled, by their names, when not everywhere.
    places: BTreeMap<String, VolumeNodeAffinity>,
    /// Volumes that can be bound, when some claim is open.
    volumes: Vec<Arc<PersistentVolume>>,
    drivers: Vec<Arc<CSIDriver>>,
    capacities: Vec<Arc<CSIStorageCapacity>>,
    /// Driver -> how many volumes each node takes of it.
    limits: BTreeMap<String, BTreeMap<String, usize>>,
    /// Node -> driver -> handles its pods use already.
    used: BTreeMap<String, BTreeMap<String, BTreeSet<String>>>,
}

/// How the open claims of a pod are satisfied on a node.
#[derive(Clone, Debug, Default)]
pub(crate) struct Choice {
    bind: Vec<(Arc<PersistentVolumeClaim>, Arc<PersistentVolume>)>,
    provision: Vec<Arc<PersistentVolumeClaim>>,
}

impl Choice {
    /// Whether there is nothing to do.
    pub(crate) fn is_empty(&self) -> bool {
        self.bind.is_empty() && self.provision.is_empty()
    }
}

impl PodVolumes {
    /// Reads the pod's claims; the error says why no node can take the pod before something changes about them.
    pub(crate) fn read(ctx: &Context, pod: &Pod) -> Result<Self, String> {
        let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
        let mut found = Self::default();
        let names = claims_of(pod);
        if names.is_empty() {
            return Ok(found);
        }
        let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
        let classes = ctx.store::<StorageClass>();
        let ephemeral = ephemeral_claims(pod);
        for name in names {
            let own = ephemeral.contains(&name);
            let Some(claim) = claims.get(&Key::new(namespace, &name)) else {
                return Err(if own {
                    format!("waiting for ephemeral volume controller to create the persistentvolumeclaim {name:?}")
                } else {
                    format!("persistentvolumeclaim {name:?} not found")
                });
            };
            if facts::is_leaving(claim.as_ref()) {
                return Err(format!("persistentvolumeclaim {name:?} is being deleted"));
            }
            if facts::phase(&claim) == "Lost" {
                return Err(format!(
                    "persistentvolumeclaim {name:?} bound to non-existent persistentvolume {:?}",
                    facts::volume_name(&claim)
                ));
            }
            if own && !ephemeral::belongs_to(&claim, pod) {
                return Err(ephemeral::stranger(&claim, pod));
            }
            found.exclusive |= facts::modes(&claim).iter().any(|mode| mode == "ReadWriteOncePod")
                && is_used_by_another(ctx, pod, namespace, &name);
            if facts::is_bound(&claim) {
                match volumes.get(&Key::new("", facts::volume_name(&claim))) {
                    Some(volume) => found.bound.push(volume),
                    None => found.missing = true,
                }
                continue;
            }
            let class = classes.get(&Key::new("", facts::class_of(&claim))).filter(|c| facts::waits_for_consumer(c));
            match class.filter(|_| facts::volume_name(&claim).is_empty()) {
                Some(class) => {
                    found.places.extend(place::of_source(ctx, &claim).map(|place| (name, place)));
                    found.open.push((claim, class));
                }
                None => return Err("pod has unbound immediate PersistentVolumeClaims".into()),
            }
        }
        if !found.open.is_empty() {
            found.volumes = volumes.all();
            found.drivers = ctx.store::<CSIDriver>().all();
            found.capacities = ctx.store::<CSIStorageCapacity>().all();
            found.open.sort_by_key(|(claim, _)| std::cmp::Reverse(facts::requested(claim)));
        }
        found.read_limits(ctx);
        Ok(found)
    }

    /// What nodes take of the drivers this pod's bound volumes belong to, and what of it is used.
    fn read_limits(&mut self, ctx: &Context) {
        let drivers: BTreeSet<&str> = self.bound.iter().filter_map(|volume| handle(volume)).map(|(d, _)| d).collect();
        let open = self.open.iter().map(|(_, class)| class.provisioner.as_str());
        let drivers: BTreeSet<String> = drivers.into_iter().chain(open).map(str::to_owned).collect();
        for node in ctx.store::<CSINode>().all() {
            for driver in node.spec.drivers.iter().filter(|driver| drivers.contains(&driver.name)) {
                let count = driver.allocatable.as_ref().and_then(|a| a.count).and_then(|n| usize::try_from(n).ok());
                if let Some(count) = count {
                    self.limits.entry(driver.name.clone()).or_default().insert(node.name_any(), count);
                }
            }
        }
        if self.limits.is_empty() {
            return;
        }
        let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
        for other in ctx.store::<Pod>().all().iter().filter(|other| !pod::is_finished(other)) {
            let Some(node) = pod::node_name(other) else { continue };
            for name in claims_of(other) {
                let claim = claims.get(&Key::new(other.namespace().unwrap_or_default(), name));
                let volume = claim.and_then(|claim| volumes.get(&Key::new("", facts::volume_name(&claim))));
                let Some(volume) = volume else { continue };
                if let Some((driver, handle)) = handle(&volume) {
                    let used = self.used.entry(node.to_owned()).or_default().entry(driver.to_owned()).or_default();
                    used.insert(handle.to_owned());
                }
            }
        }
    }

    /// Why the claims cannot be used on the node.
    pub(crate) fn refusal(&self, node: &Node) -> Option<&'static str> {
        if self.exclusive {
            return Some(EXCLUSIVE);
        }
        if self.missing {
            return Some(MISSING);
        }
        if self.exceeds_limit(node) {
            return Some(FULL);
        }
        if !self.bound.iter().all(|volume| place::reachable(volume, node)) {
            return Some(ELSEWHERE);
        }
        self.choose(node).err()
    }

    fn exceeds_limit(&self, node: &Node) -> bool {
        let name = node.name_any();
        self.limits.iter().any(|(driver, nodes)| {
            let Some(limit) = nodes.get(&name) else { return false };
            let none = BTreeSet::new();
            let used = self.used.get(&name).and_then(|used| used.get(driver)).unwrap_or(&none);
            let bound = self
                .bound
                .iter()
                .filter_map(|volume| handle(volume))
                .filter(|(d, h)| d == driver && !used.contains(*h));
            let bound: BTreeSet<&str> = bound.map(|(_, handle)| handle).collect();
            let open = self.open.iter().filter(|(_, class)| class.provisioner == *driver).count();
            let more = bound.len() + open;
            more > 0 && used.len() + more > *limit
        })
    }

    /// How the open claims are satisfied if the pod goes to the node.
    pub(crate) fn choose(&self, node: &Node) -> Result<Choice, &'static str> {
        let mut choice = Choice::default();
        let mut taken = BTreeSet::new();
        for (claim, class) in &self.open {
            let selected = facts::selected_node(claim);
            if !selected.is_empty() && Some(selected) != node.metadata.name.as_deref() {
                return Err(NO_VOLUME);
            }
            if selected.is_empty()
                && let Some(volume) = fit::best(claim, &self.volumes, fit::For::Node(node), &taken)
            {
                taken.insert(volume.name_any());
                choice.bind.push((claim.clone(), volume.clone()));
                continue;
            }
            if self.places.get(&claim.name_any()).is_some_and(|place| !place::is_at(place, node)) {
                return Err(ELSEWHERE);
            }
            if class.provisioner == NO_PROVISIONER || !topology::allowed(class, node) {
                return Err(NO_VOLUME);
            }
            if !capacity::suffices(class, facts::requested(claim), node, &self.drivers, &self.capacities) {
                return Err(NO_SPACE);
            }
            choice.provision.push(claim.clone());
        }
        Ok(choice)
    }
}

fn handle(volume: &PersistentVolume) -> Option<(&str, &str)> {
    let csi = volume.spec.as_ref()?.csi.as_ref()?;
    Some((&csi.driver, &csi.volume_handle))
}

fn ephemeral_claims(pod: &Pod) -> BTreeSet<String> {
    let name = pod.metadata.name.as_deref().unwrap_or_default();
    let volumes = pod.spec.iter().flat_map(|s| s.volumes.iter().flatten());
    volumes.filter(|v| v.ephemeral.is_some()).map(|v| format!("{name}-{}", v.name)).collect()
}

fn is_used_by_another(ctx: &Context, pod: &Pod, namespace: &str, claim: &str) -> bool {
    ctx.store::<Pod>().in_namespace(namespace).iter().any(|other| {
        other.metadata.uid != pod.metadata.uid
            && pod::node_name(other).is_some()
            && !pod::is_finished(other)
            && claims_of(other).iter().any(|name| name == claim)
    })
}

/// Keeps the chosen volumes from other pods at once, before anything is written.
pub(crate) fn reserve(ctx: &Context, choice: &Choice) {
    for (claim, volume) in &choice.bind {
        let mut assumed = PersistentVolume::clone(volume);
        if let Some(spec) = &mut assumed.spec {
            spec.claim_ref.get_or_insert_with(|| k8s_openapi::api::core::v1::ObjectReference {
                api_version: Some("v1".into()),
                kind: Some("PersistentVolumeClaim".into()),
                namespace: claim.metadata.namespace.clone(),
                name: claim.metadata.name.clone(),
                uid: claim.metadata.uid.clone(),
                ..Default::default()
            });
        }
        ctx.store::<PersistentVolume>().assume(assumed);
    }
}

/// Writes the choice and waits until every claim is bound. The error is the reason to place the pod anew.
pub(crate) async fn bind(ctx: &Context, choice: &Choice, node: &str) -> Result<(), String> {
    let outcome = write_and_wait(ctx, choice, node).await;
    if outcome.is_err() {
        for (_, volume) in &choice.bind {
            give_back(ctx, volume).await;
        }
    }
    outcome
}

async fn write_and_wait(ctx: &Context, choice: &Choice, node: &str) -> Result<(), String> {
    for (claim, volume) in &choice.bind {
        let change = json!({"metadata": {"resourceVersion": volume.resource_version(), "annotations": {BOUND_BY_CONTROLLER: "yes"}},
            "spec": {"claimRef": {"apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": claim.namespace(),
                "name": claim.name_any(), "uid": claim.uid(), "resourceVersion": claim.resource_version()}}});
        let written = write::merge::<PersistentVolume>(ctx, "bind persistentvolume", &volume.name_any(), &change).await;
        written.map_err(|error| error.message())?;
    }
    for claim in choice.provision.iter().filter(|claim| facts::selected_node(claim) != node) {
        let change =
            json!({"metadata": {"resourceVersion": claim.resource_version(), "annotations": {SELECTED_NODE: node}}});
        let key = Key::of(claim.as_ref());
        let written =
            ctx.merge::<PersistentVolumeClaim>("select the node of persistentvolumeclaim", &key, &change).await;
        written.map_err(|error| error.message())?;
    }
    let bound = choice.bind.iter().map(|(claim, _)| (claim, false));
    let waits = bound.chain(choice.provision.iter().map(|claim| (claim, true)));
    let waits = futures::future::try_join_all(waits.map(|(claim, made)| wait(ctx, claim, node, made)));
    match tokio::time::timeout(PATIENCE, waits).await {
        Ok(outcome) => outcome.map(drop),
        Err(_) => Err("timed out waiting for the condition".into()),
    }
}

/// Waits until the claim is bound; gives up when it goes, or when its provisioner asks for another node.
async fn wait(ctx: &Context, claim: &PersistentVolumeClaim, node: &str, provisioned: bool) -> Result<(), String> {
    let key = Key::of(claim);
    let api: Api<PersistentVolumeClaim> = ctx.api(&key.namespace);
    let settled = |claim: Option<&PersistentVolumeClaim>| {
        claim.is_none_or(|claim| {
            let moved = provisioned && facts::selected_node(claim) != node;
            facts::is_leaving(claim) || moved || (facts::is_bound(claim) && facts::phase(claim) == "Bound")
        })
    };
    let found = await_condition(api, &key.name, settled).await.map_err(|error| error.to_string())?;
    match found {
        Some(found) if facts::is_bound(&found) => {
            ctx.store::<PersistentVolumeClaim>().observe(found);
            Ok(())
        }
        Some(found) if !facts::is_leaving(&found) => Err(format!("provisioning failed for PVC {:?}", key.name)),
        _ => Err(format!("persistentvolumeclaim {:?} is being deleted", key.name)),
    }
}

/// Puts what the server has in place of what was assumed.
async fn give_back(ctx: &Context, volume: &PersistentVolume) {
    let api: Api<PersistentVolume> = Api::all(ctx.client.clone());
    let key = Key::of(volume);
    match api.get_opt(&key.name).await.during("read persistentvolume", &key) {
        Ok(Some(current)) => ctx.store::<PersistentVolume>().assume(current),
        Ok(None) => ctx.store::<PersistentVolume>().forget(&key, &volume.uid().unwrap_or_default()),
        Err(error) => tracing::warn!(error = error.chain(), "a volume stays reserved until it changes"),
    }
}
