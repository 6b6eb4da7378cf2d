//! The attach-detach controller: a `VolumeAttachment` for every CSI volume a pod needs on its node, none for the others.
//!
//! ```text
//!  pod on node --> VolumeAttachment --driver's attacher--> attached --> the node mounts
//!  pod gone ----> node unmounted --> VolumeAttachment deleted --> detached
//! ```
//!
//! A node that fell silent keeps its volumes for six minutes, or until it is said to be out of service.

mod plan;

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use csi_controllers::facts;
use csi_controllers::facts::source;
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::{
    CSIDriver, CSINode, VolumeAttachment, VolumeAttachmentSource, VolumeAttachmentSpec,
};
use kit::controller::{self, Result, pod, write};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use serde_json::json;
use tokio::time::Instant;

use self::plan::{Detach, Want, Wants};
use crate::context::Context;
use crate::protection::claims_of;

const COMPONENT: &str = "attachdetach-controller";

struct Controller {
    ctx: Context,
    /// Since when attachments are needed by no pod.
    unneeded: Mutex<HashMap<String, Instant>>,
}

/// Runs until the context's shutdown. Work goes node by node.
pub(super) async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let (pods, claims) = (ctx.store::<Pod>(), ctx.store::<PersistentVolumeClaim>());
    let attachments = ctx.store::<VolumeAttachment>();
    pods.on_change({
        let queue = queue.clone();
        move |old, new| {
            for pod in old.into_iter().chain(new).filter(|pod| !claims_of(pod).is_empty()) {
                let same = old.zip(new).is_some_and(|(a, b)| {
                    pod::is_finished(a) == pod::is_finished(b) && pod::node_name(a) == pod::node_name(b)
                });
                if let Some(node) = pod::node_name(pod).filter(|_| !same) {
                    queue.add(node.to_owned());
                }
            }
        }
    });
    claims.on_change({
        let queue = queue.clone();
        move |_, new| {
            let Some(claim) = new.filter(|claim| facts::is_bound(claim)) else { return };
            let name = claim.name_any();
            for pod in pods.in_namespace(&claim.namespace().unwrap_or_default()) {
                if let Some(node) = pod::node_name(&pod).filter(|_| claims_of(&pod).contains(&name)) {
                    queue.add(node.to_owned());
                }
            }
        }
    });
    attachments.on_change({
        let (queue, pods) = (queue.clone(), ctx.store::<Pod>());
        move |_, new| match new {
            Some(attachment) => queue.add(attachment.spec.node_name.clone()),
            // A volume that is free again may be waited for by a pod elsewhere.
            None => {
                let waiting = pods.all();
                let waiting = waiting.iter().filter(|pod| !pod::is_finished(pod) && !claims_of(pod).is_empty());
                waiting.filter_map(|pod| pod::node_name(pod)).for_each(|node| queue.add(node.to_owned()));
            }
        }
    });
    ctx.store::<Node>().on_change({
        let queue = queue.clone();
        move |old, new| {
            let matters = |node: &Node| {
                let in_use = node.status.as_ref().and_then(|s| s.volumes_in_use.clone());
                (
                    in_use,
                    node.status.as_ref().and_then(|s| s.volumes_attached.clone()),
                    node.spec.as_ref().and_then(|s| s.taints.clone()),
                )
            };
            if let Some(node) = new.or(old)
                && old.map(|node| matters(node)) != new.map(|node| matters(node))
            {
                queue.add(node.name_any());
            }
        }
    });
    ctx.store::<CSIDriver>().on_change({
        let (queue, nodes) = (queue.clone(), ctx.store::<CSINode>());
        move |_, _| nodes.all().iter().for_each(|node| queue.add(node.name_any()))
    });
    ctx.store::<Pod>().synced().await;
    claims.synced().await;
    ctx.store::<PersistentVolume>().synced().await;
    attachments.synced().await;
    ctx.store::<Node>().synced().await;
    ctx.store::<CSINode>().synced().await;
    ctx.store::<CSIDriver>().synced().await;
    let controller = Controller { ctx, unneeded: Mutex::default() };
    controller::work(&queue, "attach-detach", 1, |node| controller.reconcile(node)).await;
}

impl Controller {
    async fn reconcile(&self, node: String) -> Result<Next> {
        let idle = self.of_node(&node).is_empty()
            && !self.ctx.store::<PersistentVolume>().all().iter().any(|v| source(v).is_some());
        if idle {
            self.publish_attached(&node).await?;
            return Ok(Next::Wait);
        }
        let wants = self.wants();
        let mut wake = self.detach(&node, &wants).await?;
        if self.attach(&node, &wants).await? {
            // An attachment of another make may end without a word to us.
            wake = wake.or(Some(Duration::from_secs(15)));
        }
        self.publish_attached(&node).await?;
        Ok(wake.map_or(Next::Wait, Next::After))
    }

    /// Every CSI volume that needs an attachment, by node.
    fn wants(&self) -> Wants {
        let (claims, volumes) = (self.ctx.store::<PersistentVolumeClaim>(), self.ctx.store::<PersistentVolume>());
        let mut wants = Wants::new();
        for pod in self.ctx.store::<Pod>().all().iter().filter(|pod| !pod::is_finished(pod)) {
            let Some(node) = pod::node_name(pod) else { continue };
            for name in claims_of(pod) {
                let claim = claims.get(&Key::new(pod.namespace().unwrap_or_default(), name));
                let Some(claim) = claim.filter(|claim| facts::is_bound(claim)) else { continue };
                let volume = volumes.get(&Key::new("", facts::volume_name(&claim)));
                let Some(volume) = volume.filter(|volume| self.is_attachable(volume)) else { continue };
                let name = volume.name_any();
                let want = wants.entry((node.to_owned(), name.clone()));
                let want = want.or_insert_with(|| Want { volume: name, pods: BTreeSet::new() });
                want.pods.insert(Key::of(pod.as_ref()).to_string());
            }
        }
        wants
    }

    fn is_attachable(&self, volume: &PersistentVolume) -> bool {
        let Some(csi) = source(volume) else { return false };
        let driver = self.ctx.store::<CSIDriver>().get(&Key::new("", csi.driver.as_str()));
        driver.is_none_or(|driver| driver.spec.attach_required != Some(false))
    }

    /// Makes the missing attachments; true when one has to wait for another node.
    async fn attach(&self, node: &str, wants: &Wants) -> Result<bool> {
        let mut waits = false;
        for want in wants.iter().filter(|((on, _), _)| on == node).map(|(_, want)| want) {
            let volume = self.ctx.store::<PersistentVolume>().get(&Key::new("", want.volume.as_str()));
            let Some((volume, csi)) = volume.as_ref().and_then(|v| Some((v, source(v)?))) else { continue };
            let name = plan::name(&csi.volume_handle, &csi.driver, node);
            if self.ctx.store::<VolumeAttachment>().get(&Key::new("", name.as_str())).is_some() {
                continue;
            }
            let all = self.ctx.store::<VolumeAttachment>().all();
            let all: Vec<&VolumeAttachment> = all.iter().map(AsRef::as_ref).collect();
            if let Some(why) = plan::conflict(volume, node, &all, wants) {
                self.tell(want, Severity::Warning, "FailedAttachVolume", &why);
                waits = true;
                continue;
            }
            let attachment = VolumeAttachment {
                metadata: ObjectMeta { name: Some(name), ..ObjectMeta::default() },
                spec: VolumeAttachmentSpec {
                    attacher: csi.driver.clone(),
                    node_name: node.to_owned(),
                    source: VolumeAttachmentSource {
                        persistent_volume_name: Some(want.volume.clone()),
                        inline_volume_spec: None,
                    },
                },
                status: None,
            };
            write::create(&self.ctx, "create volumeattachment", &attachment).await?;
        }
        self.report(node, wants);
        Ok(waits)
    }

    /// Tells the pods how attaching went.
    fn report(&self, node: &str, wants: &Wants) {
        for attachment in self.of_node(node) {
            let volume = attachment.spec.source.persistent_volume_name.clone().unwrap_or_default();
            let Some(want) = wants.get(&(node.to_owned(), volume.clone())) else { continue };
            let status = attachment.status.as_ref();
            if let Some(error) = status.and_then(|s| s.attach_error.as_ref()) {
                let why = error.message.clone().unwrap_or_default();
                let text = format!("AttachVolume.Attach failed for volume {volume:?} : {why}");
                self.tell(want, Severity::Warning, "FailedAttachVolume", &text);
            } else if status.is_some_and(|s| s.attached) && !self.is_published(node, &attachment) {
                let text = format!("AttachVolume.Attach succeeded for volume {volume:?} ");
                self.tell(want, Severity::Normal, "SuccessfulAttachVolume", &text);
            }
        }
    }

    fn tell(&self, want: &Want, severity: Severity, reason: &'static str, text: &str) {
        for key in &want.pods {
            let (namespace, name) = key.split_once('/').unwrap_or(("", key));
            if let Some(pod) = self.ctx.store::<Pod>().get(&Key::new(namespace, name)) {
                self.ctx.events.record(COMPONENT, pod.as_ref(), severity, reason, text);
            }
        }
    }

    fn of_node(&self, node: &str) -> Vec<Arc<VolumeAttachment>> {
        let mut all = self.ctx.store::<VolumeAttachment>().all();
        all.retain(|attachment| attachment.spec.node_name == node);
        all
    }

    fn unique_of(&self, attachment: &VolumeAttachment) -> Option<String> {
        let name = attachment.spec.source.persistent_volume_name.as_deref()?;
        let volume = self.ctx.store::<PersistentVolume>().get(&Key::new("", name))?;
        let csi = source(&volume)?;
        Some(plan::unique(&csi.driver, &csi.volume_handle))
    }

    fn is_published(&self, node: &str, attachment: &VolumeAttachment) -> bool {
        let node = self.ctx.store::<Node>().get(&Key::new("", node));
        let known = node.as_ref().and_then(|n| n.status.as_ref()?.volumes_attached.as_deref()).unwrap_or_default();
        self.unique_of(attachment).is_some_and(|name| known.iter().any(|volume| volume.name == name))
    }

    /// Ends the attachments of volumes no pod on the node needs.
    async fn detach(&self, node: &str, wants: &Wants) -> Result<Option<Duration>> {
        let mut wake: Option<Duration> = None;
        for attachment in self.of_node(node) {
            let name = attachment.name_any();
            let volume = attachment.spec.source.persistent_volume_name.clone().unwrap_or_default();
            // What was attached for somebody else's purpose, by another name, is not ours to end.
            let ours = name.starts_with("csi-") && !volume.is_empty();
            if !ours || wants.contains_key(&(node.to_owned(), volume)) {
                self.needed_again(&name);
                continue;
            }
            if facts::is_leaving(attachment.as_ref()) {
                continue;
            }
            let since = *self.unneeded().entry(name.clone()).or_insert_with(Instant::now);
            let unneeded = i64::try_from(since.elapsed().as_secs()).unwrap_or(i64::MAX);
            let object = self.ctx.store::<Node>().get(&Key::new("", node));
            let used = self.unique_of(&attachment).unwrap_or_default();
            match plan::detach(object.as_deref(), &used, unneeded) {
                Detach::Now => {
                    write::delete(&self.ctx, "delete volumeattachment", attachment.as_ref()).await?;
                    self.needed_again(&name);
                }
                Detach::Wait => {}
                Detach::In(seconds) => {
                    let seconds = Duration::from_secs(u64::try_from(seconds).unwrap_or(1));
                    wake = Some(wake.map_or(seconds, |known| known.min(seconds)));
                }
            }
        }
        Ok(wake)
    }

    fn unneeded(&self) -> std::sync::MutexGuard<'_, HashMap<String, Instant>> {
        self.unneeded.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn needed_again(&self, attachment: &str) {
        self.unneeded().remove(attachment);
    }

    /// Writes what is attached into the node's status, for its agent.
    async fn publish_attached(&self, name: &str) -> Result<()> {
        let Some(node) = self.ctx.store::<Node>().get(&Key::new("", name)) else { return Ok(()) };
        let attached = self.of_node(name);
        let attached =
            attached.iter().filter(|a| a.status.as_ref().is_some_and(|s| s.attached) && !facts::is_leaving(a.as_ref()));
        let now: BTreeSet<String> = attached.filter_map(|a| self.unique_of(a)).collect();
        let known = node.status.as_ref().and_then(|s| s.volumes_attached.as_deref()).unwrap_or_default();
        // Entries of other kinds of volumes are left as they are.
        let foreign = known.iter().filter(|v| !v.name.starts_with("kubernetes.io/csi/")).cloned();
        let before: BTreeSet<String> =
            known.iter().filter(|v| v.name.starts_with("kubernetes.io/csi/")).map(|v| v.name.clone()).collect();
        if before == now {
            return Ok(());
        }
        let mut list: Vec<_> = foreign.map(|v| json!(v)).collect();
        list.extend(now.iter().map(|name| json!({"name": name, "devicePath": ""})));
        let list = (!list.is_empty()).then_some(list);
        let change =
            json!({"metadata": {"resourceVersion": node.resource_version()}, "status": {"volumesAttached": list}});
        write::merge_status::<Node>(&self.ctx, "write attached volumes of node", name, &change).await?;
        Ok(())
    }
}
