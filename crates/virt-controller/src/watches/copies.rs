//! What is made of machines: snapshots and what comes of them, copies, backups, exports.

use api::export::constants::SELECTOR as EXPORTER;
use kit::store::{self, Key, Watch};
use kit::{Task, served};
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, ResourceExt};

use crate::{Context, backup, clone, export, restore, snapshot};
use api::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass};

pub(super) fn watches(context: &Context) -> Vec<Task<()>> {
    vec![
        snapshots(context),
        restores(context),
        volume_snapshots(context),
        snapshot_classes(context),
        storage_classes(context),
        clones(context),
        backups(context),
        trackers(context),
        exports(context),
        exporters(context),
    ]
}

fn snapshots(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: snapshot::snapshot_keys, ..Watch::default() };
    store::watch(api, how, context.snapshots.clone(), move |change| {
        queues.snapshot_queue.add(change.key.clone());
        queues.restore_queue.add_all(queues.restores.keys_by_index(&restore::snapshot_index(change.key)));
        clone::wake(&queues, &clone::snapshot_index(change.key));
        let word = export::snapshot_index(&change.key.namespace, &change.key.name);
        queues.export_queue.add_all(queues.exports.keys_by_index(&word));
    })
}

fn restores(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: restore::index, ..Watch::default() };
    store::watch(api, how, context.restores.clone(), move |change| {
        queues.restore_queue.add(change.key.clone());
        clone::wake(&queues, &clone::restore_index(change.key));
        // A VM that is brought back does not start meanwhile.
        for word in change.was.iter().chain(change.is) {
            let Some((namespace, name)) = word.strip_prefix("source:").and_then(|vm| vm.split_once('/')) else {
                continue;
            };
            queues.vm_queue.add(Key::new(namespace, name));
        }
    })
}

fn volume_snapshots(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: snapshot::volume_snapshot_keys, ..Watch::default() };
    let resource = ApiResource::erase::<VolumeSnapshot>(&());
    served::watch(&context.client, &resource, api, how, context.volume_snapshots.clone(), move |change| {
        for word in change.was.iter().chain(change.is) {
            let Some((namespace, uid)) = snapshot::of_content(word) else { continue };
            let ours = |key: &Key| {
                let found = queues.snapshots.get(key);
                key.namespace == namespace && found.and_then(|found| found.uid()).as_deref() == Some(uid)
            };
            queues.snapshot_queue.add_all(queues.snapshots.keys().into_iter().filter(ours));
        }
    })
}

/// Whether a volume can be snapshotted, which machines say of theirs, depends on its class.
fn snapshot_classes(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let (how, resource) = (Watch::default(), ApiResource::erase::<VolumeSnapshotClass>(&()));
    served::watch(&context.client, &resource, api, how, context.snapshot_classes.clone(), move |_| {
        queues.vm_queue.add_all(queues.vms.keys());
    })
}

fn storage_classes(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    store::watch(api, Watch::default(), context.storage_classes.clone(), move |_| {
        queues.vm_queue.add_all(queues.vms.keys());
    })
}

fn clones(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: clone::indexes, ..Watch::default() };
    store::watch(api, how, context.clones.clone(), move |change| queues.clone_queue.add(change.key.clone()))
}

fn backups(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: backup::indexes, ..Watch::default() };
    store::watch(api, how, context.backups.clone(), move |change| {
        queues.backup_queue.add(change.key.clone());
        let word = export::backup_index(&change.key.namespace, &change.key.name);
        queues.export_queue.add_all(queues.exports.keys_by_index(&word));
    })
}

fn trackers(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: backup::tracker::indexes, ..Watch::default() };
    store::watch(api, how, context.trackers.clone(), move |change| {
        queues.tracker_queue.add(change.key.clone());
        queues.backup_queue.add_all(queues.backups.keys_by_index(&backup::tracker_index(change.key)));
    })
}

fn exports(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { index: export::indexes, ..Watch::default() };
    store::watch(api, how, context.exports.clone(), move |change| {
        queues.export_queue.add(change.key.clone());
        // A backup and the export that shows it share their name.
        if queues.backups.contains(change.key) {
            queues.backup_queue.add(change.key.clone());
        }
    })
}

fn exporters(context: &Context) -> Task<()> {
    let (api, queues) = (Api::all(context.client.clone()), context.clone());
    let how = Watch { config: watcher::Config::default().labels(EXPORTER), ..Watch::default() };
    store::watch(api, how, context.exporters.clone(), move |change| match change.new.and_then(export::served_by) {
        Some(key) => queues.export_queue.add(key),
        None => {
            let near = |key: &Key| key.namespace == change.key.namespace;
            queues.export_queue.add_all(queues.exports.keys().into_iter().filter(near));
        }
    })
}
