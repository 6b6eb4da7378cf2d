//! Writes `CSIStorageCapacity` objects for drivers that publish their room and bring no provisioner.
//!
//! One object for each class of the driver and each segment of its topology; asked anew every minute, and whenever classes,
//! nodes or the driver's volumes change.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Node, PersistentVolume};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode, CSIStorageCapacity, StorageClass};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector;
use kit::controller::{self, Context, Error, Result, pod, quantity};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{DeleteParams, ObjectMeta};
use kube::{Resource, ResourceExt};
use rpc::csi;
use rpc::csi::controller_service_capability::rpc::Type as Can;
use serde_json::json;
use sha2::{Digest, Sha256};

use super::super::driver::{Fleet, queue_registered, worded};
use super::super::topology::{self, Segment};
use super::super::{facts, provision, secret};
use crate::sidecar::Function;

const NAMESPACE: &str = "kube-system";
const DRIVER: &str = "csi.storage.k8s.io/drivername";
const MANAGED_BY: &str = "csi.storage.k8s.io/managed-by";
const OURS: &str = "ferrovirt-csi-provisioner";
/// The same of those that are written beside the driver.
const SIDECAR: &str = "csi-controller";
const REFRESH: Duration = Duration::from_secs(60);

/// Runs until the context's shutdown. Work goes driver by driver.
pub(crate) async fn run(ctx: Context, fleet: Arc<Fleet>) {
    let queue = Arc::new(queue::patient());
    ctx.store::<CSIDriver>().on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(driver) = new.or(old) {
                queue.add(driver.name_any());
            }
        }
    });
    ctx.store::<StorageClass>().on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(class) = new.or(old) {
                queue.add(class.provisioner.clone());
            }
        }
    });
    ctx.store::<PersistentVolume>().on_change({
        let queue = queue.clone();
        move |old, new| {
            let csi = new.or(old).and_then(|volume| volume.spec.as_ref()?.csi.as_ref());
            if let Some(csi) = csi.filter(|_| old.map(|v| facts::capacity(v)) != new.map(|v| facts::capacity(v))) {
                queue.add(csi.driver.clone());
            }
        }
    });
    queue_registered(&ctx, &queue);
    fleet.synced().await;
    ctx.store::<StorageClass>().synced().await;
    ctx.store::<PersistentVolume>().synced().await;
    ctx.store::<CSIStorageCapacity>().synced().await;
    controller::work(&queue, "csi-capacity", 2, |driver| reconcile(&ctx, &fleet, driver)).await;
}

async fn reconcile(ctx: &Context, fleet: &Fleet, driver: String) -> Result<Next> {
    let object = ctx.store::<CSIDriver>().get(&Key::new("", driver.as_str()));
    let publishes = object.as_ref().is_some_and(|object| object.spec.storage_capacity == Some(true));
    if fleet.sidecar().is_some_and(|own| own.driver != driver) {
        return Ok(Next::Wait);
    }
    let ours = publishes && fleet.serves(&driver, Function::Provisioner);
    let mut known: BTreeMap<String, Arc<CSIStorageCapacity>> = BTreeMap::new();
    for room in ctx.store::<CSIStorageCapacity>().all() {
        let labels = pod::labels(&room.metadata);
        if labels.get(DRIVER) == Some(&driver) && labels.get(MANAGED_BY).is_some_and(|by| by == writer(fleet)) {
            known.insert(room.name_any(), room);
        }
    }
    if ours {
        let Known { mut rooms, silent } = ask(ctx, fleet, &driver).await?;
        if let Some(own) = fleet.sidecar() {
            // They go with the driver, whoever is still there then.
            let owner = object.as_ref().and_then(|object| object.owner_ref(&()));
            for room in &mut rooms {
                room.metadata.namespace = Some(own.namespace.clone());
                room.metadata.owner_references = owner.clone().map(|owner| vec![owner]);
                room.labels_mut().insert(MANAGED_BY.to_owned(), SIDECAR.to_owned());
            }
        }
        // What is not known now is left as it was.
        known.retain(|name, _| !silent.contains(name));
        for room in rooms {
            let name = room.name_any();
            match known.remove(&name) {
                None => match ctx.create("create csistoragecapacity", &room).await {
                    Err(error) if error.code() != 409 => return Err(error),
                    _ => {}
                },
                Some(old) if old.capacity != room.capacity || old.maximum_volume_size != room.maximum_volume_size => {
                    let change = json!({"capacity": room.capacity, "maximumVolumeSize": room.maximum_volume_size});
                    let key = Key::of(old.as_ref());
                    ctx.merge::<CSIStorageCapacity>("write csistoragecapacity", &key, &change).await?;
                }
                Some(_) => {}
            }
        }
    }
    for room in known.values() {
        ctx.delete("delete csistoragecapacity", room.as_ref(), DeleteParams::default()).await?;
    }
    Ok(if ours { Next::After(REFRESH) } else { Next::Wait })
}

/// Who is said to write what this process writes.
fn writer(fleet: &Fleet) -> &'static str {
    if fleet.sidecar().is_some() { SIDECAR } else { OURS }
}

/// What a driver said.
#[derive(Default)]
struct Known {
    /// What each class has left in each segment.
    rooms: Vec<CSIStorageCapacity>,
    /// The names of those of which it said nothing: a class whose parameters it does not like is no other's fault.
    silent: BTreeSet<String>,
}

async fn ask(ctx: &Context, fleet: &Fleet, driver: &str) -> Result<Known> {
    let unfinished = |status: &tonic::Status| Error::Unfinished {
        object: driver.to_owned(),
        what: format!("ask for its capacity: {}", worded(status)),
    };
    let (nodes, registered) = (ctx.store::<Node>().all(), ctx.store::<CSINode>().all());
    let any = fleet.reach(driver, None, None).await.map_err(|status| unfinished(&status))?;
    if !any.abilities.can(Can::GetCapacity) {
        return Ok(Known::default());
    }
    let segments = if any.abilities.has_topology() {
        topology::segments(&nodes, &registered, driver)
    } else {
        BTreeSet::from([Segment::new()])
    };
    let mut found = Known::default();
    let classes = ctx.store::<StorageClass>().all();
    for class in classes.iter().filter(|class| class.provisioner == driver) {
        for segment in &segments {
            let place = csi::Topology { segments: segment.clone().into_iter().collect() };
            let affinity = topology::affinity(std::slice::from_ref(&place));
            if !fleet.is_ours(driver, None, affinity.as_ref()) {
                found.silent.insert(name(driver, &class.name_any(), segment));
                continue;
            }
            let near = fleet.reach(driver, None, affinity.as_ref()).await.map_err(|status| unfinished(&status))?;
            let mut parameters: std::collections::HashMap<_, _> =
                class.parameters.clone().unwrap_or_default().into_iter().collect();
            parameters.retain(|key, _| !key.starts_with(secret::RESERVED));
            let request = csi::GetCapacityRequest {
                volume_capabilities: provision::capabilities(class),
                parameters,
                accessible_topology: Some(place).filter(|place| !place.segments.is_empty()),
            };
            match near.client.clone().get_capacity(request).await {
                Ok(answer) => found.rooms.push(room(driver, class, segment, &answer.into_inner())),
                Err(status) => {
                    let class = class.name_any();
                    tracing::warn!(driver, class, error = worded(&status), "the driver does not say what is left");
                    found.silent.insert(name(driver, &class, segment));
                }
            }
        }
    }
    Ok(found)
}

fn room(
    driver: &str,
    class: &StorageClass,
    segment: &Segment,
    answer: &csi::GetCapacityResponse,
) -> CSIStorageCapacity {
    let bytes = |bytes: i64| quantity::format(i128::from(bytes) * 1000, true);
    let labels = [(DRIVER.to_owned(), driver.to_owned()), (MANAGED_BY.to_owned(), OURS.to_owned())];
    CSIStorageCapacity {
        metadata: ObjectMeta {
            name: Some(name(driver, &class.name_any(), segment)),
            namespace: Some(NAMESPACE.into()),
            labels: Some(labels.into()),
            ..ObjectMeta::default()
        },
        storage_class_name: class.name_any(),
        node_topology: Some(LabelSelector {
            match_labels: Some(segment.clone()).filter(|segment| !segment.is_empty()),
            match_expressions: None,
        }),
        capacity: Some(bytes(answer.available_capacity)),
        maximum_volume_size: answer.maximum_volume_size.map(bytes),
    }
}

/// The same name for the same class and segment, whoever asks.
fn name(driver: &str, class: &str, segment: &Segment) -> String {
    let digest = Sha256::digest(format!("{driver}\n{class}\n{segment:?}").as_bytes());
    let hex: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
    format!("csisc-{hex}")
}
