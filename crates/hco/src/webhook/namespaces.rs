//! The namespace of the HyperConverged object stays while the object is there.

use api::hco::HyperConverged;
use kit::admission::{Request, Verdict};
use kube::api::ListParams;
use kube::{Api, Client};

use super::deny;

pub(super) async fn judge(client: &Client, request: &Request, namespace: &str) -> Verdict {
    if request.name != namespace {
        return Verdict::allow();
    }
    let objects = Api::<HyperConverged>::namespaced(client.clone(), namespace);
    match objects.list_metadata(&ListParams::default().limit(1)).await {
        Ok(list) if list.items.is_empty() => Verdict::allow(),
        // Without the kind there is no object.
        Err(kube::Error::Api(status)) if status.code == 404 => Verdict::allow(),
        Ok(_) => {
            deny("HyperConverged CR is still present, please remove it before deleting the containing hcoNamespace")
        }
        Err(error) => deny(format!("cannot tell whether a HyperConverged object is left in the namespace: {error}")),
    }
}
