//! What works at all times: watches, and workers at the queues. Each group of workers waits for the kinds that it needs, so
//! that a cluster without some of them has the rest.

use kit::{Task, shutdown::CancellationToken};
use kube::Client;
use std::sync::Arc;

use crate::{
    Context, Images, Inner, backup, clone, disruption, evacuation, export, migration, node, restore, snapshot,
    stand_in, stores::Stores, vm, vmi, watches, workload_update,
};

/// At the queues that everything passes.
const WORKERS: usize = 8;

/// The controllers at work; dropping it stops them.
pub struct Running {
    /// What they share, for tests and metrics.
    pub context: Context,
    _tasks: Vec<Task<()>>,
}

/// Starts every controller, with one image for all pods.
pub fn start(client: Client, namespace: &str, image: &str, stop: &CancellationToken) -> Running {
    start_with(client, namespace, Images { launcher: image, exporter: image }, stop)
}

/// Starts every controller.
pub fn start_with(client: Client, namespace: &str, images: Images<'_>, stop: &CancellationToken) -> Running {
    let (stores, mut changes) = Stores::new();
    let context = Context(Arc::new(Inner::new(client, namespace, images, stores)));
    let mut tasks = watches::all(&context, &mut changes);
    tasks.extend(context.stores.watch(&context.client, &context.namespace, changes));
    tasks.extend(export::watch_outside(&context));
    tasks.push(kit::spawn("machines", machines(context.clone(), stop.clone())));
    tasks.push(kit::spawn("migrations", migrations(context.clone(), stop.clone())));
    tasks.push(kit::spawn("disks", disks(context.clone(), stop.clone())));
    tasks.push(kit::spawn("snapshots", snapshots(context.clone(), stop.clone())));
    tasks.push(kit::spawn("backups", backups(context.clone(), stop.clone())));
    tasks.push(kit::spawn("exports", exports(context.clone(), stop.clone())));
    Running { context, _tasks: tasks }
}

/// Machines and their instances. Nothing is decided on half a picture.
async fn machines(context: Context, stop: CancellationToken) {
    context.stores.vmis.synced().await;
    context.stores.pods.synced().await;
    context.stores.attachments.synced().await;
    context.stores.vms.synced().await;
    context.stores.claims.synced().await;
    context.stores.nodes.synced().await;
    context.stores.kubevirts.synced().await;
    context.stores.migrations.synced().await;
    context.budgets.synced().await;
    let (a, b, c) = (context.clone(), context.clone(), context.clone());
    let (d, e, f) = (context.clone(), context.clone(), context.clone());
    let batches = Arc::<workload_update::LastBatch>::default();
    let mut workers = context.vm_queue.run(WORKERS, &stop, move |key| vm::reconcile(a.clone(), key));
    workers.extend(context.vmi_queue.run(WORKERS, &stop, move |key| vmi::reconcile(b.clone(), key)));
    workers.extend(context.node_queue.run(1, &stop, move |key| node::reconcile(c.clone(), key)));
    workers.extend(context.budget_queue.run(2, &stop, move |key| disruption::reconcile(d.clone(), key)));
    workers.extend(context.evacuation_queue.run(1, &stop, move |key| evacuation::reconcile(e.clone(), key)));
    workers.extend(
        context.update_queue.run(1, &stop, move |key| workload_update::reconcile(f.clone(), Arc::clone(&batches), key)),
    );
    end(workers).await;
}

/// Migrations wait for policies too: without that kind, guests start all the same.
async fn migrations(context: Context, stop: CancellationToken) {
    context.stores.vmis.synced().await;
    context.stores.pods.synced().await;
    context.stores.nodes.synced().await;
    context.stores.kubevirts.synced().await;
    context.stores.migrations.synced().await;
    context.policies.synced().await;
    let queue = context.migration_queue.clone();
    let starting = Arc::<migration::Starting>::default();
    end(queue.run(WORKERS, &stop, move |key| migration::reconcile(context.clone(), Arc::clone(&starting), key))).await;
}

/// Snapshots and restores wait for kinds of their own: without those, guests start all the same.
async fn snapshots(context: Context, stop: CancellationToken) {
    context.stores.vms.synced().await;
    context.stores.vmis.synced().await;
    context.stores.claims.synced().await;
    context.stores.snapshots.synced().await;
    context.stores.restores.synced().await;
    let (a, b, c) = (context.clone(), context.clone(), context.clone());
    let mut workers = context.snapshot_queue.run(2, &stop, move |key| snapshot::reconcile(a.clone(), key));
    workers.extend(context.restore_queue.run(2, &stop, move |key| restore::reconcile(b.clone(), key)));
    context.clones.synced().await;
    workers.extend(context.clone_queue.run(2, &stop, move |key| clone::reconcile(c.clone(), key)));
    end(workers).await;
}

/// Backups and their trackers are kinds of their own, too.
async fn backups(context: Context, stop: CancellationToken) {
    context.stores.vms.synced().await;
    context.stores.vmis.synced().await;
    context.stores.claims.synced().await;
    context.stores.backups.synced().await;
    context.stores.trackers.synced().await;
    let (a, b) = (context.clone(), context.clone());
    let mut workers = context.backup_queue.run(2, &stop, move |key| backup::reconcile(a.clone(), key));
    workers.extend(context.tracker_queue.run(1, &stop, move |key| backup::tracker::reconcile(b.clone(), key)));
    end(workers).await;
}

/// Exports wait for kinds of their own: without those, guests start all the same.
async fn exports(context: Context, stop: CancellationToken) {
    context.stores.vms.synced().await;
    context.stores.vmis.synced().await;
    context.stores.kubevirts.synced().await;
    context.stores.exports.synced().await;
    context.exporters.synced().await;
    let queue = context.export_queue.clone();
    end(queue.run(2, &stop, move |key| export::reconcile(context.clone(), key))).await;
}

/// Disks that moved with their guests wait for volumes too.
async fn disks(context: Context, stop: CancellationToken) {
    context.stores.vmis.synced().await;
    context.stores.claims.synced().await;
    context.stores.put_backs.synced().await;
    context.stores.migrations.synced().await;
    let queue = context.claim_queue.clone();
    end(queue.run(2, &stop, move |key| stand_in::reconcile(context.clone(), key))).await;
}

/// A worker ends with the program; one that panicked must not be missed silently.
async fn end(workers: Vec<Task<()>>) {
    for worker in workers {
        if let Err(error) = worker.await {
            tracing::error!(%error, "a worker ended");
        }
    }
}
