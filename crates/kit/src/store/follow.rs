//! Keeping a store equal to the cluster: one watch, with its lists, its interruptions and its end.

use std::fmt::Debug;
use std::pin::pin;

use futures::StreamExt;
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// What is kept equal to the cluster.
pub(crate) trait Mirror<K> {
    /// A list begins.
    fn listing(&mut self);
    /// The object is there like this, as a list says or as an event.
    fn there(&mut self, object: K, listed: bool);
    /// The object is gone.
    fn gone(&mut self, object: &K);
    /// The list is complete.
    fn listed(&mut self);

    /// Takes everything out: the kind is not served, and so there is nothing of it.
    fn clear(&mut self) {
        self.listing();
        self.listed();
    }
}

/// Follows the objects of `api` that `config` selects, for ever.
pub(crate) async fn follow<K>(api: Api<K>, config: watcher::Config, mirror: &mut impl Mirror<K>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut events = pin!(watcher(api, config).default_backoff());
    while let Some(event) = events.next().await {
        match event {
            Ok(Event::Init) => mirror.listing(),
            Ok(Event::InitApply(object)) => mirror.there(object, true),
            Ok(Event::InitDone) => mirror.listed(),
            Ok(Event::Apply(object)) => mirror.there(object, false),
            Ok(Event::Delete(object)) => mirror.gone(&object),
            Err(error) => {
                let kind = std::any::type_name::<K>();
                tracing::debug!(kind, error = %crate::Chain(&error), "watch interrupted, retrying");
            }
        }
    }
}
