//! The way to the export's server: at the host of its link, at an address that was named, or through the API server.

use std::net::SocketAddr;

use api::export::constants::{PORT, SELECTOR};
use api::export::v1::VirtualMachineExport;
use http::Uri;
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};
use rustls::pki_types::ServerName;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;

use super::links::Side;
use super::{Args, flags};
use crate::connect::Cluster;
use crate::fault::{Fault, chain};
use crate::tls::{self, Stream};

/// The way.
pub(super) struct Way {
    /// In place of the host of a link.
    dial: Option<String>,
    tls: TlsConnector,
    /// Carries what comes to the local port.
    _forward: Option<kit::Task<()>>,
}

/// Finds the way.
pub(super) async fn find(
    cluster: &Cluster,
    args: &Args,
    export: &VirtualMachineExport,
    side: Side,
) -> Result<Way, Fault> {
    let authorities = side.links(export).map(|link| link.cert.clone());
    let tls = tls::connector(args.insecure, authorities.as_deref())?;
    if let Some(url) = args.service_url.as_deref().filter(|_| !args.port_forward) {
        return Ok(Way { dial: Some(url.to_owned()), tls, _forward: None });
    }
    if side == Side::External {
        return Ok(Way { dial: None, tls, _forward: None });
    }
    if !args.port_forward {
        args.say("there is no link from outside of the cluster: going through the API server");
    }
    let (address, forward) = forward(cluster, args, export).await?;
    if args.port_forward {
        args.say("Port forwarding is ready.");
    }
    Ok(Way { dial: Some(address.to_string()), tls, _forward: Some(forward) })
}

/// A local port that leads to the export's pod.
async fn forward(
    cluster: &Cluster,
    args: &Args,
    export: &VirtualMachineExport,
) -> Result<(SocketAddr, kit::Task<()>), Fault> {
    let service = export.status.as_deref().and_then(|status| status.service_name.clone()).unwrap_or_default();
    let what = format!("cannot reach the pod of Service {}/{service}", cluster.namespace);
    let services: Api<Service> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let found = services.get(&service).await.map_err(|error| Fault::api(&what, &error))?;
    let selector = found.spec.and_then(|spec| spec.selector?.remove(SELECTOR)).unwrap_or_default();
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &cluster.namespace);
    let list = pods.list(&ListParams::default().labels(&format!("{SELECTOR}={selector}"))).await;
    let list = list.map_err(|error| Fault::api(&what, &error))?;
    let pod = list.items.first().ok_or_else(|| Fault::new(format!("no pods found for the service {service}")))?;
    let port = flags::local_port(args).unwrap_or(0);
    let bound = TcpListener::bind(("127.0.0.1", port)).await;
    let listener = bound.map_err(|error| Fault::new(format!("cannot listen on port {port}")).because(error))?;
    let address = listener.local_addr().map_err(|error| Fault::new(&what).because(error))?;
    let (client, namespace, name) = (cluster.client.clone(), cluster.namespace.clone(), pod.name_any());
    let carrying = kit::spawn("forward", async move {
        while let Ok((stream, _)) = listener.accept().await {
            kit::spawn("forwarded", carry(client.clone(), namespace.clone(), name.clone(), stream)).detach();
        }
    });
    Ok((address, carrying))
}

async fn carry(client: Client, namespace: String, pod: String, mut local: TcpStream) {
    let _ = local.set_nodelay(true);
    let pods: Api<Pod> = Api::namespaced(client, &namespace);
    let opened = pods.portforward(&pod, &[PORT]).await;
    let stream = opened.map(|mut forward| (forward.take_stream(PORT), forward));
    match stream {
        Ok((Some(mut remote), forward)) => {
            // Either side may end it: whoever downloads sees what is missing.
            let _ = tokio::io::copy_bidirectional(&mut local, &mut remote).await;
            drop(remote);
            let _ = forward.join().await;
        }
        Ok((None, _)) => {}
        Err(error) => eprintln!("the port of the export's pod cannot be forwarded: {}", chain(&error)),
    }
}

impl Way {
    /// Connects for `url`. Whatever is dialled, the certificate has to be for the link's host.
    pub(super) async fn connect(&self, url: &Uri) -> Result<Box<dyn Stream>, Fault> {
        let host = url.host().unwrap_or_default().to_owned();
        let dial = self.dial.clone().unwrap_or_else(|| format!("{host}:{}", url.port_u16().unwrap_or(443)));
        let dial = dial.split_once("://").map_or(dial.clone(), |(_, rest)| rest.to_owned());
        let dial = if dial.rsplit_once(':').is_some() { dial } else { format!("{dial}:443") };
        let what = format!("cannot reach the export's server at {dial}");
        let failed = |error: std::io::Error| Fault::new(&what).because(chain(&error));
        let stream = TcpStream::connect(dial.trim_end_matches('/')).await.map_err(failed)?;
        stream.set_nodelay(true).map_err(failed)?;
        let name = ServerName::try_from(host).map_err(|error| Fault::new(&what).because(error))?;
        let hint = "--insecure accepts any certificate of the server";
        let stream = self.tls.connect(name, stream).await.map_err(|error| failed(error).hint(hint))?;
        Ok(Box::new(stream))
    }
}
