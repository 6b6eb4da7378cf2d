//! `--images-from`: the images of a bundle go to a registry, or to the container runtime of this machine where the cluster is no other.

use std::path::{Path, PathBuf};

use anyhow::Context;
use images::{Image, Layout};
use k8s_openapi::api::core::v1::Node;
use kube::api::ListParams;
use kube::{Api, Client};

use crate::failure::advise;
use crate::images::{Credentials, push};
use crate::state::State;
use crate::terminal;

/// Where containerd listens, by itself and within the usual small clusters.
const SOCKETS: [&str; 3] =
    ["/run/containerd/containerd.sock", "/run/k3s/containerd/containerd.sock", "/run/k0s/containerd.sock"];

/// The images of a bundle, unpacked for as long as this is held.
pub(super) struct Unpacked {
    layout: Layout,
    _dir: tempfile::TempDir,
}

/// Unpacks the bundle beside itself, where there is room for it.
///
/// # Errors
/// When it is none, or is damaged.
pub(super) fn open(bundle: &Path) -> anyhow::Result<Unpacked> {
    let beside = bundle.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let dir = tempfile::tempdir_in(beside).with_context(|| format!("cannot unpack into {}", beside.display()))?;
    let layout = images::open_bundle(bundle, dir.path())?;
    Ok(Unpacked { layout, _dir: dir })
}

impl Unpacked {
    /// Sends them to a registry.
    ///
    /// # Errors
    /// When it refuses.
    pub(super) async fn push(&self, registry: &str, credentials: &Credentials) -> anyhow::Result<()> {
        push(&self.layout, registry, credentials).await
    }

    /// Gives them to the container runtime of this machine, when every node of the cluster is this machine.
    ///
    /// # Errors
    /// When a node is another machine, or no runtime is found.
    pub(super) async fn load(&self, client: &Client, state: &State) -> anyhow::Result<()> {
        let nodes: Api<Node> = Api::all(client.clone());
        let nodes = nodes.list(&ListParams::default()).await.context("cannot list the nodes")?;
        let own = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").context("cannot tell this machine")?;
        let boot = |node: &Node| Some(node.status.as_ref()?.node_info.as_ref()?.boot_id.clone());
        let stranger = nodes.iter().find(|node| boot(node).as_deref() != Some(own.trim()));
        if let Some(stranger) = stranger {
            let name = stranger.metadata.name.as_deref().unwrap_or_default();
            let error =
                anyhow::anyhow!("the node {name} is another machine, to which no images can be given from here");
            return Err(advise(
                error,
                "name a registry that the nodes reach with --registry; or run `ctr -n k8s.io images import` with the bundle on each node, \
                 then this without --images-from",
            ));
        }
        let sockets = sockets(state)?;
        if sockets.is_empty() {
            let error = anyhow::anyhow!("no containerd listens on this machine: not at {}", SOCKETS.join(", "));
            return Err(advise(error, "name a registry that the node reaches with --registry"));
        }
        for socket in sockets {
            let loaded = images::load(&self.layout, &socket, &Image::all())?;
            let at = socket.display();
            terminal::say(&format!("          {} images given to containerd at {at}", loaded.len()));
        }
        Ok(())
    }
}

/// Those of the embedded cluster's nodes where it runs, else those of this machine itself.
fn sockets(state: &State) -> anyhow::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    for number in state.nodes()? {
        if let Some(pid) = state.node_pid(number)? {
            found.push(crate::images::socket_of(pid));
        }
    }
    if found.is_empty() {
        found.extend(SOCKETS.iter().map(PathBuf::from));
    }
    found.retain(|socket| socket.exists());
    Ok(found)
}
