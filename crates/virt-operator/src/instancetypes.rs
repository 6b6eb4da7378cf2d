//! Keeps the common instance types and preferences, apart from the components: these wait for none of them.
//!
//! ```text
//! virt-api answers -> they are applied     switched off -> those of ours are deleted     KubeVirt goes -> their kinds go, and they with them
//! ```

use std::sync::Arc;

use api::kubevirt::v1::KubeVirt;
use kit::queue::Next;
use kit::store::Key;
use kit::{Chain, apply, operator};
use kube::api::{DynamicObject, ListParams};
use kube::core::GroupVersionKind;
use kube::discovery::ApiResource;
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::context::Context;
use crate::error::Error;
use crate::manifests::admission::API_SERVICE;
use crate::manifests::instancetypes::{GROUP, KINDS, VERSION};
use crate::manifests::{self, instancetypes};

/// What is ours among all that users have.
const OURS: &str = "app.kubernetes.io/managed-by=virt-operator,app.kubernetes.io/component=kubevirt";

/// Brings the instance types to what one KubeVirt object says.
pub(crate) async fn reconcile(context: Arc<Context>, key: Key) -> Next {
    match sync(&context, &key).await {
        Ok(()) => Next::Wait,
        Err(error) => {
            tracing::warn!(kubevirt = %key, error = %Chain(&error), "common instance types are not as they should be");
            Next::Retry
        }
    }
}

async fn sync(context: &Context, key: &Key) -> Result<(), Error> {
    let Some(kubevirt) = context.kubevirts.get(key) else { return Ok(()) };
    if kubevirt.metadata.deletion_timestamp.is_some() || !context.requests.is_active(&kubevirt) {
        return Ok(());
    }
    if !is_wanted(&kubevirt) {
        return remove(context).await;
    }
    // It judges them: until it answers, each would be refused. The Deployment's next change brings us back.
    if !answers(context, key) {
        return Ok(());
    }
    let all = instancetypes::render(&manifests::labels(&context.release.version));
    for of_one_kind in all.chunk_by(|one, next| one["kind"] == next["kind"]) {
        let Some((first, others)) = of_one_kind.split_first() else { continue };
        // Whatever keeps it from being written would keep all of its kind: one is tried again then, and not a hundred.
        apply::whole(&context.client, &context.applied, std::slice::from_ref(first)).await?;
        apply::whole(&context.client, &context.applied, others).await?;
    }
    Ok(())
}

/// Unless they are switched off.
fn is_wanted(kubevirt: &KubeVirt) -> bool {
    let configuration = kubevirt.spec.configuration.as_ref();
    let deployment = configuration.and_then(|configuration| configuration.common_instancetypes_deployment.as_ref());
    deployment.and_then(|deployment| deployment.enabled) != Some(false)
}

fn answers(context: &Context, key: &Key) -> bool {
    context.deployments.get(&Key::new(key.namespace.clone(), API_SERVICE)).is_some_and(|deployment| {
        deployment.status.as_ref().and_then(|status| status.available_replicas).is_some_and(|replicas| replicas > 0)
    })
}

/// Deletes ours, of whatever version. Machines that name one keep the revision that was stored for them.
async fn remove(context: &Context) -> Result<(), Error> {
    let ours = ListParams::default().labels(OURS);
    let mut addresses = Vec::new();
    for (kind, plural) in KINDS {
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(GROUP, VERSION, kind), plural);
        let api: Api<DynamicObject> = Api::all_with(context.client.clone(), &resource);
        match api.list_metadata(&ours).await {
            Ok(list) => addresses.extend(list.items.iter().map(|found| {
                let metadata = json!({ "name": found.name_any() });
                apply::address(&json!({ "apiVersion": resource.api_version, "kind": kind, "metadata": metadata }))
            })),
            // Where there is no such kind, there is none of them.
            Err(kube::Error::Api(status)) if status.code == 404 => {}
            Err(source) => return Err(Error::api("list", plural, "")(source)),
        }
    }
    Ok(operator::delete(&context.client, &addresses).await?)
}
