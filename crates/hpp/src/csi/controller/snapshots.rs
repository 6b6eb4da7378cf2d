//! Taking, removing and listing snapshots.

use rpc::csi::{self, list_snapshots_response};
use tonic::{Response, Status};

use super::{Driver, busy, check_space, failed, page};
use crate::record;
use crate::store::Snapshot;

impl Driver {
    /// The snapshot of that id, if there is one.
    pub(super) fn snapshot(&self, id: &str) -> Result<Option<Snapshot>, Status> {
        Snapshot::find(&self.pools, id).map_err(failed("read the record of the snapshot"))
    }
}

/// Takes a snapshot, or finds it taken.
pub(super) async fn create(
    driver: &Driver,
    request: csi::CreateSnapshotRequest,
) -> Result<Response<csi::CreateSnapshotResponse>, Status> {
    for (field, value) in [("name", &request.name), ("source_volume_id", &request.source_volume_id)] {
        if value.is_empty() {
            return Err(Status::invalid_argument(format!("{field} is required")));
        }
    }
    let held = driver.changing().await?;
    let id = record::id(&request.name);
    if let Some(known) = driver.snapshot(&id)? {
        if known.record.volume != request.source_volume_id || known.record.name != request.name {
            let message = format!("snapshot {:?} exists already, of volume {:?}", request.name, known.record.volume);
            return Err(Status::already_exists(message));
        }
        if !known.record.taking {
            return Ok(Response::new(csi::CreateSnapshotResponse { snapshot: Some(describe(&known)) }));
        }
    }
    let changed = driver.busy.change(busy::snapshot(&id))?;
    let read = driver.busy.read(busy::volume(&request.source_volume_id))?;
    let volume = driver.volume(&request.source_volume_id)?;
    if volume.record.filling || volume.record.ephemeral {
        let why = if volume.record.filling { "is not filled yet" } else { "lives with its pod" };
        return Err(Status::failed_precondition(format!("volume {:?} {why}", volume.id)));
    }
    check_space(&volume.pool, 0)?;
    let snapshot = Snapshot::planned(&request.name, &volume, kit::clock::now().as_second());
    snapshot.keep().map_err(failed("keep the record of the snapshot"))?;
    drop(held);
    let dev = driver.dev.clone();
    // Goes on when the caller has gone: it finds the snapshot when it asks again.
    let taking = tokio::task::spawn_blocking(move || {
        let (_changed, _read, mut snapshot) = (changed, read, snapshot);
        match snapshot.take(&volume.data(), &dev) {
            Ok(()) => Ok(snapshot),
            Err(error) => {
                if let Err(left) = snapshot.delete() {
                    tracing::warn!(snapshot = snapshot.id, error = %left, "a snapshot that could not be taken stays");
                }
                Err(failed("take the snapshot")(error))
            }
        }
    });
    let snapshot = taking.await.map_err(|error| Status::internal(error.to_string()))??;
    tracing::info!(snapshot = snapshot.id, volume = snapshot.record.volume, "snapshot taken");
    Ok(Response::new(csi::CreateSnapshotResponse { snapshot: Some(describe(&snapshot)) }))
}

/// Removes a snapshot; volumes made of it do not need it.
pub(super) async fn delete(driver: &Driver, id: String) -> Result<Response<csi::DeleteSnapshotResponse>, Status> {
    if id.is_empty() {
        return Err(Status::invalid_argument("snapshot_id is required"));
    }
    let changed = driver.busy.change(busy::snapshot(&id))?;
    if let Some(snapshot) = driver.snapshot(&id)? {
        let removing = tokio::task::spawn_blocking(move || {
            let _changed = changed;
            snapshot.delete()
        });
        let removed = removing.await.map_err(|error| Status::internal(error.to_string()))?;
        removed.map_err(failed("remove the snapshot"))?;
        tracing::info!(snapshot = id, "snapshot removed");
    }
    Ok(Response::new(csi::DeleteSnapshotResponse {}))
}

/// Snapshots, all or those asked for. One that does not exist is none, and no error.
pub(super) fn list(
    driver: &Driver,
    request: &csi::ListSnapshotsRequest,
) -> Result<Response<csi::ListSnapshotsResponse>, Status> {
    let mut all = Snapshot::all(&driver.pools).map_err(failed("list snapshots"))?;
    let asked = |wanted: &str, is: &str| wanted.is_empty() || wanted == is;
    all.retain(|snapshot| {
        asked(&request.snapshot_id, &snapshot.id)
            && asked(&request.source_volume_id, &snapshot.record.volume)
            && !snapshot.record.taking
    });
    let (page, next_token) = page::of(all, |snapshot| &snapshot.id, request.max_entries, &request.starting_token)?;
    let entries = page.iter().map(|snapshot| list_snapshots_response::Entry { snapshot: Some(describe(snapshot)) });
    Ok(Response::new(csi::ListSnapshotsResponse { entries: entries.collect(), next_token }))
}

/// The snapshot in the words of CSI.
fn describe(snapshot: &Snapshot) -> csi::Snapshot {
    csi::Snapshot {
        size_bytes: snapshot.record.size,
        snapshot_id: snapshot.id.clone(),
        source_volume_id: snapshot.record.volume.clone(),
        creation_time: Some(prost_types::Timestamp { seconds: snapshot.record.taken, nanos: 0 }),
        ready_to_use: true,
        ..Default::default()
    }
}
