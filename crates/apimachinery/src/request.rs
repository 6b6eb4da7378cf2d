//! What a request asks for, parsed once from method and path. Authorization, admission and dispatch all read this one
//! value, so what is authorised is what is executed.

use http::Method;
use percent_encoding::percent_decode_str;

use crate::error::ApiError;
use crate::labels::Labels;

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
    /// The one node to which a list or watch of pods is narrowed by `spec.nodeName=`.
    pub selected_node: String,
    /// The labels, each with its one value, to which a list or watch is narrowed by its label selector.
    pub selected_labels: Vec<(String, String)>,
}

impl RequestInfo {
    /// The object's name, or the one name to which a collection is narrowed.
    pub fn effective_name(&self) -> &str {
        if self.name.is_empty() { &self.selected_name } else { &self.name }
    }
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
        let mut info = Self {
            verb: method.as_str().to_ascii_lowercase(),
            path: format!("/{}", segments.join("/")),
            ..Self::default()
        };
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
        // `/api/v1/watch/pods` is an old way to say `/api/v1/pods?watch=true`, with a name also of one object.
        let watched = method == Method::GET && rest.len() > 1 && rest[0] == "watch";
        if watched {
            rest.remove(0);
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
        if watched {
            if !info.subresource.is_empty() {
                return Err(malformed());
            }
            info.selected_name = std::mem::take(&mut info.name);
            if info.resource == "namespaces" && info.group.is_empty() {
                info.namespace.clear();
            }
            info.verb = "watch".to_owned();
            return Ok(info);
        }
        info.set_verb(method, query.unwrap_or_default());
        Ok(info)
    }

    /// Whether the request leaves everything as it is.
    pub fn is_read(&self) -> bool {
        matches!(self.verb.as_str(), "get" | "list" | "watch")
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
            Method::GET | Method::HEAD if collection => {
                // The first value counts, here and in the handler, which reads the verb and not the query.
                let watch = pairs().find(|(key, _)| key == "watch").is_some_and(|(_, said)| is_true(&said));
                if watch { "watch" } else { "list" }
            }
            Method::GET | Method::HEAD => "get",
            _ => return,
        };
        self.verb = verb.to_owned();
        if let Some((_, selector)) = pairs().find(|(key, _)| key == "fieldSelector")
            && collection
            && matches!(verb, "list" | "watch" | "deletecollection")
        {
            let selected = |wanted: &str| {
                let value = selector.split(',').find_map(|term| {
                    let (field, value) = term.split_once("==").or_else(|| term.split_once('='))?;
                    (field == wanted && !value.is_empty()).then(|| value.to_owned())
                });
                value.unwrap_or_default()
            };
            self.selected_name = selected("metadata.name");
            self.selected_node = selected("spec.nodeName");
        }
        if let Some((_, selector)) = pairs().find(|(key, _)| key == "labelSelector")
            && matches!(verb, "list" | "watch")
        {
            // What cannot be read narrows nothing here, and is refused by the handler, which reads it in the same way.
            self.selected_labels = Labels::parse(&selector).map(|labels| labels.exact()).unwrap_or_default();
        }
    }
}

/// Whether a parameter that was given says yes: it does unless it says no.
pub fn is_true(said: &str) -> bool {
    !matches!(said.to_ascii_lowercase().as_str(), "false" | "0")
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

#[cfg(test)]
mod tests {
    use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(method: &str, uri: &str, expect: &str) {
        let (path, query) = uri.split_once('?').map_or((uri, None), |(path, query)| (path, Some(query)));
        let got = match RequestInfo::parse(&method.parse().unwrap(), path, query) {
            Ok(i) => format!(
                "{} {}/{} ns={} {}/{}/{}",
                i.verb, i.group, i.version, i.namespace, i.resource, i.name, i.subresource
            ),
            Err(error) => error.code.to_string(),
        };
        assert_eq!(got, expect, "{method} {uri}");
    }

    #[test]
    fn paths_and_verbs() {
        check("GET", "/api/v1/pods", "list /v1 ns= pods//");
        check("GET", "/api/v1/namespaces/a/pods?watch=1", "watch /v1 ns=a pods//");
        check("GET", "/api/v1/namespaces/a/pods?watch=false&watch=true", "list /v1 ns=a pods//");
        check("GET", "/api/v1/namespaces/a/pods?watch=False", "list /v1 ns=a pods//");
        check("GET", "/api/v1/namespaces/a/pods?watch=yes", "watch /v1 ns=a pods//");
        check("GET", "/api/v1/watch/namespaces/a/pods", "watch /v1 ns=a pods//");
        check("GET", "/apis/apps/v1/watch/deployments", "watch apps/v1 ns= deployments//");
        check("GET", "/api/v1/watch/namespaces/a/pods/p/log", "404");
        check("POST", "/api/v1/watch/namespaces/a/pods", "create /v1 ns= watch/namespaces/a/pods");
        check("GET", "/api/v1/namespaces/a/pods/p?watch=1", "get /v1 ns=a pods/p/");
        check("HEAD", "/api/v1/namespaces/a/pods/p", "get /v1 ns=a pods/p/");
        check("POST", "/api/v1/namespaces/a/pods/p/exec", "create /v1 ns=a pods/p/exec");
        check("DELETE", "/apis/apps/v1/namespaces/a/deployments", "deletecollection apps/v1 ns=a deployments//");
        check("GET", "/api/v1/namespaces/a", "get /v1 ns=a namespaces/a/");
        check("PUT", "/api/v1/namespaces/a/finalize", "update /v1 ns=a namespaces/a/finalize");
        check("PATCH", "/api/v1/namespaces/a/status", "patch /v1 ns=a namespaces/a/status");
        check("GET", "/apis/s.io/v1/namespaces/a/vms/v/vnc/screenshot", "get s.io/v1 ns=a vms/v/vnc/screenshot");
        check("GET", "/apis/apps", "get / ns= //");
        check("GET", "/apis/apps/v1", "get apps/v1 ns= //");
        check("GET", "/healthz", "get / ns= //");
        check("GET", "/api/v1/namespaces/a/../b/pods", "404");
        check("GET", "/api/v1/namespaces/a%2fb/pods", "404");
        check("GET", "/api/v1/namespaces//pods", "404");
        check("GET", "/api/v1/namespaces/%2e%2e/pods", "404");
    }

    #[test]
    fn a_watch_of_a_path_is_of_what_the_path_names() {
        let info = RequestInfo::parse(&Method::GET, "/api/v1/watch/namespaces/a/pods/p", None).unwrap();
        assert_eq!((info.verb.as_str(), info.name.as_str(), info.effective_name()), ("watch", "", "p"));
        let info = RequestInfo::parse(&Method::GET, "/api/v1/watch/namespaces/a", None).unwrap();
        assert_eq!((info.resource.as_str(), info.effective_name()), ("namespaces", "a"));
    }

    #[test]
    fn only_what_a_selector_surely_narrows_is_told() {
        let check = |query: &str, expect: &[(&str, &str)]| {
            let query =
                url::form_urlencoded::Serializer::new(String::new()).append_pair("labelSelector", query).finish();
            let info = RequestInfo::parse(&Method::GET, "/api/v1/pods", Some(&query)).unwrap();
            let expect: Vec<_> = expect.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
            assert_eq!(info.selected_labels, expect, "{query}");
        };
        check("x.io/node=n1,app==web", &[("x.io/node", "n1"), ("app", "web")]);
        check("x.io/node in (n1)", &[("x.io/node", "n1")]);
        check("x.io/node in (n1,n2)", &[]);
        check("x.io/node!=n1", &[]);
        check("x.io/node notin (n1)", &[]);
        check("x.io/node,!app", &[]);
        check("app in (x.io/node=n1,b)", &[]);
        check("x.io/node=n1,", &[]);
        check("", &[]);
        // The first selector counts, as in the handler, and one object is not narrowed by any.
        let get = |uri: &str, query: &str| RequestInfo::parse(&Method::GET, uri, Some(query)).unwrap().selected_labels;
        assert!(get("/api/v1/pods", "labelSelector=a&labelSelector=x.io/node=n1").is_empty());
        assert!(get("/api/v1/namespaces/a/pods/p", "labelSelector=x.io/node=n1").is_empty());
    }

    proptest! {
        /// Names come out as they went in, however they are encoded, and never run into each other.
        #[test]
        fn segments_survive(namespace in "[^/\\x00]{1,12}", name in "[^/\\x00]{1,12}") {
            prop_assume!(![".", ".."].contains(&namespace.as_str()) && ![".", ".."].contains(&name.as_str()));
            let encode = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
            let path = format!("/api/v1/namespaces/{}/pods/{}/log", encode(&namespace), encode(&name));
            let info = RequestInfo::parse(&Method::GET, &path, None).unwrap();
            prop_assert_eq!((info.namespace, info.name, info.subresource), (namespace, name, "log".to_owned()));
        }

        /// Whatever the path, what was parsed names it: nothing is left out that dispatch could read otherwise.
        #[test]
        fn nothing_is_left_out(path in "(/(api|apis|namespaces|v1|apps|pods|a|%2e|%2f|\\.|status|))(/(namespaces|v1|apps|pods|a|x|status|)){0,7}") {
            if let Ok(info) = RequestInfo::parse(&Method::GET, &path, None) {
                let mut parts = vec![if info.group.is_empty() { "api" } else { "apis" }, &info.group, &info.version];
                let itself = info.resource == "namespaces" && info.namespace == info.name;
                if !info.namespace.is_empty() && !itself {
                    parts.extend(["namespaces", &info.namespace]);
                }
                parts.extend([info.resource.as_str(), &info.name, &info.subresource]);
                parts.retain(|part| !part.is_empty());
                if info.is_resource() {
                    prop_assert_eq!(info.path, format!("/{}", parts.join("/")));
                }
            }
        }
    }
}
