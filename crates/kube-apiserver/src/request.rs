//! What a request asks for, parsed once from method and path. Authorization, admission and dispatch all read this one
//! value, so what is authorised is what is executed.

use http::Method;
use percent_encoding::percent_decode_str;

use crate::error::ApiError;

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
    /// The one object a list or watch is narrowed to by `metadata.name=` in its field selector; authorization may treat
    /// it as the name, dispatch applies the selector anyway.
    pub selected_name: String,
}

impl RequestInfo {
    /// Whether the path names a resource.
    pub fn is_resource(&self) -> bool {
        !self.resource.is_empty()
    }

    /// Parses method, path and query. A path that could be read in two ways (an encoded slash, a dot segment) is refused.
    pub fn parse(method: &Method, path: &str, query: Option<&str>) -> Result<Self, ApiError> {
        let malformed = || ApiError::new(404, "NotFound", "the server could not find the requested resource");
        let mut segments = Vec::new();
        for raw in path.trim_matches('/').split('/') {
            let segment = percent_decode_str(raw).decode_utf8().map_err(|_| malformed())?;
            if segment == "." || segment == ".." || segment.contains(['/', '\0']) {
                return Err(malformed());
            }
            segments.push(segment.into_owned());
        }
        if segments.len() > 1 && segments.iter().any(String::is_empty) {
            // Only a subresource's tail (a proxied path) may hold empty segments; nothing here proxies such paths.
            return Err(malformed());
        }
        let mut info =
            Self { verb: method.as_str().to_ascii_lowercase(), path: format!("/{}", segments.join("/")), ..Self::default() };
        let mut rest = segments.iter();
        match rest.next().map(String::as_str) {
            Some("api") => {}
            Some("apis") => match rest.next() {
                Some(group) => info.group.clone_from(group),
                None => return Ok(info),
            },
            _ => return Ok(info),
        }
        let Some(version) = rest.next() else { return Ok(Self { group: String::new(), ..info }) };
        info.version.clone_from(version);
        let mut rest: Vec<&String> = rest.collect();
        if rest.is_empty() {
            return Ok(info);
        }
        // `/namespaces/x`, `/namespaces/x/status` and `/namespaces/x/finalize` are about the namespace itself.
        let about_namespace = rest.len() == 3 && (*rest[2] == "status" || *rest[2] == "finalize");
        if rest[0] == "namespaces" && rest.len() >= 2 && info.group.is_empty() && about_namespace {
            info.namespace.clone_from(rest[1]);
        } else if rest[0] == "namespaces" && rest.len() >= 3 {
            info.namespace.clone_from(rest[1]);
            rest.drain(..2);
        } else if rest[0] == "namespaces" && rest.len() == 2 && info.group.is_empty() {
            info.namespace.clone_from(rest[1]);
        }
        info.resource.clone_from(rest[0]);
        if let Some(name) = rest.get(1) {
            info.name.clone_from(name);
        }
        info.subresource = rest.iter().skip(2).map(|s| s.as_str()).collect::<Vec<_>>().join("/");
        info.set_verb(method, query.unwrap_or_default());
        Ok(info)
    }

    fn set_verb(&mut self, method: &Method, query: &str) {
        let collection = self.name.is_empty();
        let pairs = || url::form_urlencoded::parse(query.as_bytes());
        let verb = match *method {
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if collection => "deletecollection",
            Method::DELETE => "delete",
            Method::GET | Method::HEAD if self.subresource.is_empty() => {
                // The first value counts, here and in the handler, which reads the verb and not the query.
                let watch = pairs().find(|(key, _)| key == "watch").is_some_and(|(_, v)| matches!(&*v, "1" | "true" | "True" | "t" | "T" | "TRUE"));
                match (watch, collection) {
                    (true, _) => "watch",
                    (false, true) => "list",
                    (false, false) => "get",
                }
            }
            Method::GET | Method::HEAD => "get",
            _ => return,
        };
        self.verb = verb.to_owned();
        if collection && matches!(verb, "list" | "watch" | "deletecollection") {
            if let Some((_, selector)) = pairs().find(|(key, _)| key == "fieldSelector") {
                let name = selector.split(',').find_map(|term| {
                    let (field, value) = term.split_once("==").or_else(|| term.split_once('='))?;
                    (field == "metadata.name" && !value.is_empty()).then(|| value.to_owned())
                });
                self.selected_name = name.unwrap_or_default();
            }
        }
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
