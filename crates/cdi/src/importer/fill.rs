//! The part of an import that blocks: it moves the bytes, and says in the words that clients know why it could not.

use disk::source::{Links, unpack};
use disk::{ImportError, Imported, Progress, Source};

use super::Failure;
use super::fetch::Opened;
use super::job::{Content, Job};
use crate::volume::Volume;

/// Default levels of compression want less than this.
const DICTIONARY: u64 = 16 << 20;

/// Fills the volume, and returns when all of it is on stable storage.
pub(super) fn fill(
    job: &Job,
    opened: Option<&Opened>,
    volume: &Volume,
    progress: &Progress,
) -> Result<Imported, Failure> {
    let io = |what: &str, error: &(dyn std::error::Error + 'static)| {
        Failure::Again(format!("Unable to process data: cannot {what}: {}", kit::Chain(error)))
    };
    let usable = || volume.usable(job.size, job.overhead).map_err(|e| io("measure the volume", &e));
    let imported = match (&job.content, opened) {
        (Content::Disk, None) => blank(job, volume, usable()?)?,
        (Content::Disk, Some(opened)) => {
            let usable = usable()?;
            let target = volume.target(usable).map_err(|e| io("open the volume", &e))?;
            let target = if job.uncached { target.uncached() } else { target };
            let options = disk::Options {
                checksum: job.checksum.clone(),
                size: Some(usable),
                preallocate: job.preallocate,
                resume: volume.resume(&job.owner),
                ..disk::Options::default()
            };
            let imported = disk::import(opened.source(), &target, &options, progress).map_err(refused)?;
            if imported.dictionary > DICTIONARY {
                let mib = imported.dictionary >> 20;
                tracing::info!(
                    "unpacking took {mib} MiB for a dictionary: an image with a smaller one imports in less memory"
                );
            }
            opened.confirm().map_err(|e| io("verify the source", &e))?;
            imported
        }
        (Content::Archive, Some(opened)) => archive(job, opened.source(), volume)?,
        (Content::Archive, None) => {
            return Err(Failure::Again("Cannot create empty disk with content type archive".into()));
        }
    };
    volume.settle().map_err(|e| io("flush the volume", &e))?;
    Ok(imported)
}

fn blank(job: &Job, volume: &Volume, usable: u64) -> Result<Imported, Failure> {
    // A device without data is as blank as it gets, unless its space is to be claimed.
    if matches!(volume, Volume::Device(_)) && !job.preallocate {
        return Ok(Imported::raw(usable, usable, 0, false));
    }
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Failure::Again(format!("Unable to create blank image: {}", kit::Chain(error)))
    };
    let target = volume.target(usable).map_err(|e| failed(&e))?;
    disk::blank(&target, usable, job.preallocate).map_err(|e| failed(&e))
}

fn archive(job: &Job, source: &dyn Source, volume: &Volume) -> Result<Imported, Failure> {
    let failed = |error: &(dyn std::error::Error + 'static)| {
        Failure::Again(format!("Unable to process data: {}", kit::Chain(error)))
    };
    let directory = volume
        .directory()
        .ok_or_else(|| Failure::Again("Unable to process data: an archive needs a volume of mode Filesystem".into()))?;
    let stream = source.open(0).map_err(|e| failed(&e))?;
    match unpack(stream, directory, Links::Inside, job.checksum.as_ref()) {
        Ok(bytes) => Ok(Imported::raw(bytes, bytes, bytes, false)),
        Err(error @ disk::source::Error::Checksum { .. }) => Err(mismatch(&error)),
        Err(error) => Err(failed(&error)),
    }
}

fn refused(error: ImportError) -> Failure {
    match error {
        error @ ImportError::Checksum { .. } => mismatch(&error),
        // The words that clients know, and what they mean here.
        error @ ImportError::TooLarge { .. } => Failure::Again(format!(
            "Unable to process data: Virtual image size is larger than the reported available storage. \
             A larger PVC is required: {error}"
        )),
        error => Failure::Again(format!("Unable to process data: {}", kit::Chain(&error))),
    }
}

/// A checksum that is none is the next pod's too.
pub(super) fn unusable(error: &disk::ChecksumError) -> String {
    format!("Unable to process data: invalid checksum: {error}")
}

fn mismatch(error: &(dyn std::error::Error + 'static)) -> Failure {
    Failure::Final(format!("Unable to process data: checksum mismatch: {error}"))
}
