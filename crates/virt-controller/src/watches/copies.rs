//! What is made of machines: snapshots and what comes of them, copies, backups, exports.

use api::export::constants::SELECTOR as EXPORTER;
use kit::{
    Task,
    store::{self, Key, Watch},
};
use kube::{Api, ResourceExt, runtime::watcher};

use crate::{Context, clone, export, facts::copies, stores::Changes};

pub(super) fn watches(context: &Context, changes: &mut Changes) -> Vec<Task<()>> {
    snapshots(context, changes);
    restores(context, changes);
    volume_snapshots(context, changes);
    snapshot_classes(context, changes);
    storage_classes(context, changes);
    backups(context, changes);
    trackers(context, changes);
    exports(context, changes);
    vec![clones(context), exporters(context)]
}

fn snapshots(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.snapshots.subscribe(move |change| {
        queues.snapshot_queue.add(change.key.clone());
        queues.restore_queue.add_all(queues.stores.restores.keys_by_index(&copies::snapshot_index(change.key)));
        clone::wake(&queues, &copies::snapshot_index(change.key));
        let word = copies::snapshot_index(change.key);
        queues.export_queue.add_all(queues.stores.exports.keys_by_index(&word));
    });
}

fn restores(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.restores.subscribe(move |change| {
        queues.restore_queue.add(change.key.clone());
        clone::wake(&queues, &clone::restore_index(change.key));
        // A VM that is brought back does not start meanwhile.
        for word in change.was.iter().chain(change.is) {
            queues.vm_queue.add_all(copies::of_source(word));
        }
    });
}

fn volume_snapshots(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.volume_snapshots.subscribe(move |change| {
        for word in change.was.iter().chain(change.is) {
            let Some((namespace, uid)) = copies::of_content(word) else { continue };
            let ours = |key: &Key| {
                let found = queues.stores.snapshots.get(key);
                key.namespace == namespace && found.and_then(|found| found.uid()).as_deref() == Some(uid)
            };
            queues.snapshot_queue.add_all(queues.stores.snapshots.keys().into_iter().filter(ours));
        }
    });
}

/// Whether a volume can be snapshotted, which machines say of theirs, depends on its class.
fn snapshot_classes(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.snapshot_classes.subscribe(move |_| {
        queues.vm_queue.add_all(queues.stores.vms.keys());
    });
}

fn storage_classes(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.storage_classes.subscribe(move |_| {
        queues.vm_queue.add_all(queues.stores.vms.keys());
    });
}

fn clones(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: clone::indexes, ..Watch::default() };
    store::watch(api, how, context.clones.clone(), move |change| queues.clone_queue.add(change.key.clone()))
}

fn backups(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.backups.subscribe(move |change| {
        queues.backup_queue.add(change.key.clone());
        let word = copies::backup_index(change.key);
        queues.export_queue.add_all(queues.stores.exports.keys_by_index(&word));
    });
}

fn trackers(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.trackers.subscribe(move |change| {
        queues.tracker_queue.add(change.key.clone());
        queues.backup_queue.add_all(queues.stores.backups.keys_by_index(&copies::tracker_index(change.key)));
    });
}

fn exports(context: &Context, changes: &mut Changes) {
    let queues = context.clone();
    changes.exports.subscribe(move |change| {
        queues.export_queue.add(change.key.clone());
        // A backup and the export that shows it share their name.
        if queues.stores.backups.contains(change.key) {
            queues.backup_queue.add(change.key.clone());
        }
    });
}

fn exporters(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { config: watcher::Config::default().labels(EXPORTER), ..Watch::default() };
    store::watch(api, how, context.exporters.clone(), move |change| match change.new.and_then(export::served_by) {
        Some(key) => queues.export_queue.add(key),
        None => {
            let near = |key: &Key| key.namespace == change.key.namespace;
            queues.export_queue.add_all(queues.stores.exports.keys().into_iter().filter(near));
        }
    })
}
