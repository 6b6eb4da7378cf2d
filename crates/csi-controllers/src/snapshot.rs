//! Snapshots: the controller of VolumeSnapshots, and the taking and deleting of snapshots with drivers that bring no
//! snapshotter.
//!
//! ```text
//!  VolumeSnapshot --plan--> VolumeSnapshotContent --CreateSnapshot--> driver
//!        ^                         |
//!        +---- status follows -----+
//! ```
//!
//! Where somebody's own snapshot controller runs, the VolumeSnapshots are left to it.

mod content;
mod names;
mod plan;

use std::sync::Arc;

use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim};
use kit::clock;
use kit::controller::{self, Context, Error, Result, write};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::{Resource, ResourceExt};
use meta::volume_snapshot::{GROUP, VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, VolumeSnapshotStatus};
use serde_json::json;

use self::names::{BEING_DELETED, CLAIM, SECRET_NAME, SECRET_NAMESPACE};
use self::plan::{Step, World};
use super::driver::Fleet;
use super::kinds::MANAGED_BY;
use super::{facts, place, secret};

const COMPONENT: &str = "snapshot-controller";

/// Runs until the context's shutdown.
pub(super) async fn run(ctx: Context, fleet: Arc<Fleet>) {
    let queue = Arc::new(queue::patient());
    let (snapshots, contents) = (ctx.store::<VolumeSnapshot>(), ctx.store::<VolumeSnapshotContent>());
    let (classes, claims) = (ctx.store::<VolumeSnapshotClass>(), ctx.store::<PersistentVolumeClaim>());
    snapshots.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(snapshot) = new.or(old).filter(|_| is_news(old, new)) {
                queue.add(Key::of(snapshot.as_ref()));
            }
        }
    });
    contents.on_change({
        let queue = queue.clone();
        move |old, new| {
            let Some(content) = new.or(old) else { return };
            let of = &content.spec.volume_snapshot_ref;
            if let (Some(namespace), Some(name)) = (&of.namespace, &of.name) {
                queue.add(Key::new(namespace, name));
            }
        }
    });
    let again = {
        let (queue, snapshots) = (queue.clone(), snapshots.clone());
        move || {
            for snapshot in snapshots.all().iter().filter(|snapshot| !snapshot.is_ready()) {
                queue.add(Key::of(snapshot.as_ref()));
            }
        }
    };
    classes.on_change(move |_, _| again());
    claims.on_change({
        let (queue, snapshots) = (queue.clone(), snapshots.clone());
        move |old, new| {
            let Some(claim) = new.or(old) else { return };
            for snapshot in snapshots.in_namespace(&claim.namespace().unwrap_or_default()) {
                let its = snapshot.claim() == claim.metadata.name.as_deref() && !snapshot.is_ready();
                if its || is_made_from(claim, &snapshot.name_any()) {
                    queue.add(Key::of(snapshot.as_ref()));
                }
            }
        }
    });
    snapshots.synced().await;
    contents.synced().await;
    classes.synced().await;
    claims.synced().await;
    ctx.store::<PersistentVolume>().synced().await;
    fleet.synced().await;
    let controller = Controller { ctx: ctx.clone() };
    tokio::join!(
        controller::work(&queue, "snapshot-controller", 8, |key| controller.reconcile(key)),
        content::run(ctx.clone(), fleet.clone())
    );
}

/// Takes and deletes snapshots with the one driver this process runs beside; the snapshots' own controller is the
/// cluster's.
pub(super) async fn sidecar(ctx: Context, fleet: Arc<Fleet>) {
    // On clusters that know no snapshots these are never complete, and nothing is to be done.
    ctx.store::<VolumeSnapshot>().synced().await;
    ctx.store::<VolumeSnapshotContent>().synced().await;
    ctx.store::<VolumeSnapshotClass>().synced().await;
    ctx.store::<PersistentVolume>().synced().await;
    fleet.synced().await;
    content::run(ctx, fleet).await;
}

/// Whether more changed than what we say of it ourselves: a failure that we write is no reason to try again.
fn is_news<K: Resource>(old: Option<&Arc<K>>, new: Option<&Arc<K>>) -> bool {
    let seen = |object: &Arc<K>| {
        let meta = object.meta();
        let marked = facts::annotation(object.as_ref(), BEING_DELETED).to_owned();
        (meta.uid.clone(), meta.generation, meta.deletion_timestamp.clone(), meta.finalizers.clone(), marked)
    };
    old.map(seen) != new.map(seen)
}

/// Whether the claim names the snapshot as its source.
fn is_made_from(claim: &PersistentVolumeClaim, snapshot: &str) -> bool {
    let source = claim.spec.as_ref().and_then(|spec| spec.data_source_ref.as_ref());
    source.is_some_and(|source| {
        source.kind == "VolumeSnapshot" && source.api_group.as_deref() == Some(GROUP) && source.name == snapshot
    })
}

struct Controller {
    ctx: Context,
}

impl Controller {
    async fn reconcile(&self, key: Key) -> Result<Next> {
        let ctx = &self.ctx;
        let known = ctx.store::<VolumeSnapshot>().get(&key);
        if self.is_elsewhere() {
            return Ok(Next::Wait);
        }
        let Some(snapshot) = known else {
            return self.let_claims_go(&key.namespace).await.map(|()| Next::Wait);
        };
        let content = ctx.store::<VolumeSnapshotContent>().get(&Key::new("", snapshot.content()));
        let claims = ctx.store::<PersistentVolumeClaim>();
        let claim = snapshot.claim().and_then(|name| claims.get(&Key::new(key.namespace.as_str(), name)));
        let volume = claim.as_ref().map(|claim| facts::volume_name(claim));
        let volume = volume.and_then(|name| ctx.store::<PersistentVolume>().get(&Key::new("", name)));
        let classes = ctx.store::<VolumeSnapshotClass>().all();
        let name = snapshot.name_any();
        let restored =
            |claim: &Arc<PersistentVolumeClaim>| is_made_from(claim, &name) && facts::phase(claim) == "Pending";
        let world = World {
            content: content.as_deref(),
            classes: &classes,
            claim: claim.as_deref(),
            volume: volume.as_deref(),
            in_use: facts::is_leaving(snapshot.as_ref()) && claims.in_namespace(&key.namespace).iter().any(restored),
        };
        match plan::step(&snapshot, &world) {
            Step::Rest => {}
            Step::Finalizers(list) => self.set_finalizers(&snapshot, &list).await?,
            Step::TakeClass(class) => {
                let change = json!({"metadata": {"resourceVersion": snapshot.resource_version()},
                    "spec": {"volumeSnapshotClassName": class}});
                ctx.merge::<VolumeSnapshot>("set the class of volumesnapshot", &key, &change).await?;
            }
            Step::HoldClaim => {
                if let Some(claim) = &claim {
                    self.hold(claim, true).await?;
                }
                // The claim's change wakes us as well, unless it is known already.
                return Ok(Next::After(std::time::Duration::from_millis(10)));
            }
            Step::Make(content) => self.make(&snapshot, *content, volume.as_deref()).await?,
            Step::Bind => {
                let uid = snapshot.uid();
                let change = json!({"metadata": {"resourceVersion": content.as_ref().and_then(|c| c.resource_version())},
                    "spec": {"volumeSnapshotRef": {"uid": uid, "apiVersion": format!("{GROUP}/v1"), "kind": "VolumeSnapshot",
                        "namespace": key.namespace, "name": key.name}}});
                let bound = snapshot.content();
                write::merge::<VolumeSnapshotContent>(ctx, "bind volumesnapshotcontent", &bound, &change).await?;
            }
            Step::Say(status) => self.say(&snapshot, &status).await?,
            Step::Fail { reason, message } => return self.fail(&snapshot, reason, message).await,
            Step::Pending => {
                let text = "Snapshot is being used to restore a PVC";
                ctx.events.record(COMPONENT, snapshot.as_ref(), Severity::Warning, "SnapshotDeletePending", text);
            }
            Step::Mark => {
                let change = json!({"metadata": {"annotations": {BEING_DELETED: "yes"}}});
                let of = snapshot.content();
                write::merge::<VolumeSnapshotContent>(ctx, "mark volumesnapshotcontent", &of, &change).await?;
            }
            Step::DeleteContent => {
                if let Some(content) = &content {
                    write::delete(ctx, "delete volumesnapshotcontent", content.as_ref()).await?;
                }
            }
        }
        self.let_claims_go(&key.namespace).await?;
        Ok(Next::Wait)
    }

    /// Whether a snapshot controller of somebody else's runs, or is to run.
    fn is_elsewhere(&self) -> bool {
        let of = |template: Option<&k8s_openapi::api::core::v1::PodSpec>| {
            template.is_some_and(|spec| spec.containers.iter().any(crate::sidecar::is_snapshot_controller))
        };
        let deployed = |d: &Deployment| of(d.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()));
        let on_nodes = |d: &DaemonSet| of(d.spec.as_ref().and_then(|spec| spec.template.spec.as_ref()));
        self.ctx.store::<Deployment>().any(deployed) || self.ctx.store::<DaemonSet>().any(on_nodes)
    }

    async fn set_finalizers(&self, snapshot: &VolumeSnapshot, list: &[String]) -> Result<()> {
        let key = Key::of(snapshot);
        let change = json!({"metadata": {"uid": snapshot.uid(), "resourceVersion": snapshot.resource_version(), "finalizers": list}});
        let written = self.ctx.merge::<VolumeSnapshot>("write finalizers of volumesnapshot", &key, &change).await?;
        if facts::is_leaving(snapshot) && written.is_none_or(|new| new.finalizers().is_empty()) {
            self.ctx.store::<VolumeSnapshot>().forget(&key, &snapshot.uid().unwrap_or_default());
        }
        Ok(())
    }

    async fn make(
        &self,
        snapshot: &VolumeSnapshot,
        mut content: VolumeSnapshotContent,
        volume: Option<&PersistentVolume>,
    ) -> Result<()> {
        let ctx = &self.ctx;
        if let Some(node) = volume.and_then(|volume| self.only_node(volume)) {
            content.labels_mut().insert(MANAGED_BY.to_owned(), node);
        }
        let classes = ctx.store::<VolumeSnapshotClass>();
        let class = content.spec.volume_snapshot_class_name.as_deref().unwrap_or_default();
        let class = classes.get(&Key::new("", class));
        let parameters = class.as_ref().and_then(|class| class.parameters.clone()).unwrap_or_default();
        let secret = secret::of_snapshot(&parameters, snapshot, &content.name_any());
        let secret = secret.map_err(|what| Error::Unfinished { object: Key::of(snapshot).to_string(), what })?;
        if let Some(secret) = secret {
            content.annotations_mut().insert(SECRET_NAME.to_owned(), secret.name.unwrap_or_default());
            content.annotations_mut().insert(SECRET_NAMESPACE.to_owned(), secret.namespace.unwrap_or_default());
        }
        write::create(ctx, "create volumesnapshotcontent", &content).await?;
        let text = format!("Waiting for a snapshot {} to be created by the CSI driver.", Key::of(snapshot));
        ctx.events.record(COMPONENT, snapshot, Severity::Normal, "CreatingSnapshot", text);
        Ok(())
    }

    /// The node a volume can be reached from, when there is but one.
    fn only_node(&self, volume: &PersistentVolume) -> Option<String> {
        volume.spec.as_ref()?.node_affinity.as_ref()?;
        let nodes = self.ctx.store::<Node>().all();
        let mut near = nodes.iter().filter(|node| place::reachable(volume, node));
        near.next().filter(|_| near.next().is_none()).map(|node| node.name_any())
    }

    async fn say(&self, snapshot: &VolumeSnapshot, status: &VolumeSnapshotStatus) -> Result<()> {
        let (ctx, key) = (&self.ctx, Key::of(snapshot));
        let mut change = json!({"metadata": {"resourceVersion": snapshot.resource_version()}, "status": status});
        // What was wrong is over.
        change["status"]["error"] = json!(status.error);
        ctx.merge_status::<VolumeSnapshot>("write status of volumesnapshot", &key, &change).await?;
        let was = snapshot.status.clone().unwrap_or_default();
        if was.creation_time.is_none() && status.creation_time.is_some() {
            let text = format!("Snapshot {key} was successfully created by the CSI driver.");
            ctx.events.record(COMPONENT, snapshot, Severity::Normal, "SnapshotCreated", text);
        }
        if was.ready_to_use != Some(true) && status.ready_to_use == Some(true) {
            let text = format!("Snapshot {key} is ready to use.");
            ctx.events.record(COMPONENT, snapshot, Severity::Normal, "SnapshotReady", text);
        }
        Ok(())
    }

    /// Says what is wrong, and looks again later: what is missing may come.
    async fn fail(&self, snapshot: &VolumeSnapshot, reason: &'static str, message: String) -> Result<Next> {
        let (ctx, key) = (&self.ctx, Key::of(snapshot));
        let known = snapshot.status.as_ref().and_then(|status| status.error.as_ref()?.message.as_deref());
        if known != Some(message.as_str()) {
            let status = json!({"readyToUse": false, "error": {"message": message, "time": clock::time()}});
            let change = json!({"metadata": {"resourceVersion": snapshot.resource_version()}, "status": status});
            ctx.merge_status::<VolumeSnapshot>("write error of volumesnapshot", &key, &change).await?;
        }
        ctx.events.record(COMPONENT, snapshot, Severity::Warning, reason, message.clone());
        Err(Error::Unfinished { object: key.to_string(), what: message })
    }

    /// Lets go of claims no snapshot is being taken of any more.
    async fn let_claims_go(&self, namespace: &str) -> Result<()> {
        let snapshots = self.ctx.store::<VolumeSnapshot>().in_namespace(namespace);
        let contents = self.ctx.store::<VolumeSnapshotContent>();
        for claim in self.ctx.store::<PersistentVolumeClaim>().in_namespace(namespace) {
            if !claim.finalizers().iter().any(|name| name == CLAIM) {
                continue;
            }
            let needs = |snapshot: &Arc<VolumeSnapshot>| {
                let content = contents.get(&Key::new("", snapshot.content()));
                snapshot.claim() == claim.metadata.name.as_deref()
                    && !facts::is_leaving(snapshot.as_ref())
                    && content.is_none_or(|content| !content.is_ready())
                    && !snapshot.is_ready()
            };
            if !snapshots.iter().any(needs) {
                self.hold(&claim, false).await?;
            }
        }
        Ok(())
    }

    async fn hold(&self, claim: &PersistentVolumeClaim, wanted: bool) -> Result<()> {
        let mut list = claim.finalizers().to_vec();
        list.retain(|name| name != CLAIM);
        list.extend(Some(CLAIM.to_owned()).filter(|_| wanted));
        let change =
            json!({"metadata": {"uid": claim.uid(), "resourceVersion": claim.resource_version(), "finalizers": list}});
        let key = Key::of(claim);
        let operation = "keep persistentvolumeclaim until its snapshot is taken";
        let written = self.ctx.merge::<PersistentVolumeClaim>(operation, &key, &change).await?;
        if facts::is_leaving(claim) && written.is_none_or(|new| new.finalizers().is_empty()) {
            self.ctx.store::<PersistentVolumeClaim>().forget(&key, &claim.uid().unwrap_or_default());
        }
        Ok(())
    }
}
