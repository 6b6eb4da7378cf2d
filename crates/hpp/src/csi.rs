//! The CSI driver: one process on each node serves all three services for the volumes of that node.

mod busy;
mod capability;
mod condition;
mod controller;
mod identity;
mod node;
mod page;
pub mod registration;

use std::collections::HashMap;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use kit::shutdown::CancellationToken;
use rpc::csi::Topology;
use rpc::csi::controller_server::ControllerServer;
use rpc::csi::identity_server::IdentityServer;
use rpc::csi::node_server::NodeServer;
use rpc::unix::Connection;
use tokio_stream::Stream;
use tonic::{Response, Status};

use crate::store::{self, Volume};
use crate::{Error, Pool, pool};

/// The name the driver registers by when it is given none.
pub const NAME: &str = "kubevirt.io.hostpath-provisioner";
/// The label that tells on which node a volume is.
pub const TOPOLOGY: &str = "topology.hostpath.csi/node";
/// The parameter of a StorageClass, or attribute of an inline volume, that chooses a pool.
const POOL: &str = "storagePool";

/// What the three services share.
#[derive(Debug)]
pub struct Driver {
    name: String,
    node: String,
    pools: Vec<Pool>,
    /// Where loop devices' nodes are found or made.
    dev: PathBuf,
    /// Held while volumes are made, changed or removed.
    changing: tokio::sync::Mutex<()>,
    /// What is worked on for longer.
    busy: busy::Busy,
}

impl Driver {
    /// A driver for the volumes in `pools`, whose directories it makes.
    ///
    /// # Errors
    /// When the node has no name.
    pub fn new(name: String, node: String, pools: Vec<Pool>) -> Result<Self, Error> {
        if node.is_empty() {
            return Err(Error::Argument("--node-name is empty: volumes must be bound to a node".into()));
        }
        // What is mounted later is prepared later, and one that cannot be used is no reason not to serve the others.
        for pool in pools.iter().filter(|pool| pool.is_there()) {
            if let Err(error) = store::prepare(pool) {
                tracing::error!(pool = pool.name, path = %pool.path.display(), %error, "the pool cannot be used");
            }
        }
        Ok(Driver {
            name,
            node,
            pools,
            dev: "/dev".into(),
            changing: tokio::sync::Mutex::default(),
            busy: busy::Busy::default(),
        })
    }

    /// Held while volumes are made, changed or removed, by this process and by those of other nodes that share a pool.
    async fn changing(&self) -> Result<Changing<'_>, Status> {
        let ours = self.changing.lock().await;
        let shared: Vec<PathBuf> = self.pools.iter().filter(|pool| pool.shared).map(|pool| pool.path.clone()).collect();
        if shared.is_empty() {
            return Ok(Changing { _ours: ours, _shared: Vec::new() });
        }
        let locked = tokio::task::spawn_blocking(move || shared.iter().map(|pool| store::lock(pool)).collect());
        let locked: std::io::Result<Vec<File>> = locked.await.map_err(|error| Status::internal(error.to_string()))?;
        Ok(Changing { _ours: ours, _shared: locked.map_err(failed("lock a pool that is shared"))? })
    }

    fn topology(&self) -> Topology {
        Topology { segments: HashMap::from([(TOPOLOGY.to_owned(), self.node.clone())]) }
    }

    /// The pool that the parameters choose; with one pool nothing needs to be chosen.
    fn pool(&self, parameters: &HashMap<String, String>) -> Result<&Pool, Status> {
        let names = || self.pools.iter().map(|pool| pool.name.as_str()).collect::<Vec<_>>().join(", ");
        let pool = match (parameters.get(POOL), self.pools.as_slice()) {
            (Some(name), pools) => pools
                .iter()
                .find(|pool| pool.name == *name)
                .ok_or_else(|| Status::invalid_argument(format!("{POOL} {name:?} is not one of: {}", names())))?,
            (None, [only]) => only,
            (None, _) => {
                return Err(Status::invalid_argument(format!("parameter {POOL} is required: one of {}", names())));
            }
        };
        check_mounted(pool)?;
        if pool::is_read_only(&pool.path) {
            let message = format!("pool {:?} can only be read: mount {} writable", pool.name, pool.path.display());
            return Err(Status::failed_precondition(message));
        }
        if !store::is_prepared(pool) {
            store::prepare(pool).map_err(failed("prepare the pool"))?;
        }
        Ok(pool)
    }

    /// The volume of a request.
    fn volume(&self, id: &str) -> Result<Volume, Status> {
        if id.is_empty() {
            return Err(Status::invalid_argument("volume_id is required"));
        }
        let found = store::find(&self.pools, id).map_err(failed("read the record of the volume"))?;
        if let Some(volume) = found {
            check_mounted(&volume.pool)?;
            return Ok(volume);
        }
        // It may lie in a pool that cannot be looked into.
        self.pools.iter().try_for_each(check_mounted)?;
        Err(Status::not_found(format!("volume {id:?} does not exist on node {}", self.node)))
    }
}

/// Without its volume a pool is an empty directory, and nothing that is said of it would be true.
fn check_mounted(pool: &Pool) -> Result<(), Status> {
    if pool.is_there() {
        return Ok(());
    }
    Err(Status::unavailable(format!("nothing is mounted at pool {:?}", pool.name)))
}

/// See [`Driver::changing`].
struct Changing<'a> {
    _ours: tokio::sync::MutexGuard<'a, ()>,
    _shared: Vec<File>,
}

/// How the CSI specification has a call answered whose capability was not announced.
fn unannounced<T>(call: &str) -> Result<Response<T>, Status> {
    Err(Status::unimplemented(format!("this driver does not announce {call}")))
}

/// An operation of ours that the machine refused.
fn failed(what: &'static str) -> impl FnOnce(std::io::Error) -> Status {
    move |error| match error.raw_os_error() {
        Some(28 | 122) => Status::resource_exhausted(format!("cannot {what}: {error}")),
        _ => Status::internal(format!("cannot {what}: {error}")),
    }
}

fn refused(error: &sys::Error) -> Status {
    Status::internal(kit::Chain(error).to_string())
}

/// A socket nobody listens on is replaced.
pub(crate) fn listen(socket: &Path) -> Result<impl Stream<Item = std::io::Result<Connection>> + use<>, Error> {
    if let Some(dir) = socket.parent() {
        std::fs::create_dir_all(dir).map_err(Error::file("create", dir))?;
    }
    match std::fs::remove_file(socket) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(Error::file("remove", socket)(error)),
        _ => {}
    }
    rpc::unix::listen(socket).map_err(Error::file("listen on", socket))
}

/// Serves CSI on `socket` until `stop`.
///
/// # Errors
/// When the socket cannot be served.
pub async fn serve(driver: Arc<Driver>, socket: &Path, stop: CancellationToken) -> Result<(), Error> {
    let incoming = listen(socket)?;
    tracing::info!(driver = driver.name, node = driver.node, socket = %socket.display(), "CSI driver serves");
    tonic::transport::Server::builder()
        .add_service(IdentityServer::new(identity::Service(driver.clone())))
        .add_service(ControllerServer::new(controller::Service(driver.clone())))
        .add_service(NodeServer::new(node::Service(driver)))
        .serve_with_incoming_shutdown(incoming, stop.cancelled())
        .await
        .map_err(|source| Error::Serve { socket: socket.into(), source })
}
