//! Authorization: may this user do this? Masters may; nodes by the node rules; everybody else by RBAC.

use std::sync::Arc;

use apimachinery::error::ApiError;
use apimachinery::request::{RequestInfo, User};

pub mod escalation;
pub mod node;
pub mod rbac;
pub mod reviews;

use crate::view::View;
use rbac::Rbac;

/// Paths that anybody may read, also without credentials and before there are roles.
const PUBLIC_PATHS: [&str; 3] = ["/healthz", "/livez", "/readyz"];

/// The authorizer chain.
#[derive(Clone)]
pub struct Authorizer {
    /// Role-based rules.
    pub rbac: Arc<Rbac>,
    node: Arc<node::NodeAuthorizer>,
}

impl std::fmt::Debug for Authorizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Authorizer").finish_non_exhaustive()
    }
}

impl Authorizer {
    /// A chain that reads the cluster through `view`.
    #[must_use]
    pub fn new(view: Arc<dyn View>) -> Self {
        Self { rbac: Arc::new(Rbac::new(view.clone())), node: Arc::new(node::NodeAuthorizer::new(view)) }
    }

    /// The bare decision.
    #[must_use]
    pub fn allows(&self, user: &User, info: &RequestInfo) -> bool {
        if user.groups.iter().any(|g| g == "system:masters") {
            return true;
        }
        if !info.is_resource() {
            let public = PUBLIC_PATHS
                .iter()
                .any(|p| info.path == *p || info.path.strip_prefix(p).is_some_and(|rest| rest.starts_with('/')));
            if public && matches!(info.verb.as_str(), "get" | "head") {
                return true;
            }
        }
        self.node.allows(user, info) || self.rbac.allows(user, info)
    }

    /// The decision as an error worded like Kubernetes'.
    ///
    /// # Errors
    /// 403 when nothing allows the request.
    pub fn authorize(&self, user: &User, info: &RequestInfo) -> Result<(), ApiError> {
        if self.allows(user, info) { Ok(()) } else { Err(denial(user, info)) }
    }
}

impl apimachinery::cel::authorizer::Authorizer for Authorizer {
    fn denies(&self, user: &User, request: &RequestInfo) -> Option<String> {
        (!self.allows(user, request)).then(|| denial_reason(user, request))
    }
}

/// The denial, `pods is forbidden: User "u" cannot list resource "pods" in API group "" in the namespace "ns"`.
#[must_use]
pub fn denial(user: &User, info: &RequestInfo) -> ApiError {
    if !info.is_resource() {
        return ApiError::new(
            403,
            "Forbidden",
            format!("forbidden: User {:?} cannot {} path {:?}", user.name, info.verb, info.path),
        );
    }
    let why = denial_reason(user, info);
    ApiError::forbidden(&info.group, &info.resource, &info.name, &why)
}

/// The sentence after `is forbidden: `.
#[must_use]
pub fn denial_reason(user: &User, info: &RequestInfo) -> String {
    let resource = if info.subresource.is_empty() {
        info.resource.clone()
    } else {
        format!("{}/{}", info.resource, info.subresource)
    };
    let place = if info.namespace.is_empty() {
        "at the cluster scope".to_owned()
    } else {
        format!("in the namespace {:?}", info.namespace)
    };
    let mut text = format!(
        "User {:?} cannot {} resource {resource:?} in API group {:?} {place}",
        user.name, info.verb, info.group
    );
    if let Some(reason) = node::node_of(user).and_then(|_| node::explain(info)) {
        text.push_str(": ");
        text.push_str(&reason);
    }
    text
}
