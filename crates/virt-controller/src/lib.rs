//! virt-controller: VirtualMachine -> VirtualMachineInstance -> launcher pod -> hand-over to virt-handler; and
//! VirtualMachineInstanceMigration -> another launcher pod -> hand-over to two of them.
//!
//! ```text
//! watches -> stores (bytes) -> queues -> plan (pure) -> steps -> status (pure) -> one patch
//! ```
//!
//! One replica leads; the others wait for its Lease. Every write is idempotent: names are chosen by UID, status patches
//! carry the version they were computed from.

mod context;
pub mod disruption;
pub mod error;
pub mod evacuation;
mod hindrance;
pub mod migration;
pub mod node;
pub mod patch;
pub mod settings;
pub mod stand_in;
pub mod vm;
pub mod vmi;
pub mod workload_update;

use std::{path::PathBuf, sync::Arc};

use api::{
    kubevirt::{
        v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration},
        words::{eviction_strategy, label},
    },
    migrations::v1alpha1::MigrationPolicy,
};
pub use context::{Context, Inner};
pub use error::Error;
use k8s_openapi::api::{
    coordination::v1::Lease,
    core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod},
    policy::v1::PodDisruptionBudget,
};
use kit::{
    Task,
    events::Recorder,
    health::{self, Ready},
    lease, metrics,
    queue::Queue,
    server,
    shutdown::{self, CancellationToken},
    store::{self, Key, Store, Watch},
    tls,
};
use kube::{Api, Client, ResourceExt, runtime::watcher};
use migration::metrics::Figures;
use prometheus_client::registry::Registry;

/// Command line of virt-controller.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Namespace this controller and its KubeVirt object live in.
    #[arg(long, env = "POD_NAMESPACE", default_value = "kubevirt")]
    pub namespace: String,
    /// Name of this replica in the leader election.
    #[arg(long, env = "POD_NAME", default_value = "virt-controller")]
    pub identity: String,
    /// Image of the launcher container.
    #[arg(long, env = "LAUNCHER_IMAGE")]
    pub launcher_image: String,
    /// Port for health and metrics.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
    /// Directory with tls.crt and tls.key.
    #[arg(long, default_value = "/etc/virt-controller/certificates")]
    pub cert_dir: PathBuf,
    /// File with the trust bundle.
    #[arg(long, default_value = "/etc/kubevirt/ca/ca-bundle")]
    pub ca_bundle: PathBuf,
}

const WORKERS: usize = 8;
/// Where kubelets renew their leases.
const NODE_LEASES: &str = "kube-node-lease";

/// Runs until SIGTERM, or until another replica leads.
///
/// # Errors
/// When the process cannot be set up, or leadership is lost.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("handle signals"))?;
    let client = kit::client::connect("virt-controller").await.map_err(Error::setup("reach the API server"))?;
    let ready = Ready::default();
    let figures = Figures::default();
    let _serving = serve(&args, ready.clone(), figures.clone(), stop.clone()).await?;
    // A replica that waits its turn is as healthy as the one that leads.
    ready.set(true);
    let leader = lease::acquire(client.clone(), &args.namespace, "virt-controller", &args.identity, &stop).await;
    let Ok(leader) = leader else { return Ok(()) };
    let running = start(client, &args.namespace, &args.launcher_image, &stop);
    figures.of(running.context.clone());
    if leader.run(&stop).await { Ok(()) } else { Err(Error::Deposed) }
}

async fn serve(args: &Args, ready: Ready, figures: Figures, stop: CancellationToken) -> Result<Vec<Task<()>>, Error> {
    let (material, trust) = (tls::Material::new(), tls::Trust::new());
    let files = tls::Files { pair: args.cert_dir.clone(), bundle: args.ca_bundle.clone() };
    let reload = tls::load(files, material.clone(), trust).await.map_err(Error::setup("load the certificate"))?;
    let config = tls::server(material, None).map_err(Error::setup("configure TLS"))?;
    let address = (std::net::Ipv6Addr::UNSPECIFIED, args.port);
    let listener = tokio::net::TcpListener::bind(address).await.map_err(Error::setup("listen"))?;
    let mut registry = Registry::default();
    registry.register_collector(Box::new(figures));
    let router = health::router(ready).merge(metrics::router(registry));
    Ok(vec![reload, kit::spawn("server", server::serve_tls(listener, config, router, stop))])
}

/// The controllers at work; dropping it stops them.
pub struct Running {
    /// What they share, for tests and metrics.
    pub context: Context,
    _tasks: Vec<Task<()>>,
}

/// Starts every controller.
pub fn start(client: Client, namespace: &str, launcher_image: &str, stop: &CancellationToken) -> Running {
    let context = Context(Arc::new(Inner {
        recorder: Recorder::new(client.clone(), "virtualmachine-controller", ""),
        client,
        namespace: namespace.to_owned(),
        launcher_image: launcher_image.to_owned(),
        vms: Store::default(),
        vmis: Store::default(),
        pods: Store::default(),
        claims: Store::default(),
        put_backs: Store::default(),
        nodes: Store::default(),
        kubevirts: Store::default(),
        migrations: Store::default(),
        policies: Store::default(),
        migration_ages: migration::metrics::ages(),
        starting: tokio::sync::Mutex::default(),
        budgets: Store::default(),
        vm_queue: Queue::default(),
        vmi_queue: Queue::default(),
        claim_queue: Queue::default(),
        node_queue: Queue::default(),
        migration_queue: Queue::default(),
        budget_queue: Queue::default(),
        evacuation_queue: Queue::default(),
        update_queue: Queue::default(),
        last_batch: workload_update::LastBatch::default(),
        pulse: std::sync::Mutex::default(),
        lost: std::sync::Mutex::default(),
    }));
    let mut tasks = watches(&context);
    tasks.push(kit::spawn("migrations", migrate(context.clone(), stop.clone())));
    tasks.push(kit::spawn("disks", put_back(context.clone(), stop.clone())));
    let (started, stop) = (context.clone(), stop.clone());
    tasks.push(kit::spawn("controllers", async move {
        // Nothing is decided on half a picture.
        started.vmis.synced().await;
        started.pods.synced().await;
        started.vms.synced().await;
        started.claims.synced().await;
        started.nodes.synced().await;
        started.kubevirts.synced().await;
        started.migrations.synced().await;
        started.budgets.synced().await;
        let (a, b, c) = (started.clone(), started.clone(), started.clone());
        let (d, e, f) = (started.clone(), started.clone(), started.clone());
        let mut workers = started.vm_queue.run(WORKERS, &stop, move |key| vm::reconcile(a.clone(), key));
        workers.extend(started.vmi_queue.run(WORKERS, &stop, move |key| vmi::reconcile(b.clone(), key)));
        workers.extend(started.node_queue.run(1, &stop, move |key| node::reconcile(c.clone(), key)));
        workers.extend(started.budget_queue.run(2, &stop, move |key| disruption::reconcile(d.clone(), key)));
        workers.extend(started.evacuation_queue.run(1, &stop, move |key| evacuation::reconcile(e.clone(), key)));
        workers.extend(started.update_queue.run(1, &stop, move |key| workload_update::reconcile(f.clone(), key)));
        for worker in workers {
            // A worker ends with `stop`; one that panicked must not be missed silently.
            if let Err(error) = worker.await {
                tracing::error!(%error, "a worker ended");
            }
        }
    }));
    Running { context, _tasks: tasks }
}

/// Migrations wait for policies too: without that kind, guests start all the same.
async fn migrate(context: Context, stop: CancellationToken) {
    context.vmis.synced().await;
    context.pods.synced().await;
    context.nodes.synced().await;
    context.kubevirts.synced().await;
    context.migrations.synced().await;
    context.policies.synced().await;
    let queue = context.migration_queue.clone();
    for worker in queue.run(WORKERS, &stop, move |key| migration::reconcile(context.clone(), key)) {
        if let Err(error) = worker.await {
            tracing::error!(%error, "a worker ended");
        }
    }
}

/// Disks that moved with their guests wait for volumes too.
async fn put_back(context: Context, stop: CancellationToken) {
    context.vmis.synced().await;
    context.claims.synced().await;
    context.put_backs.synced().await;
    context.migrations.synced().await;
    let queue = context.claim_queue.clone();
    for worker in queue.run(2, &stop, move |key| stand_in::reconcile(context.clone(), key)) {
        if let Err(error) = worker.await {
            tracing::error!(%error, "a worker ended");
        }
    }
}

fn watches(context: &Context) -> Vec<Task<()>> {
    let client = &context.client;
    let queues = context.clone();
    let vms = store::watch(
        Api::<VirtualMachine>::all(client.clone()),
        Watch::default(),
        context.vms.clone(),
        move |change| queues.vm_queue.add(change.key.clone()),
    );
    let queues = context.clone();
    let vmis = store::watch(
        Api::<VirtualMachineInstance>::all(client.clone()),
        Watch { index: context::vmi_words, ..Watch::default() },
        context.vmis.clone(),
        move |change| {
            queues.vmi_queue.add(change.key.clone());
            for key in queues.migrations.keys_by_word(&context::migration_word(change.key)) {
                queues.migration_queue.add(key);
            }
            stand_in::wake::guest(&queues, change.was.iter().chain(change.is));
            // A VM and its instance share their name.
            if queues.vms.contains(change.key) {
                queues.vm_queue.add(change.key.clone());
            }
            if let Some(vmi) = change.new {
                concerns_eviction(&queues, change.key, vmi);
            }
        },
    );
    let queues = context.clone();
    let pods = store::watch(
        Api::<Pod>::all(client.clone()),
        Watch {
            config: watcher::Config::default().labels(&format!("{}={}", label::APP, label::APP_VIRT_LAUNCHER)),
            trim: context::trim_pod,
            index: context::pod_words,
        },
        context.pods.clone(),
        move |change| {
            for word in change.was.iter().chain(change.is) {
                let guarded = !queues.budgets.keys_by_word(word).is_empty();
                for key in queues.vmis.keys_by_word(word) {
                    // A pod that ended may be what a migration of its guest waits for.
                    for job in queues.migrations.keys_by_word(&context::migration_word(&key)) {
                        queues.migration_queue.add(job);
                    }
                    if guarded {
                        queues.budget_queue.add(key.clone());
                    }
                    queues.vmi_queue.add(key);
                }
            }
        },
    );
    let queues = context.clone();
    let nodes = store::watch(
        Api::<Node>::all(client.clone()),
        Watch {
            config: watcher::Config::default().labels(label::SCHEDULABLE),
            trim: context::trim_node,
            ..Watch::default()
        },
        context.nodes.clone(),
        move |change| {
            queues.node_queue.add(change.key.clone());
            queues.evacuation_queue.add(change.key.clone());
        },
    );
    let queues = context.clone();
    let claims = store::watch(
        Api::<PersistentVolumeClaim>::all(client.clone()),
        Watch { trim: stand_in::wake::trim, index: stand_in::wake::words, ..Watch::default() },
        context.claims.clone(),
        move |change| {
            stand_in::wake::claim(&queues, change.key, change.was.iter().chain(change.is).cloned());
            let word = context::claim_word(&change.key.namespace, &change.key.name);
            for key in queues.vmis.keys_by_word(&word) {
                queues.vmi_queue.add(key);
            }
        },
    );
    let queues = context.clone();
    let put_backs = store::watch(
        Api::<PersistentVolume>::all(client.clone()),
        Watch {
            config: watcher::Config::default().labels(stand_in::PUT_BACK),
            index: stand_in::record::words,
            ..Watch::default()
        },
        context.put_backs.clone(),
        move |change| stand_in::wake::volume(&queues, change.was.iter().chain(change.is)),
    );
    let queues = context.clone();
    let leases = store::watch(
        Api::<Lease>::namespaced(client.clone(), NODE_LEASES),
        Watch::default(),
        Store::default(),
        move |change| {
            let node = &change.key.name;
            let renewal = change.new.and_then(|lease| lease.spec.as_ref()?.renew_time.as_ref());
            let Some(renewal) = renewal else { return queues.pulse().forget(node) };
            let renewal = renewal.0.to_string();
            let news = queues.pulse().hear(node, &renewal, tokio::time::Instant::now());
            if news && queues.lost(node).is_some() {
                queues.node_queue.add(Key::new("", node.as_str()));
            }
        },
    );
    let queues = context.clone();
    let kubevirts = store::watch(
        Api::<KubeVirt>::namespaced(client.clone(), &context.namespace),
        Watch { trim: context::trim_kubevirt, ..Watch::default() },
        context.kubevirts.clone(),
        move |change| {
            queues.update_queue.add(change.key.clone());
            // Its limits may have grown.
            queues.wake_waiting();
        },
    );
    let queues = context.clone();
    let migrations = store::watch(
        Api::<VirtualMachineInstanceMigration>::all(client.clone()),
        Watch { index: context::migration_words, ..Watch::default() },
        context.migrations.clone(),
        move |change| {
            for word in change.was.iter().chain(change.is) {
                migration_changed(&queues, word);
                stand_in::wake::by_word(&queues, word);
            }
            queues.migration_queue.add(change.key.clone());
            // Where one ends, another begins.
            if change.new.is_none_or(migration::plan::is_final) {
                queues.wake_waiting();
            }
        },
    );
    let queues = context.clone();
    let budgets = store::watch(
        Api::<PodDisruptionBudget>::all(client.clone()),
        Watch { trim: context::trim_budget, index: context::budget_words, ..Watch::default() },
        context.budgets.clone(),
        move |change| {
            for key in change.was.iter().chain(change.is).flat_map(|word| queues.vmis.keys_by_word(word)) {
                queues.budget_queue.add(key);
            }
        },
    );
    let policies = store::watch(
        Api::<MigrationPolicy>::all(client.clone()),
        Watch { trim: |policy| policy.status = None, ..Watch::default() },
        context.policies.clone(),
        |_| {},
    );
    vec![vms, vmis, pods, claims, put_backs, nodes, leases, kubevirts, migrations, budgets, policies]
}

/// Most guests are never evicted, and their many changes are none of these queues' business.
fn concerns_eviction(context: &Context, key: &Key, vmi: &VirtualMachineInstance) {
    let owner = context::owner_word(&vmi.uid().unwrap_or_default());
    let unprotected = vmi.spec.eviction_strategy.as_deref() == Some(eviction_strategy::NONE);
    if !unprotected || !context.budgets.keys_by_word(&owner).is_empty() {
        context.budget_queue.add(key.clone());
    }
    let status = vmi.status.as_deref();
    if status.is_some_and(|status| status.evacuation_node_name.is_some())
        && let Some(node) = status.and_then(|status| status.node_name.clone())
    {
        context.evacuation_queue.add(Key::new("", node));
    }
}

/// A place in a node's or in the cluster's limit may have become free, and a budget too large.
fn migration_changed(context: &Context, word: &str) {
    let Some((namespace, name)) = word.strip_prefix("moves:").and_then(|vmi| vmi.split_once('/')) else { return };
    let vmi = Key::new(namespace, name);
    let found = context.vmis.get(&vmi).and_then(|vmi| vmi.status);
    if let Some(node) = found.and_then(|status| status.node_name.clone()).filter(|node| !node.is_empty()) {
        context.evacuation_queue.add(Key::new("", node));
    }
    context.budget_queue.add(vmi);
    for kubevirt in context.kubevirts.keys() {
        context.update_queue.add(kubevirt);
    }
}

/// The key under which `object` is stored and queued.
pub fn key<K: kube::Resource>(object: &K) -> Key {
    Key::new(object.namespace().unwrap_or_default(), object.name_any())
}
