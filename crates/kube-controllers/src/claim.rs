//! Adoption: a workload owns the children its selector matches, takes orphans in and lets strangers go.

use std::sync::Arc;

use kit::controller::owner::controlled_by;
use kit::controller::pod::labels;
use kit::controller::{Cached, Result};
use kit::store::Key;
use kube::core::{NamespaceResourceScope, Selector, SelectorExt};
use kube::{Resource, ResourceExt};
use serde_json::json;

use crate::context::Context;

/// The children of `owner`, after adopting matching orphans and releasing those that no longer match.
/// An owner being deleted changes nothing.
pub(crate) async fn children<O, K>(ctx: &Context, owner: &O, selector: &Selector) -> Result<Vec<Arc<K>>>
where
    O: Resource<DynamicType = ()>,
    K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let store = ctx.store::<K>();
    let (namespace, uid) = (owner.namespace().unwrap_or_default(), owner.uid().unwrap_or_default());
    let leaving = owner.meta().deletion_timestamp.is_some();
    let mut mine = Vec::new();
    for child in store.owned_by(&uid) {
        if leaving || selector.matches(labels(child.meta())) {
            mine.push(child);
        } else if child.meta().deletion_timestamp.is_none() {
            let owners: Vec<_> = child.owner_references().iter().filter(|o| o.uid != uid).cloned().collect();
            set_owners(ctx, child.as_ref(), &owners).await?;
        }
    }
    if leaving {
        return Ok(mine);
    }
    for orphan in store.owned_by("") {
        let fits = orphan.namespace().as_deref() == Some(namespace.as_str())
            && orphan.meta().deletion_timestamp.is_none()
            && selector.matches(labels(orphan.meta()));
        if fits {
            let mut owners = orphan.owner_references().to_vec();
            owners.push(controlled_by(owner));
            if let Some(adopted) = set_owners(ctx, orphan.as_ref(), &owners).await? {
                mine.push(Arc::new(adopted));
            }
        }
    }
    Ok(mine)
}

async fn set_owners<K>(
    ctx: &Context,
    child: &K,
    owners: &[k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference],
) -> Result<Option<K>>
where
    K: Cached + Resource<DynamicType = (), Scope = NamespaceResourceScope>,
{
    let change = json!({"metadata": {"uid": child.uid(), "resourceVersion": child.resource_version(),
        "ownerReferences": owners}});
    ctx.merge("change the owner of", &Key::of(child), &change).await
}
