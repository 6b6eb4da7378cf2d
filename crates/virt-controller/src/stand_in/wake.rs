//! Whose disk to look at when something has changed.

use kit::store::Key;
use kube::ResourceExt;

use crate::{
    context::Context,
    facts::{
        index::{claim_index, put_back_index, stand_in_index},
        stand_ins,
    },
};

/// A volume is put back under a claim's name, and its index values are and were `words`.
pub(crate) fn volume<'a>(context: &Context, words: impl Iterator<Item = &'a String>) {
    for word in words {
        let Some((namespace, name)) = word.strip_prefix("put-back:").and_then(|claim| claim.split_once('/')) else {
            continue;
        };
        context.claim_queue.add(Key::new(namespace, name));
        context.vmi_queue.add_all(context.stores.vmis.keys_by_index(&claim_index(namespace, name)));
    }
}

/// A claim has changed, whose index values are and were `words`.
pub(crate) fn claim(context: &Context, key: &Key, words: impl Iterator<Item = String>) {
    let mut roots: Vec<Key> = words.filter_map(|word| root_of(&word)).collect();
    for root in &roots {
        // Guests that wait for the disk name the claim.
        context.vmi_queue.add_all(context.stores.vmis.keys_by_index(&claim_index(&root.namespace, &root.name)));
    }
    let is_root = context.stores.claims.get(key).is_none_or(|claim| stand_ins::moved_to(&claim).is_some())
        || !context.stores.claims.keys_by_index(&stand_in_index(&key.namespace, &key.name)).is_empty()
        || is_put_back(context, key);
    if is_root {
        roots.push(key.clone());
    }
    for root in roots {
        context.claim_queue.add(root);
    }
}

fn is_put_back(context: &Context, key: &Key) -> bool {
    !context.stores.put_backs.keys_by_index(&put_back_index(&key.namespace, &key.name)).is_empty()
}

fn root_of(word: &str) -> Option<Key> {
    let (namespace, name) = word.strip_prefix("stand-in:")?.split_once('/')?;
    Some(Key::new(namespace, name))
}

/// A guest has changed, whose index values are and were `words`: among them are its claims and its UID.
pub(crate) fn guest<'a>(context: &Context, words: impl Iterator<Item = &'a String>) {
    for word in words {
        if let Some((namespace, name)) = word.strip_prefix("claim:").and_then(|claim| claim.split_once('/')) {
            let key = Key::new(namespace, name);
            let Some(used) = context.stores.claims.get(&key) else { continue };
            match stand_ins::stands_in_for(&used) {
                Some(root) => context.claim_queue.add(Key::new(namespace, root)),
                None if stand_ins::moved_to(&used).is_some() => context.claim_queue.add(key),
                None => {}
            }
        } else {
            by_index(context, word);
        }
    }
}

/// Looks at every disk for which there is a stand-in with this index word.
pub(crate) fn by_index(context: &Context, word: &str) {
    for stand_in in context.stores.claims.by_index(word) {
        context.claim_queue.add(Key::new(stand_in.namespace().unwrap_or_default(), stand_ins::root(&stand_in)));
    }
}
