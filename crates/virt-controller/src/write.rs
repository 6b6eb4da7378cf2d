//! What follows from writing an object of ours: it is known here before the watch brings it back, and one that is gone needs
//! no writing.

use kit::store::{Key, Store};
use kube::api::{Patch, PatchParams};
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::error::Error;

/// Takes the API server's answer to a patch of `object`, of this kind, into `held`. False when the object is gone.
pub(crate) fn accept<K>(
    answer: kube::Result<K>,
    held: &Store<K>,
    words: fn(&K) -> Vec<String>,
    (kind, object): (&'static str, &K),
) -> Result<bool, Error>
where
    K: Resource + Clone + Send + Sync + serde::Serialize + DeserializeOwned + 'static,
{
    match answer {
        Ok(mut written) => {
            written.meta_mut().managed_fields = None;
            let words = words(&written);
            held.put(&written, words);
            Ok(true)
        }
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(false),
        Err(error) => {
            let Key { namespace, name } = Key::of(object);
            Err(Error::api("patch", kind, &namespace, &name)(error))
        }
    }
}

/// Sets the finalizers of `object`, of this kind, as it was read.
pub(crate) async fn finalizers<K>(
    client: &Client,
    (kind, object): (&'static str, &K),
    finalizers: &[String],
) -> Result<(), Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let (namespace, name) = (object.namespace().unwrap_or_default(), object.name_any());
    let patch = json!({ "metadata": { "resourceVersion": object.resource_version(), "finalizers": finalizers } });
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    match api.patch(&name, &PatchParams::default(), &Patch::Merge(patch)).await {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        Err(error) => Err(Error::api("patch", kind, &namespace, &name)(error)),
        Ok(_) => Ok(()),
    }
}
