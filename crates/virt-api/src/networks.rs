//! Networks of other namespaces: whoever writes a machine has to be allowed to read the definition that it names.
//!
//! A name without a namespace means the machine's own, and the definitions of `default` are for everybody. What was allowed
//! once stays in the machine; a VMI that virt-controller makes is of a VM whose writer was asked about.

use kit::Chain;
use kit::admission::{Cause, Request, Verdict};
use kube::Client;
use origin::network::{self, Foreign, SHARED};
use serde_json::Value;

/// `verdict`, unless it allows a machine onto a network that its writer may not use.
pub(crate) async fn judge(client: &Client, request: &Request, verdict: Verdict) -> Verdict {
    if !matches!(verdict, Verdict::Allow { .. }) {
        return verdict;
    }
    let mut causes = Vec::new();
    for (field, foreign) in foreign(request) {
        match network::may_read(client, &request.user_info, &foreign).await {
            Ok(true) => {}
            Ok(false) => causes.push(refusal(field, &foreign, &request.user_info.username)),
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

fn refusal(field: String, network: &Foreign, user: &str) -> Cause {
    let Foreign { namespace, name } = network;
    let message = format!(
        "{field} {namespace}/{name} is of another namespace, and User {user:?} cannot get resource \
         \"network-attachment-definitions\" in API group \"k8s.cni.cncf.io\" there: name one of the machine's own namespace or of {SHARED}"
    );
    Cause { reason: "FieldValueForbidden", field, message }
}

/// The definitions that a write adds, each with its field. Pure.
fn foreign(request: &Request) -> Vec<(String, Foreign)> {
    let path = if request.object.pointer("/spec/template").is_some() { "spec.template.spec" } else { "spec" };
    let pointer = format!("/{}/networks", path.replace('.', "/"));
    let held = names(&request.old_object, &pointer);
    let new = names(&request.object, &pointer).into_iter().enumerate().filter(|(_, name)| !held.contains(name));
    new.filter_map(|(index, name)| {
        let found = network::foreign(&name, &request.namespace)?;
        Some((format!("{path}.networks[{index}].multus.networkName"), found))
    })
    .collect()
}

/// The definitions that the networks at `pointer` name; an empty one where one names none.
fn names(object: &Value, pointer: &str) -> Vec<String> {
    let all = object.pointer(pointer).and_then(Value::as_array).into_iter().flatten();
    let name = |network: &Value| network.pointer("/multus/networkName").and_then(Value::as_str).map(str::to_owned);
    all.map(|network| name(network).unwrap_or_default()).collect()
}

/// True when any of the networks at `pointer` is of another namespace than `own`.
pub(crate) fn of_others(object: &Value, pointer: &str, own: &str) -> bool {
    names(object, pointer).iter().any(|name| network::foreign(name, own).is_some())
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
            let found: Vec<_> = foreign(&request).into_iter().map(|(field, found)| (field, found.namespace)).collect();
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
        assert_eq!(foreign(&request)[0].0, "spec.networks[0].multus.networkName");
    }
}
