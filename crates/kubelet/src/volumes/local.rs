//! Volumes of type local: a directory of the node, or a disk of it, given to pods as it is or with a file system.
//!
//! ```text
//!  plugins/kubernetes.io/local-volume/mounts/NAME     the disk's file system, while any pod uses it
//!  pods/UID/volumes/kubernetes.io~local-volume/NAME   the same, bound for one pod: by this it is known to be in use
//! ```

use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::{fs, io};

use k8s_openapi::api::core::v1::{LocalVolumeSource, PersistentVolumeSpec, Pod};

use crate::context::Context;
use crate::csi::volume::fs_group;
use crate::error::{Error, Result};
use crate::file_group;
use crate::mounted::is_mounted;

/// What a disk without a file system gets.
const DEFAULT_FS: &str = "ext4";
/// The directory of these volumes in a pod's.
const PLUGIN: &str = "local-volume";
/// Under this their locks are found beside those of drivers, whose names have no slash.
const LOCKS: &str = "kubernetes.io/local-volume";

/// Where the volume lies for the pod.
pub(crate) async fn place(
    context: &Context,
    pod: &Pod,
    name: &str,
    spec: &PersistentVolumeSpec,
    local: &LocalVolumeSource,
) -> Result<PathBuf> {
    let path = PathBuf::from(&local.path);
    let kind = fs::metadata(&path).map_err(Error::file("inspect", &path))?.file_type();
    let block = spec.volume_mode.as_deref() == Some("Block");
    let invalid = |what: &str| Err(Error::Invalid(format!("local path {} is not {what}", path.display())));
    if block {
        return if kind.is_block_device() { Ok(path) } else { invalid("a block device, as volumeMode Block demands") };
    }
    let root = if kind.is_dir() {
        path
    } else if kind.is_block_device() {
        bound(context, pod, name, spec, local, &path).await?
    } else {
        return invalid("a directory or a block device");
    };
    let security = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    if let Some(id) = fs_group(pod).and_then(|group| u32::try_from(group).ok()) {
        let when = security.and_then(|context| context.fs_group_change_policy.as_deref());
        file_group::give(root.clone(), id, when == Some("OnRootMismatch")).await?;
    }
    Ok(root)
}

/// The disk's file system, bound for the pod.
async fn bound(
    context: &Context,
    pod: &Pod,
    name: &str,
    spec: &PersistentVolumeSpec,
    local: &LocalVolumeSource,
    device: &Path,
) -> Result<PathBuf> {
    let place = context.volume_dir(pod.metadata.uid.as_deref().unwrap_or_default(), PLUGIN).join(name);
    // Two pods that come at the same time must not both make a file system, nor one mount what the other's end unmounts.
    let lock = context.csi.lock(LOCKS, name);
    let _held = lock.lock().await;
    if is_mounted(&place) {
        return Ok(place);
    }
    let mounted = mounted(context, name, spec, local, device).await?;
    fs::create_dir_all(&place).map_err(Error::file("create", &place))?;
    sys::mount::bind(&mounted, &place).map_err(|error| mount_failed("bind", &place, error))?;
    Ok(place)
}

/// The disk's file system, mounted once for all pods of the node. One without any gets one; one with another stays.
async fn mounted(
    context: &Context,
    name: &str,
    spec: &PersistentVolumeSpec,
    local: &LocalVolumeSource,
    device: &Path,
) -> Result<PathBuf> {
    let target = mounts(&context.config.root).join(name);
    if is_mounted(&target) {
        return Ok(target);
    }
    fs::create_dir_all(&target).map_err(Error::file("create", &target))?;
    let kind = local.fs_type.as_deref().filter(|kind| !kind.is_empty()).unwrap_or(DEFAULT_FS);
    if run("blkid", &["-p", "-o", "value", "-s", "TYPE", &device.display().to_string()]).await?.is_empty() {
        run(&format!("mkfs.{kind}"), &[&device.display().to_string()]).await?;
    }
    let options = spec.mount_options.clone().unwrap_or_default().join(",");
    let options = if options.is_empty() { "defaults".to_owned() } else { options };
    let (device, at) = (device.display().to_string(), target.display().to_string());
    run("mount", &["-t", kind, "-o", &options, &device, &at]).await?;
    Ok(target)
}

/// Unmounts the disks that no pod uses any more. One that stays keeps nobody: the next pod that ends tries again.
pub(crate) async fn release_unused(context: &Context) {
    for name in names(&mounts(&context.config.root)) {
        let lock = context.csi.lock(LOCKS, &name);
        let _held = lock.lock().await;
        match release(&context.config.root, &name) {
            Ok(true) => tracing::info!(volume = name, "a local disk that no pod uses was unmounted"),
            Ok(false) => {}
            Err(error) => tracing::warn!(volume = name, error = %kit::Chain(&error), "an unused disk stays mounted"),
        }
    }
}

/// Unmounts the disk if no pod uses it.
fn release(root: &Path, name: &str) -> Result<bool> {
    if is_used(root, name)? {
        return Ok(false);
    }
    let target = mounts(root).join(name);
    sys::mount::detach(&target).map_err(|error| mount_failed("unmount", &target, error))?;
    // Empty without the mount; were it not, what is in it would be somebody's.
    fs::remove_dir(&target).map_err(Error::file("remove", &target))?;
    Ok(true)
}

fn mounts(root: &Path) -> PathBuf {
    root.join("plugins/kubernetes.io/local-volume/mounts")
}

/// Whether the disk is bound for any pod. Not to know is an error: an unmounted disk would lose what its pods write.
fn is_used(root: &Path, name: &str) -> Result<bool> {
    let pods = root.join("pods");
    let points = sys::mount::points().map_err(|error| mount_failed("list mounts below", &pods, error))?;
    let uids = names(&pods);
    let mut places = uids.iter().map(|uid| pods.join(uid).join("volumes/kubernetes.io~local-volume").join(name));
    Ok(places.any(|place| points.contains(&place)))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

fn mount_failed(what: &'static str, path: &Path, error: sys::Error) -> Error {
    Error::File { what, path: path.into(), source: io::Error::other(error) }
}

/// A program of the node. blkid says by 2 that it found nothing.
async fn run(program: &str, words: &[&str]) -> Result<String> {
    let output = tokio::process::Command::new(program).args(words).kill_on_drop(true).output().await;
    let output = output.map_err(Error::file("run", program))?;
    if output.status.success() || (program == "blkid" && output.status.code() == Some(2)) {
        return Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
    Err(Error::Invalid(format!("{program} {}: {said}", words.join(" "))))
}
