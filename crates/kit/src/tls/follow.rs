//! Servers that offer what an object of the cluster says, for as long as it says so.

use std::fmt::Debug;
use std::sync::Arc;

use kube::discovery::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client, Resource};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Changing, Policy};
use crate::store::{self, Change, Store, Watch};
use crate::{Chain, Task, served};

/// The least version that an object asks for, and the ciphers; see [`Policy::new`].
pub type Asked<K> = for<'a> fn(&'a K) -> (&'a str, &'a [String]);

/// Has `servers` offer what the one object of `api` that `config` selects asks for, as long as the task is held. While there is
/// none, they offer what servers offer. `copy` holds the object.
pub fn follow<K>(
    api: Api<K>,
    config: watcher::Config,
    copy: Store<K>,
    servers: Vec<Arc<Changing>>,
    asked: Asked<K>,
) -> Task<()>
where
    K: Resource + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
{
    let how = Watch { config, ..Watch::default() };
    store::watch(api, how, copy, obey(servers, asked))
}

/// The same of a kind that is not there yet, and may go.
pub fn follow_optional<K>(
    client: &Client,
    api: Api<K>,
    config: watcher::Config,
    copy: Store<K>,
    servers: Vec<Arc<Changing>>,
    asked: Asked<K>,
) -> Task<()>
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Serialize + Debug + Send + Sync + 'static,
{
    let how = Watch { config, ..Watch::default() };
    served::watch(client, &ApiResource::erase::<K>(&()), api, how, copy, obey(servers, asked))
}

/// For a watch that others read, too: has `servers` offer what the object of the change asks for.
pub fn obey<K>(servers: Vec<Arc<Changing>>, asked: Asked<K>) -> impl FnMut(Change<'_, K>) + Send + 'static
where
    K: 'static,
{
    move |change| {
        let (policy, problems) = change.new.map_or_else(Default::default, |object| {
            let (least, ciphers) = asked(object);
            Policy::new(least, ciphers)
        });
        for server in &servers {
            match server.obey(&policy) {
                Ok(false) => {}
                Ok(true) if problems.is_empty() => tracing::info!("TLS as the configuration says"),
                Ok(true) => tracing::warn!(not = problems.join("; "), "TLS as the configuration says, but"),
                Err(error) => {
                    tracing::warn!(error = %Chain(&error), "the TLS asked for is not possible: all is as before");
                }
            }
        }
    }
}
