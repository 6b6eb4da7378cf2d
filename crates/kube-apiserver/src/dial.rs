//! Reaching a Service from the API server: the Service is resolved to a ready endpoint, which is dialled directly.

use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Full, Limited};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use rand::seq::SliceRandom as _;
use rustls_pki_types::ServerName;
use serde_json::Value;
use tls_verify::ServerVerifier;
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use apimachinery::pointer::{items, text};

use crate::view::View;

const CONNECT: Duration = Duration::from_secs(5);
/// For a connection, while there are other endpoints to try.
const IMPATIENT: Duration = Duration::from_secs(2);
const ANSWER: usize = 16 << 20;
const IDLE_PER_HOST: usize = 4;

/// Why a backend did not answer.
#[derive(Debug, thiserror::Error)]
pub enum DialError {
    /// No such Service.
    #[error("service {0:?} not found")]
    NoService(String),
    /// The Service has no such port.
    #[error("no service port {0} found for service {1:?}")]
    NoPort(u16, String),
    /// Nothing is ready behind it.
    #[error("no endpoints available for service {0:?}")]
    NoEndpoints(String),
    /// TCP.
    #[error("dial tcp {0}: {1}")]
    Connect(SocketAddr, std::io::Error),
    /// TLS.
    #[error("tls: {0}")]
    Tls(String),
    /// HTTP.
    #[error("{0}")]
    Http(String),
    /// Too slow.
    #[error("context deadline exceeded")]
    Timeout,
}

/// The addresses of the ready endpoints of a Service port, in an order of chance: whoever takes the first spreads its
/// calls, and whoever cannot connect to it has the others. There is at least one.
///
/// # Errors
/// When the Service, the port or an endpoint is missing.
pub fn resolve(view: &dyn View, namespace: &str, name: &str, port: u16) -> Result<Vec<SocketAddr>, DialError> {
    let service = view.get("", "services", namespace, name).ok_or_else(|| DialError::NoService(name.to_owned()))?;
    let ports = items(&service, "/spec/ports");
    let entry = ports
        .iter()
        .find(|p| p.get("port").and_then(Value::as_u64) == Some(u64::from(port)))
        .ok_or_else(|| DialError::NoPort(port, name.to_owned()))?;
    let selector = service.pointer("/spec/selector").and_then(Value::as_object).filter(|s| !s.is_empty());
    let found = match selector {
        Some(selector) => from_pods(view, namespace, selector, entry, port),
        None => from_endpoints(view, namespace, name, text(entry, "/name")),
    };
    let mut found = found;
    if found.is_empty() {
        return Err(DialError::NoEndpoints(name.to_owned()));
    }
    found.shuffle(&mut rand::rng());
    Ok(found)
}

/// Ready pods are read directly: endpoints follow them with a delay that a webhook call would notice.
fn from_pods(
    view: &dyn View,
    namespace: &str,
    selector: &serde_json::Map<String, Value>,
    entry: &Value,
    port: u16,
) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    for pod in view.list("", "pods", namespace) {
        let labels = pod.pointer("/metadata/labels");
        let selected = selector.iter().all(|(k, v)| labels.and_then(|l| l.get(k)) == Some(v));
        let ready = items(&pod, "/status/conditions")
            .iter()
            .any(|c| text(c, "/type") == "Ready" && text(c, "/status") == "True");
        if !selected || !ready || pod.pointer("/metadata/deletionTimestamp").is_some() {
            continue;
        }
        let Ok(ip) = text(&pod, "/status/podIP").parse::<IpAddr>() else { continue };
        let target = match entry.get("targetPort") {
            Some(Value::Number(number)) => number.as_u64().and_then(|n| u16::try_from(n).ok()).filter(|n| *n != 0),
            Some(Value::String(name)) => items(&pod, "/spec/containers")
                .iter()
                .flat_map(|c| items(c, "/ports"))
                .find(|p| text(p, "/name") == name)
                .and_then(|p| p.get("containerPort").and_then(Value::as_u64))
                .and_then(|n| u16::try_from(n).ok()),
            _ => Some(port),
        };
        found.extend(
            target.or_else(|| entry.get("targetPort").is_none().then_some(port)).map(|p| SocketAddr::new(ip, p)),
        );
    }
    found
}

fn from_endpoints(view: &dyn View, namespace: &str, name: &str, port_name: &str) -> Vec<SocketAddr> {
    let mut found = Vec::new();
    let mut take = |addresses: &mut dyn Iterator<Item = &str>, ports: &[Value]| {
        let port = ports.iter().find(|p| ports.len() == 1 || text(p, "/name") == port_name);
        let port = port.and_then(|p| p.get("port").and_then(Value::as_u64)).and_then(|n| u16::try_from(n).ok());
        if let Some(port) = port {
            found.extend(addresses.filter_map(|a| a.parse::<IpAddr>().ok()).map(|ip| SocketAddr::new(ip, port)));
        }
    };
    for slice in view.list("discovery.k8s.io", "endpointslices", namespace) {
        let labels = slice.pointer("/metadata/labels");
        if labels.is_none_or(|l| l.get("kubernetes.io/service-name").and_then(Value::as_str) != Some(name)) {
            continue;
        }
        let ready = items(&slice, "/endpoints")
            .iter()
            .filter(|e| e.pointer("/conditions/ready").and_then(Value::as_bool) != Some(false));
        let mut addresses = ready.flat_map(|e| items(e, "/addresses")).filter_map(Value::as_str);
        take(&mut addresses, items(&slice, "/ports"));
    }
    if let Some(endpoints) = view.get("", "endpoints", namespace, name) {
        for subset in items(&endpoints, "/subsets") {
            let mut addresses = items(subset, "/addresses").iter().map(|a| text(a, "/ip"));
            take(&mut addresses, items(subset, "/ports"));
        }
    }
    found
}

/// A TLS client configuration for http/1.1.
///
/// # Errors
/// When the CA bundle or the client pair is unusable.
pub fn tls_config(ca: Option<&[u8]>, client: Option<(&str, &str)>) -> Result<Arc<rustls::ClientConfig>, DialError> {
    use crate::serve::tls;
    let fail = |e: &dyn std::fmt::Display| DialError::Tls(e.to_string());
    let builder = rustls::ClientConfig::builder_with_provider(tls::provider())
        .with_safe_default_protocol_versions()
        .map_err(|e| fail(&e))?;
    let builder = match ca {
        Some(pem) => builder.with_root_certificates(tls::roots(pem).map_err(|e| fail(&e))?),
        // For `insecureSkipTLSVerify`, and for kubelets whose certificate the cluster's authority did not sign.
        None => {
            let verifier = Arc::new(ServerVerifier::anybody(tls::provider()));
            builder.dangerous().with_custom_certificate_verifier(verifier)
        }
    };
    let mut config = match client {
        Some((certificate, key)) => builder
            .with_client_auth_cert(
                tls::certificates(certificate.as_bytes(), "client certificate").map_err(|e| fail(&e))?,
                tls::private_key(key.as_bytes()).map_err(|e| fail(&e))?,
            )
            .map_err(|e| fail(&e))?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// Opens a TLS connection.
///
/// # Errors
/// When TCP or TLS fail or take longer than five seconds.
pub async fn connect(
    address: SocketAddr,
    name: &str,
    config: Arc<rustls::ClientConfig>,
) -> Result<TlsStream<TcpStream>, DialError> {
    let name = ServerName::try_from(name.to_owned()).map_err(|e| DialError::Tls(e.to_string()))?;
    let open = async {
        let stream = TcpStream::connect(address).await.map_err(|e| DialError::Connect(address, e))?;
        let _ = stream.set_nodelay(true);
        notice_silence(&stream);
        let connector = tokio_rustls::TlsConnector::from(config);
        connector.connect(name, stream).await.map_err(|e| DialError::Tls(e.to_string()))
    };
    tokio::time::timeout(CONNECT, open).await.unwrap_or(Err(DialError::Timeout))
}

/// Opens a TLS connection to the first of `addresses` that can be connected to.
///
/// # Errors
/// How the last of them failed.
pub async fn connect_any(
    addresses: &[SocketAddr],
    name: &str,
    config: &Arc<rustls::ClientConfig>,
) -> Result<(SocketAddr, TlsStream<TcpStream>), DialError> {
    let mut failed = DialError::NoEndpoints(name.to_owned());
    for (at, address) in addresses.iter().enumerate() {
        // One on a node that is cut off says nothing at all; those after it are to have a turn within the caller's time.
        let patience = if at + 1 < addresses.len() { IMPATIENT } else { CONNECT };
        let opened = tokio::time::timeout(patience, connect(*address, name, config.clone())).await;
        match opened.unwrap_or(Err(DialError::Timeout)) {
            Ok(stream) => return Ok((*address, stream)),
            Err(error) => {
                tracing::debug!(name, %address, %error, "an endpoint cannot be connected to");
                failed = error;
            }
        }
    }
    Err(failed)
}

/// How long a backend may leave everything unanswered.
const SILENCE: Duration = Duration::from_secs(30);

/// Ends a connection whose other side is cut off: it says nothing any more, and a stream to it would last for ever. Where
/// the system refuses, the connection is as good as without.
fn notice_silence(stream: &TcpStream) {
    let socket = socket2::SockRef::from(stream);
    let probes = socket2::TcpKeepalive::new().with_time(SILENCE / 2).with_interval(SILENCE / 6).with_retries(3);
    let _ = socket.set_tcp_keepalive(&probes);
    let _ = socket.set_tcp_user_timeout(Some(SILENCE));
}

type Sender = SendRequest<Full<Bytes>>;

/// A client of one backend that keeps a few idle connections for each address.
pub struct Backend {
    name: String,
    config: Arc<rustls::ClientConfig>,
    idle: std::sync::Mutex<Vec<(SocketAddr, Sender)>>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Backend").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Backend {
    /// A client that expects a certificate for `name`.
    #[must_use]
    pub fn new(name: &str, config: Arc<rustls::ClientConfig>) -> Self {
        Self { name: name.to_owned(), config, idle: std::sync::Mutex::default() }
    }

    /// An idle connection to one of `addresses`, to an earlier one rather than to a later.
    fn take(&self, addresses: &[SocketAddr]) -> Option<(SocketAddr, Sender)> {
        let mut idle = self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        idle.retain(|(_, sender)| !sender.is_closed());
        let found = |address| idle.iter().position(|(a, sender)| a == address && sender.is_ready());
        let at = addresses.iter().find_map(found)?;
        Some(idle.swap_remove(at))
    }

    fn give_back(&self, address: SocketAddr, sender: Sender) {
        let mut idle = self.idle.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if idle.len() < IDLE_PER_HOST {
            idle.push((address, sender));
        }
    }

    /// Sends a request to one of `addresses` and reads the whole answer. The next one is tried when no connection comes
    /// about; what was sent to one is not sent to another.
    ///
    /// # Errors
    /// When no backend can be reached, or it fails, or takes longer than `timeout`.
    pub async fn send(
        &self,
        addresses: &[SocketAddr],
        request: http::Request<Bytes>,
        timeout: Duration,
    ) -> Result<http::Response<Bytes>, DialError> {
        tokio::time::timeout(timeout, self.exchange(addresses, request)).await.unwrap_or(Err(DialError::Timeout))
    }

    async fn exchange(
        &self,
        addresses: &[SocketAddr],
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, DialError> {
        // An idle connection may have been closed by the other side at this moment: then a fresh one decides.
        if let Some((address, sender)) = self.take(addresses)
            && let Ok(response) = self.on(address, sender, request.clone()).await
        {
            return Ok(response);
        }
        let (address, stream) = connect_any(addresses, &self.name, &self.config).await?;
        let (sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|e| DialError::Http(e.to_string()))?;
        kit::spawn("webhook-connection", connection).detach();
        self.on(address, sender, request).await
    }

    async fn on(
        &self,
        address: SocketAddr,
        mut sender: Sender,
        request: http::Request<Bytes>,
    ) -> Result<http::Response<Bytes>, DialError> {
        let response = sender.send_request(request.map(Full::new)).await.map_err(|e| DialError::Http(e.to_string()))?;
        let (parts, body) = response.into_parts();
        let body = Limited::new(body, ANSWER).collect().await.map_err(|e| DialError::Http(e.to_string()))?;
        if sender.is_ready() {
            self.give_back(address, sender);
        }
        Ok(http::Response::from_parts(parts, body.to_bytes()))
    }
}
