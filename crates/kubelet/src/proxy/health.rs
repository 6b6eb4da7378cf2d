//! Health check node ports: each node tells load balancers whether it has endpoints of a Service whose traffic must not
//! travel on to other nodes.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::Service;
use serde_json::json;
use tokio::sync::watch;

use super::Settings;
use super::ports::ready_here;
use crate::service_view::View;

/// What is asked for on one port.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Health {
    namespace: String,
    name: String,
    endpoints: usize,
}

type Answers = BTreeMap<u16, Health>;

/// The ports to answer on, and what.
fn answers(view: &View, settings: &Settings) -> Answers {
    view.services.iter().filter_map(|service| answer(service, view, settings)).collect()
}

fn answer(service: &Service, view: &View, settings: &Settings) -> Option<(u16, Health)> {
    let spec = service.spec.as_ref()?;
    let asked =
        spec.type_.as_deref() == Some("LoadBalancer") && spec.external_traffic_policy.as_deref() == Some("Local");
    let port = spec.health_check_node_port.filter(|_| asked).and_then(|port| u16::try_from(port).ok())?;
    let (namespace, name) = (service.metadata.namespace.clone()?, service.metadata.name.clone()?);
    let endpoints = ready_here(view, &namespace, &name, settings);
    Some((port, Health { namespace, name, endpoints }))
}

/// Answers on every such port until `views` ends.
pub(super) async fn run(settings: Settings, mut views: watch::Receiver<Option<Arc<View>>>) {
    let (publish, current) = watch::channel(Answers::new());
    let mut listening: BTreeMap<u16, kit::Task<()>> = BTreeMap::new();
    loop {
        if let Some(view) = views.borrow_and_update().clone() {
            let wanted = answers(&view, &settings);
            // One that could not listen is tried again with the next change.
            listening.retain(|port, task| wanted.contains_key(port) && !task.is_finished());
            for port in wanted.keys() {
                let serving = || kit::spawn("health-check", serve(*port, current.clone()));
                listening.entry(*port).or_insert_with(serving);
            }
            publish.send_replace(wanted);
        }
        if views.changed().await.is_err() {
            return;
        }
    }
}

async fn serve(port: u16, answers: watch::Receiver<Answers>) {
    let any: [IpAddr; 2] = [Ipv6Addr::UNSPECIFIED.into(), Ipv4Addr::UNSPECIFIED.into()];
    let mut listener = None;
    for address in any {
        match tokio::net::TcpListener::bind(SocketAddr::new(address, port)).await {
            Ok(bound) => {
                listener = Some(bound);
                break;
            }
            Err(error) => tracing::debug!(port, %error, "cannot listen for health checks"),
        }
    }
    let Some(listener) = listener else {
        tracing::warn!(port, "nobody can be told of the health of the Service on this node: the port is in use");
        return;
    };
    let reply = move || std::future::ready(reply(answers.borrow().get(&port)));
    let router = axum::Router::new().fallback(axum::routing::any(reply));
    if let Err(error) = axum::serve(listener, router).await {
        tracing::debug!(port, %error, "health checks end");
    }
}

fn reply(health: Option<&Health>) -> Response {
    let Some(Health { namespace, name, endpoints }) = health else { return StatusCode::NOT_FOUND.into_response() };
    let code = if *endpoints > 0 { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    let body = json!({"service": {"namespace": namespace, "name": name}, "localEndpoints": endpoints, "serviceProxyHealthy": true});
    let headers = [(header::CONTENT_TYPE, "application/json"), (header::X_CONTENT_TYPE_OPTIONS, "nosniff")];
    (code, headers, body.to_string()).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_services_whose_traffic_stays_are_asked_for() {
        let check = |kind: &str, policy: &str, expect: Option<usize>| {
            let service = json!({"metadata": {"namespace": "shop", "name": "web"},
                "spec": {"type": kind, "externalTrafficPolicy": policy, "healthCheckNodePort": 32000}});
            let slice = json!({"metadata": {"namespace": "shop", "name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
                "addressType": "IPv4", "endpoints": [
                    {"addresses": ["10.0.0.1"], "nodeName": "node1", "conditions": {"ready": true}},
                    {"addresses": ["10.0.0.2"], "nodeName": "node1", "conditions": {"ready": false}},
                    {"addresses": ["10.0.1.1"], "nodeName": "node2", "conditions": {"ready": true}}]});
            let view = View {
                services: vec![Arc::new(serde_json::from_value(service).unwrap())],
                slices: vec![Arc::new(serde_json::from_value(slice).unwrap())],
                ..View::default()
            };
            let settings =
                Settings { node: "node1".into(), pod_cidrs: vec![], service_cidrs: vec![], own_addresses: vec![] };
            assert_eq!(answers(&view, &settings).get(&32000).map(|health| health.endpoints), expect);
        };
        check("LoadBalancer", "Local", Some(1));
        check("LoadBalancer", "Cluster", None);
        check("NodePort", "Local", None);
    }

    #[test]
    fn no_endpoint_is_unavailable() {
        let health = |endpoints| Health { namespace: "shop".into(), name: "web".into(), endpoints };
        assert_eq!(reply(Some(&health(2))).status(), 200);
        assert_eq!(reply(Some(&health(0))).status(), 503);
        assert_eq!(reply(None).status(), 404);
    }
}
