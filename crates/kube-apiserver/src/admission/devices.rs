//! Access to devices beside whoever has them: only in namespaces that an administrator has labelled for it.

use serde_json::Value;

use apimachinery::error::ApiError;
use apimachinery::schema::validate::cause;

use super::{Attributes, Operation};
use crate::view::View;

const LABEL: &str = "resource.kubernetes.io/admin-access";

/// Checks a new claim, or a new template of claims.
///
/// # Errors
/// 422 where the namespace does not have the label.
pub(super) fn check(view: &dyn View, attributes: &Attributes) -> Result<(), ApiError> {
    let resource = &attributes.resource;
    let at = match (resource.group.as_str(), resource.plural.as_str()) {
        ("resource.k8s.io", "resourceclaims") => "/spec/devices",
        ("resource.k8s.io", "resourceclaimtemplates") => "/spec/spec/devices",
        _ => return Ok(()),
    };
    let new = attributes.object.as_ref().filter(|_| attributes.operation == Operation::Create);
    let devices = new.and_then(|object| object.pointer(at)).unwrap_or(&Value::Null);
    let administers = |request: &Value| request["exactly"]["adminAccess"] == true;
    let Some(index) = devices["requests"].as_array().and_then(|list| list.iter().position(administers)) else {
        return Ok(());
    };
    let namespace = view.get("", "namespaces", "", &attributes.namespace);
    if namespace.is_some_and(|namespace| namespace["metadata"]["labels"][LABEL] == "true") {
        return Ok(());
    }
    let field = format!("{}.requests[{index}].exactly.adminAccess", at[1..].replace('/', "."));
    let message =
        format!("Forbidden: admin access to devices requires the `{LABEL}: true` label on the containing namespace");
    let causes = vec![cause("FieldValueForbidden", &field, message)];
    Err(ApiError::invalid(&resource.group, &resource.kind, &attributes.name, causes))
}
