//! Group `route.openshift.io`: Route, as far as the way to exports is read from it.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use serde::{Deserialize, Serialize};

/// A way from outside to a Service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Route {
    /// As ever.
    pub metadata: ObjectMeta,
    /// Where it leads.
    #[serde(default)]
    pub spec: RouteSpec,
    /// Where it begins.
    #[serde(default)]
    pub status: RouteStatus,
}

/// Where it leads.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteSpec {
    /// The Service.
    #[serde(default)]
    pub to: RouteTarget,
}

/// The Service.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteTarget {
    /// Its name.
    #[serde(default)]
    pub name: String,
}

/// Where it begins.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteStatus {
    /// The routers that have admitted it.
    #[serde(default)]
    pub ingress: Vec<RouteIngress>,
}

/// At one router.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct RouteIngress {
    /// Under this name.
    #[serde(default)]
    pub host: String,
}

impl Route {
    /// The host, when it leads to `service`.
    pub fn host_of(&self, service: &str) -> Option<&str> {
        let first = self.status.ingress.first().filter(|_| self.spec.to.name == service);
        first.map(|router| router.host.as_str()).filter(|host| !host.is_empty())
    }
}

meta::kind!(Route, "route.openshift.io", "v1", "routes", NamespaceResourceScope);

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_host_is_what_a_router_has_admitted() {
        let check = |spec: Value, status: Value, expect: Option<&str>| {
            let route: Route =
                serde_json::from_value(json!({ "metadata": {}, "spec": spec, "status": status })).unwrap();
            assert_eq!(route.host_of("proxy"), expect);
        };
        let to = |name: &str| json!({ "to": { "kind": "Service", "name": name } });
        check(to("proxy"), json!({ "ingress": [{ "host": "a.example" }, { "host": "b" }] }), Some("a.example"));
        check(to("web"), json!({ "ingress": [{ "host": "a.example" }] }), None);
        check(to("proxy"), json!({ "ingress": [] }), None);
        check(to("proxy"), json!({}), None);
        check(json!({}), json!({ "ingress": [{ "host": "" }] }), None);
    }
}
