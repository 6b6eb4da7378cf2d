//! Volumes: made before containers start, kept fresh while they run, gone with the pod.
//!
//! Setting up is idempotent: it is also how contents are refreshed.

pub(crate) mod contents;
pub(crate) mod files;
pub(crate) mod host_path;
pub(crate) mod sub_path;

use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{PermissionsExt, chown},
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{EmptyDirVolumeSource, PersistentVolume, PersistentVolumeClaim, Pod, PodSpec, Volume};
use kube::Api;
use rustix::mount::MountFlags;

use crate::{
    context::Context,
    error::{Error, Result},
};

/// Where each volume lies on the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Mounted {
    pub(crate) paths: BTreeMap<String, PathBuf>,
}

/// Makes or refreshes all volumes of the pod.
pub(crate) async fn set_up(context: &Context, pod: &Pod, pod_ips: &[String]) -> Result<Mounted> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let jobs = spec.volumes.iter().flatten().map(|volume| async {
        let path = set_up_one(context, pod, spec, volume, pod_ips).await;
        let path = path.map_err(|error| Error::Volume { name: volume.name.clone(), source: Box::new(error) })?;
        Ok::<_, Error>((volume.name.clone(), path))
    });
    let paths = futures::future::try_join_all(jobs).await?;
    Ok(Mounted { paths: paths.into_iter().collect() })
}

async fn set_up_one(
    context: &Context,
    pod: &Pod,
    spec: &PodSpec,
    volume: &Volume,
    pod_ips: &[String],
) -> Result<PathBuf> {
    if let Some(host) = &volume.host_path {
        let path = PathBuf::from(&host.path);
        host_path::check(&path, host.type_.as_deref().unwrap_or_default())?;
        return Ok(path);
    }
    if let Some(claim) = &volume.persistent_volume_claim {
        return claimed(context, pod, &claim.claim_name).await;
    }
    let uid = pod.metadata.uid.as_deref().unwrap_or_default();
    let place = |plugin: &str| context.volume_dir(uid, plugin).join(&volume.name);
    let fs_group = spec.security_context.as_ref().and_then(|c| c.fs_group).and_then(|group| u32::try_from(group).ok());
    if let Some(source) = &volume.empty_dir {
        let path = place("empty-dir");
        empty_dir(&path, source, fs_group)?;
        return Ok(path);
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
    if matches!(plugin, "secret" | "projected") {
        memory(&path, None)?;
    }
    files::write(&path, &payload, fs_group)?;
    Ok(path)
}

/// The path behind a claim that is bound to a volume of type hostPath or local.
async fn claimed(context: &Context, pod: &Pod, name: &str) -> Result<PathBuf> {
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(context.client.clone(), namespace);
    let claim = claims.get(name).await.map_err(Error::api(format!("get persistentvolumeclaim {name:?}")))?;
    let Some(volume) = claim.spec.and_then(|spec| spec.volume_name).filter(|name| !name.is_empty()) else {
        return Err(Error::Invalid(format!("persistentvolumeclaim {name:?} is not bound")));
    };
    let volumes: Api<PersistentVolume> = Api::all(context.client.clone());
    let found = volumes.get(&volume).await.map_err(Error::api(format!("get persistentvolume {volume:?}")))?;
    let spec = found.spec.unwrap_or_default();
    if let Some(host) = spec.host_path {
        let path = PathBuf::from(&host.path);
        host_path::check(&path, host.type_.as_deref().unwrap_or_default())?;
        return Ok(path);
    }
    match spec.local {
        Some(local) => Ok(PathBuf::from(local.path)),
        None => Err(Error::Invalid(format!("persistentvolume {volume:?}: its type is not supported on this node"))),
    }
}

fn empty_dir(path: &Path, source: &EmptyDirVolumeSource, fs_group: Option<u32>) -> Result<()> {
    let existed = path.exists();
    if source.medium.as_deref() == Some("Memory") {
        memory(path, source.size_limit.as_ref().and_then(crate::resources::value))?;
    } else if !existed {
        fs::create_dir_all(path).map_err(Error::file("create", path))?;
    }
    if !existed {
        own(path, fs_group, 0o777).map_err(Error::file("set the owner of", path))?;
    }
    Ok(())
}

/// A tmpfs at `path`, once.
fn memory(path: &Path, limit: Option<i64>) -> Result<()> {
    fs::create_dir_all(path).map_err(Error::file("create", path))?;
    if is_mount_point(path) {
        return Ok(());
    }
    let options = limit.filter(|limit| *limit > 0).map_or_else(String::new, |limit| format!("size={limit}"));
    sys::mount::mount("tmpfs", "tmpfs", path, MountFlags::NODEV | MountFlags::NOSUID, &options)
        .map_err(|error| Error::File { what: "mount tmpfs at", path: path.into(), source: io::Error::other(error) })
}

/// True when another file system begins at `path`.
fn is_mount_point(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
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
