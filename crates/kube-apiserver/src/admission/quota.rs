//! ResourceQuota: what a write would use, beside what is used, within what is allowed.
//!
//! Guarantees: usage is counted from the objects themselves at the moment of the write, and writes that use a quota of
//! the same namespace take turns until they are stored. So however many write at once, no bound is ever passed.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use serde_json::Value;
use tokio::sync::{Mutex, OwnedMutexGuard};

use apimachinery::error::ApiError;
use apimachinery::pointer::text;
use kube_store::{Store, WriteError};

use super::amount::{Amount, Amounts, add, amounts};
use super::{Attributes, Operation};
use crate::view::View;

pub(crate) mod scope;
pub(crate) mod usage;

/// Turns of namespaces; two namespaces that share one merely wait for each other.
#[derive(Clone, Debug)]
pub(super) struct Turns(Arc<[Arc<Mutex<()>>; 64]>);

/// Held until the write it was given for is stored, which it then notes in the status of each quota.
#[derive(Debug)]
pub struct Turn {
    _held: OwnedMutexGuard<()>,
    namespace: String,
    /// By name of the quota, what is used with the write.
    used: Vec<(String, Amounts)>,
}

/// Tries to write a status that the controller writes as well; it counts everything again anyway.
const TRIES: usize = 5;

impl Turn {
    /// The write is stored: every quota says so before the client hears of it.
    pub(crate) async fn settle(self, store: &Store) {
        for (name, used) in &self.used {
            for _ in 0..TRIES {
                let Some(stored) = store.get("resourcequotas", &self.namespace, name) else { break };
                let mut quota = stored.value();
                quota["status"]["hard"] = quota["spec"]["hard"].clone();
                for (bound, amount) in used {
                    quota["status"]["used"][bound] = amount.to_string().into();
                }
                match store.update(stored.key.clone(), quota, stored.revision).await {
                    Err(WriteError::Changed) => {}
                    _ => break,
                }
            }
        }
    }
}

impl Default for Turns {
    fn default() -> Self {
        Self(Arc::new(std::array::from_fn(|_| Arc::default())))
    }
}

impl Turns {
    async fn take(&self, namespace: &str) -> OwnedMutexGuard<()> {
        let mut hasher = DefaultHasher::new();
        namespace.hash(&mut hasher);
        let place = usize::try_from(hasher.finish() % 64).unwrap_or(0);
        self.0[place].clone().lock_owned().await
    }
}

/// What the write adds to what a quota counts; empty when it can only lower it or leave it.
fn added(attributes: &Attributes, quota: &Value) -> Amounts {
    let Some(object) = &attributes.object else { return Amounts::new() };
    let resource = &attributes.resource;
    let core = |plural: &str| resource.group.is_empty() && resource.plural == plural;
    match (attributes.operation, attributes.info.subresource.as_str()) {
        (Operation::Create, "") => usage::usage(resource, object),
        (Operation::Update, "") if core("services") || core("persistentvolumeclaims") => {
            grown(attributes, object, quota)
        }
        (Operation::Update, "resize") if core("pods") => grown(attributes, object, quota),
        _ => Amounts::new(),
    }
}

/// What comes into a quota's sight by an update is new to it as a whole.
fn grown(attributes: &Attributes, object: &Value, quota: &Value) -> Amounts {
    let resource = &attributes.resource;
    let before = attributes.old.as_ref().filter(|old| scope::covers(quota, resource, old));
    let before = before.map(|old| usage::usage(resource, old)).unwrap_or_default();
    let after = usage::usage(&attributes.resource, object).into_iter();
    let more = after.map(|(name, amount)| {
        let old = before.get(&name).copied().unwrap_or_default();
        (name, amount.less(old))
    });
    more.filter(|(_, amount)| amount.is_positive()).collect()
}

/// Checks the write against every quota of its namespace; the turn is to be held until it is stored.
///
/// # Errors
/// 403 naming the quota and every bound that would be passed.
pub(super) async fn check(view: &dyn View, turns: &Turns, attributes: &Attributes) -> Result<Option<Turn>, ApiError> {
    if attributes.namespace.is_empty() {
        return Ok(None);
    }
    // Most namespaces have none, and then nothing needs to be counted.
    let quotas = view.list("", "resourcequotas", &attributes.namespace);
    let Some(object) = attributes.object.as_ref().filter(|_| !quotas.is_empty()) else { return Ok(None) };
    let covering = quotas.into_iter().filter(|quota| scope::covers(quota, &attributes.resource, object));
    let quotas: Vec<(Arc<Value>, Amounts)> = covering
        .map(|quota| {
            let added = added(attributes, &quota);
            (quota, added)
        })
        .filter(|(quota, added)| bounds(quota).keys().any(|name| concerns(name, added)))
        .collect();
    if quotas.is_empty() {
        return Ok(None);
    }
    let held = turns.take(&attributes.namespace).await;
    let mut used = Vec::new();
    for (quota, added) in &quotas {
        let now = within(view, attributes, object, added, quota)?;
        if !now.is_empty() {
            used.push((text(quota, "/metadata/name").to_owned(), now));
        }
    }
    Ok(Some(Turn { _held: held, namespace: attributes.namespace.clone(), used }))
}

fn bounds(quota: &Value) -> Amounts {
    amounts(quota.pointer("/spec/hard"))
}

/// Whether a bound may speak of a write: it bounds what is added, or wants pods to state it.
fn concerns(bound: &str, added: &Amounts) -> bool {
    added.contains_key(bound) || added.contains_key("pods")
}

/// What is used of each bound with the write.
fn within(
    view: &dyn View,
    attributes: &Attributes,
    object: &Value,
    added: &Amounts,
    quota: &Value,
) -> Result<Amounts, ApiError> {
    let resource = &attributes.resource;
    let refuse = |why: &str| Err(ApiError::forbidden(&resource.group, &resource.plural, &attributes.name, why));
    let (bounds, name) = (bounds(quota), text(quota, "/metadata/name"));
    if added.contains_key("pods")
        && let Some(missing) = usage::unstated(object, bounds.keys())
    {
        return refuse(&format!("failed quota: {name}: must specify {missing}"));
    }
    let asked: Vec<(&String, Amount)> = bounds
        .keys()
        .filter_map(|bound| added.get(bound).map(|amount| (bound, *amount)))
        .filter(|(_, amount)| amount.is_positive())
        .collect();
    if asked.is_empty() {
        return Ok(Amounts::new());
    }
    let counted = usage::counted(resource);
    let mut used = Amounts::new();
    if asked.iter().all(|(bound, _)| **bound == counted) {
        let count = view.count(&resource.group, &resource.plural, &attributes.namespace);
        used.insert(counted, Amount::whole(count));
    } else {
        let existing = view.list(&resource.group, &resource.plural, &attributes.namespace);
        for other in existing.iter().filter(|other| scope::covers(quota, resource, other)) {
            add(&mut used, usage::usage(resource, other));
        }
    }
    let used = |bound: &str| used.get(bound).copied().unwrap_or_default();
    let passes = |(bound, amount): &&(&String, Amount)| {
        let mut sum = used(bound);
        sum += *amount;
        bounds.get(*bound).is_some_and(|limit| sum > *limit)
    };
    let over: Vec<_> = asked.iter().filter(passes).collect();
    if over.is_empty() {
        let sum = |(bound, amount): &(&String, Amount)| {
            let mut sum = used(bound);
            sum += *amount;
            ((*bound).clone(), sum)
        };
        return Ok(asked.iter().map(sum).collect());
    }
    let list = |what: &dyn Fn(&str, Amount) -> Amount| {
        over.iter().map(|(bound, amount)| format!("{bound}={}", what(bound, *amount))).collect::<Vec<_>>().join(",")
    };
    let (requested, held) = (list(&|_, amount| amount), list(&|bound, _| used(bound)));
    let limited = list(&|bound, _| bounds.get(bound).copied().unwrap_or_default());
    refuse(&format!("exceeded quota: {name}, requested: {requested}, used: {held}, limited: {limited}"))
}

#[cfg(test)]
mod tests;
