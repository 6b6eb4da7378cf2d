//! containerd's configuration, rendered for the node.

use std::path::Path;

/// Where containerd listens, inside the node.
pub const SOCKET: &str = "/run/containerd/containerd.sock";

/// Where pod networks are configured, inside the node.
pub const CNI_CONF_DIR: &str = "/etc/cni/net.d";

/// Directories CNI plugins are installed in: by distributions, by everybody else.
const CNI_BIN_DIRS: [&str; 2] = ["/usr/lib/cni", "/opt/cni/bin"];

/// The directory that holds the plugins this node uses, seen from `root`.
pub fn cni_bin_dir(root: &Path) -> &'static str {
    let has_bridge = |dir: &&str| root.join(dir.trim_start_matches('/')).join("bridge").exists();
    CNI_BIN_DIRS.into_iter().find(|dir| has_bridge(dir)).unwrap_or(CNI_BIN_DIRS[0])
}

/// `config.toml`. Streaming is the kubelet's own affair, so containerd's stream server stays on loopback; the score
/// adjustment is restricted because an init without CAP_SYS_RESOURCE may not lower it. What decides whether a container may
/// use its devices is as containerd has it, so that what runs here runs on other clusters.
pub fn config(sandbox_image: &str, cni_bin_dir: &str) -> String {
    // A TOML basic string has the escapes of a JSON string.
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    format!(
        r#"version = 2
root = "/var/lib/containerd"
state = "/run/containerd"
oom_score = 0
disabled_plugins = [
  "io.containerd.internal.v1.opt",
  "io.containerd.snapshotter.v1.aufs",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.zfs",
]

[grpc]
  address = "{SOCKET}"

[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = {sandbox}
  restrict_oom_score_adj = true
  disable_apparmor = true
  enable_selinux = false
  tolerate_missing_hugetlb_controller = true
  disable_tcp_service = true
  stream_server_address = "127.0.0.1"
  stream_server_port = "0"
  max_container_log_line_size = 16384

  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    default_runtime_name = "runc"

    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"

      [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
        SystemdCgroup = false

  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = {bin}
    conf_dir = "{CNI_CONF_DIR}"

  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "/etc/containerd/certs.d"
"#,
        sandbox = quote(sandbox_image),
        bin = quote(cni_bin_dir),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_other_parts_rely_on() {
        let text = config("ferrovirt.local/pause:v0.1.0", "/usr/lib/cni");
        for line in [
            "sandbox_image = \"ferrovirt.local/pause:v0.1.0\"",
            "restrict_oom_score_adj = true",
            "snapshotter = \"overlayfs\"",
            "SystemdCgroup = false",
            "bin_dir = \"/usr/lib/cni\"",
            "address = \"/run/containerd/containerd.sock\"",
        ] {
            assert!(text.contains(line), "missing: {line}");
        }
        assert!(!text.contains("device_ownership_from_security_context"), "a device's owner is the default's affair");
        assert!(config("a\"b", "/x").contains(r#"sandbox_image = "a\"b""#));
    }

    #[test]
    fn plugins_are_where_the_bridge_is() {
        let root = std::env::temp_dir().join(format!("cni-bin-{}", std::process::id()));
        assert_eq!(cni_bin_dir(&root), "/usr/lib/cni");
        std::fs::create_dir_all(root.join("opt/cni/bin")).unwrap();
        std::fs::write(root.join("opt/cni/bin/bridge"), "").unwrap();
        assert_eq!(cni_bin_dir(&root), "/opt/cni/bin");
        std::fs::remove_dir_all(root).unwrap();
    }
}
