//! Networks of other namespaces: whoever writes a machine has to be allowed to read the definition that it names.
//!
//! A name without a namespace means the machine's own, and the definitions of `default` are for everybody. What was allowed
//! once stays in the machine; a VMI that virt-controller makes is of a VM whose writer was asked about.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kit::Chain;
use kit::admission::{Cause, Request, UserInfo, Verdict};
use kube::api::PostParams;
use kube::{Api, Client};
use serde_json::Value;

/// Definitions of this namespace may be used from every other.
const SHARED: &str = "default";

/// `verdict`, unless it allows a machine onto a network that its writer may not use.
pub(crate) async fn judge(client: &Client, request: &Request, verdict: Verdict) -> Verdict {
    if !matches!(verdict, Verdict::Allow { .. }) {
        return verdict;
    }
    let mut causes = Vec::new();
    for foreign in foreign(request) {
        match may_read(client, &request.user_info, &foreign).await {
            Ok(true) => {}
            Ok(false) => causes.push(foreign.refusal(&request.user_info.username)),
            Err(error) => {
                let message = format!(
                    "cannot ask whether {} may use the network {}/{}: {}",
                    request.user_info.username,
                    foreign.namespace,
                    foreign.name,
                    Chain(&error)
                );
                return Verdict::Deny { code: 500, reason: "InternalError", message };
            }
        }
    }
    if causes.is_empty() { verdict } else { Verdict::Invalid(causes) }
}

/// A definition of another namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Foreign {
    field: String,
    namespace: String,
    name: String,
}

impl Foreign {
    fn refusal(&self, user: &str) -> Cause {
        let Foreign { field, namespace, name } = self;
        let message = format!(
            "{field} {namespace}/{name} is of another namespace, and User {user:?} cannot get resource \
             \"network-attachment-definitions\" in API group \"k8s.cni.cncf.io\" there: name one of the machine's own namespace or of {SHARED}"
        );
        Cause { reason: "FieldValueForbidden", field: field.clone(), message }
    }
}

/// The definitions that a write adds. Pure.
fn foreign(request: &Request) -> Vec<Foreign> {
    let path = if request.object.pointer("/spec/template").is_some() { "spec.template.spec" } else { "spec" };
    let pointer = format!("/{}/networks", path.replace('.', "/"));
    let names = |object: &Value| -> Vec<String> {
        let all = object.pointer(&pointer).and_then(Value::as_array).into_iter().flatten();
        let name = |network: &Value| network.pointer("/multus/networkName").and_then(Value::as_str).map(str::to_owned);
        all.map(|network| name(network).unwrap_or_default()).collect()
    };
    let held = names(&request.old_object);
    let new = names(&request.object).into_iter().enumerate().filter(|(_, name)| !held.contains(name));
    new.filter_map(|(index, name)| {
        let (namespace, name) = name.split_once('/')?;
        let field = format!("{path}.networks[{index}].multus.networkName");
        let other = namespace != request.namespace && namespace != SHARED;
        other.then(|| Foreign { field, namespace: namespace.to_owned(), name: name.to_owned() })
    })
    .collect()
}

async fn may_read(client: &Client, user: &UserInfo, network: &Foreign) -> kube::Result<bool> {
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.username.clone()),
            uid: Some(user.uid.clone()).filter(|uid| !uid.is_empty()),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                group: Some("k8s.cni.cncf.io".to_owned()),
                version: Some("v1".to_owned()),
                resource: Some("network-attachment-definitions".to_owned()),
                verb: Some("get".to_owned()),
                namespace: Some(network.namespace.clone()),
                name: Some(network.name.clone()),
                ..Default::default()
            }),
            ..Default::default()
        },
        ..Default::default()
    };
    let api: Api<SubjectAccessReview> = Api::all(client.clone());
    let answer = api.create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed && status.denied != Some(true)))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn own_and_shared_networks_are_nobodys_question() {
        let vm = |names: &[&str]| {
            let networks: Vec<_> = names.iter().map(|name| json!({ "multus": { "networkName": name } })).collect();
            json!({ "spec": { "template": { "spec": { "networks": networks } } } })
        };
        let check = |old: Value, new: &[&str], expect: &[(usize, &str)]| {
            let request = Request { namespace: "own".into(), object: vm(new), old_object: old, ..Request::default() };
            let found: Vec<_> = foreign(&request).into_iter().map(|f| (f.field, f.namespace)).collect();
            let field = |index: &usize| format!("spec.template.spec.networks[{index}].multus.networkName");
            let expect: Vec<_> = expect.iter().map(|(index, of)| (field(index), (*of).to_owned())).collect();
            assert_eq!(found, expect);
        };
        check(Value::Null, &["red", "own/red", "default/red"], &[]);
        check(Value::Null, &["red", "victim/red"], &[(1, "victim")]);
        // What is there was allowed to somebody.
        check(vm(&["victim/red"]), &["victim/red", "red"], &[]);
        check(vm(&["victim/red"]), &["victim/blue"], &[(0, "victim")]);
        let vmi = json!({ "spec": { "networks": [{ "multus": { "networkName": "victim/red" } }] } });
        let request = Request { namespace: "own".into(), object: vmi, ..Request::default() };
        assert_eq!(foreign(&request)[0].field, "spec.networks[0].multus.networkName");
    }
}
