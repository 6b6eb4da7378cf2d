//! The networks of a pod: which have an address, and which need one. Pure.

use serde_json::{Value, json};

use super::mac::Mac;

/// The annotation with the networks of a pod.
const NETWORKS: &str = "k8s.v1.cni.cncf.io/networks";
/// More networks than a node has interfaces for.
const MOST: usize = 256;

/// The networks of a pod, as its annotation lists them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Networks(Vec<Value>);

impl Networks {
    /// Of `pod`. None where it asks for no network, or in a form that is not understood: whoever attaches networks refuses that.
    pub(super) fn of(pod: &Value) -> Option<Self> {
        let text = pod["metadata"]["annotations"][NETWORKS].as_str()?.trim();
        let list: Vec<Value> = if text.starts_with('[') {
            serde_json::from_str(text).ok()?
        } else {
            text.split(',').map(str::trim).filter(|item| !item.is_empty()).map(short).collect()
        };
        let good = !list.is_empty() && list.len() <= MOST && list.iter().all(Value::is_object);
        good.then_some(Networks(list))
    }

    /// The indexes of those without an address.
    pub(super) fn wanted(&self) -> Vec<usize> {
        let without =
            |(index, one): (usize, &Value)| one["mac"].as_str().unwrap_or_default().is_empty().then_some(index);
        self.0.iter().enumerate().filter_map(without).collect()
    }

    /// Addresses that the pod's owner chose.
    pub(super) fn given(&self) -> Vec<Mac> {
        self.0.iter().filter_map(|one| Mac::parse(one["mac"].as_str()?)).collect()
    }

    /// The patch of the pod that gives these their addresses; none when there are none to give.
    pub(super) fn patch(mut self, addresses: &[(usize, Mac)]) -> Option<Value> {
        if addresses.is_empty() {
            return None;
        }
        for (index, mac) in addresses {
            if let Some(network) = self.0.get_mut(*index) {
                network["mac"] = json!(mac.to_string());
            }
        }
        let key = NETWORKS.replace('/', "~1");
        let text = Value::Array(self.0).to_string();
        Some(json!([{ "op": "replace", "path": format!("/metadata/annotations/{key}"), "value": text }]))
    }
}

/// `[NAMESPACE/]NAME[@INTERFACE]`
fn short(item: &str) -> Value {
    let (path, interface) = item.split_once('@').unwrap_or((item, ""));
    let (namespace, name) = path.split_once('/').unwrap_or(("", path));
    let mut one = json!({ "name": name });
    for (field, text) in [("namespace", namespace), ("interface", interface)] {
        if !text.is_empty() {
            one[field] = json!(text);
        }
    }
    one
}

/// Every address that a pod's annotations name.
pub(super) fn addresses(pod: &Value) -> Vec<Mac> {
    Networks::of(pod).map(|networks| networks.given()).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pod(annotation: &str) -> Value {
        json!({ "metadata": { "annotations": { (NETWORKS): annotation } } })
    }

    #[test]
    fn networks_without_an_address_get_one() {
        let networks = Networks::of(&pod(r#"[{"name":"a","mac":"02:00:00:00:00:01"},{"name":"b"}]"#)).unwrap();
        assert_eq!((networks.wanted(), networks.given().len()), (vec![1], 1));
        let patch = networks.patch(&[(1, Mac::parse("02:00:00:00:00:02").unwrap())]).unwrap();
        let text = patch[0]["value"].as_str().unwrap();
        let expect = json!([{ "name": "a", "mac": "02:00:00:00:00:01" }, { "name": "b", "mac": "02:00:00:00:00:02" }]);
        assert_eq!(serde_json::from_str::<Value>(text).unwrap(), expect);
        assert_eq!(patch[0]["path"], "/metadata/annotations/k8s.v1.cni.cncf.io~1networks");
    }

    #[test]
    fn the_short_form_becomes_a_list() {
        let networks = Networks::of(&pod("a, other/b@eth1")).unwrap();
        let expect = vec![json!({ "name": "a" }), json!({ "name": "b", "namespace": "other", "interface": "eth1" })];
        assert_eq!(networks, Networks(expect));
    }

    #[test]
    fn what_is_not_understood_is_left_alone() {
        for text in ["", "[", "[1]", "[]", &format!("[{}]", vec!["{}"; 257].join(","))] {
            assert_eq!(Networks::of(&pod(text)), None);
        }
        assert_eq!(Networks::of(&json!({})), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_fail(text in ".*") {
            if let Some(networks) = Networks::of(&pod(&text)) {
                prop_assert!(networks.wanted().len() <= MOST);
            }
        }
    }
}
