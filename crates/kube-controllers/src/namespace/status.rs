//! What a namespace being deleted still holds, as its conditions. Pure.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::NamespaceCondition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use meta::conditions;

/// What is left after everything was told to go.
#[derive(Debug, Default)]
pub(crate) struct Left {
    /// `pods` -> how many.
    pub(crate) objects: BTreeMap<String, usize>,
    /// Finalizer -> on how many objects.
    pub(crate) finalizers: BTreeMap<String, usize>,
    /// Refusals to delete.
    pub(crate) failures: Vec<String>,
    /// Why discovery failed.
    pub(crate) discovery: Option<String>,
}

impl Left {
    /// Nothing at all, and that is certain.
    pub(crate) fn is_empty(&self) -> bool {
        self.objects.is_empty() && self.failures.is_empty() && self.discovery.is_none()
    }
}

/// The conditions for what is left; those of others are kept, unchanged ones keep their time.
pub(crate) fn conditions(old: &[NamespaceCondition], left: &Left, now: &Time) -> Vec<NamespaceCondition> {
    let list = |counts: &BTreeMap<String, usize>, word: &str| {
        let parts = counts.iter().map(|(name, count)| format!("{name} {word} {count} resource instances"));
        parts.collect::<Vec<_>>().join(", ")
    };
    let state = |bad: bool| if bad { "True" } else { "False" };
    let wanted = [
        match &left.discovery {
            Some(why) => ("NamespaceDeletionDiscoveryFailure", "True", "DiscoveryFailed", why.clone()),
            None => (
                "NamespaceDeletionDiscoveryFailure",
                "False",
                "ResourcesDiscovered",
                "All resources successfully discovered".into(),
            ),
        },
        (
            "NamespaceDeletionGroupVersionParsingFailure",
            "False",
            "ParsedGroupVersions",
            "All legacy kube types successfully parsed".into(),
        ),
        if left.failures.is_empty() {
            let text = "All content successfully deleted, may be waiting on finalization";
            ("NamespaceDeletionContentFailure", "False", "ContentDeleted", text.into())
        } else {
            let text = format!(
                "Failed to delete all resource types, {} remaining: {}",
                left.failures.len(),
                left.failures.join(", ")
            );
            ("NamespaceDeletionContentFailure", "True", "ContentDeletionFailed", text)
        },
        if left.objects.is_empty() {
            ("NamespaceContentRemaining", "False", "ContentRemoved", "All content successfully removed".into())
        } else {
            let text = format!("Some resources are remaining: {}", list(&left.objects, "has"));
            ("NamespaceContentRemaining", "True", "SomeResourcesRemain", text)
        },
        if left.finalizers.is_empty() {
            let text = "All content-preserving finalizers finished";
            ("NamespaceFinalizersRemaining", "False", "ContentHasNoFinalizers", text.into())
        } else {
            let text =
                format!("Some content in the namespace has finalizers remaining: {}", list(&left.finalizers, "in"));
            ("NamespaceFinalizersRemaining", state(true), "SomeFinalizersRemain", text)
        },
    ];
    let foreign = old.iter().filter(|c| !wanted.iter().any(|w| w.0 == c.type_)).cloned();
    let ours = wanted.iter().map(|(type_, status, reason, message)| {
        conditions::said(old, type_, status, Some(reason), Some(message.as_str()), now)
    });
    foreign.chain(ours).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remaining_objects_and_finalizers_are_in_the_conditions() {
        let now = kit::clock::time();
        let left = Left {
            objects: BTreeMap::from([("pods".into(), 2)]),
            finalizers: BTreeMap::from([("example.com/hold".into(), 1)]),
            ..Left::default()
        };
        let conditions = conditions(&[], &left, &now);
        let text = |type_: &str| {
            let c = conditions.iter().find(|c| c.type_ == type_).unwrap();
            format!("{} {}", c.status, c.message.clone().unwrap())
        };
        assert_eq!(
            text("NamespaceContentRemaining"),
            "True Some resources are remaining: pods has 2 resource instances"
        );
        assert_eq!(
            text("NamespaceFinalizersRemaining"),
            "True Some content in the namespace has finalizers remaining: example.com/hold in 1 resource instances"
        );
        assert_eq!(text("NamespaceDeletionContentFailure").split(' ').next(), Some("False"));
        assert_eq!(super::conditions(&conditions, &left, &kit::clock::time()), conditions);
    }
}
