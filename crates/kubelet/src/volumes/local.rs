//! Volumes of type local: a directory of the node, or a disk of it, given to pods as it is or with a file system.

use std::{
    fs,
    os::unix::fs::FileTypeExt,
    path::{Path, PathBuf},
};

use k8s_openapi::api::core::v1::{LocalVolumeSource, PersistentVolumeSpec, Pod};

use super::{group, is_mounted};
use crate::{
    context::Context,
    csi::volume::fs_group,
    error::{Error, Result},
};

/// What a disk without a file system gets.
const DEFAULT_FS: &str = "ext4";

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
        mounted(context, name, spec, local, &path).await?
    } else {
        return invalid("a directory or a block device");
    };
    let security = pod.spec.as_ref().and_then(|spec| spec.security_context.as_ref());
    if let Some(id) = fs_group(pod).and_then(|group| u32::try_from(group).ok()) {
        let when = security.and_then(|context| context.fs_group_change_policy.as_deref());
        group::give(root.clone(), id, when == Some("OnRootMismatch")).await?;
    }
    Ok(root)
}

/// The disk's file system, mounted once for all pods of the node. One without any gets one; one with another stays.
async fn mounted(
    context: &Context,
    name: &str,
    spec: &PersistentVolumeSpec,
    local: &LocalVolumeSource,
    device: &Path,
) -> Result<PathBuf> {
    let target = context.config.root.join("plugins/kubernetes.io/local-volume/mounts").join(name);
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
