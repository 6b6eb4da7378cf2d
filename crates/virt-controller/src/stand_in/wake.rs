//! Whose disk to look at when something has changed.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use kit::queue::Queue;
use kit::store::{Change, Key};
use kube::ResourceExt;

use crate::facts::index::{of_claim, of_put_back, of_stand_in, put_back_index, stand_in_index};
use crate::facts::stand_ins;
use crate::stores::{Changes, Stores, index_values};

pub(super) fn wakes(changes: &mut Changes, queue: &Queue<Key>) {
    changes.claims.wake(queue, claim);
    changes
        .put_backs
        .wake(queue, |_, change| index_values(change).filter_map(|word| of_put_back(word)).collect::<Vec<_>>());
    changes
        .vmis
        .wake(queue, |stores, change| index_values(change).flat_map(|word| guest(stores, word)).collect::<Vec<_>>());
    changes.migrations.wake(queue, |stores, change| {
        index_values(change).flat_map(|word| with_stand_in(stores, word)).collect::<Vec<_>>()
    });
}

/// A claim has changed: whom it stands in for, or stood in for, and itself where its disk may be elsewhere.
fn claim(stores: &Stores, change: &Change<'_, PersistentVolumeClaim>) -> Vec<Key> {
    let key = change.key;
    let mut roots: Vec<Key> = index_values(change).filter_map(|word| of_stand_in(word)).collect();
    let is_root = stores.claims.get(key).is_none_or(|claim| stand_ins::moved_to(&claim).is_some())
        || !stores.claims.keys_by_index(&stand_in_index(&key.namespace, &key.name)).is_empty()
        || !stores.put_backs.keys_by_index(&put_back_index(&key.namespace, &key.name)).is_empty();
    if is_root {
        roots.push(key.clone());
    }
    roots
}

/// A guest has changed that has, or had, this index value: among them are its claims and its UID.
fn guest(stores: &Stores, word: &str) -> Vec<Key> {
    let Some(key) = of_claim(word) else { return with_stand_in(stores, word) };
    let Some(used) = stores.claims.get(&key) else { return Vec::new() };
    match stand_ins::stands_in_for(&used) {
        Some(root) => vec![Key::new(key.namespace, root)],
        None if stand_ins::moved_to(&used).is_some() => vec![key],
        None => Vec::new(),
    }
}

/// Every disk for which there is a stand-in with this index value.
fn with_stand_in(stores: &Stores, word: &str) -> Vec<Key> {
    let stand_ins = stores.claims.by_index(word).into_iter();
    stand_ins.map(|one| Key::new(one.namespace().unwrap_or_default(), stand_ins::root(&one))).collect()
}
