//! Volumes that their driver finds unwell: said in events on their claims, once when it begins and once when it is over.
//!
//! Drivers are asked every minute, those that can say how all their volumes are.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::CSIDriver;
use kit::controller::{self, Context, Result};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::ResourceExt;
use rpc::csi;
use rpc::csi::controller_service_capability::rpc::Type as Can;

use super::driver::{Driver, Fleet, queue_registered, worded};
use super::facts;
use crate::sidecar::Function;

const COMPONENT: &str = "csi-pv-monitor-controller";
const INTERVAL: Duration = Duration::from_secs(60);
/// How many volumes are asked for at a time.
const PAGE: i32 = 500;

/// What is wrong with each volume of a driver, by its handle.
type Unwell = BTreeMap<String, String>;

struct Monitor {
    ctx: Context,
    fleet: Arc<Fleet>,
    /// By driver, the handles of volumes whose claims were told.
    told: Mutex<BTreeMap<String, BTreeSet<String>>>,
}

/// Runs until the context's shutdown. Work goes driver by driver.
pub(super) async fn run(ctx: Context, fleet: Arc<Fleet>) {
    let queue = Arc::new(queue::patient());
    let again = {
        let (queue, objects) = (queue.clone(), ctx.store::<CSIDriver>());
        move || objects.all().iter().for_each(|driver| queue.add(driver.name_any()))
    };
    queue_registered(&ctx, &queue);
    fleet.synced().await;
    fleet.on_change(again);
    ctx.store::<PersistentVolume>().synced().await;
    ctx.store::<PersistentVolumeClaim>().synced().await;
    let monitor = Monitor { ctx, fleet, told: Mutex::default() };
    controller::work(&queue, "csi-health", 1, |driver| monitor.look(driver)).await;
}

impl Monitor {
    async fn look(&self, name: String) -> Result<Next> {
        if !self.fleet.serves(&name, Function::Provisioner) {
            return Ok(Next::Wait);
        }
        let mut unwell = Unwell::new();
        // What cannot be asked now is neither better nor worse than before.
        let mut asked = BTreeSet::new();
        for node in self.fleet.nodes(&name) {
            let listed = match self.fleet.at(&name, &node).await {
                Ok(driver)
                    if !driver.abilities.can(Can::VolumeCondition) || !driver.abilities.can(Can::ListVolumes) =>
                {
                    return Ok(Next::Wait);
                }
                Ok(driver) => list(&driver).await,
                Err(status) => Err(status),
            };
            match listed {
                Ok(volumes) => {
                    for (handle, trouble) in volumes {
                        unwell.extend(trouble.map(|trouble| (handle.clone(), trouble)));
                        asked.insert(handle);
                    }
                }
                Err(status) => {
                    tracing::warn!(driver = name, node, error = worded(&status), "the driver does not say how it is");
                }
            }
        }
        self.tell(&name, &asked, &unwell);
        Ok(Next::After(INTERVAL))
    }

    fn tell(&self, driver: &str, asked: &BTreeSet<String>, unwell: &Unwell) {
        let mut told = self.told.lock().unwrap_or_else(PoisonError::into_inner);
        let told = told.entry(driver.to_owned()).or_default();
        let (claims, volumes) = (self.ctx.store::<PersistentVolumeClaim>(), self.ctx.store::<PersistentVolume>().all());
        for volume in volumes {
            let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref()).filter(|csi| csi.driver == driver);
            let affinity = volume.spec.as_ref().and_then(|spec| spec.node_affinity.as_ref());
            let Some(handle) = csi.map(|csi| &csi.volume_handle) else { continue };
            if !self.fleet.is_ours(driver, None, affinity) {
                continue;
            }
            let of = facts::claim_ref(&volume);
            let key =
                of.map(|of| Key::new(of.namespace.clone().unwrap_or_default(), of.name.clone().unwrap_or_default()));
            let claim = key.and_then(|key| claims.get(&key)).filter(|claim| facts::is_for(&volume, claim));
            let Some(claim) = claim else { continue };
            let (severity, reason, text) = match unwell.get(handle) {
                Some(trouble) if told.insert(handle.clone()) => {
                    (Severity::Warning, "VolumeConditionAbnormal", trouble.clone())
                }
                None if asked.contains(handle) && told.remove(handle) => {
                    (Severity::Normal, "VolumeConditionNormal", "The Volume returns to the healthy state".to_owned())
                }
                _ => continue,
            };
            self.ctx.events.record(COMPONENT, claim.as_ref(), severity, reason, text);
        }
        // Volumes that are gone are not told of again.
        told.retain(|handle| unwell.contains_key(handle) || !asked.contains(handle));
    }
}

/// All volumes of a driver on a node, each with what is wrong with it.
async fn list(driver: &Driver) -> Result<Vec<(String, Option<String>)>, tonic::Status> {
    let (mut found, mut starting_token) = (Vec::new(), String::new());
    loop {
        let request = csi::ListVolumesRequest { max_entries: PAGE, starting_token };
        let page = driver.client.clone().list_volumes(request).await?.into_inner();
        for entry in page.entries {
            let condition = entry.status.and_then(|status| status.volume_condition);
            let trouble = condition.filter(|condition| condition.abnormal).map(|condition| condition.message);
            found.extend(entry.volume.map(|volume| (volume.volume_id, trouble)));
        }
        if page.next_token.is_empty() {
            return Ok(found);
        }
        starting_token = page.next_token;
    }
}
