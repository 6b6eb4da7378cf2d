//! Sets and pools that name what only some may use, and that were stored while there were no webhooks: nobody asked whether their writer may, and
//! what is made of them, this controller makes, whom nobody asks.
//!
//! What disks are copied from is asked for by each machine's own account when the copy is made.

use api::kubevirt::v1::VirtualMachineInstanceSpec;
use kit::store::Key;
use kube::core::NamespaceResourceScope;
use kube::{Api, Client, Resource};
use origin::{leave, network};
use serde::de::DeserializeOwned;

use crate::error::Error;

/// Why nothing is made for `object`, of this kind, whose guests are to be `spec`. None when it names nothing of others, or whoever wrote it was
/// judged.
pub(crate) async fn bar<K>(
    client: &Client,
    (kind, object): (&'static str, &K),
    spec: Option<&VirtualMachineInstanceSpec>,
) -> Result<Option<String>, Error>
where
    K: Resource<Scope = NamespaceResourceScope, DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned,
{
    let Key { namespace, name } = Key::of(object);
    let networks = spec.into_iter().flat_map(|spec| &spec.networks).filter_map(|network| network.multus.as_ref());
    let Some(foreign) = networks.filter_map(|multus| network::foreign(&multus.network_name, &namespace)).next() else {
        return Ok(None);
    };
    // Who manages which fields is not kept here.
    let api: Api<K> = Api::namespaced(client.clone(), &namespace);
    let found = api.get_opt(&name).await.map_err(Error::api("read", kind, &namespace, &name))?;
    let Some(found) = found.filter(|found| found.meta().uid == object.meta().uid) else {
        return Ok(Some(format!("nothing is made: {kind} {namespace}/{name} is gone")));
    };
    let judged = leave::is_judged(client, found.meta()).await;
    if judged.map_err(Error::api("read", "mutatingwebhookconfiguration", "", leave::WEBHOOKS))? {
        return Ok(None);
    }
    Ok(Some(format!(
        "nothing is made: {kind} {namespace}/{name} names network {}/{} of another namespace, and was stored while nobody \
         asked whether its writer may use that: write its spec anew, or make it anew",
        foreign.namespace, foreign.name
    )))
}
