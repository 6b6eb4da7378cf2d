//! What the controllers watch, and what is to be looked at when something changes.

use std::fmt::Debug;

use api::cdi::constants;
use k8s_openapi::api::storage::v1::StorageClass;
use kit::store::{self, Key, Store, Watch};
use kit::{Task, served};
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::controller::context::{self, Context, Work, claim_index, source_index};
use crate::controller::populator::forklift;
use crate::controller::{import, snapshot_api, snapshot_resource};

/// Starts the watches.
pub fn start(context: &Context) -> Vec<Task<()>> {
    let mut tasks = vec![volumes(context), claims(context), persistent(context), pods(context), classes(context)];
    tasks.push(simple(context, &context.profiles, |context, key, gone| {
        if !gone {
            all_waiting(context);
        }
        context.queue.add(Work::Profile(key.name.clone()));
    }));
    tasks.push(simple(context, &context.drivers, |context, _, _| all_waiting(context)));
    tasks.push(simple(context, &context.configs, |context, _, _| {
        context.queue.add(Work::Config);
        all_waiting(context);
        // How registries are spoken to may be another.
        context.crons.keys().into_iter().for_each(|key| context.queue.add(Work::Cron(key)));
    }));
    tasks.push(simple(context, &context.cdis, |context, _, _| context.queue.add(Work::Config)));
    tasks.push(simple(context, &context.imports, |context, key, _| populated(context, "VolumeImportSource", key)));
    tasks.push(simple(context, &context.uploads, |context, key, _| populated(context, "VolumeUploadSource", key)));
    tasks.push(simple(context, &context.clones, |context, key, _| populated(context, "VolumeCloneSource", key)));
    tasks.push(simple(context, &context.sources, |context, key, _| {
        context.queue.add(Work::Source(key.clone()));
        let word = source_index("DataSource", &key.namespace, &key.name);
        context.volumes.keys_by_index(&word).into_iter().for_each(|key| context.queue.add(Work::Volume(key)));
        // Those that name it say what it says.
        for other in context.sources.list() {
            let names = other.spec.source.data_source.as_ref();
            if names.is_some_and(|one| one.name == key.name && one.namespace == key.namespace) {
                context.queue.add(Work::Source(Key::of(&other)));
            }
        }
    }));
    tasks.push(crons(context));
    tasks.push(simple(context, &context.transfers, |context, key, _| {
        context.queue.add(Work::Transfer(key.name.clone()));
    }));
    for (kind, store) in [(forklift::OVIRT, &context.ovirt), (forklift::OPENSTACK, &context.openstack)] {
        tasks.push(of_forklift(context, kind, store));
    }
    for (kind, store) in [("VolumeSnapshot", &context.snapshots), ("VolumeSnapshotClass", &context.snapshot_classes)] {
        tasks.push(snapshots(context, kind, store));
    }
    tasks
}

/// Watches a kind of ours in whole.
fn simple<K, F>(context: &Context, store: &Store<K>, notify: F) -> Task<()>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned + Send + Sync + 'static,
    F: Fn(&Context, &Key, bool) + Send + 'static,
{
    let shared = context.clone();
    store::watch(Api::<K>::all(context.client.clone()), Watch::default(), store.clone(), move |change| {
        notify(&shared, change.key, change.new.is_none());
    })
}

fn volumes(context: &Context) -> Task<()> {
    let shared = context.clone();
    let how = Watch { index: context::volume_indexes, ..Watch::default() };
    store::watch(Api::all(context.client.clone()), how, context.volumes.clone(), move |change| {
        shared.queue.add(Work::Volume(change.key.clone()));
        of_crons(&shared, change.was.iter().chain(change.is));
        sources_of(&shared, change.key);
    })
}

fn claims(context: &Context) -> Task<()> {
    let shared = context.clone();
    let how = Watch { index: context::claim_indexes, ..Watch::default() };
    store::watch(Api::all(context.client.clone()), how, context.claims.clone(), move |change| {
        let key = change.key;
        shared.queue.add(Work::Claim(key.clone()));
        if shared.volumes.contains(key) {
            shared.queue.add(Work::Volume(key.clone()));
        }
        for word in change.was.iter().chain(change.is) {
            // What stands in for another claim.
            if let Some(owner) = word.strip_prefix("owner:") {
                let owners = shared.claims.keys_by_index(&context::uid_index(owner));
                owners.into_iter().for_each(|key| shared.queue.add(Work::Claim(key)));
            }
        }
        if let Some(uid) = change.new.and_then(|claim| claim.annotations().get(constants::annotation::OWNER_UID)) {
            let owners = shared.claims.keys_by_index(&context::uid_index(uid));
            owners.into_iter().for_each(|key| shared.queue.add(Work::Claim(key)));
        }
        of_crons(&shared, change.was.iter().chain(change.is));
        // Those who wait for it to be cloned.
        let word = claim_index(&key.namespace, &key.name);
        shared.volumes.keys_by_index(&word).into_iter().for_each(|key| shared.queue.add(Work::Volume(key)));
        sources_of(&shared, key);
    })
}

fn persistent(context: &Context) -> Task<()> {
    let shared = context.clone();
    let how = Watch { index: context::persistent_indexes, ..Watch::default() };
    store::watch(Api::all(context.client.clone()), how, context.persistent.clone(), move |change| {
        for word in change.was.iter().chain(change.is).filter_map(|word| word.strip_prefix("claim:")) {
            if let Some((namespace, name)) = word.split_once('/') {
                shared.queue.add(Work::Claim(Key::new(namespace, name)));
            }
        }
        // The profile of a class whose volumes are made by hand says what they are.
        let class = change.new.and_then(|volume| volume.spec.as_ref()?.storage_class_name.clone());
        let class = class.and_then(|name| shared.classes.get(&Key::new("", name)));
        if let Some(class) =
            class.filter(|class| class.provisioner == crate::controller::profile::provisioners::BY_HAND)
        {
            shared.queue.add(Work::Profile(class.name_any()));
        }
    })
}

fn pods(context: &Context) -> Task<()> {
    let shared = context.clone();
    let how = Watch { index: context::pod_indexes, trim: context::trim_pod, ..Watch::default() };
    store::watch(Api::all(context.client.clone()), how, context.pods.clone(), move |change| {
        let words: Vec<String> = change.was.iter().chain(change.is).cloned().collect();
        import::claims_of(&shared, &words).into_iter().for_each(|key| shared.queue.add(Work::Claim(key)));
        for word in &words {
            // What asks registries for a cron.
            if let Some(owner) = word.strip_prefix("owner:") {
                let owners = shared.crons.keys_by_index(&context::uid_index(owner));
                owners.into_iter().for_each(|key| shared.queue.add(Work::Cron(key)));
            }
            if word.starts_with("uid:") {
                shared.claims.keys_by_index(word).into_iter().for_each(|key| shared.queue.add(Work::Claim(key)));
            }
        }
    })
}

fn crons(context: &Context) -> Task<()> {
    let shared = context.clone();
    let how = Watch { index: context::cron_indexes, ..Watch::default() };
    store::watch(Api::all(context.client.clone()), how, context.crons.clone(), move |change| {
        shared.queue.add(Work::Cron(change.key.clone()));
    })
}

fn classes(context: &Context) -> Task<()> {
    let shared = context.clone();
    store::watch(
        Api::<StorageClass>::all(context.client.clone()),
        Watch::default(),
        context.classes.clone(),
        move |change| {
            shared.queue.add(Work::Profile(change.key.name.clone()));
            shared.queue.add(Work::Config);
            all_waiting(&shared);
            shared.crons.keys().into_iter().for_each(|key| shared.queue.add(Work::Cron(key)));
        },
    )
}

/// Snapshots are of a kind that a cluster may lack: then the watch begins with it.
fn snapshots(context: &Context, kind: &'static str, store: &Store<DynamicObject>) -> Task<()> {
    let shared = context.clone();
    let (client, resource) = (&context.client, snapshot_resource(kind));
    let api = snapshot_api(client, kind);
    served::watch(client, &resource, api, Watch::default(), store.clone(), move |change| {
        if kind == "VolumeSnapshotClass" {
            shared.classes.keys().into_iter().for_each(|key| shared.queue.add(Work::Profile(key.name)));
            return;
        }
        let word = source_index("VolumeSnapshot", &change.key.namespace, &change.key.name);
        shared.volumes.keys_by_index(&word).into_iter().for_each(|key| shared.queue.add(Work::Volume(key)));
        // What is made on the way to a clone says for which claim.
        if let Some(uid) = change.new.and_then(|snapshot| snapshot.annotations().get(constants::annotation::OWNER_UID))
        {
            let owners = shared.claims.keys_by_index(&context::uid_index(uid));
            owners.into_iter().for_each(|key| shared.queue.add(Work::Claim(key)));
        }
        sources_of(&shared, change.key);
        if let Some(cron) = change.new.and_then(|snapshot| snapshot.labels().get(constants::label::DATA_IMPORT_CRON)) {
            shared.queue.add(Work::Cron(Key::new(change.key.namespace.as_str(), cron.as_str())));
        }
    })
}

fn of_forklift(context: &Context, kind: &'static str, store: &Store<DynamicObject>) -> Task<()> {
    let shared = context.clone();
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk(forklift::GROUP, "v1beta1", kind));
    let api = Api::all_with(context.client.clone(), &resource);
    served::watch(&context.client, &resource, api, Watch::default(), store.clone(), move |change| {
        populated(&shared, kind, change.key);
    })
}

fn populated(context: &Context, kind: &str, key: &Key) {
    let claims = context.claims.keys_by_index(&source_index(kind, &key.namespace, &key.name));
    claims.into_iter().for_each(|key| context.queue.add(Work::Claim(key)));
}

/// DataVolumes without a claim: what they wait for may have come.
fn all_waiting(context: &Context) {
    let waiting = context.volumes.keys().into_iter().filter(|key| !context.claims.contains(key));
    waiting.for_each(|key| context.queue.add(Work::Volume(key)));
}

fn of_crons<'a>(context: &Context, words: impl Iterator<Item = &'a String>) {
    for word in words.filter_map(|word| word.strip_prefix("cron:")) {
        if let Some((namespace, name)) = word.split_once('/') {
            context.queue.add(Work::Cron(Key::new(namespace, name)));
        }
    }
}

/// DataSources that name the claim or the snapshot under `key`, themselves or by another.
fn sources_of(context: &Context, key: &Key) {
    for source in context.sources.list() {
        let names = |one: &api::cdi::v1beta1::DataSourceSource| {
            one.pvc.as_ref().is_some_and(|pvc| pvc.name == key.name && pvc.namespace == key.namespace)
                || one.snapshot.as_ref().is_some_and(|one| one.name == key.name && one.namespace == key.namespace)
        };
        let resolved = source.status.as_ref().and_then(|status| status.source.as_ref());
        if names(&source.spec.source) || resolved.is_some_and(|one| names(one)) {
            context.queue.add(Work::Source(Key::of(&source)));
        }
    }
}
