//! A container's mounts: its volumes, its hosts file, its termination log.

use std::fmt::Write;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, VolumeDevice, VolumeMount};
use rpc::cri;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::fields::hostname;
use crate::pod::env::expand;
use crate::volumes::{Mounted, sub_path};

const TERMINATION_LOG: &str = "/dev/termination-log";

/// The mounts of one attempt, and where its termination log lies on the node.
pub(crate) fn make(
    context: &Context,
    pod: &Pod,
    container: &Container,
    attempt: u32,
    mounted: &Mounted,
    env: &[(String, String)],
    pod_ips: &[String],
) -> Result<(Vec<cri::Mount>, PathBuf)> {
    let empty = PodSpec::default();
    let spec = pod.spec.as_ref().unwrap_or(&empty);
    let dir = context.pod_dir(pod.metadata.uid.as_deref().unwrap_or_default());
    let mut mounts = Vec::new();
    for (index, wanted) in container.volume_mounts.iter().flatten().enumerate() {
        mounts.push(volume(&dir, spec, container, index, wanted, mounted, env)?);
    }
    let covers = |path: &str| mounts.iter().any(|mount| mount.container_path == path);
    let hosts = (!covers("/etc/hosts")).then(|| hosts_file(&dir, pod, spec, context, pod_ips)).transpose()?;
    let log_dir = dir.join("containers").join(&container.name);
    fs::create_dir_all(&log_dir).map_err(Error::file("create", &log_dir))?;
    let log = log_dir.join(format!("{attempt}.termination"));
    fs::write(&log, "").map_err(Error::file("create", &log))?;
    open_to_all(&log)?;
    mounts.extend(hosts.map(|path| bind(&path, "/etc/hosts")));
    mounts.push(bind(&log, container.termination_message_path.as_deref().unwrap_or(TERMINATION_LOG)));
    Ok((mounts, log))
}

/// The container's user, whoever that is, writes its last words there.
fn open_to_all(path: &Path) -> Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o666)).map_err(Error::file("open to all", path))
}

fn bind(host: &Path, container: &str) -> cri::Mount {
    cri::Mount { container_path: container.to_owned(), host_path: host.display().to_string(), ..Default::default() }
}

fn volume(
    dir: &Path,
    spec: &PodSpec,
    container: &Container,
    index: usize,
    wanted: &VolumeMount,
    mounted: &Mounted,
    env: &[(String, String)],
) -> Result<cri::Mount> {
    let Some(root) = mounted.paths.get(&wanted.name) else {
        return Err(Error::Invalid(format!("no volume is named {:?}", wanted.name)));
    };
    let lookup = |name: &str| env.iter().find(|(known, _)| known == name).map(|(_, value)| value.clone());
    let sub = match (&wanted.sub_path, &wanted.sub_path_expr) {
        (_, Some(text)) if !text.is_empty() => expand(text, &lookup),
        (Some(text), _) => text.clone(),
        _ => String::new(),
    };
    let host = if sub.is_empty() {
        root.clone()
    } else {
        let target = dir.join("volume-subpaths").join(&wanted.name).join(&container.name).join(index.to_string());
        sub_path::bind(root, &sub, &target)?
    };
    // What the volume itself says is stronger than the mount.
    let volume = spec.volumes.iter().flatten().find(|volume| volume.name == wanted.name);
    let claim_read_only = claim_is_read_only(spec, &wanted.name);
    let contents = volume.is_some_and(|v| {
        v.config_map.is_some() || v.secret.is_some() || v.projected.is_some() || v.downward_api.is_some()
    });
    let path =
        if wanted.mount_path.starts_with('/') { wanted.mount_path.clone() } else { format!("/{}", wanted.mount_path) };
    Ok(cri::Mount {
        container_path: path,
        host_path: host.display().to_string(),
        readonly: wanted.read_only == Some(true) || claim_read_only || contents,
        propagation: match wanted.mount_propagation.as_deref() {
            Some("Bidirectional") => cri::MountPropagation::PropagationBidirectional,
            Some("HostToContainer") => cri::MountPropagation::PropagationHostToContainer,
            _ => cri::MountPropagation::PropagationPrivate,
        } as i32,
        ..Default::default()
    })
}

/// The container's block volumes.
pub(crate) fn devices(spec: &PodSpec, container: &Container, mounted: &Mounted) -> Result<Vec<cri::Device>> {
    let device = |wanted: &VolumeDevice| {
        let Some(path) = mounted.paths.get(&wanted.name) else {
            return Err(Error::Invalid(format!("no volume is named {:?}", wanted.name)));
        };
        // The runtime wants the device itself and not a way to it.
        let path = fs::canonicalize(path).map_err(Error::file("find the device behind", path))?;
        let permissions = if claim_is_read_only(spec, &wanted.name) { "r" } else { "mrw" };
        Ok(cri::Device {
            container_path: wanted.device_path.clone(),
            host_path: path.display().to_string(),
            permissions: permissions.to_owned(),
        })
    };
    container.volume_devices.iter().flatten().map(device).collect()
}

fn claim_is_read_only(spec: &PodSpec, volume: &str) -> bool {
    let volume = spec.volumes.iter().flatten().find(|known| known.name == volume);
    volume.and_then(|v| v.persistent_volume_claim.as_ref()?.read_only) == Some(true)
}

fn hosts_file(dir: &Path, pod: &Pod, spec: &PodSpec, context: &Context, pod_ips: &[String]) -> Result<PathBuf> {
    let path = dir.join("etc-hosts");
    let text = if spec.host_network == Some(true) {
        let own = fs::read_to_string("/etc/hosts").unwrap_or_default();
        format!("# Kubernetes-managed hosts file (host network).\n{own}{}", aliases(spec))
    } else {
        hosts(pod, spec, &context.config.cluster_domain, pod_ips)
    };
    fs::create_dir_all(dir).map_err(Error::file("create", dir))?;
    fs::write(&path, text).map_err(Error::file("write", &path))?;
    Ok(path)
}

fn hosts(pod: &Pod, spec: &PodSpec, domain: &str, pod_ips: &[String]) -> String {
    let mut text = String::from(
        "# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\nfe00::0\tip6-localnet\nfe00::0\tip6-mcastprefix\nfe00::1\tip6-allnodes\nfe00::2\tip6-allrouters\n",
    );
    let host = hostname(pod);
    let namespace = pod.metadata.namespace.as_deref().unwrap_or_default();
    let full = spec.subdomain.as_deref().filter(|sub| !sub.is_empty());
    let names = full.map_or_else(|| host.clone(), |sub| format!("{host}.{sub}.{namespace}.svc.{domain}\t{host}"));
    for ip in pod_ips {
        // Writing to a String cannot fail.
        let _ = writeln!(text, "{ip}\t{names}");
    }
    text + &aliases(spec)
}

fn aliases(spec: &PodSpec) -> String {
    let lines = spec.host_aliases.iter().flatten().map(|alias| {
        let names = alias.hostnames.as_deref().unwrap_or_default().join("\t");
        format!("{}\t{names}\n", alias.ip)
    });
    let lines: String = lines.collect();
    if lines.is_empty() { lines } else { format!("\n# Entries added by HostAliases.\n{lines}") }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hosts_name_the_pod() {
        let pod: Pod = serde_json::from_value(json!({"metadata": {"name": "p", "namespace": "ns"},
            "spec": {"containers": [], "subdomain": "sub", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["a", "b"]}]}}))
        .unwrap();
        let text = hosts(&pod, pod.spec.as_ref().unwrap(), "cluster.local", &["10.0.0.5".to_owned()]);
        assert!(text.starts_with("# Kubernetes-managed hosts file.\n127.0.0.1\tlocalhost\n"));
        let end = "10.0.0.5\tp.sub.ns.svc.cluster.local\tp\n\n# Entries added by HostAliases.\n1.2.3.4\ta\tb\n";
        assert!(text.ends_with(end), "{text}");
    }
}
