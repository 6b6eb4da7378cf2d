//! Clients through a proxy: HTTP CONNECT and SOCKS5, chosen as Go's tools choose (kubeconfig, then the environment).

use std::future::Future;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::task::{Context, Poll};

use base64::Engine;
use http::Uri;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::rt::{TokioExecutor, TokioIo};
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tower::{BoxError, Service, ServiceBuilder};

/// Largest answer of a proxy to CONNECT.
const ANSWER: usize = 8 << 10;

/// No client could be made.
#[derive(Debug, thiserror::Error)]
pub(super) enum Error {
    #[error("the client cannot be set up")]
    Client(#[source] Box<kube::Error>),
    #[error("{0:?} is not an address")]
    Address(String),
    #[error("{0:?} is neither an http:// nor a socks5:// proxy")]
    Scheme(String),
}

/// A client for `config`, through its proxy if it has one.
pub(super) fn client(mut config: Config) -> Result<Client, Error> {
    let fault = |error| Error::Client(Box::new(error));
    let Some(proxy) = config.proxy_url.take() else {
        return Client::try_from(config).map_err(fault);
    };
    let connector = config.rustls_https_connector_with_connector(Connector { proxy }).map_err(fault)?;
    let http: HttpClient<_, Body> = HttpClient::builder(TokioExecutor::new()).build(connector);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer().map_err(fault)?)
        .layer(config.extra_headers_layer().map_err(fault)?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, config.default_namespace))
}

/// The proxy `text` names.
pub(super) fn parse(text: &str) -> Result<Uri, Error> {
    let full = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let uri: Uri = full.parse().map_err(|_| Error::Address(text.to_owned()))?;
    match uri.scheme_str() {
        Some("http" | "socks5" | "socks5h") if uri.host().is_some() => Ok(uri),
        _ => Err(Error::Scheme(text.to_owned())),
    }
}

/// The proxy the environment asks for on the way to `server`.
pub(super) fn of_environment(server: &Uri, variable: impl Fn(&str) -> Option<String>) -> Option<String> {
    let either = |upper: &str| variable(upper).or_else(|| variable(&upper.to_lowercase())).filter(|v| !v.is_empty());
    let name = if server.scheme_str() == Some("http") { "HTTP_PROXY" } else { "HTTPS_PROXY" };
    let proxy = either(name)?;
    let host = server.host().unwrap_or_default().trim_start_matches('[').trim_end_matches(']');
    let address: Option<IpAddr> = host.parse().ok();
    if host == "localhost" || address.is_some_and(|ip| ip.is_loopback()) {
        return None;
    }
    let exceptions = either("NO_PROXY").unwrap_or_default();
    let excepted = exceptions.split(',').map(str::trim).filter(|rule| !rule.is_empty()).any(|rule| {
        if rule == "*" {
            return true;
        }
        if let Some(ip) = address {
            return within(ip, rule);
        }
        let (rule, host) = (rule.trim_start_matches("*.").trim_start_matches('.').to_lowercase(), host.to_lowercase());
        host == rule || host.strip_suffix(&rule).is_some_and(|rest| rest.ends_with('.'))
    });
    (!excepted).then_some(proxy)
}

/// Whether `rule`, an address or `address/bits`, covers `ip`.
fn within(ip: IpAddr, rule: &str) -> bool {
    let (base, bits) = rule.split_once('/').unwrap_or((rule, "128"));
    let (Ok(base), Ok(bits)) = (base.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    let wide = |ip: IpAddr| match ip {
        IpAddr::V4(ip) => (u128::from(u32::from(ip)) << 96, 32),
        IpAddr::V6(ip) => (u128::from(ip), 128),
    };
    let ((a, width), (b, other)) = (wide(ip), wide(base));
    let bits = bits.min(width);
    width == other && (bits == 0 || (a ^ b) >> (128 - bits) == 0)
}

/// Dials through the proxy.
#[derive(Clone, Debug)]
struct Connector {
    proxy: Uri,
}

impl Service<Uri> for Connector {
    type Response = TokioIo<TcpStream>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Self::Response>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, target: Uri) -> Self::Future {
        let proxy = self.proxy.clone();
        Box::pin(async move {
            let host = target.host().unwrap_or_default().to_owned();
            let port = target.port_u16().unwrap_or(if target.scheme_str() == Some("http") { 80 } else { 443 });
            let socks = proxy.scheme_str().is_some_and(|scheme| scheme.starts_with("socks"));
            let door = proxy.port_u16().unwrap_or(if socks { 1080 } else { 80 });
            let mut stream = TcpStream::connect((proxy.host().unwrap_or_default(), door)).await?;
            if socks {
                socks5(&mut stream, &host, port).await?;
            } else {
                tunnel(&mut stream, &host, port, credentials(&proxy).as_deref()).await?;
            }
            Ok(TokioIo::new(stream))
        })
    }
}

fn credentials(proxy: &Uri) -> Option<String> {
    let (user, _) = proxy.authority()?.as_str().rsplit_once('@')?;
    Some(base64::engine::general_purpose::STANDARD.encode(user))
}

fn refused(why: String) -> io::Error {
    io::Error::other(why)
}

async fn tunnel(stream: &mut TcpStream, host: &str, port: u16, credentials: Option<&str>) -> io::Result<()> {
    let user = credentials.map(|text| format!("Proxy-Authorization: Basic {text}\r\n")).unwrap_or_default();
    let request = format!("CONNECT {host}:{port} HTTP/1.1\r\nHost: {host}:{port}\r\n{user}\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = Vec::new();
    // Byte by byte, so that nothing of what follows is taken.
    while !answer.ends_with(b"\r\n\r\n") {
        if answer.len() > ANSWER {
            return Err(refused("the proxy's answer does not end".to_owned()));
        }
        answer.push(stream.read_u8().await?);
    }
    let answer = String::from_utf8_lossy(&answer);
    let status = answer.lines().next().unwrap_or_default();
    match status.split(' ').nth(1) {
        Some(code) if code.starts_with('2') => Ok(()),
        _ => Err(refused(format!("the proxy answered {status:?}"))),
    }
}

async fn socks5(stream: &mut TcpStream, host: &str, port: u16) -> io::Result<()> {
    stream.write_all(&[5, 1, 0]).await?;
    let mut method = [0; 2];
    stream.read_exact(&mut method).await?;
    if method != [5, 0] {
        return Err(refused("the proxy wants credentials, or does not speak SOCKS5".to_owned()));
    }
    let length = u8::try_from(host.len()).map_err(|_| refused("the server's name is too long".to_owned()))?;
    let mut request = vec![5, 1, 0, 3, length];
    request.extend_from_slice(host.as_bytes());
    request.extend_from_slice(&port.to_be_bytes());
    stream.write_all(&request).await?;
    let mut head = [0; 4];
    stream.read_exact(&mut head).await?;
    let [_, code, _, kind] = head;
    if code != 0 {
        return Err(refused(format!("the proxy refused to connect, with code {code}")));
    }
    let rest = match kind {
        1 => 4,
        4 => 16,
        _ => usize::from(stream.read_u8().await?),
    };
    let mut bound = vec![0; rest + 2];
    stream.read_exact(&mut bound).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[test]
    fn the_environment() {
        #[track_caller]
        fn check(server: &str, no_proxy: &str, expect: bool) {
            let found = of_environment(&server.parse().unwrap(), |name| match name {
                "HTTPS_PROXY" => Some("http://proxy:3128".to_owned()),
                "NO_PROXY" => Some(no_proxy.to_owned()),
                _ => None,
            });
            assert_eq!(found.is_some(), expect, "{server} {no_proxy}");
        }
        check("https://api.example.com:6443", "", true);
        check("https://api.example.com:6443", "other.org, example.com", false);
        check("https://api.example.com:6443", ".example.com", false);
        check("https://badexample.com", "example.com", true);
        check("https://10.88.0.1:6443", "10.0.0.0/8", false);
        check("https://10.88.0.1:6443", "192.168.0.0/16,10.88.0.2", true);
        check("https://10.88.0.1:6443", "*", false);
        check("https://127.0.0.1:6443", "", false);
        check("https://localhost:6443", "", false);
        check("http://api:80", "", false);
        check("https://[fd00:10:88::1]:6443", "fd00::/16", false);
    }

    #[test]
    fn http_and_socks5_proxies_are_accepted() {
        assert_eq!(parse("proxy:3128").unwrap(), "http://proxy:3128/");
        assert!(parse("socks5://p").is_ok());
        assert_eq!(
            parse("https://p").unwrap_err().to_string(),
            "\"https://p\" is neither an http:// nor a socks5:// proxy"
        );
        assert_eq!(credentials(&parse("http://a:b@p:1").unwrap()).as_deref(), Some("YTpi"));
    }

    #[tokio::test]
    async fn a_tunnel_is_asked_for() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy = parse(&listener.local_addr().unwrap().to_string()).unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = vec![0; 512];
            let length = stream.read(&mut request).await.unwrap();
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nhello").await.unwrap();
            String::from_utf8_lossy(&request[..length]).into_owned()
        };
        let mut connector = Connector { proxy };
        let (request, stream) = tokio::join!(server, connector.call("https://api:6443".parse().unwrap()));
        assert!(request.starts_with("CONNECT api:6443 HTTP/1.1\r\n"), "{request}");
        let mut rest = String::new();
        stream.unwrap().into_inner().read_to_string(&mut rest).await.unwrap();
        assert_eq!(rest, "hello");
    }
}
