//! `virt-exportproxy`: the way to every export from outside of the cluster, behind an Ingress or a Route.
//!
//! The path says which export is meant. The token is looked at by the export's own server; nothing is kept here.

mod onward;
mod path;

use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;

use api::export::constants::phase;
use api::export::v1::VirtualMachineExport;
use api::kubevirt::tls::asked;
use api::kubevirt::v1::KubeVirt;
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use k8s_openapi::api::core::v1::Service;
use kit::health::{self, Ready};
use kit::store::Store;
use kit::tls::{self, Files, Material, Trust};
use kit::{metrics, server, shutdown};
use kube::runtime::watcher;
use kube::{Api, Client};
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;

use crate::Error;

/// Command line of virt-exportproxy.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The directory of the certificate that clients see.
    #[arg(long, default_value = "/etc/virt-exportproxy/certificates")]
    pub cert_dir: PathBuf,
    /// The file with the authorities of export servers.
    #[arg(long, default_value = "/etc/virt-exportproxy/exportca/ca-bundle")]
    pub export_ca: PathBuf,
    /// Port to listen on.
    #[arg(long, default_value_t = 8443)]
    pub port: u16,
}

/// Serves until it is told to stop.
///
/// # Errors
/// When the certificate cannot be read, the API server is not known, or the port is taken.
pub async fn run(args: Args) -> Result<(), Error> {
    let stop = shutdown::on_signals().map_err(Error::setup("listen for signals"))?;
    let client = kit::client::connect("virt-exportproxy").await.map_err(Error::setup("reach the API server"))?;
    let material = Material::new();
    // Clients show tokens, no certificates: the bundle of this pair is not used.
    let files = Files { pair: args.cert_dir, bundle: args.export_ca.clone() };
    let _certificates =
        tls::load(files, material.clone(), Trust::new()).await.map_err(Error::setup("load the certificates"))?;
    let config = tls::Changing::new(material, None).map_err(Error::setup("set up TLS"))?;
    let all = Api::<KubeVirt>::all(client.clone());
    let _obeying = tls::follow(all, watcher::Config::default(), Store::default(), vec![config.clone()], asked);
    let listener = match TcpListener::bind(("::", args.port)).await {
        Ok(listener) => listener,
        // A node without IPv6 has no such address.
        Err(_) => TcpListener::bind(("0.0.0.0", args.port)).await.map_err(Error::setup("listen"))?,
    };
    let ready = Ready::default();
    ready.set(true);
    let proxy = Proxy { client, authorities: args.export_ca, dial: None };
    let router = router(proxy).merge(health::router(ready)).merge(metrics::router(Registry::default()));
    server::serve_tls(listener, config, router, stop).await;
    Ok(())
}

/// What the proxy knows.
#[derive(Clone)]
pub struct Proxy {
    /// The API server, which knows the exports.
    pub client: Client,
    /// The file with the authorities of export servers; it is read for each request, because they are replaced.
    pub authorities: PathBuf,
    /// Where export servers are reached, where their Services mean nothing: outside of the cluster.
    pub dial: Option<SocketAddr>,
}

/// The proxy's paths.
pub fn router(proxy: Proxy) -> Router {
    let proxy = Arc::new(proxy);
    let handler = move |request: Request| {
        let proxy = proxy.clone();
        async move { pass(&proxy, request).await.unwrap_or_else(IntoResponse::into_response) }
    };
    Router::new().fallback(handler).layer(DefaultBodyLimit::disable())
}

/// Where a Service is reached: at an address that the cluster has given it. One that stands for a name elsewhere is somebody's way to have
/// this proxy connect to wherever that name leads, itself included.
fn address(service: &Service) -> Option<IpAddr> {
    let spec = service.spec.as_ref().filter(|spec| spec.type_.as_deref() != Some("ExternalName"))?;
    let address: IpAddr = spec.cluster_ip.as_deref()?.parse().ok()?;
    let own = match address.to_canonical() {
        IpAddr::V4(v4) => v4.is_loopback() || v4.is_link_local() || v4.is_broadcast(),
        IpAddr::V6(v6) => v6.is_loopback() || v6.is_unicast_link_local(),
    };
    (!own && !address.is_unspecified() && !address.is_multicast()).then_some(address)
}

async fn pass(proxy: &Proxy, request: Request) -> Result<Response, StatusCode> {
    let place = path::parse(request.uri()).ok_or(StatusCode::BAD_REQUEST)?;
    let exports: Api<VirtualMachineExport> = Api::namespaced(proxy.client.clone(), &place.namespace);
    let found = exports.get_opt(&place.name).await.map_err(|error| {
        tracing::warn!(export = %place.name, error = %kit::Chain(&error), "an export cannot be read");
        StatusCode::INTERNAL_SERVER_ERROR
    })?;
    let status = found.ok_or(StatusCode::NOT_FOUND)?.status.unwrap_or_default();
    let service = status.service_name.filter(|_| status.phase.as_deref() == Some(phase::READY));
    let service = service.ok_or(StatusCode::SERVICE_UNAVAILABLE)?;
    let services: Api<Service> = Api::namespaced(proxy.client.clone(), &place.namespace);
    let found = services.get_opt(&service).await.map_err(|error| {
        tracing::warn!(%service, error = %kit::Chain(&error), "the Service of an export cannot be read");
        StatusCode::INTERNAL_SERVER_ERROR
    })?;
    let host = format!("{service}.{}.svc", place.namespace);
    let Some(address) = found.as_ref().and_then(address) else {
        tracing::warn!(%host, "the Service of an export has no address of the cluster: it is not asked");
        return Err(StatusCode::BAD_GATEWAY);
    };
    let dial = proxy.dial.unwrap_or_else(|| (address, 443).into());
    onward::forward(proxy, (&host, dial), &place.rest, request).await.map_err(|error| {
        tracing::warn!(%host, error = %kit::Chain(&error), "an export server cannot be reached");
        StatusCode::BAD_GATEWAY
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn a_service_is_asked_at_an_address_of_the_cluster_only() {
        #[track_caller]
        #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
        fn check(spec: Value, expect: Option<&str>) {
            let service: Service = serde_json::from_value(json!({ "metadata": {}, "spec": spec })).unwrap();
            assert_eq!(address(&service).map(|address| address.to_string()).as_deref(), expect);
        }
        check(json!({ "type": "ClusterIP", "clusterIP": "10.96.0.7" }), Some("10.96.0.7"));
        check(json!({ "clusterIP": "fd00::7" }), Some("fd00::7"));
        check(json!({ "type": "ExternalName", "externalName": "localhost" }), None);
        check(json!({ "type": "ExternalName", "externalName": "a.b", "clusterIP": "10.96.0.7" }), None);
        for none in
            ["None", "", "localhost", "127.0.0.1", "::1", "::ffff:127.0.0.1", "169.254.169.254", "0.0.0.0", "fe80::1"]
        {
            check(json!({ "clusterIP": none }), None);
        }
        check(json!({}), None);
    }
}
