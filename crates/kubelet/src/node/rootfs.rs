//! The node's root: the host's programs underneath, everything written kept apart.
//!
//! ```text
//!  /usr /etc /opt   the host's, through overlays whose changes live in memory and end with the node
//!  /var /tmp        directories of the node, on the real file system (containerd puts overlays on them)
//!  /srv/shared      one directory for all nodes of the cluster
//!  /run /dev        in memory
//!  /proc /sys       the node's own namespaces
//! ```

use std::path::Path;

use rustix::mount::MountFlags;
use sys::cgroup::Hierarchy;
use sys::mount::{Propagation, bind, bind_volume, mount, overlay, pivot, propagate};

use super::{Config, Result, containerd, devices, file, make_dir, write};
use crate::cni;

const QUIET: MountFlags = MountFlags::NOSUID.union(MountFlags::NODEV).union(MountFlags::NOEXEC);

/// Builds the root and makes it this process' root. Must run in a mount namespace of its own, as PID 1 of a PID
/// namespace of its own and in the node's network and cgroup namespaces.
pub fn enter(config: &Config, hierarchies: &[Hierarchy]) -> Result<()> {
    // First, so that nothing below is seen by the host.
    propagate(Path::new("/"), Propagation::Private, true)?;
    let root = config.dir.join("root");
    make_dir(&root)?;
    mount("tmpfs", "node", &root, MountFlags::empty(), "mode=755")?;

    programs(&root)?;
    for dir in ["var", "tmp"] {
        let kept = config.dir.join(dir);
        make_dir(&kept)?;
        make_dir(&root.join(dir))?;
        // Pods write below. A container's own file system is mounted anew, and not concerned.
        bind_volume(&kept, &root.join(dir), false)?;
    }
    memory(&root, "run", MountFlags::NOSUID | MountFlags::NODEV, "mode=755")?;
    memory(&root, "dev", MountFlags::NOSUID, "mode=755")?;
    devices::populate(&root.join("dev"))?;
    memory(&root, "dev/shm", MountFlags::NOSUID | MountFlags::NODEV, "mode=1777")?;
    special(
        &root,
        "dev/pts",
        "devpts",
        MountFlags::NOSUID | MountFlags::NOEXEC,
        "newinstance,ptmxmode=0666,mode=0620,gid=5",
    )?;
    special(&root, "dev/mqueue", "mqueue", QUIET, "")?;
    special(&root, "proc", "proc", QUIET, "")?;
    special(&root, "sys", "sysfs", QUIET, "")?;
    cgroups(&root, hierarchies)?;
    for dir in ["root", "home", "mnt", "media", "srv"] {
        make_dir(&root.join(dir))?;
    }
    if let Some(shared) = &config.shared {
        make_dir(shared)?;
        let target = root.join("srv/shared");
        make_dir(&target)?;
        bind(shared, &target)?;
    }
    kept_directories(&root)?;
    settings(config, &root)?;

    pivot(&root)?;
    // Volumes mounted by privileged pods must reach the node, and the node's must reach pods.
    propagate(Path::new("/"), Propagation::Shared, true)?;
    Ok(())
}

/// /usr, /etc and /opt, and the links or directories that lead into /usr.
fn programs(root: &Path) -> Result<()> {
    let changes = root.join(".changes");
    for name in ["usr", "etc", "opt"] {
        let host = Path::new("/").join(name);
        let (upper, work, target) = (changes.join(name), changes.join(format!("{name}.work")), root.join(name));
        for dir in [&upper, &work, &target] {
            make_dir(dir)?;
        }
        if host.is_dir() {
            overlay(&host, &upper, &work, &target)?;
        }
    }
    for name in ["bin", "sbin", "lib", "lib32", "lib64", "libx32"] {
        let (host, target) = (Path::new("/").join(name), root.join(name));
        if let Ok(link) = std::fs::read_link(&host) {
            std::os::unix::fs::symlink(link, &target).map_err(file("link", &target))?;
        } else if host.is_dir() {
            make_dir(&target)?;
            sys::mount::bind_read_only(&host, &target)?;
        }
    }
    Ok(())
}

fn memory(root: &Path, dir: &str, flags: MountFlags, options: &str) -> Result<()> {
    special(root, dir, "tmpfs", flags, options)
}

fn special(root: &Path, dir: &str, kind: &str, flags: MountFlags, options: &str) -> Result<()> {
    let target = root.join(dir);
    make_dir(&target)?;
    Ok(mount(kind, kind, &target, flags, options)?)
}

/// The same layout as the host's, rooted at the node's own group.
fn cgroups(root: &Path, hierarchies: &[Hierarchy]) -> Result<()> {
    let base = Path::new("/sys/fs/cgroup");
    let is_unified = hierarchies.iter().any(|h| h.options.is_none() && h.mount == base);
    if !is_unified {
        memory(root, "sys/fs/cgroup", QUIET, "mode=755")?;
    }
    for hierarchy in hierarchies {
        let Ok(place) = hierarchy.mount.strip_prefix("/") else { continue };
        let dir = place.to_string_lossy();
        match &hierarchy.options {
            None => special(root, &dir, "cgroup2", QUIET, "")?,
            Some(options) => special(root, &dir, "cgroup", QUIET, options)?,
        }
        // `cpu,cpuacct` is also looked for under each of its names.
        for name in hierarchy.options.as_deref().unwrap_or_default().split(',') {
            let alias = root.join("sys/fs/cgroup").join(name);
            if !name.is_empty() && !name.contains('=') && !alias.exists() {
                let target = hierarchy.mount.file_name().unwrap_or_default();
                std::os::unix::fs::symlink(target, &alias).map_err(file("link", &alias))?;
            }
        }
    }
    Ok(())
}

fn kept_directories(root: &Path) -> Result<()> {
    for dir in [
        "var/lib/kubelet",
        "var/lib/containerd",
        "var/log/pods",
        "var/log/containers",
        "var/cache",
        "var/tmp",
        "run/lock",
    ] {
        make_dir(&root.join(dir))?;
    }
    for (name, target) in [("var/run", "/run"), ("var/lock", "/run/lock")] {
        let path = root.join(name);
        if std::fs::symlink_metadata(&path).is_err() {
            std::os::unix::fs::symlink(target, &path).map_err(file("link", &path))?;
        }
    }
    for dir in ["tmp", "var/tmp"] {
        let path = root.join(dir);
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o1777))
            .map_err(file("set the mode of", &path))?;
    }
    Ok(())
}

/// The files the node's programs are configured by.
fn settings(config: &Config, root: &Path) -> Result<()> {
    let etc = root.join("etc");
    for dir in ["ferrovirt", "containerd/certs.d", "cni/net.d"] {
        make_dir(&etc.join(dir))?;
    }
    let secrets = config.secrets();
    for entry in std::fs::read_dir(&secrets).map_err(file("list", &secrets))?.flatten() {
        let target = etc.join("ferrovirt").join(entry.file_name());
        std::fs::copy(entry.path(), &target).map_err(file("copy", &entry.path()))?;
    }
    config.save(&root.join(super::config::IN_NODE.trim_start_matches('/')))?;
    replace(&etc.join("hostname"), &format!("{}\n", config.name))?;
    replace(&etc.join("hosts"), &hosts(config))?;
    let resolvers: String = config.resolvers.iter().map(|address| format!("nameserver {address}\n")).collect();
    replace(&etc.join("resolv.conf"), &resolvers)?;
    let bin_dir = containerd::cni_bin_dir(root);
    replace(&etc.join("containerd/config.toml"), &containerd::config(&config.sandbox_image, bin_dir))?;
    // The host's own pod networks, if any, are not the node's.
    let networks = etc.join("cni/net.d");
    for entry in std::fs::read_dir(&networks).map_err(file("list", &networks))?.flatten() {
        std::fs::remove_file(entry.path()).map_err(file("remove", &entry.path()))?;
    }
    replace(&networks.join("10-pods.conflist"), &cni::config(&config.pod_cidrs, config.mtu).to_string())
}

/// Writes a file in place of whatever is there, also of a link: the target of a link may not exist in the node.
fn replace(path: &Path, text: &str) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(file("replace", path)(error)),
        _ => write(path, text),
    }
}

fn hosts(config: &Config) -> String {
    let mut text = "127.0.0.1 localhost\n::1 localhost ip6-localhost ip6-loopback\n".to_owned();
    for address in &config.addresses {
        text.push_str(&format!("{} {}\n", address.addr(), config.name));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_node_knows_its_own_name() {
        let text = hosts(&crate::node::config::example());
        assert!(text.ends_with("10.88.0.11 node1\nfd00:10:88::11 node1\n"), "{text}");
    }
}
