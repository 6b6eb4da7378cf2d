//! The objects of the other operators: watched, and written where they differ from what is rendered. The HyperConverged object is the
//! only source of what they say, so their whole spec is replaced, and not merely the fields that are rendered.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kit::store::{Key, Store, Watch};
use kit::{Task, merge_patch, served};
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::MANAGER;
use crate::child::Child;
use crate::status::Seen;
use crate::{Error, tree};

/// What a write came to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Done {
    /// There was nothing to write.
    Nothing,
    /// The object was not there.
    Created,
    /// The HyperConverged object, the nodes or the operator wanted something else than before.
    Updated,
    /// Somebody had edited the object.
    Overwritten,
}

/// How an object was left.
#[derive(Debug)]
struct Left {
    /// Of the manifest.
    hash: u64,
    uid: Option<String>,
    /// As the API server answered: with its defaults.
    spec: Value,
}

#[derive(Default)]
struct One {
    store: Store<DynamicObject>,
    served: Arc<AtomicBool>,
    left: Mutex<Option<Left>>,
    /// How often edits of others were put right.
    overwritten: AtomicU64,
}

/// All of them.
pub struct Children(HashMap<Child, One>);

impl Default for Children {
    fn default() -> Self {
        Children(Child::ALL.into_iter().map(|child| (child, One::default())).collect())
    }
}

fn resource(child: Child) -> ApiResource {
    let kind = child.kind();
    let (group, version) = kind.api_version.split_once('/').unwrap_or_default();
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind.kind), kind.plural)
}

fn key(child: Child, namespace: &str) -> Key {
    let kind = child.kind();
    Key::new(if kind.namespaced { namespace } else { "" }, kind.name)
}

fn api(client: &Client, child: Child, namespace: &str) -> Api<DynamicObject> {
    match child.kind().namespaced {
        true => Api::namespaced_with(client.clone(), namespace, &resource(child)),
        false => Api::all_with(client.clone(), &resource(child)),
    }
}

impl Children {
    /// Follows the objects of one kind; `wake` is called when one of them changes, and when the kind comes or goes.
    pub(super) fn watch(
        &self,
        client: &Client,
        child: Child,
        wake: impl Fn() + Clone + Send + 'static,
    ) -> Vec<Task<()>> {
        let Some(one) = self.0.get(&child) else { return Vec::new() };
        let resource = resource(child);
        let (again, served) = (wake.clone(), one.served.clone());
        let follow = served::follow(client, &resource, move |now| {
            served.store(now, Ordering::Relaxed);
            again();
        });
        let config = watcher::Config::default().fields(&format!("metadata.name={}", child.kind().name));
        let how = Watch { config, ..Watch::default() };
        let all = Api::all_with(client.clone(), &resource);
        vec![follow, served::watch(client, &resource, all, how, one.store.clone(), move |_| wake())]
    }

    pub(super) async fn synced(&self) {
        for one in self.0.values() {
            one.store.synced().await;
        }
    }

    /// What is there of `child`.
    pub(super) fn seen(&self, child: Child, namespace: &str) -> Seen {
        let one = self.0.get(&child);
        let held = one.and_then(|one| one.store.get(&key(child, namespace)));
        Seen {
            child,
            held: held.and_then(|held| serde_json::to_value(held).ok()),
            served: one.is_some_and(|one| one.served.load(Ordering::Relaxed)),
        }
    }

    /// How often edits of `child` were put right since this process began.
    pub(super) fn overwritten(&self, child: Child) -> u64 {
        self.0.get(&child).map_or(0, |one| one.overwritten.load(Ordering::Relaxed))
    }

    /// Brings `child` to what `manifest` says. `owned` are annotations that go when the manifest does not have them.
    ///
    /// # Errors
    /// When the API server or a webhook refuses; a conflict when somebody wrote meanwhile.
    pub(super) async fn bring(
        &self,
        client: &Client,
        child: Child,
        namespace: &str,
        manifest: &Value,
        owned: &[&str],
    ) -> Result<Done, Error> {
        let Some(one) = self.0.get(&child) else { return Ok(Done::Nothing) };
        let mut hasher = DefaultHasher::new();
        manifest.to_string().hash(&mut hasher);
        let hash = hasher.finish();
        let api = api(client, child, namespace);
        let Some(held) = one.store.get(&key(child, namespace)) else {
            let object = serde_json::from_value(manifest.clone()).map_err(Error::setup("read a manifest"))?;
            let params = PostParams { field_manager: Some(MANAGER.to_owned()), ..PostParams::default() };
            let made = api.create(&params, &object).await.map_err(failed("create", child))?;
            one.leave(hash, &made);
            return Ok(Done::Created);
        };
        let (edited, known) = one.judge(hash, &held);
        let metadata = metadata(manifest, &held, owned);
        if known && !edited && metadata.is_none() {
            return Ok(Done::Nothing);
        }
        let mut patch = json!({ "metadata": metadata.unwrap_or_else(|| json!({})) });
        // What somebody writes at the same moment is looked at before it is overwritten.
        patch["metadata"]["resourceVersion"] = json!(held.resource_version());
        let spec = held.data.get("spec").cloned().unwrap_or_else(|| json!({}));
        if let Some(change) = merge_patch::difference(&spec, manifest["spec"].clone()) {
            patch["spec"] = change;
        }
        let params = PatchParams { field_manager: Some(MANAGER.to_owned()), ..PatchParams::default() };
        let written =
            api.patch(child.kind().name, &params, &Patch::Merge(&patch)).await.map_err(failed("patch", child))?;
        let moved = written.resource_version() != held.resource_version();
        one.leave(hash, &written);
        match (moved, edited) {
            // Defaults of the API server alone were different.
            (false, _) => Ok(Done::Nothing),
            (true, true) => {
                one.overwritten.fetch_add(1, Ordering::Relaxed);
                Ok(Done::Overwritten)
            }
            (true, false) => Ok(Done::Updated),
        }
    }

    /// Deletes `child`; gone already is as good.
    ///
    /// # Errors
    /// When the API server or a webhook refuses.
    pub(super) async fn delete(&self, client: &Client, child: Child, namespace: &str) -> Result<(), Error> {
        match api(client, child, namespace).delete(child.kind().name, &DeleteParams::default()).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(failed("delete", child)(error)),
        }
    }
}

impl One {
    fn leave(&self, hash: u64, object: &DynamicObject) {
        self.store.put(object, Vec::new());
        let spec = object.data.get("spec").cloned().unwrap_or_default();
        *self.left.lock().unwrap_or_else(PoisonError::into_inner) = Some(Left { hash, uid: object.uid(), spec });
    }

    /// Whether somebody edited the object since it was left, and whether it was left as this manifest says.
    fn judge(&self, hash: u64, held: &DynamicObject) -> (bool, bool) {
        let left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(left) = left.as_ref().filter(|left| left.uid == held.uid()) else { return (false, false) };
        (held.data.get("spec") != Some(&left.spec), left.hash == hash)
    }
}

/// The change of labels and annotations; none when all are as the manifest has them.
fn metadata(manifest: &Value, held: &DynamicObject, owned: &[&str]) -> Option<Value> {
    let mut change = json!({});
    let maps = [("labels", held.labels()), ("annotations", held.annotations())];
    for (field, now) in maps {
        for (name, value) in manifest["metadata"][field].as_object().into_iter().flatten() {
            if now.get(name).map(String::as_str) != value.as_str() {
                change[field][name] = value.clone();
            }
        }
    }
    for name in owned {
        let wanted = tree::get(manifest, "metadata.annotations").is_some_and(|all| all.get(*name).is_some());
        if !wanted && held.annotations().contains_key(*name) {
            change["annotations"][*name] = Value::Null;
        }
    }
    (change != json!({})).then_some(change)
}

fn failed(verb: &'static str, child: Child) -> impl FnOnce(kube::Error) -> Error {
    Error::api(verb, child.kind().kind, child.kind().name)
}
