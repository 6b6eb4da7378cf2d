//! Finding and reaching the kubelet that runs a pod.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use serde_json::Value;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use apimachinery::error::ApiError;
use apimachinery::pointer::{items, text};
use apimachinery::request::RequestInfo;

use super::Streams;
use crate::authn::certificate::user_of;
use crate::dial;

/// What a node's name follows in its user name.
const NODE: &str = "system:node:";

/// A node's kubelet.
#[derive(Clone, Debug)]
pub(super) struct Kubelet {
    /// Whose it is.
    node: String,
    /// Where it listens.
    pub(super) address: SocketAddr,
}

impl Streams {
    /// The pod of a request.
    pub(super) fn pod(&self, info: &RequestInfo) -> Result<Arc<Value>, ApiError> {
        self.view
            .get("", "pods", &info.namespace, &info.name)
            .ok_or_else(|| ApiError::not_found("", "pods", &info.name))
    }

    /// The kubelet of a node.
    pub(super) fn kubelet_of_node(&self, name: &str) -> Result<Kubelet, ApiError> {
        let node = self.view.get("", "nodes", "", name).ok_or_else(|| ApiError::not_found("", "nodes", name))?;
        let address = items(&node, "/status/addresses")
            .iter()
            .filter(|a| text(a, "/type") == "InternalIP")
            .find_map(|a| text(a, "/address").parse::<IpAddr>().ok())
            .ok_or_else(|| {
                ApiError::internal(format!("no preferred addresses found; known addresses: [] of node {name:?}"))
            })?;
        let port = node
            .pointer("/status/daemonEndpoints/kubeletEndpoint/Port")
            .and_then(Value::as_u64)
            .and_then(|p| u16::try_from(p).ok())
            .filter(|p| *p != 0)
            .unwrap_or(10250);
        Ok(Kubelet { node: name.to_owned(), address: SocketAddr::new(address, port) })
    }

    /// The kubelet that runs a pod.
    pub(super) fn kubelet_of_pod(&self, pod: &Value) -> Result<Kubelet, ApiError> {
        let node = text(pod, "/spec/nodeName");
        if node.is_empty() {
            let name = text(pod, "/metadata/name");
            return Err(ApiError::bad_request(format!("pod {name} does not have a host assigned")));
        }
        self.kubelet_of_node(node)
    }

    /// Opens a TLS connection to a kubelet. The address is the node's own word: that it is the node's, the certificate says.
    pub(super) async fn open(&self, kubelet: &Kubelet) -> Result<TlsStream<TcpStream>, ApiError> {
        let config = self.tls.clone().map_err(|e| ApiError::internal(format!("kubelet client: {e}")))?;
        let host = kubelet.address.ip().to_string();
        let failed = |why: &dyn std::fmt::Display| {
            ApiError::internal(format!("Internal error occurred: error dialing backend: {why}"))
        };
        let stream = dial::connect(kubelet.address, &host, config).await.map_err(|error| failed(&error))?;
        let leaf = stream.get_ref().1.peer_certificates().and_then(|chain| chain.first());
        let found = leaf.and_then(|leaf| user_of(leaf)).map(|user| user.name).unwrap_or_default();
        let expected = format!("{NODE}{}", kubelet.node);
        if found != expected {
            let why = format!("tls: {} shows the certificate of {found:?}, expected {expected:?}", kubelet.address);
            return Err(failed(&why));
        }
        Ok(stream)
    }
}

/// The container a request is about: the one named, or the only one, or the annotated default.
pub(super) fn container(pod: &Value, named: &str) -> Result<String, ApiError> {
    let lists = ["/spec/containers", "/spec/initContainers", "/spec/ephemeralContainers"];
    let pod_name = text(pod, "/metadata/name");
    if !named.is_empty() {
        if lists.iter().flat_map(|l| items(pod, l)).any(|c| text(c, "/name") == named) {
            return Ok(named.to_owned());
        }
        return Err(ApiError::bad_request(format!("container {named} is not valid for pod {pod_name}")));
    }
    let containers = items(pod, "/spec/containers");
    if let [only] = containers {
        return Ok(text(only, "/name").to_owned());
    }
    let annotated = text(pod, "/metadata/annotations/kubectl.kubernetes.io~1default-container");
    if containers.iter().any(|c| text(c, "/name") == annotated) {
        return Ok(annotated.to_owned());
    }
    let names: Vec<&str> = containers.iter().map(|c| text(c, "/name")).collect();
    let init: Vec<&str> = items(pod, "/spec/initContainers").iter().map(|c| text(c, "/name")).collect();
    let mut message =
        format!("a container name must be specified for pod {pod_name}, choose one of: [{}]", names.join(" "));
    if !init.is_empty() {
        message.push_str(&format!(" or one of the init containers: [{}]", init.join(" ")));
    }
    Err(ApiError::bad_request(message))
}

/// The pairs of a query string, decoded.
pub(super) fn query(request: &axum::extract::Request) -> Vec<(String, String)> {
    let text = request.uri().query().unwrap_or_default();
    url::form_urlencoded::parse(text.as_bytes()).into_owned().collect()
}

/// The first value of a parameter, empty when absent.
pub(super) fn parameter<'a>(pairs: &'a [(String, String)], name: &str) -> &'a str {
    pairs.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str()).unwrap_or_default()
}

/// An answer of the kubelet that is not the stream asked for, as an API error.
pub(super) async fn refusal(status: http::StatusCode, body: axum::body::Body) -> ApiError {
    let bytes = axum::body::to_bytes(body, 64 * 1024).await.unwrap_or_default();
    if let Ok(document) = serde_json::from_slice::<Value>(&bytes)
        && text(&document, "/kind") == "Status"
    {
        return worded(status, text(&document, "/message"));
    }
    worded(status, String::from_utf8_lossy(&bytes).trim())
}

fn worded(status: http::StatusCode, message: &str) -> ApiError {
    let message = if message.is_empty() { format!("the kubelet answered {status}") } else { message.to_owned() };
    match status.as_u16() {
        400 => ApiError::bad_request(message),
        404 => ApiError::new(404, "NotFound", message),
        403 => ApiError::new(403, "Forbidden", message),
        409 => ApiError::new(409, "Conflict", message),
        _ => ApiError::internal(format!("Internal error occurred: {message}")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn containers_are_chosen() {
        let check = |pod: Value, named: &str, expect: Result<&str, &str>| {
            let got = container(&pod, named).map_err(|e| e.message);
            assert_eq!(got.as_deref().map_err(String::as_str), expect);
        };
        let two = json!({"metadata": {"name": "p"}, "spec": {"containers": [{"name": "a"}, {"name": "b"}], "initContainers": [{"name": "i"}]}});
        check(json!({"spec": {"containers": [{"name": "a"}]}}), "", Ok("a"));
        check(two.clone(), "i", Ok("i"));
        check(two.clone(), "x", Err("container x is not valid for pod p"));
        check(
            two,
            "",
            Err(
                "a container name must be specified for pod p, choose one of: [a b] or one of the init containers: [i]",
            ),
        );
    }
}
