//! `ferrovirt control-plane`: the API server and the built-in controllers, one process on the host.

use std::ffi::OsString;
use std::io::Write;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use anyhow::Context;
use clap::Parser;
use csi_controllers::{Drivers, Socket};
use k8s_openapi::api::core::v1::Service;
use kube::Api;
use kube::api::PostParams;
use kube_apiserver::ApiServer;
use kube_apiserver::authn;
use kube_apiserver::availability;
use kube_apiserver::serve::tls::Tls;
use kube_apiserver::serve::{self, fairness};
use kubelet::dns;
use serde_json::json;
use tokio::net::TcpListener;

use crate::backup::restore;
use crate::failure::{advise, parse};
use crate::state::{API_PORT, State, StateArgs};
use crate::{at_rest, cluster, nodes, service_route, terminal};

/// Run the API server and the built-in controllers in the foreground
#[derive(Debug, Parser)]
#[command(name = "control-plane")]
struct ControlPlaneArgs {
    #[command(flatten)]
    state: StateArgs,
    /// Start a session of its own, away from the terminal; standard input is a socket, which is told when the store is open
    #[arg(long, hide = true)]
    detach: bool,
}

/// `ferrovirt control-plane`
pub(crate) fn main(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<ControlPlaneArgs>(words)? else { return Ok(()) };
    terminal::log("info");
    if arguments.detach {
        sys::process::detach_from_terminal()?;
    }
    let state = arguments.state.state()?;
    state.make()?;
    let _lock = sys::lock::acquire(&state.control_plane_lock())?.ok_or_else(|| {
        advise(
            anyhow::anyhow!("the control plane is already running"),
            "`ferrovirt status` shows it, `ferrovirt down` stops it",
        )
    })?;
    restore::finish(&state)?;
    sys::process::raise_open_files()?;
    sys::heap::keep_small().context("cannot start the thread that gives memory back")?;
    cluster::runtime()?.block_on(at_rest::run(run(&state, arguments.detach)))
}

async fn run(state: &State, tell: bool) -> anyhow::Result<()> {
    let node = state.node(nodes::FIRST)?;
    let stop = kit::shutdown::on_signals().context("cannot listen for signals")?;
    let advertise = node.gateways.first().map(|gateway| SocketAddr::new(gateway.addr(), API_PORT));
    let config = kube_apiserver::Config {
        data_dir: Some(state.store()),
        pki_dir: Some(state.pki()),
        service_cidrs: node.service_cidrs.clone(),
        advertise,
        cluster_domain: node.domain.clone(),
        ..kube_apiserver::Config::default()
    };
    let listeners = listen(&node).await?;
    let server = ApiServer::open(config).await.map_err(explained)?;
    if tell {
        tell_who_waits();
    }
    ensure_dns_service(&server.client(), &node).await?;
    let edges = server.edges();
    let pair = edges.pki.api_server(&names(&node))?;
    let tls = Tls::from_pem(&pair.certificate, &pair.key, edges.pki.ca_pem()).context("cannot set up TLS")?;
    // The outermost layer is added last: who asks, then how much of it, then what.
    let router = server
        .router()
        .layer(axum::middleware::from_fn_with_state(edges.fairness.clone(), fairness::layer))
        .layer(axum::middleware::from_fn_with_state(edges.authenticator.clone(), authn::layer));

    let options = kube_controllers::Options {
        root_ca: edges.pki.ca_pem().to_owned(),
        pod_cidrs: pod_ranges(&node),
        drivers: drivers(&server),
        vitals: server.vitals().clone(),
    };
    let controllers = kit::spawn(
        "controllers",
        kube_controllers::run(server.client_named("kube-controller-manager"), options, stop.clone()),
    );
    let _availability = kit::spawn("availability", availability::run(server.clone(), stop.clone()));
    let _route = kit::spawn("service-route", service_route::keep(server.client(), state.clone()));
    let _resolver = kit::spawn("resolver", pass_names_on(node));
    let closing = server.clone();
    let signal = stop.clone();
    let _closer = kit::spawn("close-watches", async move {
        signal.cancelled().await;
        closing.close();
    });
    tracing::info!(port = API_PORT, "API server listens");
    serve::serve(listeners, Arc::new(tls), router, stop).await;
    if let Ok(Err(error)) = controllers.await {
        tracing::warn!(error = %kit::Chain(&error), "controllers ended");
    }
    tracing::info!("control plane ended");
    Ok(())
}

/// CSI drivers are reached through the kubelets of the nodes they run on.
fn drivers(server: &ApiServer) -> Drivers {
    let streams = server.edges().streams.clone();
    Drivers::new(move |node, driver| {
        let streams = streams.clone();
        Box::pin(async move {
            let stream = streams.upgrade_on_node(&node, &format!("/csi/{driver}"), "csi").await?;
            Ok(Box::new(stream) as Box<dyn Socket>)
        })
    })
}

/// One byte for `ferrovirt up`, which may have been interrupted meanwhile: then nobody reads it.
fn tell_who_waits() {
    let told = std::io::stdin().as_fd().try_clone_to_owned().and_then(|end| UnixStream::from(end).write_all(b"\n"));
    drop(told);
}

fn explained(error: kube_apiserver::Error) -> anyhow::Error {
    match error {
        kube_apiserver::Error::Store { source } => restore::advised(source),
        other => anyhow::Error::new(other).context("cannot open the API server"),
    }
}

/// The Service by which cluster DNS is known. It has no endpoints: each node answers on its addresses itself.
async fn ensure_dns_service(client: &kube::Client, node: &kubelet::node::Config) -> anyhow::Result<()> {
    let ips: Vec<String> = node.dns.iter().map(ToString::to_string).collect();
    let families: Vec<&str> = node.dns.iter().map(|ip| if ip.is_ipv4() { "IPv4" } else { "IPv6" }).collect();
    let policy = if ips.len() > 1 { "RequireDualStack" } else { "SingleStack" };
    let service: Service = serde_json::from_value(json!({
        "metadata": {"name": "kube-dns", "namespace": "kube-system", "labels": {"k8s-app": "kube-dns"}},
        "spec": {
            "clusterIP": ips.first(), "clusterIPs": ips, "ipFamilies": families, "ipFamilyPolicy": policy,
            "ports": [
                {"name": "dns", "port": 53, "protocol": "UDP"},
                {"name": "dns-tcp", "port": 53, "protocol": "TCP"},
            ],
        },
    }))
    .context("cannot describe the DNS Service")?;
    let services: Api<Service> = Api::namespaced(client.clone(), "kube-system");
    match services.create(&PostParams::default(), &service).await {
        Err(kube::Error::Api(status)) if status.reason == "AlreadyExists" => Ok(()),
        other => other.map(|_| ()).context("cannot create the DNS Service"),
    }
}

/// On a host whose name servers listen on loopback only, answers the node's queries by asking them.
async fn pass_names_on(node: kubelet::node::Config) {
    let own: Vec<_> = node.gateways.iter().map(ipnet::IpNet::addr).collect();
    let resolvers = kubelet::node::config::loopback_resolvers();
    if resolvers.is_empty() || !node.resolvers.iter().any(|resolver| own.contains(resolver)) {
        return;
    }
    let resolvers = resolvers.into_iter().map(|address| SocketAddr::new(address, dns::PORT)).collect();
    let settings = dns::Settings { addresses: node.resolvers, domain: node.domain, own_ranges: Vec::new(), resolvers };
    // The cluster's own names are the node's to answer; here they stay unknown.
    let (_keep, services) = tokio::sync::watch::channel(None);
    if let Err(error) = dns::run(settings, services).await {
        tracing::warn!(%error, "names outside the cluster cannot be passed on to the host's name servers");
    }
}

/// The cluster's pod ranges, each with the prefix length of a node's share.
fn pod_ranges(node: &kubelet::node::Config) -> Vec<(ipnet::IpNet, u8)> {
    let share = |range: &ipnet::IpNet| {
        let of_family = node.pod_cidrs.iter().find(|own| own.addr().is_ipv4() == range.addr().is_ipv4());
        Some((*range, of_family?.prefix_len()))
    };
    node.cluster_cidrs.iter().filter_map(share).collect()
}

/// The bridge's addresses, where nodes and pods reach it, and loopback.
async fn listen(node: &kubelet::node::Config) -> anyhow::Result<Vec<TcpListener>> {
    let mut listeners = Vec::new();
    let loopback = std::net::IpAddr::from([127, 0, 0, 1]);
    for address in node.gateways.iter().map(ipnet::IpNet::addr).chain([loopback]) {
        let at = SocketAddr::new(address, API_PORT);
        let listener = TcpListener::bind(at).await.with_context(|| format!("cannot listen on {at}"));
        listeners.push(
            listener.map_err(|error| {
                advise(error, "`ferrovirt up` makes the addresses; something else may use the port")
            })?,
        );
    }
    Ok(listeners)
}

/// Everything clients call the API server.
fn names(node: &kubelet::node::Config) -> Vec<String> {
    let service = format!("kubernetes.default.svc.{}", node.domain);
    let mut names: Vec<String> =
        ["localhost", "127.0.0.1", "kubernetes", "kubernetes.default", "kubernetes.default.svc"]
            .map(str::to_owned)
            .into();
    names.push(service);
    names.extend(node.gateways.iter().map(|gateway| gateway.addr().to_string()));
    names.extend(node.service_cidrs.iter().filter_map(|range| range.hosts().next()).map(|first| first.to_string()));
    names
}
