//! Takes everything away again: the DataVolumes first (their CRDs, while their controllers still run), then the rest.

use std::time::Duration;

use api::cdi::v1beta1::CDI;
use k8s_openapi::api::core::v1::{Pod, Service};
use kit::queue::Next;
use kit::{apply, clock, operator};
use kube::api::ListParams;
use kube::{Api, ResourceExt};

use super::context::Context;
use super::manifests::{self, crds};
use super::{certificates, status};
use crate::{Error, token};

/// Selects the pods and Services that import, clone, upload and ask registries, wherever they are.
const WORKERS: &str = "cdi.kubevirt.io in (importer, cdi-upload-server, cdi-clone-source, cdi-poller)";

/// One step of removal.
///
/// # Errors
/// When the API server refuses.
pub(crate) async fn sync(context: &Context, cdi: &CDI) -> Result<Next, Error> {
    if !context.requests.is_held(cdi) {
        return Ok(Next::Wait);
    }
    let now = clock::seconds(clock::now());
    context.write(cdi, status::deleting(cdi, false, now)).await?;
    // What is deleted is not put back, whoever deletes it.
    context.applied.forget();
    // Nobody may be asked about what is going away, or a webhook that is gone already refuses its end.
    operator::delete(&context.client, &hooks(&context.release.namespace)).await?;
    let definitions: Vec<&str> = crds::ALL.iter().map(|(name, _)| *name).collect();
    if !operator::definitions_are_gone(&context.client, &definitions).await? {
        // Their objects are being finished by the controller; there is nothing to watch that is cheaper than a look.
        return Ok(Next::After(Duration::from_millis(500)));
    }
    workers(context).await?;
    everything_else(context, cdi).await?;
    context.write(cdi, status::deleting(cdi, true, now)).await?;
    context.requests.release(cdi).await.map_err(Error::api("patch", "CDI", &cdi.name_any()))?;
    Ok(Next::Wait)
}

fn addresses(namespace: &str) -> Vec<String> {
    manifests::every(namespace).iter().map(apply::address).collect()
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
    Ok(operator::delete(&context.client, &all).await?)
}
