//! The container device interface: files in which drivers say what a container needs to use a device.
//!
//! The kubelet turns them into the container's devices, mounts and environment itself, so that it does not matter what
//! the runtime knows of them. What cannot be said to the runtime in that way is refused by name.

use std::fs::File;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

use rpc::cri;
use serde::Deserialize;

use crate::error::{Error, Result};

/// Files looked at in one directory, and bytes of one.
const FILES: usize = 1024;
const BYTES: u64 = 1 << 20;

/// What a container gets.
#[derive(Debug, Default)]
pub(crate) struct Edits {
    pub(crate) devices: Vec<cri::Device>,
    pub(crate) mounts: Vec<cri::Mount>,
    pub(crate) env: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Spec {
    /// `vendor/class`.
    kind: String,
    container_edits: ContainerEdits,
    devices: Vec<Device>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Device {
    name: String,
    container_edits: ContainerEdits,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct ContainerEdits {
    env: Vec<String>,
    device_nodes: Vec<DeviceNode>,
    mounts: Vec<Mount>,
    hooks: Vec<serde_json::Value>,
    #[serde(rename = "additionalGids")]
    groups: Vec<u32>,
    net_devices: Vec<serde_json::Value>,
    intel_rdt: Option<serde_json::Value>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct DeviceNode {
    path: String,
    host_path: Option<String>,
    permissions: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
struct Mount {
    host_path: String,
    container_path: String,
    options: Vec<String>,
    #[serde(rename = "type")]
    kind: Option<String>,
}

/// What a container with these devices, `vendor/class=name`, gets.
///
/// # Errors
/// Which device is not described, or says what cannot be done here.
pub(crate) fn edits(directories: &[PathBuf], ids: &[String]) -> Result<Edits> {
    let mut edits = Edits::default();
    if ids.is_empty() {
        return Ok(edits);
    }
    let specs = read(directories);
    let mut shared: Vec<&str> = Vec::new();
    for id in ids {
        let refuse = |why: String| Error::Invalid(format!("CDI device {id:?}: {why}"));
        let (kind, name) = id.split_once('=').ok_or_else(|| refuse("is not vendor/class=name".into()))?;
        // The later directory counts.
        let found = specs.iter().rev().filter(|spec| spec.kind == kind);
        let mut found = found.flat_map(|spec| spec.devices.iter().map(move |device| (spec, device)));
        let Some((spec, device)) = found.find(|(_, device)| device.name == name) else {
            let places = directories.iter().map(|dir| dir.display().to_string()).collect::<Vec<_>>().join(", ");
            return Err(refuse(format!("no file in {places} describes it")));
        };
        if !shared.contains(&kind) {
            shared.push(kind);
            add(&mut edits, &spec.container_edits).map_err(refuse)?;
        }
        add(&mut edits, &device.container_edits).map_err(refuse)?;
    }
    Ok(edits)
}

fn add(edits: &mut Edits, more: &ContainerEdits) -> Result<(), String> {
    let unsupported = [
        (!more.hooks.is_empty(), "hooks"),
        (!more.groups.is_empty(), "additionalGids"),
        (!more.net_devices.is_empty(), "netDevices"),
        (more.intel_rdt.is_some(), "intelRdt"),
    ];
    if let Some((_, what)) = unsupported.iter().find(|(given, _)| *given) {
        return Err(format!("{what} in its containerEdits are not supported here: devices, mounts and env are"));
    }
    for entry in &more.env {
        let (key, value) = entry.split_once('=').ok_or_else(|| format!("env {entry:?} is not NAME=value"))?;
        edits.env.push((key.to_owned(), value.to_owned()));
    }
    for node in &more.device_nodes {
        let host = node.host_path.as_ref().filter(|path| !path.is_empty()).unwrap_or(&node.path);
        for path in [host, &node.path] {
            absolute(path)?;
        }
        let device = std::fs::metadata(host).map_err(|error| format!("device node {host}: {error}"))?;
        if !device.file_type().is_char_device() && !device.file_type().is_block_device() {
            return Err(format!("{host} is no device node (mode {:o})", device.mode()));
        }
        let permissions = node.permissions.clone().filter(|text| !text.is_empty()).unwrap_or_else(|| "rwm".into());
        if !permissions.chars().all(|c| matches!(c, 'r' | 'w' | 'm')) {
            return Err(format!("permissions {permissions:?} of device node {host} are not of r, w and m"));
        }
        let device = cri::Device { container_path: node.path.clone(), host_path: host.clone(), permissions };
        if !edits.devices.contains(&device) {
            edits.devices.push(device);
        }
    }
    for mount in &more.mounts {
        let mount = bind(mount)?;
        if !edits.mounts.contains(&mount) {
            edits.mounts.push(mount);
        }
    }
    Ok(())
}

/// A mount of a file or directory of the node; others cannot be said to the runtime.
fn bind(mount: &Mount) -> Result<cri::Mount, String> {
    for path in [&mount.host_path, &mount.container_path] {
        absolute(path)?;
    }
    let kind = mount.kind.as_deref().unwrap_or_default();
    if !matches!(kind, "" | "bind" | "none") {
        return Err(format!("a mount of type {kind:?} is not supported here: bind mounts are"));
    }
    let has = |option: &str| mount.options.iter().any(|known| known == option);
    let propagation = if has("rshared") || has("shared") {
        cri::MountPropagation::PropagationBidirectional
    } else if has("rslave") || has("slave") {
        cri::MountPropagation::PropagationHostToContainer
    } else {
        cri::MountPropagation::PropagationPrivate
    };
    Ok(cri::Mount {
        container_path: mount.container_path.clone(),
        host_path: mount.host_path.clone(),
        readonly: has("ro"),
        propagation: propagation as i32,
        ..Default::default()
    })
}

fn absolute(path: &str) -> Result<(), String> {
    let good = path.starts_with('/') && !Path::new(path).components().any(|part| part.as_os_str() == "..");
    if good { Ok(()) } else { Err(format!("{path:?} is no absolute path without `..`")) }
}

/// All files, the later directory's last. One that cannot be read is told of: its devices are not described.
fn read(directories: &[PathBuf]) -> Vec<Spec> {
    let mut specs = Vec::new();
    for dir in directories {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.path()).take(FILES).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "json" || ending == "yaml"));
        paths.sort();
        for path in paths {
            match read_one(&path) {
                Ok(spec) => specs.push(spec),
                Err(error) => tracing::warn!(path = %path.display(), error, "a CDI file is not readable"),
            }
        }
    }
    specs
}

fn read_one(path: &Path) -> Result<Spec, String> {
    let mut text = String::new();
    let file = File::open(path).map_err(|error| error.to_string())?;
    if !file.metadata().is_ok_and(|meta| meta.is_file()) {
        return Err("it is no file".into());
    }
    file.take(BYTES + 1).read_to_string(&mut text).map_err(|error| error.to_string())?;
    if text.len() as u64 > BYTES {
        return Err(format!("it has more than {BYTES} bytes"));
    }
    // JSON is read by the same parser: it is a part of YAML.
    serde_saphyr::from_str(&text).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dirs(files: &[(&str, &str)]) -> (tempfile::TempDir, Vec<PathBuf>) {
        let dir = tempfile::tempdir().unwrap();
        let dirs = ["etc", "run"].map(|name| dir.path().join(name)).to_vec();
        dirs.iter().for_each(|dir| std::fs::create_dir(dir).unwrap());
        for (name, text) in files {
            std::fs::write(dir.path().join(name), text).unwrap();
        }
        (dir, dirs)
    }

    const GPU: &str = r#"{"cdiVersion": "0.6.0", "kind": "example.com/gpu", "containerEdits": {"env": ["ALL=1"]},
        "devices": [{"name": "a", "containerEdits": {"env": ["GPU=a"], "deviceNodes": [{"path": "/dev/gpu0",
        "hostPath": "/dev/null", "permissions": "rw"}], "mounts": [{"hostPath": "/usr/lib", "containerPath": "/gpu",
        "options": ["ro", "rbind"]}]}}, {"name": "hooked", "containerEdits": {"hooks": [{"hookName": "createContainer"}]}},
        {"name": "wild", "containerEdits": {"deviceNodes": [{"path": "/dev/../etc"}]}},
        {"name": "file", "containerEdits": {"deviceNodes": [{"path": "/etc"}]}}]}"#;

    #[track_caller]
    fn refused(id: &str, expect: &str) {
        let (_dir, dirs) = dirs(&[("etc/gpu.json", GPU)]);
        let said = edits(&dirs, &[id.to_owned()]).unwrap_err().to_string();
        assert!(said.contains(expect), "{said}");
    }

    #[test]
    fn a_device_becomes_devices_mounts_and_environment() {
        let (_dir, dirs) = dirs(&[("etc/gpu.json", GPU), ("etc/note.txt", "no")]);
        let got = edits(&dirs, &["example.com/gpu=a".to_owned()]).unwrap();
        let env: Vec<_> = got.env.iter().map(|(key, value)| format!("{key}={value}")).collect();
        assert_eq!(env, ["ALL=1", "GPU=a"]);
        let device = &got.devices[0];
        assert_eq!(
            (device.host_path.as_str(), device.container_path.as_str(), device.permissions.as_str()),
            ("/dev/null", "/dev/gpu0", "rw")
        );
        assert!(got.mounts[0].readonly && got.mounts[0].container_path == "/gpu");
    }

    #[test]
    fn yaml_and_the_later_directory() {
        let later = "cdiVersion: 0.6.0\nkind: example.com/gpu\ndevices:\n- name: a\n  containerEdits:\n    env:\n    - GPU=later\n";
        let (_dir, dirs) = dirs(&[("etc/gpu.json", GPU), ("run/gpu.yaml", later)]);
        let got = edits(&dirs, &["example.com/gpu=a".to_owned()]).unwrap();
        assert_eq!(got.env, [("GPU".to_owned(), "later".to_owned())]);
    }

    #[test]
    fn unsupported_container_edits_are_refused() {
        refused("example.com/gpu=b", "describes it");
        refused("gpu", "is not vendor/class=name");
        refused("example.com/gpu=hooked", "hooks in its containerEdits are not supported here");
        refused("example.com/gpu=wild", "is no absolute path");
        refused("example.com/gpu=file", "is no device node");
    }

    #[test]
    fn files_are_bounded() {
        let (_dir, dirs) = dirs(&[("etc/large.json", &format!("{GPU}{}", " ".repeat(1 << 20)))]);
        assert!(edits(&dirs, &["example.com/gpu=a".to_owned()]).is_err());
    }
}
