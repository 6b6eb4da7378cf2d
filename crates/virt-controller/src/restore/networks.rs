//! Networks of other namespaces that a restored or copied machine is to be on.
//!
//! Whoever writes a machine is asked for them at admission. Here this controller writes it, for somebody who wrote a snapshot's content or
//! patches: a network stays where a machine of the namespace is on it, whose writer was asked, and for any other the machine's account is.

use std::collections::BTreeSet;

use api::kubevirt::v1::VirtualMachine;
use origin::leave;
use origin::network::{self, Foreign, SHARED};

use crate::context::Context;
use crate::error::Error;

/// The networks of other namespaces that `vm` of `namespace` is to be on.
fn foreign(vm: &VirtualMachine, namespace: &str) -> BTreeSet<Foreign> {
    let networks = vm.spec.template.spec.iter().flat_map(|spec| &spec.networks);
    let names = networks.filter_map(|network| Some(network.multus.as_ref()?.network_name.as_str()));
    names.filter_map(|name| network::foreign(name, namespace)).collect()
}

/// Why `wanted` may not be made in `namespace`, where the machines `held` are; none when it may.
pub(super) async fn refusal(
    context: &Context,
    wanted: &VirtualMachine,
    held: &[&VirtualMachine],
    namespace: &str,
) -> Result<Option<String>, Error> {
    let known: BTreeSet<Foreign> = held.iter().flat_map(|vm| foreign(vm, namespace)).collect();
    let user = leave::account_of(wanted, namespace);
    for network in foreign(wanted, namespace).difference(&known) {
        let asked = network::may_read(&context.client, &user, network).await;
        if !asked.map_err(Error::api("ask for the permissions of", "user", "", &user.username))? {
            let (Foreign { namespace: at, name }, user) = (network, &user.username);
            return Ok(Some(format!(
                "network {at}/{name} is of another namespace, and User {user:?} cannot get resource \
                 \"network-attachment-definitions\" in API group \"k8s.cni.cncf.io\" there: name one of the machine's own \
                 namespace or of {SHARED}, or let that account read the definition"
            )));
        }
    }
    Ok(None)
}
