//! The parameters of a binding: objects of the kind its policy names.

use std::sync::Arc;

use serde_json::Value;

use apimachinery::pointer::text;

use crate::admission::{Attributes, rules};
use crate::registry::Registry;
use crate::view::View;

/// The parameters a policy is evaluated with, once for each; `[None]` when it takes none.
///
/// # Errors
/// A sentence when they are missing and must not be, or cannot be looked for.
pub(super) fn find(
    view: &dyn View,
    policy: &Value,
    binding: &Value,
    attributes: &Attributes,
    registry: &Registry,
) -> Result<Vec<Option<Arc<Value>>>, String> {
    let Some(kind) = policy.pointer("/spec/paramKind").filter(|k| k.is_object()) else {
        return Ok(vec![None]);
    };
    let Some(reference) = binding.pointer("/spec/paramRef").filter(|r| r.is_object()) else {
        return Ok(vec![None]);
    };
    let (group, version) = text(kind, "/apiVersion").split_once('/').unwrap_or(("", text(kind, "/apiVersion")));
    let name = text(kind, "/kind");
    let resource = registry.find_kind(group, version, name).ok_or_else(|| {
        let place = if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") };
        format!("failed to find resource referenced by paramKind: '{place}, Kind={name}'")
    })?;
    let namespace = match (resource.namespaced, text(reference, "/namespace")) {
        (false, "") => "",
        (false, _) => return Err("paramRef.namespace must not be provided for a cluster-scoped `paramKind`".to_owned()),
        (true, "") if attributes.namespace.is_empty() => {
            return Err(
                "cannot use namespaced paramRef in policy binding that matches cluster-scoped resources".to_owned()
            );
        }
        (true, "") => attributes.namespace.as_str(),
        (true, given) => given,
    };
    let name = text(reference, "/name");
    let found: Vec<Arc<Value>> = if name.is_empty() {
        let all = view.list(group, &resource.plural, namespace);
        all.into_iter().filter(|o| rules::selects(reference.get("selector"), o.pointer("/metadata/labels"))).collect()
    } else {
        view.get(group, &resource.plural, namespace, name).into_iter().collect()
    };
    if found.is_empty() {
        if text(reference, "/parameterNotFoundAction") == "Allow" {
            return Ok(Vec::new());
        }
        return Err("no params found for policy binding with `Deny` parameterNotFoundAction".to_owned());
    }
    Ok(found.into_iter().map(Some).collect())
}
