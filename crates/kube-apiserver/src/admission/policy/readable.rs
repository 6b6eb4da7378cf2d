//! Who writes a policy or a binding must be able to read the parameters that it names: its expressions show them.

use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::pointer::text;
use apimachinery::request::RequestInfo;

use super::bound::GROUP;
use crate::admission::Attributes;
use crate::authz::Authorizer;
use crate::registry::Registry;
use crate::view::View;

/// Whether the user may `get` the parameters of the policy or binding that he writes, unless they are those of before.
///
/// # Errors
/// 403 that says what is lacking.
pub(in crate::admission) fn check(
    view: &dyn View,
    authorizer: &Authorizer,
    attributes: &Attributes,
    registry: &Registry,
) -> Result<(), ApiError> {
    let resource = &attributes.resource;
    let (Some(object), true) = (&attributes.object, resource.group == GROUP) else { return Ok(()) };
    let part = |holder: &Value, pointer: &str| holder.pointer(pointer).filter(|part| part.is_object()).cloned();
    let is_new = |pointer: &str| {
        let before = attributes.old.as_deref().and_then(|old| part(old, pointer));
        part(object, pointer).filter(|now| before.as_ref() != Some(now))
    };
    let (kind, reference, what) = match resource.plural.as_str() {
        "validatingadmissionpolicies" | "mutatingadmissionpolicies" => {
            let Some(kind) = is_new("/spec/paramKind") else { return Ok(()) };
            (kind, Value::Null, "all objects of the referenced paramKind")
        }
        plural @ ("validatingadmissionpolicybindings" | "mutatingadmissionpolicybindings") => {
            let policies =
                if plural.starts_with('v') { "validatingadmissionpolicies" } else { "mutatingadmissionpolicies" };
            let moved = text(object, "/spec/policyName")
                != attributes.old.as_deref().map_or("", |old| text(old, "/spec/policyName"));
            let reference = is_new("/spec/paramRef").or_else(|| part(object, "/spec/paramRef").filter(|_| moved));
            let Some(reference) = reference else { return Ok(()) };
            // A binding may come before its policy, of whose parameters nothing is known then.
            let policy = view.get(GROUP, policies, "", text(object, "/spec/policyName"));
            let kind = policy.and_then(|policy| part(&policy, "/spec/paramKind")).unwrap_or_default();
            (kind, reference, "the objects that paramRef names")
        }
        _ => return Ok(()),
    };
    let any = |text: &str| if text.is_empty() { "*".to_owned() } else { text.to_owned() };
    let (group, version) = match text(&kind, "/apiVersion") {
        "" => ("*", "*"),
        given => given.split_once('/').unwrap_or(("", given)),
    };
    let found = registry.find_kind(group, version, text(&kind, "/kind"));
    let wanted = RequestInfo {
        verb: "get".to_owned(),
        group: group.to_owned(),
        version: version.to_owned(),
        resource: found.map_or("*", |found| found.plural.as_str()).to_owned(),
        namespace: text(&reference, "/namespace").to_owned(),
        name: if reference.is_null() { String::new() } else { any(text(&reference, "/name")) },
        ..RequestInfo::default()
    };
    if authorizer.allows(&attributes.user, &wanted) {
        return Ok(());
    }
    let why = format!("must have \"get\" permission on {what}");
    Err(ApiError::forbidden(&resource.group, &resource.plural, &attributes.name, &why))
}
