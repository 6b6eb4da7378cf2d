//! Following the objects of one kind in a store that a node keeps of them.

use futures::{FutureExt, Stream, StreamExt};
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Resource};
use serde::de::DeserializeOwned;

/// Whether the first list behind a store is complete. Once it is, it stays so.
pub(crate) fn is_ready<K>(store: &reflector::Store<K>) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    store.wait_until_ready().now_or_never().is_some_and(|ready| ready.is_ok())
}

/// One item after every change of the store behind `writer`, whose objects are kept without what `trim` takes away; nobody
/// here needs annotations or the owners of fields.
pub(crate) fn changes<K>(
    api: Api<K>,
    config: watcher::Config,
    writer: reflector::store::Writer<K>,
    trim: fn(&mut K),
) -> impl Stream<Item = ()> + Send
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Send + Sync + 'static,
{
    let trimmed = watcher(api, config).default_backoff().modify(move |object| {
        object.meta_mut().managed_fields = None;
        object.meta_mut().annotations = None;
        trim(object);
    });
    trimmed.reflect(writer).filter_map(|event| async move {
        match event {
            Ok(watcher::Event::Init | watcher::Event::InitApply(_)) => None,
            Ok(_) => Some(()),
            Err(error) => {
                tracing::debug!(error = %kit::Chain(&error), "watch interrupted, it resumes");
                None
            }
        }
    })
}
