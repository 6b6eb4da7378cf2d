//! Takes everything away again: the DataVolumes first (their CRDs, while their controllers still run), then the rest.

use std::time::Duration;

use api::cdi::v1beta1::CDI;
use futures::{StreamExt, stream};
use k8s_openapi::api::core::v1::{Pod, Service};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kit::apply;
use kit::clock;
use kit::queue::Next;
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::deploy::{Context, FINALIZER, patch_finalizers, write};
use super::manifests::{self, Input, crds};
use super::{certificates, status};
use crate::{Error, token};

/// Selects the pods and Services that import, clone, upload and ask registries, wherever they are.
const WORKERS: &str = "cdi.kubevirt.io in (importer, cdi-upload-server, cdi-clone-source, cdi-poller)";

/// One step of removal.
///
/// # Errors
/// When the API server refuses.
pub(crate) async fn sync(context: &Context, cdi: &CDI) -> Result<Next, Error> {
    if !cdi.finalizers().iter().any(|name| name == FINALIZER) {
        return Ok(Next::Wait);
    }
    let now = clock::seconds(clock::now());
    write(context, cdi, status::deleting(cdi, false, now)).await?;
    let api: Api<CustomResourceDefinition> = Api::all(context.client.clone());
    let list = api.list_metadata(&ListParams::default()).await.map_err(Error::api("list", "CRDs", ""))?;
    let ours = |name: &str| crds::ALL.iter().any(|(known, _)| *known == name);
    let left: Vec<_> = list.items.iter().filter(|crd| ours(&crd.name_any())).collect();
    if !left.is_empty() {
        // Nobody may be asked about what is going away, or a webhook that is gone already refuses its end.
        for address in hooks(&context.release.namespace) {
            apply::delete(&context.client, &address).await?;
        }
        for crd in left.iter().filter(|crd| crd.metadata.deletion_timestamp.is_none()) {
            let address = format!("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}", crd.name_any());
            apply::delete(&context.client, &address).await?;
        }
        // Their objects are being finished by the controller; there is nothing to watch that is cheaper than a look.
        return Ok(Next::After(Duration::from_millis(500)));
    }
    workers(context).await?;
    everything_else(context, cdi).await?;
    context.applied.forget();
    context.schemas.store(false, std::sync::atomic::Ordering::Release);
    write(context, cdi, status::deleting(cdi, true, now)).await?;
    let kept: Vec<String> = cdi.finalizers().iter().filter(|name| *name != FINALIZER).cloned().collect();
    patch_finalizers(context, cdi, &kept).await?;
    Ok(Next::Wait)
}

fn addresses(namespace: &str) -> Vec<String> {
    let input = Input { namespace: namespace.to_owned(), monitoring: true, render_claims: true, ..Input::default() };
    manifests::render(&input).iter().map(apply::address).collect()
}

fn hooks(namespace: &str) -> Vec<String> {
    addresses(namespace).into_iter().filter(|address| address.contains("webhookconfigurations")).collect()
}

/// The pods and Services of imports, clones and uploads that the controller left.
async fn workers(context: &Context) -> Result<(), Error> {
    let selection = ListParams::default().labels(WORKERS);
    let pods: Api<Pod> = Api::all(context.client.clone());
    let services: Api<Service> = Api::all(context.client.clone());
    let pods = pods.list_metadata(&selection).await.map_err(Error::api("list", "pods", ""))?;
    let services = services.list_metadata(&selection).await.map_err(Error::api("list", "services", ""))?;
    let pods = pods.items.iter().map(|pod| ("pods", pod.namespace(), pod.name_any()));
    let services = services.items.iter().map(|service| ("services", service.namespace(), service.name_any()));
    for (kind, namespace, name) in pods.chain(services) {
        let address = format!("/api/v1/namespaces/{}/{kind}/{name}", namespace.unwrap_or_default());
        apply::delete(&context.client, &address).await?;
    }
    Ok(())
}

async fn everything_else(context: &Context, cdi: &CDI) -> Result<(), Error> {
    let namespace = &context.release.namespace;
    let mut all = addresses(namespace);
    let mut own = vec![("secrets", token::SECRET.to_owned()), ("configmaps", "cdi-config".to_owned())];
    for ring in certificates::keyrings(namespace, &cdi.spec) {
        own.push(("configmaps", ring.bundle));
        own.push(("secrets", ring.authority));
        own.extend(ring.leaves.into_iter().map(|(name, _)| ("secrets", name)));
    }
    all.extend(own.into_iter().map(|(kind, name)| format!("/api/v1/namespaces/{namespace}/{kind}/{name}")));
    all.push(format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/cdi-controller"));
    let results: Vec<Result<(), apply::Error>> = stream::iter(all)
        .map(|address| async move { apply::delete(&context.client, &address).await })
        .buffered(8)
        .collect()
        .await;
    Ok(results.into_iter().collect::<Result<(), _>>()?)
}
