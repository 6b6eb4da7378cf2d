//! The daemon's files on the node: the shim, the socket, and the configuration that has the container runtime call the shim.

use std::fs::Permissions;
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use futures::StreamExt as _;
use inotify::{Inotify, WatchMask};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::Node;
use kit::controller::placement;
use kit::health::Ready;
use kit::shutdown::CancellationToken;
use kube::{Api, Client};
use tokio::net::UnixListener;

use super::default_network::{self, OWN, SHIM};
use super::{Args, manifests};
use crate::Error;

/// How often the directory of configurations is looked at, whatever the kernel says of it.
const LOOK: Duration = Duration::from_secs(60);
/// How long the API server is asked at the end.
const PATIENCE: Duration = Duration::from_secs(5);

/// Where the files are.
#[derive(Clone, Debug)]
pub(super) struct Files {
    root: PathBuf,
    config_dir: PathBuf,
    bin_dir: PathBuf,
    state: PathBuf,
    /// As the node's programs see it.
    socket: PathBuf,
    node: String,
}

impl Files {
    pub(super) fn new(args: &Args) -> Self {
        let root = args.root.as_path();
        let bin_dir = args.cni_bin_dir.first().map_or(Path::new(manifests::BIN_DIR), PathBuf::as_path);
        Self {
            root: root.to_owned(),
            config_dir: below(root, &args.cni_config_dir),
            bin_dir: below(root, bin_dir),
            state: below(root, &args.state_dir),
            socket: args.socket.clone(),
            node: args.node_name.clone(),
        }
    }

    pub(super) fn state(&self) -> PathBuf {
        self.state.clone()
    }

    pub(super) fn config_dir(&self) -> PathBuf {
        self.config_dir.clone()
    }

    /// The socket, for root alone.
    pub(super) fn listen(&self) -> Result<UnixListener, Error> {
        let path = below(&self.root, &self.socket);
        let listen = || {
            let dir = path.parent().unwrap_or(Path::new("/"));
            std::fs::create_dir_all(dir)?;
            std::fs::set_permissions(dir, Permissions::from_mode(0o700))?;
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
            let listener = UnixListener::bind(&path)?;
            std::fs::set_permissions(&path, Permissions::from_mode(0o600))?;
            Ok(listener)
        };
        listen().map_err(Error::setup("listen on the socket of the node"))
    }

    /// Puts the shim where the container runtime finds plugins.
    pub(super) fn install_shim(&self, program: &Path) -> Result<(), Error> {
        let install = || {
            let new = std::fs::read(program)?;
            std::fs::create_dir_all(&self.bin_dir)?;
            replace(&self.bin_dir.join(SHIM), &new, 0o755)
        };
        install().map_err(Error::setup("put the shim on the node"))
    }

    /// Writes our configuration where the cluster's is. The error says why pods have no network.
    fn configure(&self) -> Result<(), String> {
        let network = default_network::choose(&read(&self.config_dir))?;
        let own = default_network::own(&network, &self.socket.display().to_string());
        replace(&self.config_dir.join(OWN), own.as_bytes(), 0o600)
            .map_err(|error| format!("cannot write {OWN}: {error}"))
    }

    /// Lets the container runtime use the cluster's own configuration again.
    pub(super) fn uninstall(&self) {
        for path in [self.config_dir.join(OWN), self.bin_dir.join(SHIM), below(&self.root, &self.socket)] {
            match std::fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %path.display(), %error, "a file of the node was not removed");
                }
                _ => tracing::info!(path = %path.display(), "removed"),
            }
        }
    }
}

/// A path of the node, as this process sees it.
fn below(root: &Path, path: &Path) -> PathBuf {
    root.join(path.strip_prefix("/").unwrap_or(path))
}

/// The configurations of a directory, name and text. What cannot be read is none.
pub(super) fn read(dir: &Path) -> Vec<(String, String)> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let one = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        std::fs::read_to_string(entry.path()).ok().map(|text| (name, text))
    };
    entries.filter_map(one).collect()
}

/// Replaces a file, whole and only if it differs: a program that runs keeps its file, and nobody reads half of one.
fn replace(path: &Path, new: &[u8], mode: u32) -> io::Result<()> {
    if std::fs::read(path).is_ok_and(|held| held == new) {
        return Ok(());
    }
    // The container runtime reads files by their endings.
    let partial = path.with_extension("partial");
    std::fs::write(&partial, new)?;
    std::fs::set_permissions(&partial, Permissions::from_mode(mode))?;
    std::fs::rename(&partial, path)
}

/// Keeps our configuration as the cluster's is, until `stop`.
///
/// # Errors
/// Never; what fails is tried again.
pub(super) async fn keep(files: &Files, ready: &Ready, stop: &CancellationToken) -> Result<(), Error> {
    let mut said = String::new();
    loop {
        // First the news, then the look: nothing falls between.
        let changes = watch(&files.config_dir);
        let done = files.configure();
        ready.set(done.is_ok());
        let why = done.err().unwrap_or_default();
        if why != said {
            match why.is_empty() {
                true => tracing::info!("pods are given their networks"),
                false => tracing::warn!(why, "pods are not given their networks"),
            }
            said = why;
        }
        let changed = async {
            match changes {
                Ok(mut changes) => drop(changes.next().await),
                // There is no directory yet.
                Err(_) => tokio::time::sleep(PATIENCE).await,
            }
        };
        tokio::select! {
            () = changed => {}
            () = tokio::time::sleep(LOOK) => {}
            () = stop.cancelled() => return Ok(()),
        }
    }
}

fn watch(dir: &Path) -> io::Result<inotify::EventStream<[u8; 1024]>> {
    let inotify = Inotify::init()?;
    let mask = WatchMask::CLOSE_WRITE | WatchMask::MOVED_TO | WatchMask::MOVED_FROM | WatchMask::DELETE;
    inotify.watches().add(dir, mask)?;
    inotify.into_event_stream([0; 1024])
}

/// True when no daemon follows this one on its node: the DaemonSet is gone, or is not for the node any more. When the API server
/// does not answer, the node is likely going down, and a daemon follows when it is back.
pub(super) async fn is_leaving(client: &Client, files: &Files, namespace: &str) -> bool {
    let asked = async {
        let sets: Api<DaemonSet> = Api::namespaced(client.clone(), namespace);
        let set = sets.get(manifests::NAME).await?;
        let node = Api::<Node>::all(client.clone()).get(&files.node).await?;
        Ok::<_, kube::Error>((set, node))
    };
    match tokio::time::timeout(PATIENCE, asked).await {
        Ok(Ok((set, node))) => {
            let pod = set.spec.as_ref().and_then(|spec| spec.template.spec.as_ref());
            set.metadata.deletion_timestamp.is_some() || !pod.is_some_and(|pod| placement::selected(pod, &node))
        }
        // Nobody may ask any more: the rights are taken away with the DaemonSet.
        Ok(Err(kube::Error::Api(status))) => matches!(status.code, 401 | 403 | 404),
        Ok(Err(_)) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(root: &Path) -> Files {
        Files::new(&Args {
            node_name: "a".into(),
            namespace: "n".into(),
            root: root.to_owned(),
            cni_config_dir: "/etc/cni/net.d".into(),
            cni_bin_dir: vec!["/opt/cni/bin".into()],
            socket: "/run/multus/multus.sock".into(),
            state_dir: "/var/lib/cni/multus".into(),
            shim: "/bin/true".into(),
            dynamic_networks: false,
            health_port: 0,
        })
    }

    #[tokio::test]
    async fn our_configuration_comes_and_goes_with_the_clusters() {
        let root = tempfile::tempdir().unwrap();
        let files = files(root.path());
        let dir = root.path().join("etc/cni/net.d");
        std::fs::create_dir_all(&dir).unwrap();
        let (ready, stop) = (Ready::default(), CancellationToken::new());
        let (kept, seen, end) = (files.clone(), ready.clone(), stop.clone());
        let task = kit::spawn("keep", async move { keep(&kept, &seen, &end).await });
        let until = async |good: bool| {
            while ready.get() != good {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        std::fs::write(dir.join("10-a.conf"), r#"{"type": "bridge", "name": "pods"}"#).unwrap();
        tokio::time::timeout(Duration::from_secs(10), until(true)).await.unwrap();
        assert!(std::fs::read_to_string(dir.join(OWN)).unwrap().contains("/run/multus/multus.sock"));
        std::fs::remove_file(dir.join("10-a.conf")).unwrap();
        tokio::time::timeout(Duration::from_secs(10), until(false)).await.unwrap();
        stop.cancel();
        task.await.unwrap().unwrap();
        files.install_shim(Path::new("/bin/true")).unwrap();
        let _listener = files.listen().unwrap();
        assert!(
            root.path().join("opt/cni/bin/multus-shim").exists() && root.path().join("run/multus/multus.sock").exists()
        );
        for _ in 0..2 {
            files.uninstall();
        }
        assert!(!dir.join(OWN).exists() && !root.path().join("opt/cni/bin/multus-shim").exists());
    }
}
