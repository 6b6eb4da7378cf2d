//! Deletions and answers of requests arrive in any order.

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

use super::{Key, Store};

fn claim(uid: &str, version: u64) -> PersistentVolumeClaim {
    let meta = json!({"namespace": "ns", "name": "c", "uid": uid, "resourceVersion": version.to_string()});
    serde_json::from_value(json!({"metadata": meta})).unwrap()
}

#[derive(Clone, Copy, Debug)]
enum Step {
    /// An answer or an event with this uid and version.
    Shows(&'static str, u64),
    /// The watch says that it was deleted.
    Deleted(&'static str),
    /// A request found it gone.
    Gone(&'static str),
    Relisted,
}
use Step::{Deleted, Gone, Relisted, Shows};

fn check(steps: &[Step], expect: Option<(&str, u64)>) {
    let store = Store::<PersistentVolumeClaim>::new();
    let key = Key::new("ns", "c");
    for step in steps {
        match *step {
            Shows(uid, version) => store.observe(claim(uid, version)),
            Deleted(uid) => store.removed(&key, Some(uid)),
            Gone(uid) => store.forget(&key, uid),
            Relisted => {
                store.relist_begins();
                store.relist_ends();
            }
        }
    }
    let known = store.get(&key);
    let known = known.as_ref().map(|c| (c.metadata.uid.clone().unwrap(), super::revision(c.as_ref())));
    assert_eq!(known, expect.map(|(uid, version)| (uid.to_owned(), version)), "{steps:?}");
}

#[test]
fn late_answers_bring_nothing_back() {
    check(&[Shows("a", 2), Shows("a", 1)], Some(("a", 2)));
    check(&[Shows("a", 1), Deleted("a"), Shows("a", 1)], None);
    // The answer to the write that took the last finalizer is newer than all the watch has shown.
    check(&[Shows("a", 1), Deleted("a"), Shows("a", 2)], None);
    check(&[Shows("a", 1), Gone("a"), Deleted("a"), Shows("a", 2)], None);
    check(&[Shows("a", 1), Gone("a"), Relisted, Shows("a", 2)], None);
    check(&[Deleted("a"), Shows("a", 1)], None);
    check(&[Gone("a"), Shows("a", 1)], None);
    // Another one of the name is another one.
    check(&[Shows("a", 1), Deleted("a"), Shows("b", 3), Shows("a", 2)], Some(("b", 3)));
    check(&[Shows("a", 1), Shows("b", 3), Deleted("a")], Some(("b", 3)));
    // What a list does not show may have been made after it.
    check(&[Shows("a", 1), Relisted, Shows("a", 1)], Some(("a", 1)));
}
