//! Which requests need no person to approve them: those of nodes, for certificates of nodes.
//!
//! A client certificate is approved for whoever may `create` the subresource `selfnodeclient` of signing requests (for a
//! node itself) or `nodeclient` (for any node); a serving certificate for the node itself, and for the hosts it was made
//! with. What the Node's status says of its addresses does not count: the node writes that itself.

use serde_json::Value;

use apimachinery::pointer::{strings, text};
use apimachinery::request::{RequestInfo, User};

use super::signer::{NODE, NODES, Signer};
use crate::authz::Authorizer;
use crate::csr::Request;

/// Why the request is approved; None when somebody has to look at it.
pub(super) fn of(
    authorizer: &Authorizer,
    csr: &Value,
    signer: Signer,
    request: &Request,
    hosts_of: impl Fn(&str) -> Option<Vec<String>>,
) -> Option<&'static str> {
    signer.check(request, &strings(csr, "/spec/usages")).ok()?;
    let user = requestor(csr);
    let own = user.name == request.common_name();
    match signer {
        Signer::KubeletClient if own && may(authorizer, &user, "selfnodeclient") => {
            Some("Auto approving self kubelet client certificate after SubjectAccessReview.")
        }
        Signer::KubeletClient if may(authorizer, &user, "nodeclient") => {
            Some("Auto approving kubelet client certificate after SubjectAccessReview.")
        }
        Signer::KubeletServing if own && serves(&user, request, hosts_of) => {
            Some("Auto approving the serving certificate of the node that asks for it.")
        }
        _ => None,
    }
}

/// Who asked, as the server noted it.
fn requestor(csr: &Value) -> User {
    let extra = csr.pointer("/spec/extra").cloned().unwrap_or_default();
    User {
        name: text(csr, "/spec/username").to_owned(),
        uid: text(csr, "/spec/uid").to_owned(),
        groups: strings(csr, "/spec/groups"),
        extra: serde_json::from_value(extra).unwrap_or_default(),
    }
}

fn may(authorizer: &Authorizer, user: &User, subresource: &str) -> bool {
    let wanted = RequestInfo {
        verb: "create".into(),
        group: "certificates.k8s.io".into(),
        version: "*".into(),
        resource: "certificatesigningrequests".into(),
        subresource: subresource.into(),
        ..RequestInfo::default()
    };
    authorizer.allows(user, &wanted)
}

/// Whether a node asks for no host but those it was made with.
fn serves(user: &User, request: &Request, hosts_of: impl Fn(&str) -> Option<Vec<String>>) -> bool {
    let Some(name) = user.name.strip_prefix(NODE).filter(|_| user.groups.iter().any(|group| group == NODES)) else {
        return false;
    };
    hosts_of(name).is_some_and(|known| request.hosts().iter().all(|host| known.contains(host)))
}
