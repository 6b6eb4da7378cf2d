//! The agent itself: pods, their server, and the Node object, over one containerd.

use std::sync::Arc;

use futures::StreamExt;
use k8s_openapi::api::core::v1::Service;
use kit::events::Recorder;
use kube::runtime::{WatchStreamExt, reflector, watcher};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::allocation::Allocations;
use crate::config::Config;
use crate::context::Context;
use crate::device_drivers::DeviceClaims;
use crate::devices::Devices;
use crate::drivers::{self, Csi};
use crate::error::{Error, Result};
use crate::image_pulls::Images;
use crate::inventory::Inventory;
use crate::runtime::Runtime;
use crate::sandbox::parse_resolv_conf;
use crate::{csi, networks, pods, registration};

/// Runs the kubelet until `shutdown`. Containers go on running; the next `run` takes them over. It ends as well when the
/// power is to go and everything has stopped.
///
/// # Errors
/// When containerd cannot be reached or a socket cannot be opened; what fails later is retried.
pub async fn run(config: Config, client: Client, shutdown: CancellationToken) -> Result<()> {
    let runtime = Runtime::connect(&config.containerd).await?;
    let events = Recorder::new(client.clone(), "kubelet", &config.node_name);
    let (services, writer) = reflector::store();
    let service_watch = watcher(Api::<Service>::all(client.clone()), watcher::Config::default());
    let service_watch = service_watch.default_backoff().reflect(writer).for_each(|_| std::future::ready(()));
    let _services = kit::spawn("services", service_watch);
    let hierarchies = sys::cgroup::hierarchies().map_err(|error| Error::Invalid(kit::Chain(&error).to_string()))?;
    let node_dns = parse_resolv_conf(&std::fs::read_to_string("/etc/resolv.conf").unwrap_or_default());
    let devices = Devices::new(config.root.join("device-plugins"));
    let amounts = registration::machine(&config.root);
    let done = CancellationToken::new();
    let (known, pods_known) = watch::channel(Arc::default());
    let context = Arc::new(Context {
        devices: devices.clone(),
        allocations: Allocations::new(config.root.join("pods"), &amounts),
        device_claims: DeviceClaims::new(config.root.join("device-claims")),
        csi: Csi::new(),
        volumes: Inventory::default(),
        images: Images::default(),
        networks: networks::networks(&config, &client, &events, &devices),
        runtime,
        events,
        services,
        hierarchies,
        amounts,
        node_dns,
        client,
        config,
    });
    context.csi.in_use.restore(drivers::places::Places::new(&context.config.root));
    let plugins = devices.serve(shutdown.clone());
    let storage = csi::registry::run(context.clone(), shutdown.clone());
    let node = registration::run(context.clone(), shutdown.clone());
    let growth = csi::expansion::run(context.clone(), pods_known.clone(), shutdown.clone());
    let server = crate::server::run(context.clone(), pods_known.clone(), shutdown.clone());
    let collection = crate::collection::run(context.clone(), pods_known, shutdown.clone());
    let pods = async {
        // Pods that start at once want the Services in their environment.
        let services = tokio::time::timeout(std::time::Duration::from_secs(2), context.services.wait_until_ready());
        let _ = tokio::join!(services, context.runtime.initialized());
        networks::recover(&context).await?;
        pods::run(context.clone(), known, shutdown.clone()).await?;
        done.cancel();
        Ok(())
    };
    let everything = async { tokio::try_join!(plugins, storage, growth, node, server, collection, pods).map(drop) };
    tokio::select! {
        ended = everything => ended,
        // Everything has stopped, and said so.
        () = done.cancelled() => Ok(()),
    }
}
