//! Writes to cluster-wide kinds, folded into their stores.

use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ClusterResourceScope;
use kube::{Api, Resource};
use serde::Serialize;
use serde_json::Value;

use super::context::Context;
use super::error::{During, Result, gone_is_none};
use super::stores::Cached;
use crate::store::Key;

/// Applies a merge patch. `None` when the object is gone.
pub async fn merge<K>(ctx: &Context, operation: &'static str, name: &str, change: &Value) -> Result<Option<K>>
where
    K: Cached + Resource<DynamicType = (), Scope = ClusterResourceScope>,
{
    let api: Api<K> = Api::all(ctx.client.clone());
    let patched = api.patch(name, &PatchParams::default(), &Patch::Merge(change)).await;
    observed(ctx, gone_is_none(patched.during(operation, name))?)
}

/// Applies a merge patch to the status. `None` when the object is gone.
pub async fn merge_status<K>(ctx: &Context, operation: &'static str, name: &str, change: &Value) -> Result<Option<K>>
where
    K: Cached + Resource<DynamicType = (), Scope = ClusterResourceScope>,
{
    let api: Api<K> = Api::all(ctx.client.clone());
    let patched = api.patch_status(name, &PatchParams::default(), &Patch::Merge(change)).await;
    observed(ctx, gone_is_none(patched.during(operation, name))?)
}

/// Creates an object; one of its name that exists is no error, and is left as it is.
pub async fn create<K>(ctx: &Context, operation: &'static str, object: &K) -> Result<Option<K>>
where
    K: Cached + Resource<DynamicType = (), Scope = ClusterResourceScope> + Serialize,
{
    let api: Api<K> = Api::all(ctx.client.clone());
    match api.create(&PostParams::default(), object).await.during(operation, Key::of(object)) {
        Ok(created) => observed(ctx, Some(created)),
        Err(error) if error.code() == 409 => Ok(None),
        Err(error) => Err(error),
    }
}

/// Deletes exactly this object; it is no error when it is gone already.
pub async fn delete<K>(ctx: &Context, operation: &'static str, object: &K) -> Result<()>
where
    K: Cached + Resource<DynamicType = (), Scope = ClusterResourceScope>,
{
    let key = Key::of(object);
    let uid = object.meta().uid.clone().unwrap_or_default();
    let api: Api<K> = Api::all(ctx.client.clone());
    let params =
        DeleteParams::default().preconditions(Preconditions { uid: Some(uid.clone()), resource_version: None });
    match gone_is_none(api.delete(&key.name, &params).await.during(operation, &key))? {
        Some(either::Either::Left(object)) if object.meta().deletion_timestamp.is_some() => {
            ctx.store::<K>().observe(object);
        }
        _ => ctx.store::<K>().forget(&key, &uid),
    }
    Ok(())
}

/// Puts a finalizer on an object or takes it off; nothing is written when it is as wanted.
pub async fn finalizer<K>(ctx: &Context, operation: &'static str, object: &K, name: &str, wanted: bool) -> Result<()>
where
    K: Cached + Resource<DynamicType = (), Scope = ClusterResourceScope>,
{
    let mut finalizers = object.meta().finalizers.clone().unwrap_or_default();
    if finalizers.iter().any(|f| f == name) == wanted {
        return Ok(());
    }
    if wanted {
        finalizers.push(name.to_owned());
    } else {
        finalizers.retain(|f| f != name);
    }
    let meta = object.meta();
    let change = serde_json::json!({"metadata": {"uid": meta.uid, "resourceVersion": meta.resource_version, "finalizers": finalizers}});
    let key = Key::of(object);
    let written = merge::<K>(ctx, operation, &key.name, &change).await?;
    let gone = written.as_ref().is_none_or(|o| o.meta().deletion_timestamp.is_some() && finalizers.is_empty());
    if gone {
        ctx.store::<K>().forget(&key, meta.uid.as_deref().unwrap_or_default());
    }
    Ok(())
}

fn observed<K>(ctx: &Context, object: Option<K>) -> Result<Option<K>>
where
    K: Cached + Resource<DynamicType = ()>,
{
    if let Some(object) = &object {
        ctx.store::<K>().observe(object.clone());
    }
    Ok(object)
}
