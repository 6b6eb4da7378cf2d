//! What a request asks for, parsed once from method and path. Authorization, admission and dispatch all read this one
//! value, so what is authorised is what is executed.

/// The parsed request. Paths that name no resource (`/healthz`, `/api`, `/openapi/v2`) have `resource` empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestInfo {
    /// Kubernetes verb: get, list, watch, create, update, patch, delete, deletecollection; for non-resource paths the
    /// lower-case HTTP method.
    pub verb: String,
    /// The decoded path, without the query.
    pub path: String,
    /// API group, empty for the core group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, empty when cluster-wide.
    pub namespace: String,
    /// Plural resource name; empty when the path names no resource.
    pub resource: String,
    /// `status`, `scale`, `log`, `exec`, … or empty. A deeper path keeps its slashes (`proxy/metrics`, `vnc/screenshot`).
    pub subresource: String,
    /// Object name, empty for collections.
    pub name: String,
}

impl RequestInfo {
    /// Whether the path names a resource.
    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }
}

/// Who asks: the outcome of authentication, also what impersonation yields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct User {
    /// `system:serviceaccount:ns:name`, `system:node:n`, a certificate's CN, `system:anonymous`.
    pub name: String,
    /// Unique id, may be empty.
    pub uid: String,
    /// Groups, `system:authenticated` included by the authenticator.
    pub groups: Vec<String>,
    /// Extra facts, such as `authentication.kubernetes.io/node-name`.
    pub extra: std::collections::BTreeMap<String, Vec<String>>,
}

impl User {
    /// The in-process administrator: member of `system:masters`.
    pub fn admin() -> Self {
        Self {
            name: "system:admin".into(),
            groups: vec!["system:masters".into(), "system:authenticated".into()],
            ..Self::default()
        }
    }
}
