//! The operator: deploys the CSI driver, and the legacy provisioner where it is asked for, as the HostPathProvisioner
//! object says.
//!
//! ```text
//! HostPathProvisioner -> pools (check) -> manifests (render) -> server-side apply -> readiness -> status
//! ```

mod claims;
mod constraints;
pub mod install;
mod manifests;
mod monitoring;
mod pools;
mod registered;
mod settings;
mod sidecar;
mod status;

use api::hpp::{HostPathProvisioner, PathConfig, Spec, StoragePool};
use std::fmt::Debug;
use std::sync::Arc;

use api::unserved::{self, HOSTPATH};
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodSpec, PodStatus};
use k8s_openapi::api::storage::v1::CSINode;
use kit::apply::{self, Applied};
use kit::events::Recorder;
use kit::operator::Requests;
use kit::queue::{Next, Queue};
use kit::shutdown::{self, CancellationToken};
use kit::store::{self, Key, Store, Watch};
use kit::{Chain, Task, operator, served};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource as _, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

pub(crate) use self::monitoring::ON_ROOT;
use self::pools::Refusal;
pub use self::settings::Controllers;
use self::settings::{DRIVER, LEGACY, Settings};
use crate::{Error, metrics};

/// Field manager of what it applies, and the name of what it is made of.
pub const MANAGER: &str = "hostpath-provisioner-operator";
/// Kinds of which something is made where the cluster has them.
const OPTIONAL: [(&str, &str, &str); 4] = [
    ("monitoring.coreos.com", "ServiceMonitor", "servicemonitors"),
    ("monitoring.coreos.com", "PrometheusRule", "prometheusrules"),
    ("security.openshift.io", "SecurityContextConstraints", "securitycontextconstraints"),
    ("snapshot.storage.k8s.io", "VolumeSnapshotClass", "volumesnapshotclasses"),
];
/// The index key of nodes whose kubelet knows the driver.
const REGISTERED: &str = "registered";
/// Keeps the object until what was deployed for it is gone.
const FINALIZER: &str = "finalizer.delete.hostpath-provisioner";

/// Command line of the operator.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace of the operator and of what it deploys.
    #[arg(long, env = "POD_NAMESPACE", default_value = install::NAMESPACE)]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = "hostpath-provisioner-operator")]
    pub identity: String,
    /// Image of what is deployed.
    #[arg(long, env = "PROVISIONER_IMAGE", default_value = install::IMAGE)]
    pub image: String,
    /// Who makes, grows and captures volumes by calling the driver.
    #[arg(long, env = "CSI_CONTROLLERS", value_enum, default_value = "driver")]
    pub controllers: Controllers,
    /// Where metrics and health are served; nowhere by default.
    #[arg(long)]
    pub metrics_port: Option<u16>,
}

/// Runs until it is told to stop, or until another replica leads.
///
/// # Errors
/// When the process cannot be set up, or leadership is lost.
pub async fn run(args: Args, process: operator::Process) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::file("listen for signals in", "this process"))?;
    let client = process.connect(MANAGER).await.map_err(|error| Error::Cluster(Box::new(error)))?;
    let objects: Store<HostPathProvisioner> = Store::default();
    let resource = ApiResource::erase::<HostPathProvisioner>(&());
    let all = Api::all(client.clone());
    let _watch = served::watch(&client, &resource, all, Watch::default(), objects.clone(), |_| {});
    let ready = process.ready();
    let remedy = "apply all of hostpath-operator.yaml, which begins with it";
    let _defined = served::required(&client, &resource, ready.clone(), remedy);
    let _metrics = match args.metrics_port {
        None => None,
        Some(port) => {
            let fact = metrics::Fact {
                name: monitoring::READY,
                help: "HPP CR Ready",
                holds: move || objects.list().iter().any(|object| object.is("Available")),
            };
            Some(metrics::serve(MANAGER, port, fact.registry(), ready, &stop).await?)
        }
    };
    let lease = (args.namespace.as_str(), MANAGER);
    let start = || Operator::start(client, &args.namespace, args.image, args.controllers, &stop);
    let led = operator::lead(&process, MANAGER, lease, &args.identity, &stop, start).await;
    if led.map_err(|error| Error::Cluster(Box::new(error)))? { Ok(()) } else { Err(Error::Deposed) }
}

/// The operator at work; dropping it stops it.
pub struct Operator {
    _tasks: Vec<Task<()>>,
}

struct Context {
    client: Client,
    settings: Settings,
    /// The object that counts.
    requests: Requests<HostPathProvisioner>,
    objects: Store<HostPathProvisioner>,
    drivers: Store<DaemonSet>,
    /// The driver's pods, for the nodes they are on.
    pods: Store<Pod>,
    /// What the kubelets know.
    nodes: Store<CSINode>,
    claims: Store<PersistentVolumeClaim>,
    mounters: Store<Deployment>,
    applied: Applied,
    recorder: Recorder,
}

impl Operator {
    /// Starts the watches and the work.
    pub fn start(
        client: Client,
        namespace: &str,
        image: String,
        controllers: Controllers,
        stop: &CancellationToken,
    ) -> Self {
        let objects = Store::default();
        let context = Arc::new(Context {
            requests: Requests::new(&client, &objects, FINALIZER, operator::Status::Object),
            client: client.clone(),
            settings: Settings { namespace: namespace.to_owned(), image, controllers, ..Settings::default() },
            objects,
            drivers: Store::default(),
            pods: Store::default(),
            nodes: Store::default(),
            claims: Store::default(),
            mounters: Store::default(),
            applied: Applied::by(MANAGER),
            recorder: Recorder::new(client.clone(), MANAGER, ""),
        });
        let queue: Queue<Key> = Queue::default();
        let objects = Api::<HostPathProvisioner>::all(client.clone());
        let all = (queue.clone(), context.objects.clone());
        let wake = move || all.0.add_all(all.1.keys());
        // Which one counts depends on all of them.
        let again = wake.clone();
        let resource = ApiResource::erase::<HostPathProvisioner>(&());
        let mut tasks =
            vec![served::watch(&client, &resource, objects, Watch::default(), context.objects.clone(), move |_| {
                again();
            })];
        let selector = format!("app.kubernetes.io/managed-by={MANAGER}");
        let rendered = manifests::every_kind(&context.settings);
        tasks.extend(operator::repair(&client, &rendered, &selector, &context.applied, wake.clone()));
        let ours = || watcher::Config::default().labels(&selector);
        let sets = Api::<DaemonSet>::namespaced(client.clone(), namespace);
        let how = Watch { config: ours(), trim: |set: &mut DaemonSet| set.spec = None, ..Watch::default() };
        tasks.push(follow(sets, how, &context.drivers, &wake));
        let mounters = Api::<Deployment>::namespaced(client.clone(), namespace);
        let how = Watch { config: ours(), trim: |mounter: &mut Deployment| mounter.spec = None, ..Watch::default() };
        tasks.push(follow(mounters, how, &context.mounters, &wake));
        let claims = Api::<PersistentVolumeClaim>::namespaced(client.clone(), namespace);
        let how = Watch { config: ours(), ..Watch::default() };
        tasks.push(follow(claims, how, &context.claims, &wake));
        let pods = Api::<Pod>::namespaced(client, namespace);
        let config = watcher::Config::default().labels(&format!("k8s-app={DRIVER}"));
        let how = Watch { config, trim: trim_pod, ..Watch::default() };
        tasks.push(follow(pods, how, &context.pods, &wake));
        tasks.push(registrations(&context, wake.clone()));
        for (group, kind, plural) in OPTIONAL {
            let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, "v1", kind), plural);
            let wake = wake.clone();
            tasks.push(served::follow(&context.client, &resource, move |_| wake()));
        }
        let stopping = stop.clone();
        tasks.push(kit::spawn("operator", async move {
            context.objects.synced().await;
            context.drivers.synced().await;
            context.pods.synced().await;
            context.nodes.synced().await;
            context.claims.synced().await;
            context.mounters.synced().await;
            let workers = queue.run(1, &stopping, move |key| reconcile(context.clone(), key));
            for worker in workers {
                let _ = worker.await;
            }
        }));
        Operator { _tasks: tasks }
    }
}

/// Keeps `store`, and calls `wake` whatever happens to an object in it.
fn follow<K>(api: Api<K>, how: Watch<K>, store: &Store<K>, wake: &(impl Fn() + Clone + Send + 'static)) -> Task<()>
where
    K: kube::Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
{
    let wake = wake.clone();
    store::watch(api, how, store.clone(), move |_| wake())
}

/// Watches which kubelets know the driver; of the rest that they say nothing is kept, and nothing follows from it.
fn registrations(context: &Context, wake: impl Fn() + Send + 'static) -> Task<()> {
    let how = Watch {
        trim: |node: &mut CSINode| node.spec.drivers.retain(|driver| driver.name == crate::csi::NAME),
        index: |node: &CSINode| registered::has_driver(node).then(|| REGISTERED.to_owned()).into_iter().collect(),
        ..Watch::default()
    };
    store::watch(Api::all(context.client.clone()), how, context.nodes.clone(), move |change| {
        if change.was != change.is {
            wake();
        }
    })
}

/// Only which node it is on, and since when it is ready, is read.
fn trim_pod(pod: &mut Pod) {
    let node = pod.spec.take().and_then(|spec| spec.node_name);
    pod.spec = Some(PodSpec { node_name: node, ..PodSpec::default() });
    let conditions = pod.status.take().and_then(|status| status.conditions);
    pod.status = Some(PodStatus { conditions, ..PodStatus::default() });
}

async fn reconcile(context: Arc<Context>, key: Key) -> Next {
    let Some(object) = context.objects.get(&key) else { return Next::Wait };
    let outcome = if object.metadata.deletion_timestamp.is_some() {
        remove(&context, &object).await
    } else {
        deploy(&context, &object).await
    };
    match outcome {
        Ok(next) => next,
        Err(error) => {
            tracing::warn!(object = key.name, error = %Chain(&error), "will retry");
            Next::Retry
        }
    }
}

async fn deploy(context: &Context, object: &HostPathProvisioner) -> Result<Next, Error> {
    let shared = object.shared();
    let settings = settings(context).await?;
    let active = is_active(context, object);
    let pools = active
        .clone()
        .and_then(|()| pools::of(&object.spec))
        .and_then(|pools| pools::check_shared(&pools, &shared).map(|()| pools));
    let mut failure = None;
    if let Ok(pools) = &pools {
        if context.requests.hold(object).await.map_err(refused)? {
            context.recorder.normal(&object.object_ref(&()), "DeployStarted", "Started Deployment");
        }
        let mut manifests = manifests::render(&object.spec, pools, &shared, &settings);
        let mounted = claims::render(&object.spec, pools, &nodes(context), &settings);
        prune(context, pools, &mounted).await?;
        manifests.extend(mounted);
        let applied = apply::all(&context.client, &context.applied, &manifests).await;
        failure = applied.err().map(|error| Chain(&error).to_string());
    }
    let find = |name: &str| context.drivers.get(&Key::new(context.settings.namespace.as_str(), name));
    let mut workloads = vec![find(DRIVER)];
    let legacy = find(LEGACY);
    match (&object.spec.path_config, legacy) {
        (Some(_), legacy) => workloads.push(legacy),
        // It was asked for before.
        (None, Some(_)) if pools.is_ok() => remove_legacy(context).await?,
        (None, _) => {}
    }
    let (claims, mounters) = (context.claims.list(), context.mounters.list());
    let failed = failure.is_some();
    let now = kit::clock::now();
    let known: Vec<String> = context.nodes.keys_by_index(REGISTERED).into_iter().map(|key| key.name).collect();
    let registered = registered::look(&context.pods.list(), &known, now);
    let seen = status::Seen {
        active: active.is_ok(),
        registered: &registered,
        pools: pools.as_deref(),
        workloads: &workloads,
        claims: &claims,
        mounters: &mounters,
        failure,
        ignored: ignored(&object.spec),
        version: concat!("v", env!("CARGO_PKG_VERSION")),
    };
    let status = status::status(object.status.as_ref(), &seen, now);
    if object.status.as_ref() != Some(&status) {
        context.requests.write_status(object, &status).await.map_err(refused)?;
        if status.is("Available") && !object.is("Available") {
            context.recorder.normal(&object.object_ref(&()), "ProvisionerHealthy", "Provisioner Healthy");
        }
    }
    Ok(match registered.again() {
        _ if failed => Next::Retry,
        Some(left) => Next::After(left),
        None => Next::Wait,
    })
}

/// What `spec` asks for and nothing acts on, in a sentence each.
fn ignored(spec: &Spec) -> Vec<String> {
    let found = unserved::found(HOSTPATH, &json!({ "spec": spec }), "");
    found.into_iter().map(|one| one.message).collect()
}

/// How things are deployed, given what kinds the cluster knows.
async fn settings(context: &Context) -> Result<Settings, Error> {
    let serves = async |version: &str, kinds: &[&str]| operator::serves(&context.client, version, kinds).await;
    let monitored = serves("monitoring.coreos.com/v1", &["ServiceMonitor", "PrometheusRule"]).await.map_err(refused)?;
    let constrained = serves("security.openshift.io/v1", &["SecurityContextConstraints"]).await.map_err(refused)?;
    let captured = serves("snapshot.storage.k8s.io/v1", &["VolumeSnapshotClass"]).await.map_err(refused)?;
    Ok(Settings { monitored, constrained, captured, ..context.settings.clone() })
}

fn refused(error: kube::Error) -> Error {
    Error::Cluster(Box::new(error))
}

/// There is one driver, so one object says how it is.
fn is_active(context: &Context, object: &HostPathProvisioner) -> Result<(), Refusal> {
    match context.requests.active() {
        Some(active) if active.uid() != object.uid() => Err(pools::another(&active.name_any())),
        _ => Ok(()),
    }
}

/// The nodes the driver is on, or is to be.
fn nodes(context: &Context) -> Vec<String> {
    let pods = context.pods.list();
    let mut nodes: Vec<String> = pods.into_iter().filter_map(|pod| pod.spec?.node_name).collect();
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Takes away mounts that are not wanted any more. The claims stay, with the volumes that are in them.
async fn prune(context: &Context, pools: &[StoragePool], wanted: &[serde_json::Value]) -> Result<(), Error> {
    let wanted: Vec<&str> = wanted.iter().filter_map(|manifest| manifest["metadata"]["name"].as_str()).collect();
    let driver = context.drivers.get(&Key::new(context.settings.namespace.as_str(), DRIVER));
    let everywhere = driver.and_then(|set| set.status).map(|status| status.desired_number_scheduled);
    // Where the driver is just being replaced it will be again.
    let settled = everywhere.is_some_and(|count| usize::try_from(count) == Ok(nodes(context).len()));
    for mounter in context.mounters.list().into_iter().filter(|mounter| mounter.name_any() != MANAGER) {
        let left = !pools.iter().any(|pool| claims::is_of(&mounter.metadata, pool));
        if left || (settled && !wanted.contains(&mounter.name_any().as_str())) {
            delete(context, &[claims::reference(&mounter)]).await?;
        }
    }
    Ok(())
}

async fn remove_legacy(context: &Context) -> Result<(), Error> {
    let all = manifests::legacy(&Spec::default(), &PathConfig::default(), &context.settings);
    delete(context, &all).await
}

async fn delete(context: &Context, manifests: &[serde_json::Value]) -> Result<(), Error> {
    let addresses: Vec<String> = manifests.iter().map(apply::address).collect();
    // What is deleted is not put back by what was sent before.
    context.applied.forget();
    operator::delete(&context.client, &addresses).await.map_err(|error| Error::Cluster(Box::new(error)))
}

/// Removes what was deployed. Volumes stay where they are: whoever deploys again has them again.
async fn remove(context: &Context, object: &HostPathProvisioner) -> Result<Next, Error> {
    if !context.requests.is_held(object) {
        return Ok(Next::Wait);
    }
    // Another object asks for the same, and takes over what is there.
    let others = context
        .objects
        .list()
        .into_iter()
        .any(|other| other.metadata.uid != object.metadata.uid && other.metadata.deletion_timestamp.is_none());
    if !others {
        delete(context, &manifests::render(&object.spec, &[], &[], &settings(context).await?)).await?;
        remove_legacy(context).await?;
        for mounter in context.mounters.list().iter().filter(|mounter| mounter.name_any() != MANAGER) {
            delete(context, &[claims::reference(mounter)]).await?;
        }
    }
    context.requests.release(object).await.map_err(refused)?;
    Ok(Next::Wait)
}
