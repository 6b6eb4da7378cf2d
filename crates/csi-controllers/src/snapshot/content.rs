//! VolumeSnapshotContents: the driver takes the snapshot, says how it is, and deletes it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{PersistentVolume, SecretReference, VolumeNodeAffinity};
use kit::clock;
use kit::controller::{self, Context, Error, Result, write};
use kit::events::Severity;
use kit::queue::{self, Next};
use kit::store::Key;
use kube::ResourceExt;
use meta::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass, VolumeSnapshotContent, VolumeSnapshotContentStatus};
use rpc::csi;
use rpc::csi::controller_service_capability::rpc::Type as Can;
use serde_json::json;
use tonic::{Code, Status};

use super::names::{BEING_CREATED, BEING_DELETED, CONTENT, SECRET_NAME, SECRET_NAMESPACE};
use crate::driver::{Driver, Fleet, worded};
use crate::facts;
use crate::kinds::MANAGED_BY;
use crate::secret::{self, RESERVED};
use crate::sidecar::Function;

const COMPONENT: &str = "csi-snapshotter";
/// How soon a driver that needs time is asked again.
const AGAIN: Duration = Duration::from_secs(1);

struct Snapshotter {
    ctx: Context,
    fleet: Arc<Fleet>,
}

/// Runs until the context's shutdown.
pub(super) async fn run(ctx: Context, fleet: Arc<Fleet>) {
    let queue = Arc::new(queue::patient());
    let contents = ctx.store::<VolumeSnapshotContent>();
    contents.on_change({
        let queue = queue.clone();
        move |old, new| {
            if let Some(content) = new.filter(|_| super::is_news(old, new)) {
                queue.add(Key::of(content.as_ref()));
            }
        }
    });
    // The content of a snapshot that is gone may go.
    ctx.store::<VolumeSnapshot>().on_change({
        let queue = queue.clone();
        move |old, new| {
            if let (Some(old), None) = (old, new) {
                queue.add(Key::new("", old.content()));
            }
        }
    });
    fleet.on_change({
        let (queue, contents) = (queue.clone(), contents.clone());
        move || contents.all().iter().for_each(|content| queue.add(Key::of(content.as_ref())))
    });
    let snapshotter = Snapshotter { ctx, fleet };
    controller::work(&queue, "csi-snapshotter", 8, |key| snapshotter.reconcile(key)).await;
}

impl Snapshotter {
    async fn reconcile(&self, key: Key) -> Result<Next> {
        let Some(content) = self.ctx.store::<VolumeSnapshotContent>().get(&key) else { return Ok(Next::Wait) };
        if !self.fleet.serves(&content.spec.driver, Function::Snapshotter) || !self.is_ours(&content) {
            return Ok(Next::Wait);
        }
        if facts::is_leaving(content.as_ref()) {
            return self.leave(&content).await;
        }
        write::finalizer(&self.ctx, "keep volumesnapshotcontent", content.as_ref(), CONTENT, true).await?;
        if content.is_ready() {
            return Ok(Next::Wait);
        }
        let outcome = match (&content.spec.source.volume_handle, &content.spec.source.snapshot_handle) {
            (Some(volume), _) => self.create(&content, volume).await,
            (None, Some(handle)) => self.look(&content, handle).await,
            (None, None) => return Ok(Next::Wait),
        };
        match outcome {
            Ok(snapshot) => self.say(&content, &snapshot).await,
            // It may be on another node, whose driver is asked beside it; one of them says that it is nowhere.
            Err(status) if status.code() == Code::NotFound && self.leaves_word_to_others(&content) => Ok(Next::Wait),
            // The driver is at work on it.
            Err(status) if matches!(status.code(), Code::Aborted | Code::DeadlineExceeded) => Ok(Next::After(AGAIN)),
            Err(status) => self.fail(&content, &status).await,
        }
    }

    /// Whether the driver that has it, or has its volume, is called by this process.
    fn is_ours(&self, content: &VolumeSnapshotContent) -> bool {
        match content.labels().get(MANAGED_BY) {
            Some(node) => self.fleet.is_at(node),
            // Where one is that was there before is found out by looking everywhere.
            None if content.spec.source.snapshot_handle.is_some() => true,
            None => self.fleet.is_ours(&content.spec.driver, None, self.affinity(content).as_ref()),
        }
    }

    fn leaves_word_to_others(&self, content: &VolumeSnapshotContent) -> bool {
        content.spec.source.snapshot_handle.is_some()
            && !content.labels().contains_key(MANAGED_BY)
            && !self.fleet.is_ours(&content.spec.driver, None, None)
    }

    /// Where the snapshot's volume can be reached.
    fn affinity(&self, content: &VolumeSnapshotContent) -> Option<VolumeNodeAffinity> {
        let handle = content.spec.source.volume_handle.as_deref();
        let volumes = self.ctx.store::<PersistentVolume>().all();
        let volume = volumes.iter().find(|volume| {
            let csi = volume.spec.as_ref().and_then(|spec| spec.csi.as_ref());
            csi.is_some_and(|csi| csi.driver == content.spec.driver && Some(csi.volume_handle.as_str()) == handle)
        });
        volume.and_then(|volume| volume.spec.as_ref()?.node_affinity.clone())
    }

    /// The driver where the snapshot's volume is.
    async fn driver(&self, content: &VolumeSnapshotContent) -> Result<Driver, Status> {
        let name = &content.spec.driver;
        if let Some(node) = content.labels().get(MANAGED_BY) {
            return self.fleet.at(name, node).await;
        }
        self.fleet.reach(name, None, self.affinity(content).as_ref()).await
    }

    async fn create(&self, content: &VolumeSnapshotContent, volume: &str) -> Result<csi::Snapshot, Status> {
        let driver = self.driver(content).await?;
        if !driver.abilities.can(Can::CreateDeleteSnapshot) {
            let message = format!("driver {} does not support snapshots (CREATE_DELETE_SNAPSHOT)", content.spec.driver);
            return Err(Status::unimplemented(message));
        }
        if !content.annotations().contains_key(BEING_CREATED) {
            let mut change = json!({"metadata": {"annotations": {BEING_CREATED: "yes"}}});
            // The volume may be gone when the snapshot is to go: its node is known then by this.
            if let Some(own) = self.fleet.sidecar().filter(|_| self.affinity(content).is_some()) {
                change["metadata"]["labels"] = json!({ MANAGED_BY: own.node });
            }
            self.annotate(content, &change).await?;
        }
        let classes = self.ctx.store::<VolumeSnapshotClass>();
        let class = content.spec.volume_snapshot_class_name.as_deref().unwrap_or_default();
        let parameters = classes.get(&Key::new("", class)).and_then(|class| class.parameters.clone());
        let request = csi::CreateSnapshotRequest {
            source_volume_id: volume.to_owned(),
            name: format!("snapshot-{}", content.spec.volume_snapshot_ref.uid.as_deref().unwrap_or_default()),
            secrets: self.secrets(content).await?,
            parameters: parameters.into_iter().flatten().filter(|(key, _)| !key.starts_with(RESERVED)).collect(),
        };
        let answer = driver.client.clone().create_snapshot(request).await?.into_inner();
        answer.snapshot.ok_or_else(|| Status::internal("the driver answered without a snapshot"))
    }

    async fn annotate(&self, content: &VolumeSnapshotContent, change: &serde_json::Value) -> Result<(), Status> {
        let name = content.name_any();
        let operation = "annotate volumesnapshotcontent";
        let written = write::merge::<VolumeSnapshotContent>(&self.ctx, operation, &name, change).await;
        written.map(drop).map_err(|error| Status::aborted(error.message()))
    }

    async fn secrets(&self, content: &VolumeSnapshotContent) -> Result<HashMap<String, String>, Status> {
        let annotations = content.annotations();
        let (name, namespace) = (annotations.get(SECRET_NAME), annotations.get(SECRET_NAMESPACE));
        let reference = SecretReference { name: name.cloned(), namespace: namespace.cloned() };
        let reference = Some(&reference).filter(|_| name.is_some());
        secret::read(&self.ctx, reference).await.map_err(|error| Status::unavailable(error.message()))
    }

    /// Looks for a snapshot that was there before, wherever it may be.
    async fn look(&self, content: &VolumeSnapshotContent, handle: &str) -> Result<csi::Snapshot, Status> {
        let name = &content.spec.driver;
        let mut nodes = self.fleet.nodes(name);
        nodes.retain(|node| content.labels().get(MANAGED_BY).is_none_or(|only| only == node));
        for node in nodes {
            let driver = self.fleet.at(name, &node).await?;
            if !driver.abilities.can(Can::ListSnapshots) {
                // It cannot be asked: the content's word counts.
                return Ok(csi::Snapshot { snapshot_id: handle.to_owned(), ready_to_use: true, ..Default::default() });
            }
            let request = csi::ListSnapshotsRequest {
                snapshot_id: handle.to_owned(),
                secrets: self.secrets(content).await?,
                ..Default::default()
            };
            let listed = driver.client.clone().list_snapshots(request).await?.into_inner();
            if let Some(found) = listed.entries.into_iter().find_map(|entry| entry.snapshot) {
                if driver.abilities.has_topology() && !content.labels().contains_key(MANAGED_BY) {
                    self.annotate(content, &json!({"metadata": {"labels": {MANAGED_BY: node}}})).await?;
                }
                return Ok(found);
            }
        }
        Err(Status::not_found(format!("driver {name} has no snapshot {handle:?}")))
    }

    async fn say(&self, content: &VolumeSnapshotContent, found: &csi::Snapshot) -> Result<Next> {
        let taken = found.creation_time.map_or_else(
            || clock::time().0.as_nanosecond(),
            |time| i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanos),
        );
        let status = VolumeSnapshotContentStatus {
            creation_time: i64::try_from(taken).ok(),
            ready_to_use: Some(found.ready_to_use),
            restore_size: Some(found.size_bytes),
            snapshot_handle: Some(found.snapshot_id.clone()),
            error: None,
        };
        if content.status.as_ref() != Some(&status) {
            let mut change = json!({ "status": status });
            change["status"]["error"] = serde_json::Value::Null;
            let operation = "write status of volumesnapshotcontent";
            write::merge_status::<VolumeSnapshotContent>(&self.ctx, operation, &content.name_any(), &change).await?;
        }
        if !found.ready_to_use {
            return Ok(Next::After(AGAIN));
        }
        let now = self.ctx.store::<VolumeSnapshotContent>().get(&Key::of(content));
        if now.is_some_and(|content| content.annotations().contains_key(BEING_CREATED)) {
            let change = json!({"metadata": {"annotations": {BEING_CREATED: null}}});
            let operation = "annotate volumesnapshotcontent";
            write::merge::<VolumeSnapshotContent>(&self.ctx, operation, &content.name_any(), &change).await?;
        }
        Ok(Next::Wait)
    }

    async fn fail(&self, content: &VolumeSnapshotContent, status: &Status) -> Result<Next> {
        let words = worded(status);
        let (reason, message) = match &content.spec.source.volume_handle {
            Some(volume) => {
                let message =
                    format!("Failed to create snapshot: failed to take snapshot of the volume {volume}: {words:?}");
                ("SnapshotCreationFailed", message)
            }
            None => {
                let message = format!("Failed to check and update snapshot content: {words}");
                ("SnapshotContentCheckandUpdateFailed", message)
            }
        };
        let known = content.status.as_ref().and_then(|status| status.error.as_ref()?.message.as_deref());
        if known != Some(message.as_str()) {
            let mut change =
                json!({"status": {"readyToUse": false, "error": {"message": message, "time": clock::time()}}});
            if self.fleet.sidecar().is_some() && content.spec.source.snapshot_handle.is_some() {
                // Another node's driver may just have found it.
                change["metadata"] = json!({"resourceVersion": content.resource_version()});
            }
            let operation = "write error of volumesnapshotcontent";
            write::merge_status::<VolumeSnapshotContent>(&self.ctx, operation, &content.name_any(), &change).await?;
        }
        self.ctx.events.record(COMPONENT, content, Severity::Warning, reason, message.clone());
        Err(Error::Unfinished { object: content.name_any(), what: message })
    }

    /// A content that is being deleted goes when its snapshot does: the driver deletes it before, as the policy says.
    async fn leave(&self, content: &VolumeSnapshotContent) -> Result<Next> {
        let marked = content.annotations().contains_key(BEING_DELETED);
        if !marked && self.has_snapshot(content) {
            return Ok(Next::Wait);
        }
        if content.deletes()
            && let Err(status) = self.delete(content).await
        {
            if matches!(status.code(), Code::Aborted | Code::DeadlineExceeded) {
                return Ok(Next::After(AGAIN));
            }
            let message = format!("Failed to delete snapshot: {:?}", worded(&status));
            self.ctx.events.record(COMPONENT, content, Severity::Warning, "SnapshotDeleteError", message.clone());
            return Err(Error::Unfinished { object: content.name_any(), what: message });
        }
        if let Some(current) = self.ctx.store::<VolumeSnapshotContent>().get(&Key::of(content)) {
            let operation = "let volumesnapshotcontent go";
            write::finalizer(&self.ctx, operation, current.as_ref(), CONTENT, false).await?;
        }
        Ok(Next::Wait)
    }

    fn has_snapshot(&self, content: &VolumeSnapshotContent) -> bool {
        let of = &content.spec.volume_snapshot_ref;
        let key = Key::new(of.namespace.clone().unwrap_or_default(), of.name.clone().unwrap_or_default());
        let found = self.ctx.store::<VolumeSnapshot>().get(&key);
        found.is_some_and(|snapshot| of.uid.is_some() && snapshot.metadata.uid == of.uid)
    }

    async fn delete(&self, content: &VolumeSnapshotContent) -> Result<(), Status> {
        let handle = match (content.handle(), &content.spec.source.volume_handle) {
            (Some(handle), _) => handle.to_owned(),
            // The driver may have taken it without our knowing: it is found by being asked for once more.
            (None, Some(volume)) if content.annotations().contains_key(BEING_CREATED) => {
                match self.create(content, volume).await {
                    Ok(found) => found.snapshot_id,
                    Err(status) if is_final(status.code()) => return Ok(()),
                    Err(status) => return Err(status),
                }
            }
            (None, _) => return Ok(()),
        };
        let request = csi::DeleteSnapshotRequest { snapshot_id: handle, secrets: self.secrets(content).await? };
        match self.driver(content).await?.client.clone().delete_snapshot(request).await {
            Err(status) if status.code() != Code::NotFound => Err(status),
            _ => Ok(()),
        }
    }
}

/// Whether the driver certainly has taken no snapshot.
fn is_final(code: Code) -> bool {
    matches!(
        code,
        Code::InvalidArgument
            | Code::NotFound
            | Code::AlreadyExists
            | Code::FailedPrecondition
            | Code::ResourceExhausted
            | Code::Unimplemented
    )
}
