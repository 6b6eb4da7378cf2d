//! Where the upload proxy is reached: at the address that was given, at the one the cluster says, or in its pod through the API
//! server.

use std::fmt;

use api::cdi::constants::{CONFIG, NAMESPACES};
use api::cdi::v1beta1::CDIConfig;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use rustls::pki_types::ServerName;
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::connect::Cluster;
use crate::fault::{Fault, chain};
use crate::tls::{self, Stream};

const PORT: u16 = 8443;
const SELECTOR: &str = "cdi.kubevirt.io=cdi-uploadproxy";

/// The way to the upload proxy.
pub(super) struct Proxy {
    way: Way,
    tls: TlsConnector,
}

enum Way {
    /// `host`, port, whether the connection is encrypted.
    Address { host: String, port: u16, tls: bool },
    /// Through the API server.
    Pod { client: Client, namespace: &'static str },
}

impl fmt::Display for Proxy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.way {
            Way::Address { host, port, tls } => write!(f, "{}://{host}:{port}", if *tls { "https" } else { "http" }),
            Way::Pod { namespace, .. } => write!(f, "cdi-uploadproxy in {namespace}, through the API server"),
        }
    }
}

fn parse(text: &str) -> Result<Way, String> {
    let (tls, rest) = match text.split_once("://") {
        Some(("https", rest)) => (true, rest),
        Some(("http", rest)) => (false, rest),
        Some((scheme, _)) => return Err(format!("{scheme:?} is neither http nor https")),
        None => (true, text),
    };
    let authority: http::uri::Authority =
        rest.trim_end_matches('/').parse().map_err(|error| format!("it is no address: {error}"))?;
    let port = authority.port_u16().unwrap_or(if tls { 443 } else { 80 });
    let host = authority.host().trim_matches(['[', ']']).to_owned();
    Ok(Way::Address { host, port, tls })
}

/// Finds the way.
pub(super) async fn find(cluster: &Cluster, url: Option<&str>, insecure: bool) -> Result<Proxy, Fault> {
    let api: Api<CDIConfig> = Api::all(cluster.client.clone());
    // Who may not read it is not helped by being told so: there is another way.
    let status = api.get_opt(CONFIG).await.ok().flatten().and_then(|config| config.status).unwrap_or_default();
    let said = status.upload_proxy_url.filter(|url| !url.is_empty());
    if let Some(url) = url.or(said.as_deref()) {
        let wrong = |why| Fault::usage(format!("the address {url:?} of the upload proxy cannot be used")).because(why);
        let way = parse(url).map_err(wrong)?;
        let tls = tls::connector(insecure, status.upload_proxy_ca.as_deref())?;
        let proxy = Proxy { way, tls };
        // An address that the user named is theirs to put right; one that the cluster says may be for other places.
        if url.is_empty() || said.as_deref() != Some(url) || proxy.connect().await.is_ok() {
            return Ok(proxy);
        }
    }
    // The API server hands this stream to the very pod, whose certificate is then of no matter.
    let way = Way::Pod { client: cluster.client.clone(), namespace: home(&cluster.client).await };
    Ok(Proxy { way, tls: tls::connector(true, None)? })
}

/// The namespace with the proxy's pod, of those that CDI is installed in.
async fn home(client: &Client) -> &'static str {
    for namespace in NAMESPACES {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        if pods.list(&ListParams::default().labels(SELECTOR)).await.is_ok_and(|found| !found.items.is_empty()) {
            return namespace;
        }
    }
    NAMESPACES[0]
}

impl Proxy {
    /// The name to ask for.
    pub(super) fn host(&self) -> String {
        match &self.way {
            Way::Address { host, port, .. } => format!("{host}:{port}"),
            Way::Pod { namespace, .. } => format!("cdi-uploadproxy.{namespace}.svc"),
        }
    }

    /// Connects anew.
    pub(super) async fn connect(&self) -> Result<Box<dyn Stream>, Fault> {
        let what = format!("cannot reach the upload proxy {self}");
        let failed = |error: std::io::Error| Fault::new(&what).because(chain(&error));
        match &self.way {
            Way::Address { host, port, tls } => {
                let stream = TcpStream::connect((host.as_str(), *port)).await.map_err(failed)?;
                // Two small writes and an answer would otherwise wait for each other.
                stream.set_nodelay(true).map_err(failed)?;
                if !tls {
                    return Ok(Box::new(stream));
                }
                let name = ServerName::try_from(host.clone()).map_err(|error| Fault::new(&what).because(error))?;
                let hint = "--insecure accepts any certificate of the proxy";
                let stream = self.tls.connect(name, stream).await.map_err(|error| failed(error).hint(hint))?;
                Ok(Box::new(stream))
            }
            Way::Pod { client, namespace } => {
                let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
                let asked = |error: kube::Error| {
                    Fault::api(&what, &error).hint("--uploadproxy-url names a way for who may not reach the pod")
                };
                let found = pods.list(&ListParams::default().labels(SELECTOR)).await.map_err(asked)?;
                let ready = |pod: &&Pod| {
                    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
                    conditions.into_iter().any(|condition| condition.type_ == "Ready" && condition.status == "True")
                };
                let Some(pod) = found.items.iter().find(ready) else {
                    return Err(Fault::new(&what)
                        .because("no pod of it is ready")
                        .hint(format!("kubectl -n {namespace} get pods shows what runs")));
                };
                let mut forward = pods.portforward(&pod.name_any(), &[PORT]).await.map_err(asked)?;
                let stream = forward.take_stream(PORT).ok_or_else(|| Fault::new(&what).because("no stream"))?;
                // It carries the stream until its end.
                kit::spawn("forward", async move { forward.join().await }).detach();
                let name = ServerName::try_from(self.host()).map_err(|error| Fault::new(&what).because(error))?;
                Ok(Box::new(self.tls.connect(name, stream).await.map_err(failed)?))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, expect: Result<(&str, u16, bool), ()>) {
        let found = parse(text).map(|way| match way {
            Way::Address { host, port, tls } => (host, port, tls),
            Way::Pod { .. } => panic!("a pod"),
        });
        assert_eq!(found.map_err(drop), expect.map(|(host, port, tls)| (host.to_owned(), port, tls)));
    }

    #[test]
    fn addresses() {
        check("https://proxy.example", Ok(("proxy.example", 443, true)));
        check("proxy.example:31001/", Ok(("proxy.example", 31001, true)));
        check("http://[::1]:80", Ok(("::1", 80, false)));
        check("ftp://a", Err(()));
        check("https://a b", Err(()));
    }
}
