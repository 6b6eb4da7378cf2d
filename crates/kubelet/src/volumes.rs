//! Volumes: made before containers start, kept fresh while they run, gone with the pod.
//!
//! Setting up is idempotent: it is also how contents are refreshed.

pub(crate) mod contents;
pub(crate) mod files;
pub(crate) mod host_path;
pub(crate) mod local;
pub(crate) mod sub_path;

use std::collections::BTreeMap;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::{fs, io};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, Pod, PodSpec, Volume};
use rustix::mount::MountFlags;

use crate::claim::{self, Claim};
use crate::context::Context;
use crate::csi;
use crate::drivers::request;
use crate::error::{Error, Result};
use crate::inventory::InPod;

/// Where each volume lies on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounted {
    /// A block volume's path is its device.
    pub(crate) paths: BTreeMap<String, PathBuf>,
    /// Some driver wants to be asked to publish its volume again and again.
    pub(crate) republish: bool,
}

/// One volume that was brought here.
struct Place {
    path: PathBuf,
    republish: bool,
}

impl From<PathBuf> for Place {
    fn from(path: PathBuf) -> Self {
        Place { path, republish: false }
    }
}

/// Makes or refreshes all volumes of the pod.
pub(crate) async fn set_up(context: &Context, pod: &Pod, pod_ips: &[String]) -> Result<Mounted> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let jobs = spec.volumes.iter().flatten().map(|volume| async {
        let place = Box::pin(set_up_one(context, pod, spec, volume, pod_ips)).await;
        let place = place.map_err(|error| match error {
            named @ Error::Mount { .. } => named,
            other => Error::Volume { name: volume.name.clone(), source: Box::new(other) },
        })?;
        Ok::<_, Error>((volume.name.clone(), place))
    });
    // All of them, so that one that fails does not keep the others from being there at the next try.
    let places: Result<Vec<_>> = futures::future::join_all(jobs).await.into_iter().collect();
    let mut mounted = Mounted::default();
    for (name, place) in places? {
        mounted.republish |= place.republish;
        mounted.paths.insert(name, place.path);
    }
    Ok(mounted)
}

async fn set_up_one(
    context: &Context,
    pod: &Pod,
    spec: &PodSpec,
    volume: &Volume,
    pod_ips: &[String],
) -> Result<Place> {
    if let Some(host) = &volume.host_path {
        let path = PathBuf::from(&host.path);
        host_path::check(&path, host.type_.as_deref().unwrap_or_default())?;
        return Ok(path.into());
    }
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    if let Some(claim) = claim::resolve(context, pod, volume).await? {
        let (place, csi) = claimed(context, pod, &claim).await?;
        let name = Some((claim.namespace, claim.name));
        context.volumes.put(uid, &volume.name, InPod { claim: name, path: place.path.clone(), csi });
        return Ok(place);
    }
    if let Some(source) = &volume.csi {
        let wanted = request::inline(pod, &volume.name, source);
        let place = published(context, pod, &wanted).await?;
        context.volumes.put(uid, &volume.name, InPod { claim: None, path: place.path.clone(), csi: Some(wanted) });
        return Ok(place);
    }
    let place = |plugin: &str| context.volume_dir(uid, plugin).join(&volume.name);
    let fs_group = spec.security_context.as_ref().and_then(|c| c.fs_group).and_then(|group| u32::try_from(group).ok());
    if let Some(source) = &volume.empty_dir {
        let path = place("empty-dir");
        empty_dir(&path, source, fs_group)?;
        return Ok(path.into());
    }
    let plugin = if volume.config_map.is_some() {
        "configmap"
    } else if volume.secret.is_some() {
        "secret"
    } else if volume.downward_api.is_some() {
        "downward-api"
    } else if volume.projected.is_some() {
        "projected"
    } else {
        return Err(Error::Invalid("its type is not supported on this node".to_owned()));
    };
    let path = place(plugin);
    // A token that is still fresh is read back instead of being asked for again.
    let payload = contents::gather(context, pod, volume, &path, pod_ips).await?;
    memory(&path, "mode=755")?;
    files::write(&path, &payload, fs_group)?;
    Ok(path.into())
}

/// What a claim is bound to, for the pod.
async fn claimed(context: &Context, pod: &Pod, claim: &Claim) -> Result<(Place, Option<request::Volume>)> {
    if let Some(wanted) = request::persistent(&claim.volume, claim.read_only) {
        let place = published(context, pod, &wanted).await?;
        // Grown while no pod used it: before the containers see it, as upstream.
        csi::expansion::on_mount(context, pod, claim, &wanted).await?;
        return Ok((place, Some(wanted)));
    }
    let Some(spec) = &claim.volume.spec else { return Err(Error::Invalid("the volume says nothing".into())) };
    let name = claim.volume.metadata.name.as_deref().unwrap_or_default();
    if let Some(host) = &spec.host_path {
        let path = PathBuf::from(&host.path);
        host_path::check(&path, host.type_.as_deref().unwrap_or_default())?;
        return Ok((path.into(), None));
    }
    match &spec.local {
        Some(local) => Ok((local::place(context, pod, name, spec, local).await?.into(), None)),
        None => Err(Error::Invalid(format!("persistentvolume {name:?}: its type is not supported on this node"))),
    }
}

async fn published(context: &Context, pod: &Pod, wanted: &request::Volume) -> Result<Place> {
    let published = csi::volume::publish(context, pod, wanted).await?;
    Ok(Place { path: published.path, republish: published.republish })
}

/// What is there already stays as the pod left it; what begins has its owner and mode from the first moment, whatever ends the node.
fn empty_dir(path: &Path, source: &EmptyDirVolumeSource, fs_group: Option<u32>) -> Result<()> {
    if source.medium.as_deref() == Some("Memory") {
        let limit = source.size_limit.as_ref().and_then(crate::resources::value).filter(|limit| *limit > 0);
        return memory(path, &in_memory(limit, fs_group));
    }
    if path.exists() {
        return Ok(());
    }
    let new = path.with_extension("new");
    fs::create_dir_all(&new).map_err(Error::file("create", &new))?;
    own(&new, fs_group, 0o777).map_err(Error::file("set the owner of", &new))?;
    fs::rename(&new, path).map_err(Error::file("create", path))
}

/// The options of an empty directory in memory: the kernel forgets it with the node, so its owner and mode belong to the mount.
fn in_memory(limit: Option<i64>, fs_group: Option<u32>) -> String {
    let size = limit.map_or_else(String::new, |limit| format!(",size={limit}"));
    match fs_group {
        Some(group) => format!("mode=2777,gid={group}{size}"),
        None => format!("mode=777{size}"),
    }
}

/// A tmpfs with these options at `path`, once.
fn memory(path: &Path, options: &str) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::file("create", path))?;
    if is_mount_point(path) {
        return Ok(());
    }
    sys::mount::mount("tmpfs", "tmpfs", path, MountFlags::NODEV | MountFlags::NOSUID, options)
        .map_err(|error| Error::File { what: "mount tmpfs at", path: path.into(), source: io::Error::other(error) })
}

/// True when another file system begins at `path`.
fn is_mount_point(path: &Path) -> bool {
    let device = |path: &Path| fs::symlink_metadata(path).ok().map(|meta| meta.dev());
    path.parent().is_some_and(|parent| device(parent) != device(path))
}

/// A directory's mode, and its group when the pod has an fsGroup: new files below inherit it.
pub(crate) fn own(path: &Path, fs_group: Option<u32>, mode: u32) -> io::Result<()> {
    match fs_group {
        Some(group) => {
            chown(path, None, Some(group))?;
            fs::set_permissions(path, fs::Permissions::from_mode(mode | 0o2070))
        }
        None => fs::set_permissions(path, fs::Permissions::from_mode(mode)),
    }
}

/// True when the pod has volumes whose contents follow other objects or expire.
pub(crate) fn are_live(spec: &PodSpec) -> bool {
    spec.volumes.iter().flatten().any(|volume| {
        volume.config_map.is_some()
            || volume.secret.is_some()
            || volume.downward_api.is_some()
            || volume.projected.is_some()
    })
}

/// Unmounts and removes everything of the pod on this node. Idempotent.
pub(crate) fn tear_down(pod_dir: &Path) -> Result<()> {
    unmount_below(pod_dir)?;
    match fs::remove_dir_all(pod_dir) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(Error::file("remove", pod_dir)(error)),
        _ => Ok(()),
    }
}

/// Unmounts what the pod's volumes have mounted, and leaves the files.
pub(crate) fn unmount_below(pod_dir: &Path) -> Result<()> {
    let points = sys::mount::points().map_err(|error| Error::File {
        what: "list mounts below",
        path: pod_dir.into(),
        source: io::Error::other(error),
    })?;
    for point in points.iter().rev().filter(|point| point.starts_with(pod_dir)) {
        sys::mount::detach(point).map_err(|error| Error::File {
            what: "unmount",
            path: point.clone(),
            source: io::Error::other(error),
        })?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_directory_in_memory_is_mounted_with_its_owner_and_mode() {
        assert_eq!(in_memory(None, None), "mode=777");
        assert_eq!(in_memory(Some(4096), Some(107)), "mode=2777,gid=107,size=4096");
    }
}
