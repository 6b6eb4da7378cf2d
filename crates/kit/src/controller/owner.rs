//! Owner references and label selectors as the workload controllers use them.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, ObjectMeta, OwnerReference};
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};

use super::error::{Error, Result};
use crate::store::Key;

/// The owner that controls the object, if one does.
#[inline]
pub fn controller_of(meta: &ObjectMeta) -> Option<&OwnerReference> {
    meta.owner_references.as_ref()?.iter().find(|owner| owner.controller == Some(true))
}

/// The reference a controller puts on its children.
pub fn controlled_by<K: Resource<DynamicType = ()>>(owner: &K) -> OwnerReference {
    OwnerReference {
        api_version: K::api_version(&()).into_owned(),
        kind: K::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The key of the controller when it is of kind `K`.
pub fn controller_key<K: Resource<DynamicType = ()>>(meta: &ObjectMeta) -> Option<Key> {
    let owner = controller_of(meta)?;
    let group = |version: &str| version.split_once('/').map_or(String::new(), |(group, _)| group.to_owned());
    (owner.kind == K::kind(&()) && group(&owner.api_version) == K::group(&()))
        .then(|| Key::new(meta.namespace.clone().unwrap_or_default(), owner.name.clone()))
}

/// Parses a selector; an empty one is an error, since it would claim everything.
pub fn workload_selector(selector: &LabelSelector, object: &impl Resource) -> Result<Selector> {
    let invalid = || Error::Selector { object: Key::of(object).to_string() };
    let parsed = Selector::try_from(selector.clone()).map_err(|_| invalid())?;
    if parsed.selects_all() { Err(invalid()) } else { Ok(parsed) }
}

/// Whether the selector matches; an unparsable selector matches nothing, an absent one too, an empty one everything.
#[inline]
pub fn selects(selector: Option<&LabelSelector>, labels: &BTreeMap<String, String>) -> bool {
    selector.is_some_and(|s| Selector::try_from(s.clone()).is_ok_and(|s| s.matches(labels)))
}

/// The keys that a selector asks for.
pub fn keys(selector: &LabelSelector) -> impl Iterator<Item = &str> {
    let named = selector.match_labels.iter().flatten().map(|(key, _)| key.as_str());
    named.chain(selector.match_expressions.iter().flatten().map(|term| term.key.as_str()))
}

/// Whether `labels` hold every pair of `wanted`.
#[inline]
pub fn has_all(labels: &BTreeMap<String, String>, wanted: &BTreeMap<String, String>) -> bool {
    wanted.iter().all(|(key, value)| labels.get(key) == Some(value))
}
