//! The labels that these controllers write, and those that they take over from images. Pure.

use std::collections::BTreeMap;

use api::cdi::constants::label;

/// What the labels of an object say that this controller made.
pub fn labels(component: &str) -> BTreeMap<String, String> {
    [
        (label::APP, label::APP_VALUE),
        (label::COMPONENT, component),
        (label::MANAGED_BY, "cdi-controller"),
        (label::K8S_COMPONENT, "storage"),
    ]
    .into_iter()
    .filter(|(_, value)| !value.is_empty())
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .collect()
}

/// True for a label that an image may say of itself: one of KubeVirt's, and none that means something to these controllers.
pub fn of_image(name: &str) -> bool {
    let theirs = |prefix: &str| prefix == "kubevirt.io" || prefix.ends_with(".kubevirt.io");
    name.split_once('/').is_some_and(|(prefix, _)| theirs(prefix) && prefix != label::COMPONENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_of_an_image_are_kubevirts_but_not_those_of_these_controllers() {
        for name in ["kubevirt.io/x", "test.kubevirt.io/test", "instancetype.kubevirt.io/default-instancetype"] {
            assert!(of_image(name), "{name}");
        }
        for name in ["cdi.kubevirt.io/dataImportCron", "mykubevirt.io/x", "app", "kubevirt.io"] {
            assert!(!of_image(name), "{name}");
        }
    }
}
