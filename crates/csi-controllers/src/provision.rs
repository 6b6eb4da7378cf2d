//! Makes the volumes of claims and deletes those released, with drivers that bring no provisioner.
//!
//! A volume's name is its claim's uid, so a try that was interrupted is simply repeated. A try whose outcome is
//! unknown when
//! its claim goes away is repeated once more, to find the volume and delete it.

mod plan;
mod source;

pub(super) use plan::capabilities;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, SecretReference};
use k8s_openapi::api::storage::v1::{CSINode, StorageClass, VolumeAttachment};
use kit::controller::{self, Context, Error, Result, write};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::ResourceExt;
use meta::volume_snapshot::{VolumeSnapshot, VolumeSnapshotContent};
use rpc::csi;
use rpc::csi::controller_service_capability::rpc::Type as Can;
use serde_json::json;
use tonic::Code;

use super::driver::{Abilities, Driver, Fleet, worded};
use super::kinds::VolumeAttributesClass;
use super::names::{
    DELETION_SECRET_NAME, DELETION_SECRET_NAMESPACE, PROVISIONED_BY, PROVISIONER, PROVISIONER_FINALIZER, SELECTED_NODE,
};
use super::secret::{self, Purpose};
use super::{facts, modify, place, topology};
use crate::sidecar::Function;

const COMPONENT: &str = "csi-provisioner";

/// A try whose outcome is unknown: what was asked of which driver, for which claim.
struct Unknown {
    uid: String,
    driver: String,
    node: Option<String>,
    request: csi::CreateVolumeRequest,
}

struct Provisioner {
    ctx: Context,
    fleet: Arc<Fleet>,
    unknown: Mutex<HashMap<Key, Unknown>>,
}

/// Whether the claim's volume is for this process to make: where the provisioner of the whole cluster would make it.
fn makes(ctx: &Context, fleet: &Fleet, claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
    if fleet.sidecar().is_none() {
        return true;
    }
    let driver = &class.provisioner;
    let selected = facts::selected_node(claim);
    if facts::waits_for_consumer(class) && !selected.is_empty() {
        return fleet.is_ours(driver, Some(selected), None);
    }
    let (nodes, registered) = (ctx.store::<Node>().all(), ctx.store::<CSINode>());
    let near = place::of_source(ctx, claim);
    let near = near.and_then(|place| nodes.iter().find(|node| place::is_at(&place, node)));
    let chosen = near.and_then(|node| {
        let registered = registered.get(&Key::new("", node.name_any()))?;
        topology::segment_of(node, &registered, driver)
    });
    let all = topology::segments(&nodes, &registered.all(), driver);
    // What cannot be placed anywhere has to be said by one of them.
    let wanted = topology::requirement(class, &claim.name_any(), chosen, &all).ok().flatten();
    let affinity = wanted.and_then(|wanted| topology::affinity(wanted.preferred.get(..1)?));
    fleet.is_ours(driver, None, affinity.as_ref())
}

/// Runs until the context's shutdown.
pub(super) async fn run(ctx: Context, fleet: Arc<Fleet>) {
    let queue = Arc::new(queue::patient());
    let (claims, volumes) = (ctx.store::<PersistentVolumeClaim>(), ctx.store::<PersistentVolume>());
    claims.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(claim) =
                new.or(old).filter(|claim| !facts::annotation(claim.as_ref(), PROVISIONER[0]).is_empty())
            {
                queue.add(Key::of(claim.as_ref()));
            }
        }
    });
    volumes.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(volume) = new.filter(|v| !facts::annotation(v.as_ref(), PROVISIONED_BY).is_empty()) {
                queue.add(Key::of(volume.as_ref()));
            }
        }
    });
    ctx.store::<VolumeAttachment>().on_change({
        let queue = queue.clone();
        move |old, new| {
            let gone = old.filter(|_| new.is_none());
            if let Some(volume) = gone.and_then(|a| a.spec.source.persistent_volume_name.as_deref()) {
                queue.add(Key::new("", volume));
            }
        }
    });
    let again = {
        let queue = queue.clone();
        move || {
            for claim in claims.all().iter().filter(|claim| facts::volume_name(claim).is_empty()) {
                queue.add(Key::of(claim.as_ref()));
            }
            for volume in volumes.all().iter().filter(|volume| facts::volume_phase(volume) == "Released") {
                queue.add(Key::of(volume.as_ref()));
            }
        }
    };
    ctx.store::<VolumeAttributesClass>().on_change({
        let again = again.clone();
        move |_, _| again()
    });
    fleet.on_change(again);
    fleet.synced().await;
    ctx.store::<PersistentVolumeClaim>().synced().await;
    ctx.store::<PersistentVolume>().synced().await;
    ctx.store::<StorageClass>().synced().await;
    ctx.store::<VolumeAttributesClass>().synced().await;
    ctx.store::<VolumeSnapshot>().synced().await;
    ctx.store::<VolumeSnapshotContent>().synced().await;
    ctx.store::<VolumeAttachment>().synced().await;
    let provisioner = Provisioner { ctx, fleet, unknown: Mutex::default() };
    controller::work(&queue, "csi-provisioner", 16, |key| provisioner.reconcile(key)).await;
}

impl Provisioner {
    async fn reconcile(&self, key: Key) -> Result<Next> {
        if key.namespace.is_empty() {
            let Some(volume) = self.ctx.store::<PersistentVolume>().get(&key) else { return Ok(Next::Wait) };
            return self.retire(&volume).await;
        }
        let claim = self.ctx.store::<PersistentVolumeClaim>().get(&key);
        self.clean_up(&key, claim.as_deref()).await?;
        let Some(claim) = claim else { return Ok(Next::Wait) };
        let class = self.ctx.store::<StorageClass>().get(&Key::new("", facts::class_of(&claim)));
        let Some(class) = class.filter(|class| self.is_due(&claim, class)) else { return Ok(Next::Wait) };
        match self.provision(&claim, &class).await {
            Ok(()) => Ok(Next::Wait),
            Err(why) => {
                let name = class.name_any();
                let text = format!("failed to provision volume with StorageClass {name:?}: {why}");
                self.ctx.events.record(
                    COMPONENT,
                    claim.as_ref(),
                    Severity::Warning,
                    "ProvisioningFailed",
                    text.clone(),
                );
                Err(Error::Unfinished { object: key.to_string(), what: text })
            }
        }
    }

    /// Whether a volume is ours to make now.
    fn is_due(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> bool {
        let asked = PROVISIONER.iter().any(|name| facts::annotation(claim, name) == class.provisioner);
        let placed = !facts::waits_for_consumer(class) || !facts::selected_node(claim).is_empty();
        let made = self.ctx.store::<PersistentVolume>().get(&Key::new("", plan::name(claim)));
        asked
            && placed
            && made.is_none()
            && facts::volume_name(claim).is_empty()
            && !facts::is_leaving(claim)
            && self.fleet.serves(&class.provisioner, Function::Provisioner)
            && makes(&self.ctx, &self.fleet, claim, class)
    }

    async fn provision(&self, claim: &PersistentVolumeClaim, class: &StorageClass) -> Result<(), String> {
        let ctx = &self.ctx;
        let key = Key::of(claim);
        let selected =
            Some(facts::selected_node(claim)).filter(|node| !node.is_empty() && facts::waits_for_consumer(class));
        if let Some(node) = selected.filter(|node| ctx.store::<Node>().get(&Key::new("", *node)).is_none()) {
            self.ask_for_another_node(claim).await?;
            return Err(format!("failed to get target node: node {node:?} not found"));
        }
        let driver = self.driver(&class.provisioner, selected).await.map_err(|status| worded(&status))?;
        if !driver.abilities.can(Can::CreateDeleteVolume) {
            return Err(format!(
                "driver {} does not support creating volumes (CREATE_DELETE_VOLUME)",
                class.provisioner
            ));
        }
        let source = match source::of(ctx, claim, &class.provisioner, &driver.abilities)? {
            source::Source::Content(source) => source,
            source::Source::Foreign => {
                let text = "Assuming an external populator will provision the volume";
                ctx.events.record(COMPONENT, claim, Severity::Normal, "Provisioning", text);
                return Ok(());
            }
        };
        let near = self.near(claim, selected).await?;
        let fine = driver.abilities.can(Can::SingleNodeMultiWriter);
        let topology = self.topology(claim, class, selected.or(near.as_deref()), &driver)?;
        let driver = match topology.as_ref().and_then(|wanted| wanted.preferred.first()).filter(|_| selected.is_none())
        {
            // A driver whose volumes are local to its nodes makes them where it is asked.
            Some(place) => {
                let affinity = topology::affinity(std::slice::from_ref(place));
                let near = self.fleet.reach(&class.provisioner, None, affinity.as_ref()).await;
                near.map_err(|status| worded(&status))?
            }
            None => driver,
        };
        let attributes = attributes(ctx, claim, &class.provisioner, &driver.abilities)?;
        let order = plan::Order { claim, class, attributes, source, topology, fine };
        let mut request = plan::request(&order)?;
        let parameters = class.parameters.clone().unwrap_or_default();
        let reference = secret::reference(&parameters, Purpose::Provision, claim, &request.name)?;
        request.secrets = secret::read(ctx, reference.as_ref()).await.map_err(|error| error.message())?;
        let text = format!("External provisioner is provisioning volume for claim \"{key}\"");
        ctx.events.record(COMPONENT, claim, Severity::Normal, "Provisioning", text);
        let answer = driver.client.clone().create_volume(request.clone()).await;
        self.remember(&key, claim, class, selected, &request, answer.as_ref().err());
        let made = match answer {
            Ok(answer) => answer.into_inner().volume.ok_or("the driver answered without a volume")?,
            Err(status) => {
                if status.code() == Code::ResourceExhausted && selected.is_some() {
                    self.ask_for_another_node(claim).await?;
                }
                return Err(worded(&status));
            }
        };
        match plan::volume(&order, &made) {
            Ok(volume) => {
                write::create(ctx, "create persistentvolume", &volume).await.map_err(|error| error.message())?;
                let text = format!("Successfully provisioned volume {}", volume.name_any());
                ctx.events.record(COMPONENT, claim, Severity::Normal, "ProvisioningSucceeded", text);
                Ok(())
            }
            Err(why) => {
                let request = csi::DeleteVolumeRequest { volume_id: made.volume_id, secrets: request.secrets };
                match driver.client.clone().delete_volume(request).await {
                    Ok(_) => Err(why),
                    Err(status) => Err(format!("{why}; its deletion failed: {}", worded(&status))),
                }
            }
        }
    }

    /// A node that what the claim is filled from can be read at, when not all can; another than the selected one is
    /// asked for.
    async fn near(&self, claim: &PersistentVolumeClaim, selected: Option<&str>) -> Result<Option<String>, String> {
        let Some(place) = place::of_source(&self.ctx, claim) else { return Ok(None) };
        let nodes = self.ctx.store::<Node>().all();
        let mut near = nodes.iter().filter(|node| place::is_at(&place, node)).map(|node| node.name_any());
        let Some(node) = selected else { return Ok(near.next()) };
        if near.any(|name| name == node) {
            return Ok(None);
        }
        self.ask_for_another_node(claim).await?;
        Err(format!("what the volume is filled from cannot be read on node {node:?}"))
    }

    async fn driver(&self, name: &str, node: Option<&str>) -> Result<Driver, tonic::Status> {
        self.fleet.reach(name, node, None).await
    }

    /// The segments the volume may be made in, for drivers that have any.
    fn topology(
        &self,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        selected: Option<&str>,
        driver: &Driver,
    ) -> Result<Option<csi::TopologyRequirement>, String> {
        if !driver.abilities.has_topology() {
            return Ok(None);
        }
        let (nodes, registered) = (self.ctx.store::<Node>(), self.ctx.store::<CSINode>());
        let chosen = match selected {
            None => None,
            Some(name) => {
                let key = Key::new("", name);
                let segment = nodes.get(&key).zip(registered.get(&key));
                let segment = segment.and_then(|(node, csi)| topology::segment_of(&node, &csi, &class.provisioner));
                Some(segment.ok_or_else(|| {
                    format!("node {name:?} has not all topology labels of driver {}", class.provisioner)
                })?)
            }
        };
        let all = topology::segments(&nodes.all(), &registered.all(), &class.provisioner);
        topology::requirement(class, &claim.name_any(), chosen, &all)
    }

    /// The driver has no room on the node, or the node is gone: the scheduler is to choose again.
    async fn ask_for_another_node(&self, claim: &PersistentVolumeClaim) -> Result<(), String> {
        let change =
            json!({"metadata": {"resourceVersion": claim.resource_version(), "annotations": {SELECTED_NODE: null}}});
        let key = Key::of(claim);
        let written = self.ctx.merge::<PersistentVolumeClaim>("reschedule persistentvolumeclaim", &key, &change).await;
        written.map(drop).map_err(|error| error.message())
    }

    /// Notes a try that may have made a volume nobody knows of.
    fn remember(
        &self,
        key: &Key,
        claim: &PersistentVolumeClaim,
        class: &StorageClass,
        node: Option<&str>,
        request: &csi::CreateVolumeRequest,
        failure: Option<&tonic::Status>,
    ) {
        let mut unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
        if failure.is_some_and(|status| is_open(status.code())) {
            let entry = Unknown {
                uid: claim.uid().unwrap_or_default(),
                driver: class.provisioner.clone(),
                node: node.map(str::to_owned),
                request: request.clone(),
            };
            unknown.insert(key.clone(), entry);
        } else {
            unknown.remove(key);
        }
    }

    /// Deletes what a try may have made for a claim that is gone by now.
    async fn clean_up(&self, key: &Key, claim: Option<&PersistentVolumeClaim>) -> Result<()> {
        let uid = claim.filter(|claim| !facts::is_leaving(*claim)).and_then(|claim| claim.metadata.uid.clone());
        let (driver, node, request) = {
            let unknown = self.unknown.lock().unwrap_or_else(PoisonError::into_inner);
            let Some(left) = unknown.get(key).filter(|left| Some(&left.uid) != uid.as_ref()) else { return Ok(()) };
            (left.driver.clone(), left.node.clone(), left.request.clone())
        };
        let unfinished = |status: &tonic::Status| Error::Unfinished {
            object: key.to_string(),
            what: format!("clean up after the claim: {}", worded(status)),
        };
        let driver = self.driver(&driver, node.as_deref()).await.map_err(|status| unfinished(&status))?;
        match driver.client.clone().create_volume(request.clone()).await {
            Ok(answer) => {
                let volume_id = answer.into_inner().volume.unwrap_or_default().volume_id;
                let request = csi::DeleteVolumeRequest { volume_id, secrets: request.secrets };
                driver.client.clone().delete_volume(request).await.map_err(|status| unfinished(&status))?;
            }
            Err(status) if is_open(status.code()) => return Err(unfinished(&status)),
            Err(_) => {}
        }
        self.unknown.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
        Ok(())
    }

    /// Deletes the data of a volume nobody claims any more, as its policy says; keeps the finalizer in step with it.
    async fn retire(&self, volume: &PersistentVolume) -> Result<Next> {
        let driver = facts::annotation(volume, PROVISIONED_BY);
        let spec = volume.spec.as_ref();
        let Some(source) = spec.and_then(|s| s.csi.as_ref()).filter(|csi| csi.driver == driver) else {
            return Ok(Next::Wait);
        };
        let affinity = spec.and_then(|spec| spec.node_affinity.as_ref());
        if !self.fleet.serves(driver, Function::Provisioner) || !self.fleet.is_ours(driver, None, affinity) {
            return Ok(Next::Wait);
        }
        let deletes = spec.and_then(|s| s.persistent_volume_reclaim_policy.as_deref()) == Some("Delete");
        let operation = "keep persistentvolume until its data is deleted";
        if !deletes || !facts::is_leaving(volume) {
            write::finalizer(&self.ctx, operation, volume, PROVISIONER_FINALIZER, deletes).await?;
        }
        let phase = facts::volume_phase(volume);
        let abandoned = matches!(phase, "Released" | "Failed") || (facts::is_leaving(volume) && phase != "Bound");
        if !deletes || !abandoned {
            return Ok(Next::Wait);
        }
        if let Err(why) = self.delete(volume, driver, &source.volume_handle).await {
            self.ctx.events.record(COMPONENT, volume, Severity::Warning, "VolumeFailedDelete", why.clone());
            return Err(Error::Unfinished { object: volume.name_any(), what: why });
        }
        write::delete(&self.ctx, "delete persistentvolume", volume).await?;
        if let Some(current) = self.ctx.store::<PersistentVolume>().get(&Key::of(volume)) {
            write::finalizer(&self.ctx, operation, current.as_ref(), PROVISIONER_FINALIZER, false).await?;
        }
        Ok(Next::Wait)
    }

    async fn delete(&self, volume: &PersistentVolume, driver: &str, handle: &str) -> Result<(), String> {
        let name = volume.name_any();
        let attachments = self.ctx.store::<VolumeAttachment>().all();
        if let Some(attached) =
            attachments.iter().find(|a| a.spec.source.persistent_volume_name.as_ref() == Some(&name))
        {
            return Err(format!("persistentvolume {name} is still attached to node {}", attached.spec.node_name));
        }
        let (secret, namespace) =
            (facts::annotation(volume, DELETION_SECRET_NAME), facts::annotation(volume, DELETION_SECRET_NAMESPACE));
        let reference = SecretReference { name: Some(secret.into()), namespace: Some(namespace.into()) };
        let reference = Some(&reference).filter(|_| !secret.is_empty());
        let secrets = secret::read(&self.ctx, reference).await.map_err(|error| error.message())?;
        let affinity = volume.spec.as_ref().and_then(|s| s.node_affinity.as_ref());
        let driver = self.fleet.reach(driver, None, affinity).await.map_err(|status| worded(&status))?;
        let request = csi::DeleteVolumeRequest { volume_id: handle.to_owned(), secrets };
        match driver.client.clone().delete_volume(request).await {
            Err(status) if status.code() != Code::NotFound => Err(worded(&status)),
            _ => Ok(()),
        }
    }
}

/// What the class of attributes says that the claim names.
fn attributes(
    ctx: &Context,
    claim: &PersistentVolumeClaim,
    driver: &str,
    abilities: &Abilities,
) -> Result<Option<BTreeMap<String, String>>, String> {
    let name = facts::attributes_class(claim);
    if name.is_empty() {
        return Ok(None);
    }
    let class = ctx.store::<VolumeAttributesClass>().get(&Key::new("", name));
    modify::parameters(name, class.as_deref(), driver, abilities.can(Can::ModifyVolume)).map(Some)
}

/// Whether the driver may still be at work, or have succeeded unnoticed.
fn is_open(code: Code) -> bool {
    matches!(code, Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable | Code::Aborted)
}
