//! The legacy provisioner: volumes of `hostPath`, made on the node that a claim's consumer was placed on.
//!
//! ```text
//!  claim (placed on this node) --> directory made --> PersistentVolume
//!  PersistentVolume released ----> directory removed --> PersistentVolume deleted
//! ```
//!
//! One runs on each node and looks at what concerns its node. It is for classes made before there was the CSI driver, which
//! can do all that this can, and more.

mod plan;

use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::sync::Arc;

use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::storage::v1::StorageClass;
use kit::queue::{Next, Queue};
use kit::shutdown::{self, CancellationToken};
use kit::store::{self, Key, Store, Watch};
use kit::{Chain, Task};
use kube::api::{DeleteParams, PostParams, Preconditions};
use kube::{Api, Client, ResourceExt};

use self::plan::Site;
use crate::{Error, Pool, pool, store as volumes};

/// The name by which StorageClasses choose it.
pub const NAME: &str = "kubevirt.io/hostpath-provisioner";

/// Command line of the legacy provisioner.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Name of this node.
    #[arg(long, env = "NODE_NAME")]
    pub node_name: String,
    /// The directory of volumes, the same in this container as on the node.
    #[arg(long, env = "PV_DIR")]
    pub pv_dir: PathBuf,
    /// Whether directories are named after their claims as well.
    #[arg(long, env = "USE_NAMING_PREFIX", default_value_t = false, action = clap::ArgAction::Set)]
    pub use_naming_prefix: bool,
}

struct Context {
    client: Client,
    site: Site,
    claims: Store<PersistentVolumeClaim>,
    volumes: Store<PersistentVolume>,
    classes: Store<StorageClass>,
}

/// Runs until it is told to stop.
///
/// # Errors
/// When the process cannot be set up.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::file("listen for signals in", "this process"))?;
    let client = kit::client::connect("hostpath-provisioner").await.map_err(|error| Error::Cluster(Box::new(error)))?;
    let _tasks = start(client, args, &stop)?;
    stop.cancelled().await;
    Ok(())
}

/// Starts the watches and the work, which end when what is returned is dropped.
///
/// # Errors
/// When an argument is wrong.
pub fn start(client: Client, args: Args, stop: &CancellationToken) -> Result<Vec<Task<()>>, Error> {
    if !args.pv_dir.is_absolute() {
        return Err(Error::Argument(format!("--pv-dir {} is not an absolute path", args.pv_dir.display())));
    }
    let site = Site { node: args.node_name, dir: args.pv_dir, prefix: args.use_naming_prefix };
    let context = Arc::new(Context {
        client: client.clone(),
        site,
        claims: Store::default(),
        volumes: Store::default(),
        classes: Store::default(),
    });
    let queue: Queue<Key> = Queue::default();
    let (on_claim, on_volume, on_class) = (queue.clone(), queue.clone(), (queue.clone(), context.clone()));
    let mut tasks = vec![
        store::watch(Api::all(client.clone()), Watch::default(), context.claims.clone(), move |change| {
            on_claim.add(change.key.clone());
        }),
        store::watch(Api::all(client.clone()), Watch::default(), context.volumes.clone(), move |change| {
            on_volume.add(change.key.clone());
        }),
        store::watch(Api::all(client), Watch::default(), context.classes.clone(), move |_| {
            let (queue, context) = &on_class;
            context.claims.keys().into_iter().for_each(|key| queue.add(key));
        }),
    ];
    let stop = stop.clone();
    tasks.push(kit::spawn("legacy-provisioner", async move {
        context.claims.synced().await;
        context.volumes.synced().await;
        context.classes.synced().await;
        for worker in queue.run(2, &stop, move |key| reconcile(context.clone(), key)) {
            let _ = worker.await;
        }
    }));
    Ok(tasks)
}

async fn reconcile(context: Arc<Context>, key: Key) -> Next {
    let outcome = if key.namespace.is_empty() { retire(&context, &key).await } else { provision(&context, &key).await };
    match outcome {
        Ok(()) => Next::Wait,
        Err(error) => {
            tracing::warn!(object = %key, error = %Chain(&error), "will retry");
            Next::Retry
        }
    }
}

async fn provision(context: &Context, key: &Key) -> Result<(), Error> {
    let Some(claim) = context.claims.get(key) else { return Ok(()) };
    let class = claim.spec.as_ref().and_then(|spec| spec.storage_class_name.clone()).unwrap_or_default();
    let Some(class) = context.classes.get(&Key::new("", class)) else { return Ok(()) };
    if !plan::is_due(&claim, &class, &context.site) || context.volumes.contains(&Key::new("", plan::name(&claim))) {
        return Ok(());
    }
    let site = &context.site;
    std::fs::create_dir_all(&site.dir).map_err(Error::file("create", &site.dir))?;
    let space = pool::space(&site.dir).map_err(Error::file("measure", &site.dir))?;
    let dir = site.dir.join(plan::directory(&claim, site));
    match std::fs::create_dir(&dir) {
        Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
            return Err(Error::file("create", &dir)(error));
        }
        _ => {}
    }
    std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o777)).map_err(Error::file("open up", &dir))?;
    let volume = plan::volume(&claim, &class, site, space.total);
    let volume: PersistentVolume = serde_json::from_value(volume)
        .map_err(|error| Error::Argument(format!("the volume of claim {key}: {error}")))?;
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    match api.create(&PostParams::default(), &volume).await {
        Ok(_) => tracing::info!(claim = %key, directory = %dir.display(), "volume made"),
        Err(kube::Error::Api(status)) if status.code == 409 => {}
        Err(error) => return Err(Error::Cluster(Box::new(error))),
    }
    Ok(())
}

/// Removes a volume nobody claims any more, with its data.
async fn retire(context: &Context, key: &Key) -> Result<(), Error> {
    let Some(volume) = context.volumes.get(key) else { return Ok(()) };
    let Some(name) = plan::is_left(&volume, &context.site) else { return Ok(()) };
    let pool = Pool::local("legacy", &context.site.dir);
    let (at, removed) =
        (context.site.dir.join(&name), tokio::task::spawn_blocking(move || volumes::remove_from(&pool, &name)));
    let removed = removed.await.map_err(|error| Error::Cluster(Box::new(error)))?;
    removed.map_err(Error::file("remove", at))?;
    let params = DeleteParams::default()
        .preconditions(Preconditions { uid: volume.metadata.uid.clone(), resource_version: None });
    let api: Api<PersistentVolume> = Api::all(context.client.clone());
    match api.delete(&volume.name_any(), &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(Error::Cluster(Box::new(error))),
    }
}
