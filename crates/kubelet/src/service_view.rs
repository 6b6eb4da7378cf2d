//! The Services and endpoints of the cluster as this node sees them, shared by the service proxy and DNS.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Resource};
use tokio::sync::watch;

/// All Services and EndpointSlices at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Services, in no order.
    pub services: Vec<Arc<Service>>,
    /// EndpointSlices, in no order.
    pub slices: Vec<Arc<EndpointSlice>>,
}

impl View {
    /// The slices of one Service.
    pub fn slices_of<'a>(&'a self, namespace: &'a str, name: &'a str) -> impl Iterator<Item = &'a EndpointSlice> {
        self.slices.iter().map(AsRef::as_ref).filter(move |slice| {
            let labels = slice.metadata.labels.as_ref();
            slice.metadata.namespace.as_deref() == Some(namespace)
                && labels.and_then(|labels| labels.get("kubernetes.io/service-name")).is_some_and(|of| of == name)
        })
    }
}

/// Watches both kinds and publishes a view after every change; nothing is published before both lists are complete.
/// The second value does the work and must be polled; it ends when nobody receives any more.
pub fn watch(client: kube::Client) -> (watch::Receiver<Option<Arc<View>>>, impl Future<Output = ()> + Send) {
    let (publish, views) = watch::channel(None);
    let (services, service_writer) = reflector::store();
    let (slices, slice_writer) = reflector::store();
    let work = async move {
        let services_changed = changes(Api::<Service>::all(client.clone()), service_writer);
        let slices_changed = changes(Api::<EndpointSlice>::all(client), slice_writer);
        let mut changed = std::pin::pin!(futures::stream::select(services_changed, slices_changed));
        let (mut have_services, mut have_slices) = (false, false);
        while changed.next().await.is_some() {
            // A store is ready once its first list is complete, and stays so.
            have_services = have_services || is_ready(&services);
            have_slices = have_slices || is_ready(&slices);
            if have_services && have_slices {
                let view = View { services: services.state(), slices: slices.state() };
                if publish.send(Some(Arc::new(view))).is_err() {
                    return;
                }
            }
        }
    };
    (views, work)
}

fn is_ready<K>(store: &reflector::Store<K>) -> bool
where
    K: Resource<DynamicType = ()> + Clone + 'static,
{
    use futures::FutureExt;
    store.wait_until_ready().now_or_never().is_some_and(|ready| ready.is_ok())
}

/// One item after every change of the store behind `writer`.
fn changes<K>(api: Api<K>, writer: reflector::store::Writer<K>) -> impl futures::Stream<Item = ()> + Send
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    let trimmed = watcher(api, watcher::Config::default()).default_backoff().modify(|object| {
        object.meta_mut().managed_fields = None;
        object.meta_mut().annotations = None;
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
