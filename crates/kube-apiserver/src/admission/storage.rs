//! Plugins of the storage kinds: DefaultStorageClass, StorageObjectInUseProtection, PersistentVolumeClaimResize.

use std::sync::Arc;

use meta::quantity::nanos;
use serde_json::{Value, json};

use apimachinery::error::ApiError;
use apimachinery::pointer::text;

use super::{Attributes, Operation};
use crate::view::View;

/// What marks the class of claims that name none; the second spelling is older and still used.
const DEFAULT_CLASS: [&str; 2] = [
    "/metadata/annotations/storageclass.kubernetes.io~1is-default-class",
    "/metadata/annotations/storageclass.beta.kubernetes.io~1is-default-class",
];
const BETA_CLASS: &str = "/metadata/annotations/volume.beta.kubernetes.io~1storage-class";

fn is(attributes: &Attributes, plural: &str) -> bool {
    is_of(attributes, "", plural)
}

fn is_of(attributes: &Attributes, group: &str, plural: &str) -> bool {
    let resource = &attributes.resource;
    resource.group == group && resource.plural == plural && attributes.info.subresource.is_empty()
}

/// Gives a new claim the default class; and claims, volumes and classes of attributes the finalizer that keeps them while in
/// use.
pub(super) fn mutate(view: &dyn View, attributes: &mut Attributes) {
    if attributes.operation != Operation::Create {
        return;
    }
    let finalizer = if is(attributes, "persistentvolumeclaims") {
        "kubernetes.io/pvc-protection"
    } else if is(attributes, "persistentvolumes") {
        "kubernetes.io/pv-protection"
    } else if is_of(attributes, "storage.k8s.io", "volumeattributesclasses") {
        "kubernetes.io/vac-protection"
    } else {
        return;
    };
    let claim = is(attributes, "persistentvolumeclaims");
    let Some(object) = &mut attributes.object else { return };
    match object.pointer_mut("/metadata/finalizers") {
        Some(Value::Array(list)) if list.iter().any(|known| known == finalizer) => {}
        Some(Value::Array(list)) => list.push(finalizer.into()),
        _ => object["metadata"]["finalizers"] = json!([finalizer]),
    }
    let names_none =
        object.pointer("/spec/storageClassName").is_none_or(Value::is_null) && text(object, BETA_CLASS).is_empty();
    if claim
        && names_none
        && let Some(class) = default_class(&view.list("storage.k8s.io", "storageclasses", ""))
    {
        object["spec"]["storageClassName"] = class.into();
    }
}

/// The default class: the one made last, and of several made in one second the first by name.
fn default_class(classes: &[Arc<Value>]) -> Option<String> {
    let marked = |class: &&Arc<Value>| DEFAULT_CLASS.iter().any(|at| text(class, at) == "true");
    let made = |class: &Arc<Value>| text(class, "/metadata/creationTimestamp").to_owned();
    let name = |class: &Arc<Value>| text(class, "/metadata/name").to_owned();
    let newest = classes.iter().filter(marked).max_by(|a, b| made(a).cmp(&made(b)).then_with(|| name(b).cmp(&name(a))));
    newest.map(name)
}

/// A claim grows only when it is bound and its class says that it may.
///
/// # Errors
/// 403 for any other.
pub(super) fn check(view: &dyn View, attributes: &Attributes) -> Result<(), ApiError> {
    if attributes.operation != Operation::Update || !is(attributes, "persistentvolumeclaims") {
        return Ok(());
    }
    let (Some(new), Some(old)) = (&attributes.object, &attributes.old) else { return Ok(()) };
    let size = |claim: &Value| nanos(text(claim, "/spec/resources/requests/storage")).unwrap_or(0);
    if size(new) <= size(old) {
        return Ok(());
    }
    let refuse = |why: &str| {
        let resource = &attributes.resource;
        Err(ApiError::forbidden(&resource.group, &resource.plural, &attributes.name, why))
    };
    if text(old, "/status/phase") != "Bound" {
        return refuse("Only bound persistent volume claims can be expanded");
    }
    let annotated = text(old, BETA_CLASS);
    let class = if annotated.is_empty() { text(old, "/spec/storageClassName") } else { annotated };
    let class = view.get("storage.k8s.io", "storageclasses", "", class).filter(|_| !class.is_empty());
    if class.is_some_and(|class| class["allowVolumeExpansion"] == true) {
        return Ok(());
    }
    refuse(
        "only dynamically provisioned pvc can be resized and the storageclass that provisions the pvc must support resize",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_newest_default_wins() {
        let class = |name: &str, made: &str, key: &str, value: &str| {
            Arc::new(json!({"metadata": {"name": name, "creationTimestamp": made, "annotations": {key: value}}}))
        };
        let (ga, beta) =
            ("storageclass.kubernetes.io/is-default-class", "storageclass.beta.kubernetes.io/is-default-class");
        let classes = [
            class("old", "2026-01-01T00:00:00Z", ga, "true"),
            class("newest-but-not", "2026-01-03T00:00:00Z", ga, "false"),
            class("b", "2026-01-02T00:00:00Z", beta, "true"),
            class("a", "2026-01-02T00:00:00Z", ga, "true"),
        ];
        assert_eq!(default_class(&classes).as_deref(), Some("a"));
        assert_eq!(default_class(&classes[..1]).as_deref(), Some("old"));
        assert_eq!(default_class(&classes[1..2]), None);
    }
}
