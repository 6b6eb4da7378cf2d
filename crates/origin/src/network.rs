//! Networks of other namespaces: whoever has a machine put on one has to be allowed to read the definition that it names.
//!
//! A name without a namespace means the machine's own, and the definitions of `default` are for everybody.

use std::collections::BTreeMap;

use k8s_openapi::api::authorization::v1::ResourceAttributes;
use kit::admission::UserInfo;
use kube::Client;
use serde_json::Value;

use crate::leave;

/// Definitions of this namespace may be used from every other.
pub const SHARED: &str = "default";

/// Annotations by which a pod asks for networks, in the words of the Network Plumbing Working Group.
const ASKED: [&str; 2] = ["k8s.v1.cni.cncf.io/networks", "v1.multus-cni.io/default-network"];

/// A definition of another namespace.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Foreign {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What `name`, `[NAMESPACE/]NAME`, means in the namespace `own`, if that is a definition which is not for everybody there.
pub fn foreign(name: &str, own: &str) -> Option<Foreign> {
    let (namespace, name) = name.split_once('/')?;
    let other = namespace != own && namespace != SHARED;
    other.then(|| Foreign { namespace: namespace.to_owned(), name: name.to_owned() })
}

/// Whether `user` may read the definition of `network`.
///
/// # Errors
/// When the cluster cannot be asked.
pub async fn may_read(client: &Client, user: &UserInfo, network: &Foreign) -> kube::Result<bool> {
    let attributes = ResourceAttributes {
        group: Some("k8s.cni.cncf.io".to_owned()),
        version: Some("v1".to_owned()),
        resource: Some("network-attachment-definitions".to_owned()),
        verb: Some("get".to_owned()),
        namespace: Some(network.namespace.clone()),
        name: Some(network.name.clone()),
        ..ResourceAttributes::default()
    };
    leave::allowed(client, user, attributes).await
}

/// Takes out of `annotations`, which a user wrote and a pod in the namespace `own` is to get, what asks for networks of other namespaces: a
/// component makes that pod, and nobody asks whether the user might.
pub fn keep_own(annotations: &mut BTreeMap<String, String>, own: &str) {
    annotations.retain(|key, value| is_own(key, value, own));
}

/// Whether an annotation asks for no network of another namespace than `own`.
pub fn is_own(key: &str, value: &str, own: &str) -> bool {
    !ASKED.contains(&key) || asks_for_own(value, own)
}

/// Whether every network that is asked for is of `own` or everybody's. What cannot be read may mean anything.
fn asks_for_own(text: &str, own: &str) -> bool {
    let text = text.trim();
    let is_own = |namespace: &str| [own, SHARED, ""].contains(&namespace);
    if !text.starts_with(['[', '{']) {
        return text.split(',').map(str::trim).all(|one| one.split_once('/').is_none_or(|(at, _)| is_own(at)));
    }
    let Ok(Value::Array(all)) = serde_json::from_str(text) else { return false };
    all.iter().all(|one| {
        // Readers in Go take a key in any case, and letters that fold to ASCII.
        let plain = |key: &String| key.is_ascii() && (*key == key.to_ascii_lowercase() || !is_name(key));
        let known = one.as_object().is_some_and(|one| one.keys().all(plain));
        known
            && match (&one["name"], &one["namespace"]) {
                (Value::String(name), Value::Null) => !name.contains('/'),
                (Value::String(name), Value::String(namespace)) => !name.contains('/') && is_own(namespace),
                _ => false,
            }
    })
}

fn is_name(key: &str) -> bool {
    ["name", "namespace"].iter().any(|name| name.eq_ignore_ascii_case(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_other_namespaces_are_foreign() {
        let check = |name: &str, expect: Option<(&str, &str)>| {
            let found = foreign(name, "own");
            assert_eq!(found.as_ref().map(|f| (f.namespace.as_str(), f.name.as_str())), expect, "{name}");
        };
        check("red", None);
        check("own/red", None);
        check("default/red", None);
        check("victim/red", Some(("victim", "red")));
        check("/red", Some(("", "red")));
    }

    #[test]
    fn a_pod_that_somebody_else_makes_is_on_no_network_of_another_namespace() {
        let check = |text: &str, expect: bool| {
            for key in ASKED {
                let mut annotations = BTreeMap::from([(key.to_owned(), text.to_owned())]);
                keep_own(&mut annotations, "own");
                assert_eq!(!annotations.is_empty(), expect, "{key}: {text}");
            }
        };
        for kept in [
            "red",
            "own/red, default/blue@eth7",
            "",
            "[]",
            r#"[{"name": "red"}, {"name": "b", "namespace": "own"}, {"name": "c", "namespace": ""}]"#,
            r#" [{"name": "red", "namespace": "default", "interface": "net1", "portMappings": []}]"#,
        ] {
            check(kept, true);
        }
        for taken in [
            "victim/red",
            "red,victim/red@eth1",
            " victim/red ",
            r#"[{"name": "red"}, {"name": "red", "namespace": "victim"}]"#,
            r#"[{"name": "victim/red"}]"#,
            r#"[{"name": "red", "namespace": 1}]"#,
            r#"[{"Name": "red", "NAMESPACE": "victim"}]"#,
            r#"[{"name": "red", "Namespace": "victim"}]"#,
            r#"[{"name": "red", "namespace": "own", "nameſpace": "victim"}]"#,
            r#"{"name": "red", "namespace": "victim"}"#,
            "[victim/red]",
        ] {
            check(taken, false);
        }
        let mut other = BTreeMap::from([("note".to_owned(), "victim/red".to_owned())]);
        keep_own(&mut other, "own");
        assert_eq!(other.len(), 1);
    }
}
