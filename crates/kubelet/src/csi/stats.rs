//! How full the volumes of pods are: what their driver says, or their file system.

use std::path::Path;
use std::time::Duration;

use rpc::csi::NodeGetVolumeStatsRequest;
use rpc::csi::volume_usage::Unit;

use super::volume;
use crate::context::Context;
use crate::drivers::driver;
use crate::drivers::places::Places;
use crate::error::{Error, Result};
use crate::inventory::InPod;

/// Who asks for figures does not wait for a driver that hangs.
const LIMIT: Duration = Duration::from_secs(10);

/// The figures of one volume; what is not known is absent.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Usage {
    pub(crate) available: Option<i64>,
    pub(crate) capacity: Option<i64>,
    pub(crate) used: Option<i64>,
    pub(crate) inodes: Option<i64>,
    pub(crate) inodes_free: Option<i64>,
    pub(crate) inodes_used: Option<i64>,
    /// Something is wrong with it, when the driver can tell.
    pub(crate) abnormal: Option<bool>,
}

/// The figures of a volume.
pub(crate) async fn measure(context: &Context, uid: &str, volume: &InPod) -> Result<Usage> {
    if let Some(csi) = &volume.csi {
        let driver = context.csi.drivers.get(&csi.driver)?;
        if driver.abilities.measures {
            let places = Places::new(&context.config.root);
            let staging = driver.abilities.stages.then(|| volume::staging_path(places, csi));
            let request = NodeGetVolumeStatsRequest {
                volume_id: csi.handle.clone(),
                volume_path: volume::published_path(places, uid, csi).display().to_string(),
                staging_target_path: staging.map(|path| path.display().to_string()).unwrap_or_default(),
            };
            let reply = driver::ask_within(LIMIT, driver.node().node_get_volume_stats(request)).await?;
            return Ok(usage(&reply));
        }
        if csi.block {
            return Err(Error::Invalid(format!("driver {} measures no volumes", csi.driver)));
        }
    }
    let path = volume.path.clone();
    let looked = tokio::task::spawn_blocking(move || of_file_system(&path)).await;
    looked.map_err(|error| Error::file("measure", &volume.path)(std::io::Error::other(error)))?
}

fn of_file_system(path: &Path) -> Result<Usage> {
    let stat = rustix::fs::statvfs(path).map_err(|errno| Error::file("measure", path)(errno.into()))?;
    let bytes = |blocks: u64| i64::try_from(blocks.saturating_mul(stat.f_frsize)).unwrap_or(i64::MAX);
    let count = |number: u64| i64::try_from(number).unwrap_or(i64::MAX);
    Ok(Usage {
        available: Some(bytes(stat.f_bavail)),
        capacity: Some(bytes(stat.f_blocks)),
        used: Some(bytes(stat.f_blocks.saturating_sub(stat.f_bfree))),
        inodes: Some(count(stat.f_files)),
        inodes_free: Some(count(stat.f_ffree)),
        inodes_used: Some(count(stat.f_files.saturating_sub(stat.f_ffree))),
        abnormal: None,
    })
}

fn usage(reply: &rpc::csi::NodeGetVolumeStatsResponse) -> Usage {
    let mut usage = Usage { abnormal: reply.volume_condition.as_ref().map(|c| c.abnormal), ..Default::default() };
    for part in &reply.usage {
        match part.unit() {
            Unit::Bytes => {
                usage.capacity = Some(part.total);
                usage.available = Some(part.available);
                usage.used = Some(part.used);
            }
            Unit::Inodes => {
                usage.inodes = Some(part.total);
                usage.inodes_free = Some(part.available);
                usage.inodes_used = Some(part.used);
            }
            Unit::Unknown => {}
        }
    }
    usage
}
