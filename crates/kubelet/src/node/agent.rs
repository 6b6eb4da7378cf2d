//! The node's agent: kubelet, service proxy and DNS, in one process beside containerd.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::signal::unix::{SignalKind, signal};
use tokio_util::sync::CancellationToken;

use super::{Config, Error, Result, containerd, file};
use crate::uplink::{self, Uplinks};
use crate::{dns, netpol, proxy, service_view};

/// Port of the kubelet's server.
pub const PORT: u16 = 10250;

/// Where the node finds what it proves itself with.
const SECRETS: &str = "/etc/ferrovirt";

/// Runs until `stop`. Containers go on running; the next agent takes them over. `client` acts as the node, `network` as
/// those who must know all pods of the cluster.
pub async fn run(config: &Config, client: kube::Client, network: kube::Client, stop: CancellationToken) -> Result<()> {
    tracing::info!(node = config.name, api_server = config.api_server, "agent starts");
    let (services, watching) = service_view::watch(client.clone(), &config.name);
    let _watching = kit::spawn("service-view", watching);
    let settings = proxy::Settings {
        node: config.name.clone(),
        pod_cidrs: config.pod_cidrs.clone(),
        service_cidrs: config.service_cidrs.clone(),
        own_addresses: config.dns.clone(),
    };
    let _proxy = kit::spawn("service-proxy", proxy::run(settings, services.clone()));
    let addresses: Vec<IpAddr> = config.addresses.iter().map(ipnet::IpNet::addr).collect();
    let (uplinks, keeping) = uplink::uplinks(network.clone(), &config.name, &addresses).unzip();
    let _uplinks = keeping.map(|keeping| kit::spawn("uplinks", keeping));
    let (policies, watching) = netpol::view::watch(network);
    let _policies_watching = kit::spawn("policy-view", watching);
    let (guard, newcomers) = netpol::guard();
    let settings = netpol::Settings { node: config.name.clone(), dns: config.dns.clone() };
    let _policies = kit::spawn("network-policies", netpol::run(settings, policies, newcomers));
    let settings = dns::Settings {
        addresses: config.dns.clone(),
        domain: config.domain.clone(),
        own_ranges: [config.service_cidrs.as_slice(), &config.cluster_cidrs].concat(),
        resolvers: config.resolvers.iter().map(|address| SocketAddr::new(*address, dns::PORT)).collect(),
    };
    let _dns = kit::spawn("dns", async move {
        if let Err(error) = dns::run(settings, services).await {
            tracing::error!(%error, "cluster DNS cannot serve");
        }
    });
    wait_for_containerd().await;
    Box::pin(crate::run(kubelet(config, guard, uplinks)?, client, stop))
        .await
        .map_err(|source| Error::Kubelet(Box::new(source)))
}

/// The socket appears when containerd listens; a moment later it answers.
async fn wait_for_containerd() {
    while tokio::net::UnixStream::connect(containerd::SOCKET).await.is_err() {
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
}

fn kubelet(config: &Config, guard: netpol::Guard, uplinks: Option<Uplinks>) -> Result<crate::config::Config> {
    let any: IpAddr = match config.addresses.iter().any(|address| address.addr().is_ipv6()) {
        true => Ipv6Addr::UNSPECIFIED.into(),
        false => Ipv4Addr::UNSPECIFIED.into(),
    };
    Ok(crate::config::Config {
        node_name: config.name.clone(),
        node_ips: config.addresses.iter().map(ipnet::IpNet::addr).collect(),
        root: "/var/lib/kubelet".into(),
        log_dir: "/var/log/pods".into(),
        cdi_dirs: vec!["/etc/cdi".into(), "/var/run/cdi".into()],
        containerd: containerd::SOCKET.into(),
        cluster_dns: config.dns.clone(),
        cluster_domain: config.domain.clone(),
        pod_cidrs: config.pod_cidrs.iter().map(ToString::to_string).collect(),
        labels: std::collections::BTreeMap::new(),
        max_pods: 110,
        guard: Some(guard),
        uplinks,
        power_off: power_button()?,
        server: Some(crate::config::Server {
            address: SocketAddr::new(any, PORT),
            tls: Arc::new(tls(Path::new(SECRETS))?),
        }),
    })
}

/// Cancelled by SIGPWR, the signal for a power that is about to go.
fn power_button() -> Result<CancellationToken> {
    let (token, power) = (CancellationToken::new(), SignalKind::from_raw(rustix::process::Signal::POWER.as_raw()));
    let listen = signal(power).map_err(|source| Error::Start { program: "the listener for SIGPWR".into(), source });
    let (mut signals, pressed) = (listen?, token.clone());
    kit::spawn("power-button", async move {
        if signals.recv().await.is_some() {
            pressed.cancel();
        }
    })
    .detach();
    Ok(token)
}

/// Serves with the node's certificate and demands one of the cluster from clients.
fn tls(dir: &Path) -> Result<rustls::ServerConfig> {
    let pem = |name: &str| {
        let path = dir.join(name);
        std::fs::read(&path).map_err(file("read", &path))
    };
    let invalid = |name: &str| {
        let path = dir.join(name);
        move || Error::Certificate(path)
    };
    let certificates = |name: &str| -> Result<Vec<CertificateDer<'static>>> {
        CertificateDer::pem_slice_iter(&pem(name)?).collect::<std::result::Result<_, _>>().map_err(|_| invalid(name)())
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in certificates("ca.crt")? {
        roots.add(certificate).map_err(|_| invalid("ca.crt")())?;
    }
    let verifier = rustls::server::WebPkiClientVerifier::builder(Arc::new(roots)).build();
    let key = PrivateKeyDer::from_pem_slice(&pem("kubelet.key")?).map_err(|_| invalid("kubelet.key")())?;
    let mut config = rustls::ServerConfig::builder()
        .with_client_cert_verifier(verifier.map_err(|_| invalid("ca.crt")())?)
        .with_single_cert(certificates("kubelet.crt")?, key)
        .map_err(|_| invalid("kubelet.crt")())?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}
