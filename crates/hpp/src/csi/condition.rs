//! What can be seen of a volume on this node: whether it is whole and has room, and what is mounted of it.

use std::path::Path;

use rpc::csi::VolumeCondition;
use sys::mount;

use crate::pool;
use crate::store::Volume;

/// Of a pool with less room than one part in this many, volumes are said to be in danger.
const SCARCE: i64 = 100;

/// How the volume is.
pub(super) fn condition(volume: &Volume) -> VolumeCondition {
    let pool = &volume.pool;
    if !volume.data().is_whole() {
        let what = if volume.record.block { "file" } else { "directory" };
        let message = format!("the {what} of the volume is missing in pool {:?}", pool.name);
        return VolumeCondition { abnormal: true, message };
    }
    if pool::is_read_only(&pool.path) {
        return VolumeCondition { abnormal: true, message: format!("pool {:?} can only be read", pool.name) };
    }
    match pool::space(&pool.path) {
        Ok(space) if space.available < space.total / SCARCE => {
            let message = format!("pool {:?} has {} of {} bytes left", pool.name, space.available, space.total);
            VolumeCondition { abnormal: true, message }
        }
        Ok(_) => VolumeCondition { abnormal: false, message: "the volume is well".into() },
        Err(error) => {
            VolumeCondition { abnormal: true, message: format!("pool {:?} cannot be measured: {error}", pool.name) }
        }
    }
}

/// True when something is mounted at the path.
pub(super) fn is_mounted(path: &Path) -> bool {
    mount::points().is_ok_and(|points| points.iter().any(|point| point == path))
}
