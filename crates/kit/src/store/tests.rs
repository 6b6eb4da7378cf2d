//! Deletions and answers of requests arrive in any order.

use std::sync::Arc;

use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use serde_json::json;

use super::{Key, Mirror, Shared};

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
    /// A decision about the version that is known.
    Assumed(&'static str, u64),
    /// A list begins, shows this, and ends.
    Listing,
    Lists(&'static str, u64),
    Listed,
}
use Step::{Assumed, Deleted, Gone, Listed, Listing, Lists, Shows};

#[track_caller]
fn check(steps: &[Step], expect: Option<(&str, u64)>) {
    let mut store = Arc::new(Shared::<PersistentVolumeClaim>::new(|_| {}, |_| Vec::new()));
    let key = Key::new("ns", "c");
    for step in steps {
        match *step {
            Shows(uid, version) => store.observe(claim(uid, version)),
            Deleted(uid) => store.gone(&claim(uid, 9)),
            Gone(uid) => store.forget(&key, uid),
            Assumed(uid, version) => store.assume(claim(uid, version)),
            Listing => store.listing(),
            Lists(uid, version) => store.there(claim(uid, version), true),
            Listed => store.listed(),
        }
    }
    let known = store.get(&key).map(|known| known.metadata.clone());
    let known = known.map(|meta| (meta.uid.unwrap(), meta.resource_version.unwrap().parse().unwrap()));
    assert_eq!(known, expect.map(|(uid, version)| (uid.to_owned(), version)), "{steps:?}");
}

#[test]
fn late_answers_bring_nothing_back() {
    check(&[Shows("a", 2), Shows("a", 1)], Some(("a", 2)));
    check(&[Shows("a", 1), Deleted("a"), Shows("a", 1)], None);
    // The answer to the write that took the last finalizer is newer than all the watch has shown.
    check(&[Shows("a", 1), Deleted("a"), Shows("a", 2)], None);
    check(&[Shows("a", 1), Gone("a"), Deleted("a"), Shows("a", 2)], None);
    check(&[Shows("a", 1), Gone("a"), Listing, Listed, Shows("a", 2)], None);
    check(&[Deleted("a"), Shows("a", 1)], None);
    check(&[Gone("a"), Shows("a", 1)], None);
    // Another one of the name is another one.
    check(&[Shows("a", 1), Deleted("a"), Shows("b", 3), Shows("a", 2)], Some(("b", 3)));
    check(&[Shows("a", 1), Shows("b", 3), Deleted("a")], Some(("b", 3)));
    // What a list does not show may have been made after it.
    check(&[Shows("a", 1), Listing, Listed, Shows("a", 1)], Some(("a", 1)));
}

#[test]
fn an_object_that_matches_the_selector_again_is_stored_again() {
    let mut store = Arc::new(Shared::<PersistentVolumeClaim>::new(|_| {}, |_| Vec::new()));
    let key = Key::new("ns", "c");
    store.there(claim("a", 1), false);
    // A watch of a selection says the same of what was deleted and of what is selected no more.
    store.gone(&claim("a", 2));
    assert!(store.get(&key).is_none());
    store.there(claim("a", 3), false);
    assert!(store.get(&key).is_some());
    // A request has found it gone, and the watch has not come so far.
    store.forget(&key, "a");
    store.there(claim("a", 4), false);
    assert!(store.get(&key).is_none());
    store.gone(&claim("a", 5));
    store.there(claim("a", 6), false);
    assert!(store.get(&key).is_some());
}

#[test]
fn a_list_is_the_truth_of_when_it_began() {
    check(&[Shows("a", 1), Listing, Lists("a", 2), Listed], Some(("a", 2)));
    check(&[Shows("a", 1), Listing, Listed], None);
    // What was written meanwhile is newer.
    check(&[Shows("a", 1), Listing, Shows("a", 3), Lists("a", 2), Listed], Some(("a", 3)));
    check(&[Listing, Shows("a", 3), Listed], Some(("a", 3)));
    check(&[Shows("a", 1), Listing, Gone("a"), Lists("a", 1), Listed], None);
    // The cluster was restored: versions are lower, and what was deleted is there.
    check(&[Shows("a", 9), Listing, Lists("a", 3), Listed, Shows("a", 4)], Some(("a", 4)));
    check(&[Shows("a", 9), Deleted("a"), Listing, Lists("a", 3), Listed, Shows("a", 4)], Some(("a", 4)));
}

#[test]
fn a_decision_stays_until_something_newer_comes() {
    let store = Arc::new(Shared::<PersistentVolumeClaim>::new(|_| {}, |_| Vec::new()));
    let decided = || store.get(&Key::new("ns", "c")).is_some_and(|claim| claim.metadata.labels.is_some());
    let mut decision = claim("a", 1);
    decision.metadata.labels = Some([("decided".to_owned(), String::new())].into());
    store.observe(claim("a", 1));
    store.assume(decision);
    store.observe(claim("a", 1));
    assert!(decided());
    let mut mirror = store.clone();
    mirror.listing();
    mirror.there(claim("a", 1), true);
    mirror.listed();
    assert!(decided());
    store.observe(claim("a", 2));
    assert!(!decided());
    check(&[Shows("a", 2), Assumed("a", 2), Shows("a", 3)], Some(("a", 3)));
}
