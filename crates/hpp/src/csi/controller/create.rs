//! Making volumes: empty, of another volume, or of a snapshot.

use rpc::csi::volume_content_source::{SnapshotSource, Type, VolumeSource};
use rpc::csi::{self, VolumeContentSource};
use tonic::Status;

use super::{Driver, busy, capability, check_space, failed};
use crate::store::{self, Data, Origin, Record, Snapshot, Volume};
use crate::{Pool, record};

/// What a new volume is filled with.
enum Content {
    Volume(Volume),
    Snapshot(Snapshot),
}

impl Content {
    fn data(&self) -> Data<'_> {
        match self {
            Self::Volume(volume) => volume.data(),
            Self::Snapshot(snapshot) => snapshot.data(),
        }
    }

    fn size(&self) -> i64 {
        match self {
            Self::Volume(volume) => volume.record.size,
            Self::Snapshot(snapshot) => snapshot.record.size,
        }
    }

    fn is_block(&self) -> bool {
        match self {
            Self::Volume(volume) => volume.record.block,
            Self::Snapshot(snapshot) => snapshot.record.block,
        }
    }
}

/// What the request says the volume is to be filled with.
fn origin(source: Option<VolumeContentSource>) -> Result<Option<Origin>, Status> {
    let Some(source) = source else { return Ok(None) };
    let required = |field: &str| Err(Status::invalid_argument(format!("volume_content_source: {field} is required")));
    match source.r#type {
        Some(Type::Volume(VolumeSource { volume_id })) if volume_id.is_empty() => required("volume_id"),
        Some(Type::Snapshot(SnapshotSource { snapshot_id })) if snapshot_id.is_empty() => required("snapshot_id"),
        Some(Type::Volume(VolumeSource { volume_id })) => Ok(Some(Origin::Volume(volume_id))),
        Some(Type::Snapshot(SnapshotSource { snapshot_id })) => Ok(Some(Origin::Snapshot(snapshot_id))),
        None => required("one of volume and snapshot"),
    }
}

/// The same in the words of CSI.
pub(super) fn source(origin: &Origin) -> VolumeContentSource {
    let kind = match origin.clone() {
        Origin::Volume(volume_id) => Type::Volume(VolumeSource { volume_id }),
        Origin::Snapshot(snapshot_id) => Type::Snapshot(SnapshotSource { snapshot_id }),
    };
    VolumeContentSource { r#type: Some(kind) }
}

/// Makes the volume, or finds it made.
pub(super) async fn volume(driver: &Driver, request: csi::CreateVolumeRequest) -> Result<Volume, Status> {
    if request.name.is_empty() {
        return Err(Status::invalid_argument("name is required"));
    }
    capability::is_block(&request.volume_capabilities, true)?;
    let pool = driver.pool(&request.parameters)?;
    let block = capability::is_block(&request.volume_capabilities, pool.shared)?;
    let origin = origin(request.volume_content_source)?;
    if !pool.shared {
        driver.check_place(request.accessibility_requirements.as_ref())?;
    }
    let range = request.capacity_range.as_ref();
    // Also of a volume that has its content already: a range that nothing can be in is refused every time.
    let size = capability::size(range, block, None)?;
    let held = driver.changing().await?;
    let id = record::id(&request.name);
    let known = store::find(&driver.pools, &id).map_err(failed("read the record of the volume"))?;
    if let Some(mut known) = known {
        let was = &known.record;
        let same = was.block == block && known.pool == *pool && was.name == request.name && was.origin == origin;
        if !same || !capability::fits(range, was.size) {
            let message = format!("volume {:?} exists already with another size, mode, pool or content", request.name);
            return Err(Status::already_exists(message));
        }
        if !was.filling {
            known.ensure().map_err(failed("make the volume"))?;
            return Ok(known);
        }
    }
    let Some(origin) = origin else {
        check_space(pool, size)?;
        let record = Record { name: request.name, block, size, ..Default::default() };
        return Volume::create(pool, record).map_err(failed("make the volume"));
    };
    let changed = driver.busy.change(busy::volume(&id))?;
    let (content, read) = find_content(driver, &origin)?;
    if content.is_block() != block {
        let words = if block { ["a file system", "a block device"] } else { ["a block device", "a file system"] };
        let message = format!("volume_content_source is {} and cannot become {}", words[0], words[1]);
        return Err(Status::invalid_argument(message));
    }
    let size = capability::size(range, block, Some(content.size()))?;
    check_space(pool, size)?;
    let record = Record { name: request.name, block, size, origin: Some(origin), filling: true, ..Default::default() };
    let volume = keep(pool, record)?;
    drop(held);
    let dev = driver.dev.clone();
    // Goes on when the caller has gone: it finds the volume when it asks again.
    let filling = tokio::task::spawn_blocking(move || {
        let (_changed, _read, mut volume) = (changed, read, volume);
        match volume.fill(&content.data(), &dev) {
            Ok(()) => Ok(volume),
            Err(error) => {
                if let Err(left) = volume.delete() {
                    tracing::warn!(volume = volume.id, error = %left, "a volume that could not be filled stays");
                }
                Err(failed("fill the volume")(error))
            }
        }
    });
    filling.await.map_err(|error| Status::internal(error.to_string()))?
}

fn keep(pool: &Pool, record: Record) -> Result<Volume, Status> {
    let volume = Volume::planned(pool, record);
    volume.keep().map_err(failed("keep the record of the volume"))?;
    Ok(volume)
}

/// What the volume is filled with, which stays until it is.
fn find_content(driver: &Driver, origin: &Origin) -> Result<(Content, busy::Held), Status> {
    match origin {
        Origin::Volume(id) => {
            let read = driver.busy.read(busy::volume(id))?;
            let volume = driver.volume(id)?;
            if volume.record.filling {
                return Err(Status::not_found(format!("volume {id:?} was not filled itself")));
            }
            Ok((Content::Volume(volume), read))
        }
        Origin::Snapshot(id) => {
            let read = driver.busy.read(busy::snapshot(id))?;
            let snapshot = driver.snapshot(id)?.filter(|snapshot| !snapshot.record.taking);
            let missing = || Status::not_found(format!("snapshot {id:?} does not exist on node {}", driver.node));
            Ok((Content::Snapshot(snapshot.ok_or_else(missing)?), read))
        }
    }
}
