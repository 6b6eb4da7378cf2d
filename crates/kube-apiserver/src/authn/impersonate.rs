//! Impersonation headers (`kubectl --as`): the caller needs the verb `impersonate` on every fact it takes on.

use std::collections::BTreeMap;

use http::HeaderMap;

use apimachinery::error::ApiError;
use apimachinery::request::{RequestInfo, User};

use crate::authz::Authorizer;

/// The user to act as, or None when no header asks for it.
///
/// # Errors
/// 400 for headers without a user, 403 when the caller may not impersonate.
pub fn requested(authorizer: &Authorizer, caller: &User, headers: &HeaderMap) -> Result<Option<User>, ApiError> {
    let one = |name: &str| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default().to_owned();
    let user = one("impersonate-user");
    let uid = one("impersonate-uid");
    let mut groups: Vec<String> =
        headers.get_all("impersonate-group").iter().filter_map(|v| v.to_str().ok().map(ToOwned::to_owned)).collect();
    let mut extra: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (name, value) in headers {
        if let Some(key) = name.as_str().strip_prefix("impersonate-extra-") {
            let key = percent_encoding::percent_decode_str(key).decode_utf8_lossy().into_owned();
            extra.entry(key).or_default().push(value.to_str().unwrap_or_default().to_owned());
        }
    }
    if user.is_empty() {
        if groups.is_empty() && uid.is_empty() && extra.is_empty() {
            return Ok(None);
        }
        return Err(ApiError::bad_request("requested to impersonate facts of a user without naming the user"));
    }
    let check = |group: &str, resource: &str, namespace: &str, sub: &str, name: &str| {
        let info = RequestInfo {
            verb: "impersonate".into(),
            group: group.into(),
            version: "v1".into(),
            namespace: namespace.into(),
            resource: resource.into(),
            subresource: sub.into(),
            name: name.into(),
            ..RequestInfo::default()
        };
        authorizer.authorize(caller, &info)
    };
    if let Some((namespace, account)) = user.strip_prefix("system:serviceaccount:").and_then(|r| r.split_once(':')) {
        check("", "serviceaccounts", namespace, "", account)?;
        if groups.is_empty() {
            groups = vec!["system:serviceaccounts".into(), format!("system:serviceaccounts:{namespace}")];
        }
    } else {
        check("", "users", "", "", &user)?;
    }
    for group in headers.get_all("impersonate-group") {
        check("", "groups", "", "", group.to_str().unwrap_or_default())?;
    }
    if !uid.is_empty() {
        check("authentication.k8s.io", "uids", "", "", &uid)?;
    }
    for (key, values) in &extra {
        for value in values {
            check("authentication.k8s.io", "userextras", "", key, value)?;
        }
    }
    let class = if user == "system:anonymous" { "system:unauthenticated" } else { "system:authenticated" };
    if !groups.iter().any(|g| g == class) {
        groups.push(class.into());
    }
    Ok(Some(User { name: user, uid, groups, extra }))
}
