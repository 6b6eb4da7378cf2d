//! The way to exports from outside of the cluster: an Ingress of ours that leads to the proxy, or a Route of OpenShift.

use api::openshift::Route;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::api::networking::v1::Ingress;
use kit::queue::Queue;
use kit::store::{self, Key, Store, Watch};
use kit::{Task, certs, clock, served};
use kube::Api;
use kube::discovery::ApiResource;

use super::links::Host;
use crate::context::Context;
use crate::error::Error;
use api::export::constants::PROXY;

/// Where the cluster's own authorities are in every namespace.
const ROOTS: (&str, &str) = ("kube-root-ca.crt", "ca.crt");

/// The ways there are.
#[derive(Clone, Default)]
pub(super) struct Ways {
    /// To Services beside this controller.
    ingresses: Store<Ingress>,
    /// The same on OpenShift.
    routes: Store<Route>,
}

impl Ways {
    /// Follows the ways, on which every export depends. Where there is no such kind as Route, none is reached through one.
    pub(super) fn watch(&self, context: &Context, queue: &Queue<Key>) -> [Task<()>; 2] {
        let (client, namespace) = (&context.client, &context.namespace);
        let ingresses = Api::<Ingress>::namespaced(client.clone(), namespace);
        let routes = Api::<Route>::namespaced(client.clone(), namespace);
        let (kind, how) = (ApiResource::erase::<Route>(&()), Watch::default());
        let (a, b) = ((context.stores.clone(), queue.clone()), (context.stores.clone(), queue.clone()));
        [
            store::watch(ingresses, Watch::default(), self.ingresses.clone(), move |_| a.1.add_all(a.0.exports.keys())),
            served::watch(client, &kind, routes, how, self.routes.clone(), move |_| b.1.add_all(b.0.exports.keys())),
        ]
    }

    /// The host, and what its certificate is checked by.
    pub(super) async fn find(&self, context: &Context) -> Result<Option<Host>, Error> {
        let ingresses = self.ingresses.list();
        if let Some((ingress, host)) = ingresses.iter().find_map(|ingress| Some((ingress, host(ingress)?))) {
            let chain = match secret(ingress) {
                Some(name) => of_secret(context, &name).await?,
                None => String::new(),
            };
            return Ok(Some(believed(host, &chain)));
        }
        let routes = self.routes.list();
        let Some(host) = routes.iter().find_map(|route| route.host_of(PROXY)) else { return Ok(None) };
        Ok(Some(believed(host.to_owned(), &roots(context).await?)))
    }
}

fn believed(host: String, chain: &str) -> Host {
    Host { certificate: certs::for_host(chain, &host, clock::now()), base: host }
}

/// The host of an Ingress that leads to the proxy.
fn host(ingress: &Ingress) -> Option<String> {
    let spec = ingress.spec.as_ref()?;
    let rules = spec.rules.as_deref().unwrap_or_default();
    let is_proxy = |service: Option<&str>| service == Some(PROXY);
    if let Some(service) = spec.default_backend.as_ref().and_then(|backend| backend.service.as_ref()) {
        let first = rules.first().and_then(|rule| rule.host.clone());
        return first.filter(|host| is_proxy(Some(&service.name)) && !host.is_empty());
    }
    let leads = rules.iter().find(|rule| {
        let paths = rule.http.iter().flat_map(|http| &http.paths);
        let named = rule.host.as_deref().is_some_and(|host| !host.is_empty());
        named
            && paths
                .into_iter()
                .any(|path| is_proxy(path.backend.service.as_ref().map(|service| service.name.as_str())))
    });
    leads.and_then(|rule| rule.host.clone())
}

/// The Secret with the certificate that the Ingress shows.
fn secret(ingress: &Ingress) -> Option<String> {
    let all = ingress.spec.as_ref()?.tls.as_deref().unwrap_or_default();
    all.iter().find_map(|tls| tls.secret_name.clone().filter(|name| !name.is_empty()))
}

/// The certificates in a Secret beside the Ingress.
async fn of_secret(context: &Context, name: &str) -> Result<String, Error> {
    let namespace = context.namespace.as_str();
    let api: Api<Secret> = Api::namespaced(context.client.clone(), namespace);
    let found = api.get_opt(name).await.map_err(Error::api("read", "secret", namespace, name))?;
    let bytes = found.and_then(|secret| secret.data?.remove("tls.crt"));
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes.0).into_owned()).unwrap_or_default())
}

/// What the cluster's own pods believe: on OpenShift the certificates of its routers, too.
async fn roots(context: &Context) -> Result<String, Error> {
    let namespace = context.namespace.as_str();
    let (name, key) = ROOTS;
    let api: Api<ConfigMap> = Api::namespaced(context.client.clone(), namespace);
    let roots = api.get_opt(name).await.map_err(Error::api("read", "configmap", namespace, name))?;
    Ok(roots.and_then(|map| map.data?.remove(key)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_host_is_that_of_the_ingress_to_the_proxy() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(spec: Value, expect: Option<&str>) {
            let ingress: Ingress = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
            assert_eq!(host(&ingress).as_deref(), expect);
        }
        let backend = |name: &str| json!({ "service": { "name": name, "port": { "number": 443 } } });
        let rule = |host: &str, name: &str| json!({ "host": host, "http": { "paths": [{ "path": "/", "pathType": "Prefix", "backend": backend(name) }] } });
        check(json!({ "rules": [rule("a.example", "web"), rule("b.example", PROXY)] }), Some("b.example"));
        check(json!({ "rules": [rule("", PROXY)] }), None);
        check(json!({ "defaultBackend": backend(PROXY), "rules": [{ "host": "c.example" }] }), Some("c.example"));
        check(json!({ "defaultBackend": backend("web"), "rules": [rule("d.example", PROXY)] }), None);
        check(json!({}), None);
    }
}
