//! HTTP proxies: `pods/proxy`, `services/proxy` and `nodes/proxy`.

use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use axum::extract::Request;
use axum::response::Response;
use serde_json::Value;
use tokio::net::TcpStream;

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};
use apimachinery::request::RequestInfo;

use super::Streams;
use crate::aggregation::pass;
use crate::dial;

/// For a connection: an address that says nothing holds nobody up.
const CONNECT: Duration = Duration::from_secs(10);

/// `[scheme:]name[:port]`.
fn split(text: &str) -> (&str, &str, &str) {
    let parts: Vec<&str> = text.split(':').collect();
    match parts.as_slice() {
        [scheme @ ("http" | "https"), name, port] => (scheme, name, port),
        [scheme @ ("http" | "https"), name] if !name.is_empty() => (scheme, name, ""),
        [name, port] => ("", name, port),
        _ => ("", text, ""),
    }
}

pub(super) async fn serve(streams: &Streams, info: &RequestInfo, mut request: Request) -> Result<Response, ApiError> {
    let (scheme, name, port) = split(&info.name);
    let failed = |e: &dyn std::fmt::Display| {
        ApiError::new(503, "ServiceUnavailable", format!("error trying to reach service: {e}"))
    };
    rewrite(&mut request, info).map_err(|()| ApiError::bad_request("malformed proxy path"))?;
    if info.resource == "nodes" {
        let kubelet = streams.kubelet_of_node(name)?;
        let stream = streams.open(&kubelet).await?;
        return pass(stream, &kubelet.address.to_string(), |_| {}, request).await.map_err(|e| failed(&e));
    }
    let address =
        if info.resource == "pods" { pod(streams, info, name, port)? } else { service(streams, info, name, port)? };
    // The pod's or the endpoint's author would otherwise reach what listens for this machine only, or a node's own agents.
    if kit::address::is_special(address.ip()) || pretends(streams, info, name, address.ip()) {
        return Err(ApiError::bad_request(format!("address not allowed: {}", address.ip())));
    }
    if scheme == "https" {
        let config = dial::tls_config(None, None).map_err(|e| failed(&e))?;
        let stream = dial::connect(address, &address.ip().to_string(), config).await.map_err(|e| failed(&e))?;
        return pass(stream, &address.to_string(), |_| {}, request).await.map_err(|e| failed(&e));
    }
    let stream = match tokio::time::timeout(CONNECT, TcpStream::connect(address)).await {
        Ok(connected) => connected.map_err(|e| failed(&e))?,
        Err(_) => return Err(failed(&format!("dial tcp {address}: i/o timeout"))),
    };
    pass(stream, &address.to_string(), |_| {}, request).await.map_err(|e| failed(&e))
}

/// Whether a node's address is given as that of a pod, though no pod of the namespace shares the network of its node. The endpoints of a
/// Service without a selector are an administrator's to write, and may be nodes.
fn pretends(streams: &Streams, info: &RequestInfo, name: &str, address: IpAddr) -> bool {
    let has = |text: &str| text.parse::<IpAddr>().is_ok_and(|own| own.to_canonical() == address.to_canonical());
    let view = &streams.view;
    if info.resource == "services" {
        let service = view.get("", "services", &info.namespace, name);
        let selector = service.as_ref().and_then(|service| service.pointer("/spec/selector")?.as_object());
        if selector.is_none_or(serde_json::Map::is_empty) {
            return false;
        }
    }
    let nodes = view.list("", "nodes", "");
    if !nodes.iter().flat_map(|node| items(node, "/status/addresses")).any(|own| has(text(own, "/address"))) {
        return false;
    }
    let shares = |pod: &Value| {
        pod.pointer("/spec/hostNetwork").and_then(Value::as_bool) == Some(true) && has(text(pod, "/status/podIP"))
    };
    !view.list("", "pods", &info.namespace).iter().any(|pod| shares(pod))
}

/// Leaves of the path what comes after `/proxy`.
fn rewrite(request: &mut Request, info: &RequestInfo) -> Result<(), ()> {
    let marker = format!("/{}/", info.resource);
    let path = request.uri().path();
    let after = path.find(&marker).map(|at| &path[at + marker.len()..]).ok_or(())?;
    let rest = after.split_once("/proxy").map_or("", |(_, rest)| rest);
    let mut text = if rest.is_empty() { "/".to_owned() } else { rest.to_owned() };
    if let Some(query) = request.uri().query() {
        text = format!("{text}?{query}");
    }
    *request.uri_mut() = text.parse().map_err(|_| ())?;
    Ok(())
}

fn pod(streams: &Streams, info: &RequestInfo, name: &str, port: &str) -> Result<SocketAddr, ApiError> {
    let pod =
        streams.view.get("", "pods", &info.namespace, name).ok_or_else(|| ApiError::not_found("", "pods", name))?;
    let unavailable = |why: &str| ApiError::new(503, "ServiceUnavailable", why.to_owned());
    let ip = text(&pod, "/status/podIP").parse::<IpAddr>();
    let ip = ip.map_err(|_| ApiError::bad_request("address not allowed: the pod has no IP"))?;
    let ports = || items(&pod, "/spec/containers").iter().flat_map(|c| items(c, "/ports"));
    let number = |p: &Value| p.get("containerPort").and_then(Value::as_u64).and_then(|n| u16::try_from(n).ok());
    let port = match port.parse::<u16>() {
        Ok(port) => port,
        Err(_) if port.is_empty() => ports().find_map(number).unwrap_or(80),
        Err(_) => {
            ports().filter(|p| text(p, "/name") == port).find_map(number).ok_or_else(|| unavailable("no such port"))?
        }
    };
    Ok(SocketAddr::new(ip, port))
}

fn service(streams: &Streams, info: &RequestInfo, name: &str, port: &str) -> Result<SocketAddr, ApiError> {
    let service = streams
        .view
        .get("", "services", &info.namespace, name)
        .ok_or_else(|| ApiError::not_found("", "services", name))?;
    let ports = items(&service, "/spec/ports");
    let chosen = ports.iter().find(|p| {
        let number = p.get("port").and_then(Value::as_u64).map(|n| n.to_string()).unwrap_or_default();
        port == number || (!port.is_empty() && text(p, "/name") == port) || (port.is_empty() && ports.len() == 1)
    });
    let number = chosen.and_then(|p| p.get("port").and_then(Value::as_u64)).and_then(|n| u16::try_from(n).ok());
    let unavailable = |why: String| ApiError::new(503, "ServiceUnavailable", why);
    let number = number.ok_or_else(|| unavailable(format!("no service port {port:?} found for service {name:?}")))?;
    let found = dial::resolve(&*streams.view, &info.namespace, name, number);
    let addresses = found.map_err(|e| unavailable(e.to_string()))?;
    addresses.first().copied().ok_or_else(|| unavailable(format!("no endpoints available for service {name:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_scheme_and_port() {
        let check = |text: &str, expect: (&str, &str, &str)| assert_eq!(split(text), expect);
        check("web", ("", "web", ""));
        check("web:80", ("", "web", "80"));
        check("https:web:443", ("https", "web", "443"));
        check("http:web", ("http", "web", ""));
        check("https:web:", ("https", "web", ""));
    }
}
