//! One registered driver: its socket, what it can do on a node, and calls to it with a limit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rpc::csi::node_client::NodeClient;
use rpc::csi::node_service_capability;
use rpc::csi::node_service_capability::rpc::Type;
use rpc::csi::{NodeGetCapabilitiesRequest, NodeGetInfoRequest};
use tonic::transport::{Channel, Endpoint};

use crate::error::{DriverStatus, Error, Result};

/// As upstream: drivers may work for minutes, but not for ever.
const LIMIT: Duration = Duration::from_secs(120);
const CONNECT: Duration = Duration::from_secs(5);

/// What a driver's Node service can do beyond publishing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Abilities {
    pub(crate) stages: bool,
    pub(crate) expands: bool,
    pub(crate) measures: bool,
    /// It gives a volume its group itself.
    pub(crate) mounts_by_group: bool,
    /// It knows the access modes that tell one writer from several on one node.
    pub(crate) counts_writers: bool,
}

/// What a driver says of this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeInfo {
    pub(crate) node_id: String,
    pub(crate) topology: BTreeMap<String, String>,
    /// How many volumes the node takes; none: as many as there are.
    pub(crate) limit: Option<i32>,
}

/// A driver that has registered.
#[derive(Debug)]
pub(crate) struct Driver {
    pub(crate) name: String,
    /// Where it serves CSI.
    pub(crate) socket: PathBuf,
    /// Where it has registered.
    pub(crate) registered_by: PathBuf,
    pub(crate) abilities: Abilities,
    pub(crate) info: NodeInfo,
    channel: Channel,
}

/// A connection that is made when it is needed, and again when the other side was restarted.
pub(crate) fn channel(socket: &Path) -> Result<Channel> {
    let fail = |source| Error::Connect { what: "plugin", socket: socket.into(), source };
    let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).map_err(fail)?;
    Ok(endpoint.connect_timeout(CONNECT).connect_lazy())
}

/// Asks, and waits no longer than `LIMIT`.
pub(crate) async fn ask<T>(call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send) -> Result<T> {
    ask_within(LIMIT, call).await
}

/// Asks, and waits no longer than `limit`.
pub(crate) async fn ask_within<T>(
    limit: Duration,
    call: impl Future<Output = Result<tonic::Response<T>, tonic::Status>> + Send,
) -> Result<T> {
    let status = match tokio::time::timeout(limit, call).await {
        Ok(Ok(reply)) => return Ok(reply.into_inner()),
        Ok(Err(status)) => status,
        Err(_) => tonic::Status::deadline_exceeded("context deadline exceeded"),
    };
    Err(Error::Driver(Box::new(DriverStatus(status))))
}

impl Driver {
    /// Asks the driver behind `socket` about the node and its abilities.
    pub(crate) async fn meet(name: String, socket: PathBuf, registered_by: PathBuf) -> Result<Self> {
        let channel = channel(&socket)?;
        let mut node = NodeClient::new(channel.clone());
        let info = ask(node.node_get_info(NodeGetInfoRequest {})).await?;
        if info.node_id.is_empty() {
            return Err(Error::Invalid(format!("driver {name}: NodeGetInfo returned an empty node_id")));
        }
        let abilities = abilities(ask(node.node_get_capabilities(NodeGetCapabilitiesRequest {})).await?.capabilities);
        let info = NodeInfo {
            node_id: info.node_id,
            topology: info.accessible_topology.unwrap_or_default().segments.into_iter().collect(),
            limit: i32::try_from(info.max_volumes_per_node).ok().filter(|limit| *limit > 0),
        };
        Ok(Driver { name, socket, registered_by, abilities, info, channel })
    }

    /// Its Node service.
    pub(crate) fn node(&self) -> NodeClient<Channel> {
        NodeClient::new(self.channel.clone())
    }
}

fn abilities(list: Vec<rpc::csi::NodeServiceCapability>) -> Abilities {
    let types: Vec<Type> = list
        .into_iter()
        .filter_map(|capability| match capability.r#type? {
            node_service_capability::Type::Rpc(rpc) => Some(rpc.r#type()),
        })
        .collect();
    Abilities {
        stages: types.contains(&Type::StageUnstageVolume),
        expands: types.contains(&Type::ExpandVolume),
        measures: types.contains(&Type::GetVolumeStats),
        mounts_by_group: types.contains(&Type::VolumeMountGroup),
        counts_writers: types.contains(&Type::SingleNodeMultiWriter),
    }
}
