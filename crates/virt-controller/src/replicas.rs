//! What sets of instances and pools of machines have in common: whose a replica is, how many are made or deleted at a time, and
//! when what keeps ending is made again.

mod going;
mod pace;

use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

use futures::future::join_all;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kit::controller::owner;
use kit::store::Key;
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::{NamespaceResourceScope, Selector};
use kube::{Api, Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

pub(crate) use going::Going;
pub(crate) use pace::Paces;

use crate::error::Error;

/// The most that is made or deleted in one pass.
pub(crate) const BURST: usize = 250;

/// What `selector` selects. None when it cannot be read, and when it selects everything: that claims what others made.
pub(crate) fn selector(selector: &LabelSelector) -> Option<Selector> {
    Selector::try_from(selector.clone()).ok().filter(|selector| !selector.selects_all())
}

/// The labels that the replicas have, as the scale subresource says it.
pub(crate) fn written(selector: &LabelSelector) -> Option<String> {
    Selector::try_from(selector.clone()).ok().map(|selector| selector.to_string())
}

/// `replicas` of a spec, 1 when unset.
pub(crate) fn wanted(replicas: Option<i32>) -> usize {
    usize::try_from(replicas.unwrap_or(1)).unwrap_or(0)
}

/// A template in one number: how many are wanted of it makes it no other.
pub(crate) fn fingerprint(template: &impl Serialize) -> u64 {
    let mut hasher = DefaultHasher::new();
    serde_json::to_string(template).unwrap_or_default().hash(&mut hasher);
    hasher.finish()
}

/// A count, for a status.
pub(crate) fn counted(count: usize) -> i32 {
    i32::try_from(count).unwrap_or(i32::MAX)
}

/// True when the controller of `object` is the owner with this UID.
pub(crate) fn is_of<K: Resource>(object: &K, uid: &str) -> bool {
    owner::controller_of(object.meta()).is_some_and(|owner| owner.uid == uid)
}

/// Does `one` with each of `all`, in batches that double, until something fails in one: what can never be done is tried once
/// in a pass. The results, and the first failure.
pub(crate) async fn in_batches<T, R, F, Fut>(all: Vec<T>, one: F) -> (Vec<R>, Option<Error>)
where
    F: Fn(T) -> Fut,
    Fut: Future<Output = Result<R, Error>>,
{
    let (mut done, mut left, mut size) = (Vec::new(), all.into_iter(), 1);
    loop {
        let batch: Vec<T> = left.by_ref().take(size).collect();
        if batch.is_empty() {
            return (done, None);
        }
        let mut failure = None;
        for result in join_all(batch.into_iter().map(&one)).await {
            match result {
                Ok(result) => done.push(result),
                Err(error) => failure = failure.or(Some(error)),
            }
        }
        if failure.is_some() {
            return (done, failure);
        }
        size = (size * 2).min(32);
    }
}

/// Deletes `object`, of this kind, and no other that has its name by now.
pub(crate) async fn delete<K>(
    client: &Client,
    (kind, object): (&'static str, &K),
    policy: Option<PropagationPolicy>,
) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let Key { namespace, name } = Key::of(object);
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let preconditions = Some(Preconditions { uid: object.uid(), resource_version: None });
    let params = DeleteParams { preconditions, propagation_policy: policy, ..Default::default() };
    match api.delete(&name, &params).await {
        Ok(_) => Ok(()),
        // It is gone, and its name is perhaps another's.
        Err(kube::Error::Api(status)) if status.code == 404 || status.code == 409 => Ok(()),
        Err(error) => Err(Error::api("delete", kind, &namespace, &name)(error)),
    }
}

/// Sets the owners of `object`, of this kind, as it was read. None when it is gone.
pub(crate) async fn set_owners<K>(
    client: &Client,
    (kind, object): (&'static str, &K),
    owners: Vec<OwnerReference>,
) -> Result<Option<K>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + Debug + DeserializeOwned,
{
    let Key { namespace, name } = Key::of(object);
    let patch = json!({ "metadata": {
        "uid": object.uid(), "resourceVersion": object.resource_version(), "ownerReferences": owners,
    } });
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Ok(mut written) => {
            written.meta_mut().managed_fields = None;
            Ok(Some(written))
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
        Err(error) => Err(Error::api("patch", kind, &namespace, &name)(error)),
    }
}
