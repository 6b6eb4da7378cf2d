//! Which networks a pod asks for, in both forms of the annotation. Pure.
//!
//! `net-a, other/net-b@eth1` or `[{"name": "net-a"}, {"name": "net-b", "namespace": "other"}]`

use serde::Deserialize;
use serde_json::Value;

/// The annotation.
pub const ANNOTATION: &str = "k8s.v1.cni.cncf.io/networks";
/// More networks than any node has interfaces for.
const MOST: usize = 64;

/// A NetworkAttachmentDefinition.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Network {
    pub(super) namespace: String,
    pub(super) name: String,
}

impl std::fmt::Display for Network {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "the NetworkAttachmentDefinition {}/{}", self.namespace, self.name)
    }
}

#[derive(Deserialize)]
struct Element {
    name: String,
    #[serde(default)]
    namespace: String,
}

/// The networks of `pod`, which is made in `namespace`: one for each interface, so that one may be there twice.
///
/// # Errors
/// A sentence for the pod's owner.
pub(super) fn of(pod: &Value, namespace: &str) -> Result<Vec<Network>, String> {
    let annotations = &pod["metadata"]["annotations"];
    let text = annotations[ANNOTATION].as_str().unwrap_or_default().trim();
    let refuse = |what: &str| format!("annotation {ANNOTATION}: {what}");
    let elements: Vec<Element> = if text.starts_with('[') {
        serde_json::from_str(text).map_err(|error| refuse(&format!("not a JSON list of networks: {error}")))?
    } else {
        let items = text.split(',').map(str::trim).filter(|item| !item.is_empty());
        let short = |item: &str| {
            let path = item.split_once('@').map_or(item, |(path, _)| path);
            let (namespace, name) = path.split_once('/').unwrap_or(("", path));
            Element { name: name.to_owned(), namespace: namespace.to_owned() }
        };
        items.map(short).collect()
    };
    if elements.len() > MOST {
        return Err(refuse(&format!("{} networks are asked for, and {MOST} are the most", elements.len())));
    }
    let network = |element: Element| {
        let namespace = if element.namespace.is_empty() { namespace.to_owned() } else { element.namespace };
        for (what, text) in [("name", &element.name), ("namespace", &namespace)] {
            if !is_name(text) {
                return Err(refuse(&format!("{text:?} is not the {what} of a NetworkAttachmentDefinition")));
            }
        }
        Ok(Network { namespace, name: element.name })
    };
    elements.into_iter().map(network).collect()
}

/// The name of an object, and so one step of a path.
fn is_name(text: &str) -> bool {
    let good = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    !text.is_empty() && text.len() <= 253 && text.chars().all(good) && !text.starts_with(['-', '.'])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn pod(annotation: &str) -> Value {
        json!({ "metadata": { "annotations": { (ANNOTATION): annotation } } })
    }

    #[track_caller]
    fn check(annotation: &str, expect: Result<&[&str], &str>) {
        match (of(&pod(annotation), "own"), expect) {
            (Ok(found), Ok(expect)) => {
                let shown: Vec<String> = found.iter().map(|one| format!("{}/{}", one.namespace, one.name)).collect();
                assert_eq!(shown, expect);
            }
            (Err(error), Err(expect)) => assert!(error.contains(expect), "{error}"),
            (found, _) => panic!("{annotation}: {found:?}"),
        }
    }

    #[test]
    fn both_forms_are_understood() {
        check("", Ok(&[]));
        check("a, other/b@eth1,a", Ok(&["own/a", "other/b", "own/a"]));
        check(r#"[{"name":"a","interface":"x"},{"name":"b","namespace":"other"}]"#, Ok(&["own/a", "other/b"]));
    }

    #[test]
    fn what_is_no_list_of_networks_is_refused() {
        check("[1]", Err("not a JSON list"));
        check("[", Err("not a JSON list"));
        check("../secrets/x", Err("is not the"));
        check(r#"[{"name":"a/../b"}]"#, Err("is not the name"));
        check(&vec!["a"; 65].join(","), Err("65 networks are asked for"));
    }

    proptest! {
        #[test]
        fn no_text_makes_it_fail_otherwise(text in ".*") {
            for network in of(&pod(&text), "own").unwrap_or_default() {
                prop_assert!(is_name(&network.name) && is_name(&network.namespace));
            }
        }
    }
}
