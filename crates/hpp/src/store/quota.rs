//! Volumes whose size is a limit: where a pool's file system has quotas of projects, each directory is a project.

use std::fs::{self, File};
use std::io;

use sys::quota;

use super::{Volume, all};
use crate::copy::cause;

/// Numbers are taken from here on: smaller ones are people's, as in /etc/projid.
const FIRST: u32 = 1 << 30;
/// How many there are to choose from, and how many are looked at.
const NUMBERS: u32 = 1 << 30;
const TRIES: u32 = 256;

/// Makes the volume's size a limit, if its file system has any. A directory with files of no project stays without
/// one: what
/// it holds already would not count.
pub(super) fn bound(volume: &mut Volume) -> io::Result<()> {
    let Some(limit) = u64::try_from(volume.record.size).ok().filter(|size| *size > 0 && !volume.record.block) else {
        return Ok(());
    };
    let pool = File::open(&volume.pool.path)?;
    if !quota::is_enforced(&pool) {
        return Ok(());
    }
    let project = match volume.record.project {
        Some(project) => project,
        None if fs::read_dir(volume.pool.path.join(&volume.id))?.next().is_some() => return Ok(()),
        None => {
            let project = unused(volume, &pool)?;
            // First on record: what has a limit loses it with the volume.
            volume.record.project = Some(project);
            volume.keep()?;
            project
        }
    };
    quota::limit(&pool, project, limit).map_err(cause)?;
    let directory = volume.data().readable()?;
    quota::assign(&directory, project).map_err(cause)
}

/// Gives the number of a volume that is gone back. When that fails, it is only not used again.
pub(super) fn forget(volume: &Volume) {
    let Some(project) = volume.record.project else { return };
    let forgotten = File::open(&volume.pool.path).and_then(|pool| quota::limit(&pool, project, 0).map_err(cause));
    if let Err(error) = forgotten {
        tracing::warn!(volume = volume.id, project, %error, "the limit of a volume that is gone stays");
    }
}

/// A number that nobody uses on the file system: no volume of the pool, and nobody else's files.
fn unused(volume: &Volume, pool: &File) -> io::Result<u32> {
    let volumes = all(std::slice::from_ref(&volume.pool))?;
    let start = volume.id.bytes().fold(0_u32, |sum, byte| sum.wrapping_mul(31).wrapping_add(byte.into()));
    for number in (0..TRIES).map(|step| FIRST + start.wrapping_add(step) % NUMBERS) {
        let ours = volumes.iter().any(|known| known.record.project == Some(number));
        if !ours && quota::usage(pool, number).map_err(cause)? == quota::Usage::default() {
            return Ok(number);
        }
    }
    Err(io::Error::other(format!("no project of {TRIES} that were looked at is free")))
}
