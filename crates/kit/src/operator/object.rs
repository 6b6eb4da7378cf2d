//! The custom resources by which an operator is asked for its product. One of them counts.

use std::fmt::Debug;

use http::{Method, Request, header};
use kube::{Client, Resource, ResourceExt};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::store::Store;

/// How often a finalizer is tried when others write the object at the same time.
const TRIES: u32 = 8;

/// Where a kind's status is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// With the object.
    Object,
    /// In the subresource `status`.
    Subresource,
}

/// The objects of one kind, of which an operator serves one.
pub struct Requests<K> {
    client: Client,
    store: Store<K>,
    finalizer: &'static str,
    status: Status,
}

impl<K> Requests<K>
where
    K: Resource<DynamicType = ()> + Clone + Debug + Serialize + DeserializeOwned,
{
    /// The objects in `store`; the one that counts is held by `finalizer` until what it asked for is gone.
    pub fn new(client: &Client, store: &Store<K>, finalizer: &'static str, status: Status) -> Self {
        Requests { client: client.clone(), store: store.clone(), finalizer, status }
    }

    /// The one that counts: the one that is held, which may be on its way out, else the oldest. One that was deleted and is not
    /// held any more may be there for long, by a finalizer of somebody else's, and does not count.
    pub fn active(&self) -> Option<K> {
        let order = |object: &K| {
            let created = object.meta().creation_timestamp.as_ref().map(|time| time.0);
            (!self.is_held(object), created, object.namespace(), object.name_any())
        };
        let counts = |object: &K| self.is_held(object) || object.meta().deletion_timestamp.is_none();
        self.store.list().into_iter().filter(counts).min_by_key(order)
    }

    /// True when `object` counts.
    pub fn is_active(&self, object: &K) -> bool {
        self.active().is_none_or(|active| active.uid() == object.uid())
    }

    /// True when the finalizer is on `object`.
    pub fn is_held(&self, object: &K) -> bool {
        object.finalizers().iter().any(|name| name == self.finalizer)
    }

    /// Puts the finalizer on `object`; returns whether it was not there before. Finalizers of others stay, whoever writes at the
    /// same time.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn hold(&self, object: &K) -> Result<bool, kube::Error> {
        self.finalizers(object, |all, own| {
            if !all.iter().any(|name| name == own) {
                all.push(own.to_owned());
            }
        })
        .await
    }

    /// Takes the finalizer off `object`, which ends it if it was deleted.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn release(&self, object: &K) -> Result<bool, kube::Error> {
        self.finalizers(object, |all, own| all.retain(|name| name != own)).await
    }

    /// Writes `status` as merge patch. An object that is gone needs none.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn write_status(&self, object: &K, status: &impl Serialize) -> Result<(), kube::Error> {
        let subresource = if self.status == Status::Subresource { "/status" } else { "" };
        self.patch(object, subresource, &json!({ "status": status })).await.map(drop)
    }

    /// Merges `change` into the object and returns what it is then; none when it is gone.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn merge(&self, object: &K, change: &Value) -> Result<Option<K>, kube::Error> {
        self.patch(object, "", change).await
    }

    async fn finalizers(&self, object: &K, change: impl Fn(&mut Vec<String>, &str)) -> Result<bool, kube::Error> {
        let mut now = object.clone();
        let mut tries = 0;
        loop {
            let mut finalizers = now.finalizers().to_vec();
            change(&mut finalizers, self.finalizer);
            if finalizers == now.finalizers() {
                return Ok(false);
            }
            // The version that was read: a list that somebody else has changed meanwhile is not replaced.
            let patch = json!({ "metadata": { "finalizers": finalizers, "resourceVersion": now.resource_version() } });
            match self.patch(&now, "", &patch).await {
                Ok(written) => return Ok(written.is_some()),
                Err(kube::Error::Api(status)) if status.code == 409 && tries < TRIES => tries += 1,
                Err(error) => return Err(error),
            }
            match self.read(&now).await? {
                // Another one of the same name, or one that nothing may be added to any more: the next pass sees it.
                Some(found) if found.uid() != object.uid() => return Ok(false),
                Some(found)
                    if found.meta().deletion_timestamp.is_some() && object.meta().deletion_timestamp.is_none() =>
                {
                    return Ok(false);
                }
                Some(found) => now = found,
                None => return Ok(false),
            }
        }
    }

    async fn read(&self, object: &K) -> Result<Option<K>, kube::Error> {
        self.request(object, Method::GET, "", Vec::new()).await
    }

    async fn patch(&self, object: &K, subresource: &str, patch: &Value) -> Result<Option<K>, kube::Error> {
        let written = self.request(object, Method::PATCH, subresource, patch.to_string().into_bytes()).await?;
        if let Some(written) = &written {
            let mut written = written.clone();
            written.meta_mut().managed_fields = None;
            self.store.put(&written, Vec::new());
        }
        Ok(written)
    }

    async fn request(
        &self,
        object: &K,
        method: Method,
        subresource: &str,
        body: Vec<u8>,
    ) -> Result<Option<K>, kube::Error> {
        let collection = K::url_path(&(), object.namespace().as_deref());
        let request = Request::builder()
            .method(method)
            .uri(format!("{collection}/{}{subresource}", object.name_any()))
            .header(header::ACCEPT, "application/json")
            .header(header::CONTENT_TYPE, "application/merge-patch+json")
            .body(body)
            .map_err(kube::Error::HttpError)?;
        match self.client.request(request).await {
            Ok(found) => Ok(Some(found)),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(None),
            Err(error) => Err(error),
        }
    }
}
