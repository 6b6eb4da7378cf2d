//! What every controller is given: the client, the shared stores, the event recorder, and the writes they have in common.

use std::fmt::Debug;
use std::future::Future;
use std::sync::Arc;

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use super::error::{During, Result, gone_is_none};
use super::stores::{Cached, Kinds, Stores};
use crate::events::Recorder;
use crate::merge_patch;
use crate::store::{Key, Shared};

/// Shared by all controllers of a process; cheap to clone.
#[derive(Clone)]
pub struct Context {
    /// For writes and for reads that must be current.
    pub client: Client,
    /// The one event recorder.
    pub events: Recorder,
    stores: Arc<Stores>,
    tasks: TaskTracker,
    shutdown: CancellationToken,
}

impl Context {
    /// A context whose tasks end when `shutdown` is cancelled. Of `kinds` is kept what they say, and of all others everything.
    pub fn new(client: Client, kinds: Kinds, shutdown: CancellationToken) -> Self {
        let (events, writer) = Recorder::with_writer(client.clone(), "", "");
        let stores = Arc::new(Stores::new(kinds));
        let context = Self { client, events, stores, tasks: TaskTracker::new(), shutdown };
        context.spawn(writer);
        context
    }

    /// Runs `task` until it ends or the shutdown.
    pub fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let shutdown = self.shutdown.clone();
        self.tasks.spawn(async move {
            shutdown.run_until_cancelled(task).await;
        });
    }

    /// Waits until every task has ended after the shutdown.
    pub async fn drained(&self) {
        self.shutdown.cancelled().await;
        self.tasks.close();
        self.tasks.wait().await;
    }

    /// The shared store of a kind.
    pub fn store<K: Cached>(&self) -> Arc<Shared<K>> {
        self.stores.get(|task| self.spawn(task), &self.client)
    }

    /// A client for a kind in a namespace.
    pub fn api<K>(&self, namespace: &str) -> Api<K>
    where
        K: Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Creates a namespaced object and folds it into its store.
    pub async fn create<K>(&self, operation: &'static str, object: &K) -> Result<K>
    where
        K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope> + Serialize,
    {
        let key = Key::of(object);
        let name = if key.name.is_empty() {
            Key::new(key.namespace.clone(), object.meta().generate_name.clone().unwrap_or_default())
        } else {
            key.clone()
        };
        let created: K =
            self.api(&key.namespace).create(&PostParams::default(), object).await.during(operation, name)?;
        self.store::<K>().observe(created.clone());
        Ok(created)
    }

    /// Applies a merge patch to a namespaced object. `None` when the object is gone.
    pub async fn merge<K>(&self, operation: &'static str, key: &Key, change: &Value) -> Result<Option<K>>
    where
        K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let api: Api<K> = self.api(&key.namespace);
        let params = PatchParams::default();
        let patched = gone_is_none(api.patch(&key.name, &params, &Patch::Merge(change)).await.during(operation, key))?;
        if let Some(object) = &patched {
            self.store::<K>().observe(object.clone());
        }
        Ok(patched)
    }

    /// Writes the status of a namespaced object if it differs from what is stored.
    pub async fn set_status<K, S>(&self, operation: &'static str, key: &Key, old: Option<&S>, new: &S) -> Result<()>
    where
        K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        S: Serialize,
    {
        let Some(change) = merge_patch::of_status(old, new).during(operation, key)? else { return Ok(()) };
        self.merge_status::<K>(operation, key, &change).await
    }

    /// As [`Self::set_status`], and only while the object is the one that was read, else 409: for a status that somebody
    /// else writes as well, whose news must not be undone by what was counted before them.
    pub async fn set_status_unless_changed<K, S>(
        &self,
        operation: &'static str,
        object: &K,
        old: Option<&S>,
        new: &S,
    ) -> Result<()>
    where
        K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope>,
        S: Serialize,
    {
        let key = Key::of(object);
        let Some(mut change) = merge_patch::of_status(old, new).during(operation, &key)? else { return Ok(()) };
        change["metadata"] = json!({"resourceVersion": object.meta().resource_version});
        self.merge_status::<K>(operation, &key, &change).await
    }

    /// Applies a merge patch to the status of a namespaced object.
    pub async fn merge_status<K>(&self, operation: &'static str, key: &Key, change: &Value) -> Result<()>
    where
        K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope>,
    {
        let api: Api<K> = self.api(&key.namespace);
        let params = PatchParams::default();
        let patched = api.patch_status(&key.name, &params, &Patch::Merge(change)).await.during(operation, key);
        if let Some(object) = gone_is_none(patched)? {
            self.store::<K>().observe(object);
        }
        Ok(())
    }

    /// Deletes exactly this object (by uid); it is no error when it is gone already.
    pub async fn delete<K>(&self, operation: &'static str, object: &K, params: DeleteParams) -> Result<()>
    where
        K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope> + DeserializeOwned + Debug,
    {
        let key = Key::of(object);
        let uid = object.meta().uid.clone().unwrap_or_default();
        let params = params.preconditions(Preconditions { uid: Some(uid.clone()), resource_version: None });
        let api: Api<K> = self.api(&key.namespace);
        match gone_is_none(api.delete(&key.name, &params).await.during(operation, &key))? {
            Some(either::Either::Left(object)) if object.meta().deletion_timestamp.is_some() => {
                self.store::<K>().observe(object);
            }
            _ => self.store::<K>().forget(&key, &uid),
        }
        Ok(())
    }
}
