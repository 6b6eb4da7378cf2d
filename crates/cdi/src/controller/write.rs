//! The ways these controllers write. Each is idempotent: what is there already is as good as made, what is gone as good as deleted.

use std::collections::BTreeMap;
use std::fmt::Debug;

use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod};
use kit::store::{Key, Store};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::Error;
use crate::controller::context::{Context, claim_indexes, reference};

/// The reason of what a quota has no room for.
const EXCEEDED_QUOTA: &str = "ErrExceededQuota";

/// Annotations or labels to be set, and those to be removed.
pub type Changes = BTreeMap<String, Option<String>>;

/// Those of `changes` that `now` differs from.
pub fn differing(now: &BTreeMap<String, String>, changes: Changes) -> Changes {
    changes.into_iter().filter(|(key, value)| now.get(key) != value.as_ref()).collect()
}

/// A kind with a namespace that can be written and read back.
pub trait Kind:
    Resource<DynamicType = (), Scope = NamespaceResourceScope>
    + Clone
    + Debug
    + Serialize
    + DeserializeOwned
    + Send
    + Sync
    + 'static
{
}

impl<K> Kind for K where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Clone
        + Debug
        + Serialize
        + DeserializeOwned
        + Send
        + Sync
        + 'static
{
}

/// Makes `object`. False when one of its name is there already.
pub async fn create<K: Kind>(context: &Context, object: &K) -> Result<bool, Error> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    match api.create(&PostParams::default(), object).await {
        Ok(_) => Ok(true),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(false),
        Err(error) => Err(Error::api("create", &K::kind(&()), &format!("{namespace}/{name}"))(error)),
    }
}

/// Makes a claim, and remembers it at once.
pub async fn create_claim(context: &Context, claim: &PersistentVolumeClaim) -> Result<(), kube::Error> {
    let api: Api<PersistentVolumeClaim> =
        Api::namespaced(context.client.clone(), &claim.namespace().unwrap_or_default());
    match api.create(&PostParams::default(), claim).await {
        Ok(made) => remember(&context.claims, made, claim_indexes),
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => {}
        Err(error) => return Err(error),
    }
    Ok(())
}

/// Deletes `object`, that very one. Gone is as good.
pub async fn delete<K: Kind>(context: &Context, object: &K) -> Result<(), Error> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    let params = DeleteParams {
        preconditions: Some(Preconditions { uid: object.uid(), resource_version: None }),
        ..Default::default()
    };
    match api.delete(&name, &params).await {
        Ok(_) => Ok(()),
        // A conflict says that the name is another's by now.
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(Error::api("delete", &K::kind(&()), &format!("{namespace}/{name}"))(error)),
    }
}

/// Changes `object` by a merge patch.
pub async fn patch<K: Kind>(context: &Context, object: &K, patch: &Value) -> Result<K, Error> {
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let api: Api<K> = Api::namespaced(context.client.clone(), &namespace);
    let done = api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await;
    done.map_err(Error::api("change", &K::kind(&()), &format!("{namespace}/{name}")))
}

/// Changes annotations and labels of a claim, and remembers it at once.
pub async fn annotate(
    context: &Context,
    claim: &PersistentVolumeClaim,
    annotations: Changes,
    labels: Changes,
) -> Result<(), Error> {
    let annotations = differing(claim.annotations(), annotations);
    let labels = differing(claim.labels(), labels);
    if annotations.is_empty() && labels.is_empty() {
        return Ok(());
    }
    // The UID keeps the patch off a claim that was made anew under the name.
    let change = json!({ "metadata": { "uid": claim.uid(), "annotations": annotations, "labels": labels } });
    let done = patch(context, claim, &change).await?;
    remember(&context.claims, done, claim_indexes);
    Ok(())
}

/// Puts what was just written where the next pass finds it.
pub fn remember<K: Kind>(store: &Store<K>, mut object: K, words: fn(&K) -> Vec<String>) {
    object.meta_mut().managed_fields = None;
    let words = words(&object);
    store.put(&object, words);
}

/// `after` as a merge patch of `before`: what is no longer said, however deep, is taken back.
pub fn replacing(before: &impl Serialize, after: &impl Serialize) -> Value {
    let mut patch = json!(after);
    take_back(&json!(before), &mut patch);
    patch
}

fn take_back(before: &Value, patch: &mut Value) {
    if let (Some(before), Some(patch)) = (before.as_object(), patch.as_object_mut()) {
        for (key, value) in before {
            match patch.get_mut(key) {
                Some(kept) => take_back(value, kept),
                None => drop(patch.insert(key.clone(), Value::Null)),
            }
        }
    }
}

/// A merge patch of `status` that fails with a conflict when the object has changed since.
pub fn status_of<K: ResourceExt>(object: &K, status: impl Serialize) -> Value {
    json!({ "metadata": { "resourceVersion": object.resource_version() }, "status": status })
}

/// True when the API server refuses an object because of a quota.
pub fn is_over_quota(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 403 && status.message.contains("exceeded quota"))
}

/// Makes a pod that works on `claim`. False when the namespace has no room for it: that is told on the claim, by the annotations
/// for whether it runs, the reason and the message.
pub async fn create_worker(
    context: &Context,
    claim: &PersistentVolumeClaim,
    pod: &Pod,
    [runs, reason, message]: [&str; 3],
) -> Result<bool, Error> {
    let error = match create(context, pod).await {
        Ok(_) => return Ok(true),
        Err(error) => error,
    };
    let over = matches!(&error, Error::Api { source, .. } if is_over_quota(source));
    // Users who may not read this log are told whom to ask, and what about.
    let ask = "For more information, request access to cdi-deploy logs from your sysadmin";
    let told = format!("Error starting pod '{}': {ask} ({})", pod.name_any(), kit::Chain(&error));
    let event = if over { EXCEEDED_QUOTA } else { "ErrStartingPod" };
    tracing::warn!(claim = %Key::of(claim), error = ?kit::Chain(&error).to_string(), "a worker is not there");
    context.recorder.warning(&reference(claim), event, told.as_str());
    if !over {
        return Err(error);
    }
    let said = [(runs, "false"), (reason, EXCEEDED_QUOTA), (message, told.as_str())];
    let changes = said.map(|(key, value)| (key.to_owned(), Some(value.to_owned()))).into();
    annotate(context, claim, changes, Changes::new()).await?;
    Ok(false)
}

/// The reason of an event about `error`.
pub fn quota_or<'a>(error: &kube::Error, other: &'a str) -> &'a str {
    if is_over_quota(error) { EXCEEDED_QUOTA } else { other }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absent_fields_are_patched_to_null() {
        let (before, after) = (json!({ "a": 1, "b": 2 }), json!({ "b": 3, "c": 4 }));
        assert_eq!(replacing(&before, &after), json!({ "a": null, "b": 3, "c": 4 }));
        assert_eq!(replacing(&None::<Value>, &after), after);
        let (before, after) = (json!({ "of": { "a": "1", "b": "2" } }), json!({ "of": { "b": "2" } }));
        assert_eq!(replacing(&before, &after), json!({ "of": { "a": null, "b": "2" } }));
    }
}
