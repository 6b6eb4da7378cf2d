//! Reaching CSI drivers: the socket of a driver's node plugin, through the node that runs it, for drivers whose
//! controller functions the control plane serves.
//!
//! The connection is whatever [`Drivers`] opens; calls over it are gRPC. A channel per node and driver is kept and
//! reconnects by itself.

use std::collections::{BTreeSet, HashMap};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures::future::BoxFuture;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Node, Pod, VolumeNodeAffinity};
use k8s_openapi::api::storage::v1::{CSIDriver, CSINode};
use kit::controller::{Context, placement, pod};
use kit::queue::Queue;
use kit::store::Key;
use kube::ResourceExt;
use rpc::csi;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::Instant;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::sidecar::{self, Function, Source};

/// A connection to a driver.
pub trait Socket: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Socket for T {}

type Open = dyn Fn(String, String) -> BoxFuture<'static, io::Result<Box<dyn Socket>>> + Send + Sync;

/// Beside which driver, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sidecar {
    /// The driver's name.
    pub driver: String,
    /// The node whose driver is called.
    pub node: String,
    /// Where the objects go that say how much room there is.
    pub namespace: String,
}

/// How the socket of a driver on a node is opened; by default it is not, and no driver is served.
#[derive(Clone, Default)]
pub struct Drivers {
    open: Option<Arc<Open>>,
    /// The only driver, on the only node.
    sidecar: Option<Arc<Sidecar>>,
}

impl Drivers {
    /// `open` is given the names of the node and of the driver.
    pub fn new<F>(open: F) -> Self
    where
        F: Fn(String, String) -> BoxFuture<'static, io::Result<Box<dyn Socket>>> + Send + Sync + 'static,
    {
        Self { open: Some(Arc::new(open)), sidecar: None }
    }

    /// The same, but only of one driver on one node.
    pub(super) fn sidecar(self, sidecar: Sidecar) -> Self {
        Self { sidecar: Some(Arc::new(sidecar)), ..self }
    }
}

impl std::fmt::Debug for Drivers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drivers").field("open", &self.open.is_some()).field("sidecar", &self.sidecar).finish()
    }
}

/// Queues the drivers of a node whenever what is registered there changes.
pub(crate) fn queue_registered(ctx: &Context, queue: &Arc<Queue<String>>) {
    let queue = queue.clone();
    ctx.store::<CSINode>().on_change(move |old, new| {
        if old.map(|node| &node.spec) != new.map(|node| &node.spec) {
            let drivers = old.into_iter().chain(new).flat_map(|node| node.spec.drivers.iter());
            drivers.for_each(|driver| queue.add(driver.name.clone()));
        }
    });
}

/// A call to a driver takes no longer.
pub(super) const DEADLINE: Duration = Duration::from_secs(60);
/// What a driver can do is asked again after this time: it may have been replaced by a newer version.
const REMEMBERED: Duration = Duration::from_secs(60);

/// What a driver says it can do.
#[derive(Clone, Debug, Default)]
pub(crate) struct Abilities {
    services: BTreeSet<i32>,
    controller: BTreeSet<i32>,
    node: BTreeSet<i32>,
}

impl Abilities {
    /// Whether its controller service has the capability.
    pub(crate) fn can(&self, what: csi::controller_service_capability::rpc::Type) -> bool {
        self.controller.contains(&(what as i32))
    }
    /// Whether volumes are tied to parts of the cluster.
    pub(crate) fn has_topology(&self) -> bool {
        self.services.contains(&(csi::plugin_capability::service::Type::VolumeAccessibilityConstraints as i32))
    }
    /// Whether its node service grows file systems.
    pub(crate) fn node_expands(&self) -> bool {
        self.node.contains(&(csi::node_service_capability::rpc::Type::ExpandVolume as i32))
    }
}

type Client = csi::controller_client::ControllerClient<Channel>;

/// A driver on a node, ready to be called.
#[derive(Clone, Debug)]
pub(crate) struct Driver {
    pub(crate) client: Client,
    pub(crate) abilities: Arc<Abilities>,
}

/// All drivers.
pub(crate) struct Fleet {
    ctx: Context,
    drivers: Drivers,
    channels: Mutex<HashMap<(String, String), Channel>>,
    abilities: Mutex<HashMap<String, (Instant, Arc<Abilities>)>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    pub(crate) fn new(ctx: Context, drivers: Drivers) -> Self {
        Self { ctx, drivers, channels: Mutex::default(), abilities: Mutex::default() }
    }

    /// Beside which driver this process runs, if it runs beside one.
    pub(crate) fn sidecar(&self) -> Option<&Sidecar> {
        self.drivers.sidecar.as_deref()
    }

    /// Whether what is to be done by the driver on one of the nodes, on `node` if it can be, is for this process to do.
    pub(crate) fn is_ours(&self, driver: &str, node: Option<&str>, affinity: Option<&VolumeNodeAffinity>) -> bool {
        self.sidecar().is_none_or(|own| self.place(driver, node, affinity).as_ref() == Some(&own.node))
    }

    /// Whether the driver on that very node is called by this process.
    pub(crate) fn is_at(&self, node: &str) -> bool {
        self.sidecar().is_none_or(|own| own.node == node)
    }

    /// Has `look` look for work again when a driver comes, goes, or is put into our hands.
    pub(crate) fn on_change(&self, look: impl Fn() + Clone + Send + Sync + 'static) {
        if self.sidecar().is_some() {
            // Another node's work may have become this one's.
            let look = look.clone();
            self.ctx.store::<Node>().on_change(move |old, new| {
                if old.map(|node| is_ready(node)) != new.map(|node| is_ready(node)) {
                    look();
                }
            });
        }
        self.ctx.store::<CSINode>().on_change({
            let look = look.clone();
            move |old, new| {
                if old.map(|node| &node.spec) != new.map(|node| &node.spec) {
                    look();
                }
            }
        });
        self.ctx.store::<CSIDriver>().on_change(move |_, _| look());
    }

    /// Waits until everything decisions are made of is known.
    pub(crate) async fn synced(&self) {
        let ctx = &self.ctx;
        tokio::join!(
            async { ctx.store::<Node>().synced().await },
            async { ctx.store::<CSINode>().synced().await },
            async { ctx.store::<CSIDriver>().synced().await },
        );
        if self.sidecar().is_some() {
            return;
        }
        tokio::join!(
            async { ctx.store::<Pod>().synced().await },
            async { ctx.store::<Deployment>().synced().await },
            async { ctx.store::<StatefulSet>().synced().await },
            async { ctx.store::<DaemonSet>().synced().await },
        );
    }

    /// Whether some node runs the driver and a function of it is the control plane's.
    pub(crate) fn serves(&self, driver: &str, function: Function) -> bool {
        if self.drivers.open.is_none() {
            return false;
        }
        if let Some(own) = self.sidecar() {
            return own.driver == driver;
        }
        let registered = self.ctx.store::<CSINode>().all();
        let names = registered.iter().flat_map(|node| node.spec.drivers.iter().map(|d| d.name.clone()));
        let mut all: BTreeSet<String> = names.collect();
        if !all.contains(driver) {
            return false;
        }
        let objects = self.ctx.store::<CSIDriver>();
        let object = objects.get(&Key::new("", driver));
        let word = object.as_ref().and_then(|object| object.annotations().get(sidecar::SERVED));
        if let Some(word) = word {
            return sidecar::served(driver, Some(word), &all, &[]).contains(&function);
        }
        all.extend(objects.all().iter().map(|object| object.name_any()));
        let pods = self.ctx.store::<Pod>().all();
        let deployments = self.ctx.store::<Deployment>().all();
        let sets = self.ctx.store::<StatefulSet>().all();
        let daemons = self.ctx.store::<DaemonSet>().all();
        let running = pods.iter().filter(|pod| !pod::is_finished(pod)).filter_map(|pod| {
            Some(Source {
                namespace: pod.metadata.namespace.as_deref()?,
                meta: &pod.metadata,
                spec: pod.spec.as_ref()?,
            })
        });
        let templates = deployments
            .iter()
            .filter_map(|d| Some((&d.metadata, &d.spec.as_ref()?.template)))
            .chain(sets.iter().filter_map(|s| Some((&s.metadata, &s.spec.as_ref()?.template))))
            .chain(daemons.iter().filter_map(|d| Some((&d.metadata, &d.spec.as_ref()?.template))));
        let planned = templates.filter_map(|(meta, template)| {
            let labelled = template.metadata.as_ref().unwrap_or(meta);
            Some(Source { namespace: meta.namespace.as_deref()?, meta: labelled, spec: template.spec.as_ref()? })
        });
        let sources: Vec<Source<'_>> = running.chain(planned).collect();
        sidecar::served(driver, None, &all, &sources).contains(&function)
    }

    /// A driver to be called: among the nodes the affinity names on the preferred one, else on one that is ready.
    pub(crate) async fn reach(
        &self,
        driver: &str,
        node: Option<&str>,
        affinity: Option<&VolumeNodeAffinity>,
    ) -> Result<Driver, tonic::Status> {
        // Whose work it is was asked before.
        let own = self.sidecar().filter(|own| own.driver == driver).map(|own| own.node.clone());
        let place = own.or_else(|| self.place(driver, node, affinity));
        let place = place
            .ok_or_else(|| tonic::Status::unavailable(format!("no node that can be reached runs driver {driver}")))?;
        let channel = self.channel(&place, driver);
        let abilities = self.abilities(driver, &channel).await?;
        Ok(Driver { client: Client::new(channel), abilities })
    }

    /// The driver on this very node.
    pub(crate) async fn at(&self, driver: &str, node: &str) -> Result<Driver, tonic::Status> {
        if !self.is_at(node) || !self.nodes(driver).iter().any(|known| known == node) {
            return Err(tonic::Status::unavailable(format!("node {node} does not run driver {driver}")));
        }
        let channel = self.channel(node, driver);
        let abilities = self.abilities(driver, &channel).await?;
        Ok(Driver { client: Client::new(channel), abilities })
    }

    /// The nodes that run the driver, as far as it can be called there.
    pub(crate) fn nodes(&self, driver: &str) -> Vec<String> {
        let registered = self.ctx.store::<CSINode>().all();
        let running = registered.iter().filter(|r| r.spec.drivers.iter().any(|d| d.name == driver));
        running.map(|r| r.name_any()).filter(|node| self.is_at(node)).collect()
    }

    fn place(&self, driver: &str, node: Option<&str>, affinity: Option<&VolumeNodeAffinity>) -> Option<String> {
        let nodes = self.ctx.store::<Node>();
        let required = affinity.and_then(|a| a.required.as_ref());
        let registered = self.ctx.store::<CSINode>().all();
        let running = registered.iter().filter(|r| r.spec.drivers.iter().any(|d| d.name == driver));
        let known = running.filter_map(|r| nodes.get(&Key::new("", r.name_any())));
        let candidates = known.filter(|node| {
            required.is_none_or(|r| r.node_selector_terms.iter().any(|t| placement::term_matches(t, node)))
        });
        let rank = |candidate: &Arc<Node>| {
            let name = candidate.name_any();
            (node.is_some_and(|wanted| wanted != name), !is_ready(candidate), name)
        };
        candidates.min_by_key(rank).map(|node| node.name_any())
    }

    fn channel(&self, node: &str, driver: &str) -> Channel {
        let key = (node.to_owned(), driver.to_owned());
        let mut channels = lock(&self.channels);
        if let Some(channel) = channels.get(&key) {
            return channel.clone();
        }
        let open = self.drivers.open.clone();
        let place = key.clone();
        let connector = tower::service_fn(move |_: Uri| {
            let (open, (node, driver)) = (open.clone(), place.clone());
            async move {
                let open = open.ok_or_else(|| io::Error::other("the control plane reaches no drivers"))?;
                open(node, driver).await.map(TokioIo::new)
            }
        });
        let channel = Endpoint::from_static("http://csi").timeout(DEADLINE).connect_with_connector_lazy(connector);
        channels.insert(key, channel.clone());
        channel
    }

    async fn abilities(&self, driver: &str, channel: &Channel) -> Result<Arc<Abilities>, tonic::Status> {
        let known = lock(&self.abilities).get(driver).cloned();
        if let Some((_, abilities)) = known.filter(|(asked, _)| asked.elapsed() < REMEMBERED) {
            return Ok(abilities);
        }
        let mut found = Abilities::default();
        let mut identity = csi::identity_client::IdentityClient::new(channel.clone());
        for capability in
            identity.get_plugin_capabilities(csi::GetPluginCapabilitiesRequest {}).await?.into_inner().capabilities
        {
            if let Some(csi::plugin_capability::Type::Service(service)) = capability.r#type {
                found.services.insert(service.r#type);
            }
        }
        if found.services.contains(&(csi::plugin_capability::service::Type::ControllerService as i32)) {
            let request = csi::ControllerGetCapabilitiesRequest {};
            for capability in
                Client::new(channel.clone()).controller_get_capabilities(request).await?.into_inner().capabilities
            {
                if let Some(csi::controller_service_capability::Type::Rpc(rpc)) = capability.r#type {
                    found.controller.insert(rpc.r#type);
                }
            }
        }
        let mut node = csi::node_client::NodeClient::new(channel.clone());
        // A socket that serves the controller only has no node service.
        if let Ok(answer) = node.node_get_capabilities(csi::NodeGetCapabilitiesRequest {}).await {
            for capability in answer.into_inner().capabilities {
                if let Some(csi::node_service_capability::Type::Rpc(rpc)) = capability.r#type {
                    found.node.insert(rpc.r#type);
                }
            }
        }
        let found = Arc::new(found);
        lock(&self.abilities).insert(driver.to_owned(), (Instant::now(), found.clone()));
        Ok(found)
    }
}

fn is_ready(node: &Node) -> bool {
    let conditions = node.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
    conditions.iter().any(|c| c.type_ == "Ready" && c.status == "True")
}

/// A failed call as the sidecars word it.
pub(crate) fn worded(status: &tonic::Status) -> String {
    let code = format!("{:?}", status.code());
    format!("rpc error: code = {code} desc = {}", status.message())
}
