//! The template that a machine says it was made of, and who may follow that reference.
//!
//! The machine's labels name the template, its namespace among them, and whoever makes the machine writes what they like. The
//! answer of the webhook quotes rules. So a reference is followed to a template
//!
//! * of the machine's own namespace, whose tenants are the same;
//! * of the namespace of the common templates, which are there for everybody;
//! * of any other namespace, when the API server says that who asks may read it there.
//!
//! Whether there is such a template in somebody else's namespace, nobody learns.

use k8s_openapi::api::authorization::v1::{ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec};
use kit::admission::UserInfo;
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::Value;

use crate::words;

/// Kinds of templates, in the order in which they are looked at.
const KINDS: [(&str, &str, &str, &str); 2] = [
    (words::OPENSHIFT.0, "v1", "Template", words::OPENSHIFT.1),
    (words::KUBEVIRT.0, "v1alpha1", "VirtualMachineTemplate", words::KUBEVIRT.1),
];

/// A template, by its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

/// What following a reference came to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Found {
    /// The rules of the template; none where it has none, or is not there.
    Rules(Option<String>),
    /// Who asks may not know.
    Closed,
}

/// What the object's metadata say, in labels before annotations; none when they name no template, or none that there can be.
pub fn reference(object: &Value) -> Option<Reference> {
    let of = |all: &Value| {
        let said = |key: &str| all[key].as_str().filter(|text| is_name(text)).map(str::to_owned);
        let namespace = said(words::TEMPLATE_NAMESPACE).or_else(|| said(words::TEMPLATE_NAMESPACE_OLD))?;
        Some(Reference { namespace, name: said(words::TEMPLATE)? })
    };
    of(&object["metadata"]["labels"]).or_else(|| of(&object["metadata"]["annotations"]))
}

/// Only what can be the name of an object becomes part of a request.
fn is_name(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-' || byte == b'.';
    let outer = |byte: Option<&u8>| byte.is_some_and(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
    let bytes = text.as_bytes();
    text.len() <= 253 && bytes.iter().all(|byte| inner(*byte)) && outer(bytes.first()) && outer(bytes.last())
}

/// Whether machines of `namespace` may follow a reference to a template of `of` without asking anybody.
pub fn is_open(namespace: &str, of: &str, common: &str) -> bool {
    of == namespace || of == common
}

/// The rules that lie at `reference`, for a machine of `namespace` that `user` writes.
///
/// # Errors
/// When the cluster cannot be asked.
pub async fn rules(
    client: &Client,
    user: &UserInfo,
    (namespace, common): (&str, &str),
    reference: &Reference,
) -> kube::Result<Found> {
    let open = is_open(namespace, &reference.namespace, common);
    let mut closed = false;
    for (group, version, kind, plural) in KINDS {
        if !open && !may_read(client, user, (group, plural), reference).await? {
            closed = true;
            continue;
        }
        let resource = ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), plural);
        let api: Api<DynamicObject> = Api::namespaced_with(client.clone(), &reference.namespace, &resource);
        // None where the cluster lacks the kind, too.
        if let Some(found) = api.get_metadata_opt(&reference.name).await? {
            return Ok(Found::Rules(found.annotations().get(words::TEMPLATE_VALIDATIONS).cloned()));
        }
    }
    Ok(if closed { Found::Closed } else { Found::Rules(None) })
}

async fn may_read(
    client: &Client,
    user: &UserInfo,
    (group, plural): (&str, &str),
    reference: &Reference,
) -> kube::Result<bool> {
    let attributes = ResourceAttributes {
        group: Some(group.to_owned()),
        resource: Some(plural.to_owned()),
        verb: Some("get".to_owned()),
        namespace: Some(reference.namespace.clone()),
        name: Some(reference.name.clone()),
        ..ResourceAttributes::default()
    };
    let review = SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.username.clone()),
            groups: Some(user.groups.clone()),
            uid: Some(user.uid.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(attributes),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    };
    let answer = Api::all(client.clone()).create(&PostParams::default(), &review).await?;
    Ok(answer.status.is_some_and(|status| status.allowed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(metadata: Value, expect: Option<(&str, &str)>) {
        let found = reference(&json!({ "metadata": metadata }));
        let expect = expect.map(|(namespace, name)| Reference { namespace: namespace.into(), name: name.into() });
        assert_eq!(found, expect);
    }

    #[test]
    fn labels_name_the_template_before_annotations() {
        let new = json!({ "vm.kubevirt.io/template": "t", "vm.kubevirt.io/template.namespace": "ns" });
        let old = json!({ "vm.kubevirt.io/template": "o", "vm.kubevirt.io/template-namespace": "old" });
        check(json!({ "labels": new, "annotations": old }), Some(("ns", "t")));
        check(json!({ "labels": { "vm.kubevirt.io/template": "t" }, "annotations": old }), Some(("old", "o")));
        check(json!({ "annotations": new }), Some(("ns", "t")));
        check(json!({ "labels": { "vm.kubevirt.io/template": "t" } }), None);
        check(json!({}), None);
        check(json!(null), None);
    }

    #[test]
    fn what_cannot_be_a_name_is_never_asked_for() {
        for name in ["", "../../secrets/x", "a/b", "a?b", "A", "-a", "a.", "a%2fb", "a\n", &"a".repeat(254)] {
            let labels = json!({ "vm.kubevirt.io/template": name, "vm.kubevirt.io/template.namespace": "ns" });
            check(json!({ "annotations": labels }), None);
            let labels = json!({ "vm.kubevirt.io/template": "t", "vm.kubevirt.io/template.namespace": name });
            check(json!({ "annotations": labels }), None);
        }
    }

    #[test]
    fn references_are_open_within_a_namespace_and_to_the_common_one() {
        assert!(is_open("a", "a", "common") && is_open("a", "common", "common"));
        assert!(!is_open("a", "b", "common") && !is_open("common", "b", "common"));
    }
}
