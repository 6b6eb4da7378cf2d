//! Taking away what was installed.

use futures::{StreamExt, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::apply;

const AT_ONCE: usize = 8;

/// Deletes the definitions that are left of `names`; true when none is. With a definition go its objects, which their
/// controllers finish: until then they are to run.
///
/// # Errors
/// When the API server refuses.
pub async fn definitions_are_gone(client: &Client, names: &[&str]) -> Result<bool, apply::Error> {
    let api: Api<CustomResourceDefinition> = Api::all(client.clone());
    let list = api.list_metadata(&ListParams::default()).await.map_err(apply::failed("list", "CRDs"))?;
    let left: Vec<_> = list.items.iter().filter(|crd| names.contains(&crd.name_any().as_str())).collect();
    for crd in left.iter().filter(|crd| crd.metadata.deletion_timestamp.is_none()) {
        apply::delete(client, &apply::crd(&crd.name_any())).await?;
    }
    Ok(left.is_empty())
}

/// Deletes what lies at `addresses`, several at a time and begun in their order; fails with the first failure after trying all.
/// Gone already is as good.
///
/// # Errors
/// When the API server refuses one.
pub async fn delete(client: &Client, addresses: &[String]) -> Result<(), apply::Error> {
    let requests: Vec<_> = addresses.iter().map(|address| apply::delete(client, address)).collect();
    let results: Vec<Result<(), apply::Error>> = stream::iter(requests).buffered(AT_ONCE).collect().await;
    results.into_iter().collect()
}
