//! The Services and endpoints of the cluster as this node sees them, shared by the service proxy and DNS.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::{Node, Service};
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::Api;
use kube::runtime::{reflector, watcher};
use tokio::sync::watch;

use crate::followed::{changes, is_ready};

/// All Services and EndpointSlices at one moment.
#[derive(Clone, Debug, Default)]
pub struct View {
    /// Services, in no order.
    pub services: Vec<Arc<Service>>,
    /// EndpointSlices, in no order.
    pub slices: Vec<Arc<EndpointSlice>>,
    /// The zone this node is in, if it is in one.
    pub zone: Option<String>,
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

/// Watches both kinds, and the Node `node`, and publishes a view after every change; nothing is published before both
/// lists are complete. The second value does the work and must be polled; it ends when nobody receives any more.
pub fn watch(
    client: kube::Client,
    node: &str,
) -> (watch::Receiver<Option<Arc<View>>>, impl Future<Output = ()> + Send + use<>) {
    let (publish, views) = watch::channel(None);
    let (services, service_writer) = reflector::store();
    let (slices, slice_writer) = reflector::store();
    let (nodes, node_writer) = reflector::store::<Node>();
    let everything = watcher::Config::default();
    let own = everything.clone().fields(&format!("metadata.name={node}"));
    let work = async move {
        let services_changed = changes(Api::<Service>::all(client.clone()), everything.clone(), service_writer, |_| {});
        let slices_changed = changes(Api::<EndpointSlice>::all(client.clone()), everything, slice_writer, |_| {});
        let moved = changes(Api::<Node>::all(client), own, node_writer, |_| {});
        let zone_of = |nodes: &reflector::Store<Node>| {
            let labels = nodes.state().first().and_then(|node| node.metadata.labels.clone());
            labels.and_then(|labels| labels.get("topology.kubernetes.io/zone").cloned())
        };
        let mut zone = None;
        // A Node changes with every heartbeat, its zone hardly ever.
        let moved = moved.filter(|()| {
            let now = zone_of(&nodes);
            let changed = now != zone;
            zone = now;
            std::future::ready(changed)
        });
        let objects = futures::stream::select(services_changed, slices_changed);
        let mut changed = std::pin::pin!(futures::stream::select(objects, moved));
        let (mut have_services, mut have_slices) = (false, false);
        while changed.next().await.is_some() {
            // A store is ready once its first list is complete, and stays so.
            have_services = have_services || is_ready(&services);
            have_slices = have_slices || is_ready(&slices);
            if have_services && have_slices {
                let view = View { services: services.state(), slices: slices.state(), zone: zone_of(&nodes) };
                if publish.send(Some(Arc::new(view))).is_err() {
                    return;
                }
            }
        }
    };
    (views, work)
}
