//! The drivers of devices that are registered here, and calls to them with a limit.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rpc::dra::dra_plugin_client::DraPluginClient;
use rpc::dra::{Claim, Device, NodePrepareResourcesRequest, NodeUnprepareResourcesRequest};
use tokio::sync::watch;
use tonic::transport::Channel;

use crate::drivers::driver;
use crate::error::{Error, Result};

/// A driver may have to set up hardware, but not for ever.
const LIMIT: Duration = Duration::from_secs(45);
/// Of one claim at most; more is not believed.
const DEVICES: usize = 256;
/// Of one device at most.
const IDS: usize = 64;

type Known = BTreeMap<String, Arc<Plugin>>;

/// A driver that has registered.
#[derive(Debug)]
pub(crate) struct Plugin {
    pub(crate) name: String,
    /// Where it has registered.
    pub(crate) registered_by: PathBuf,
    channel: Channel,
}

impl Plugin {
    /// The driver that serves on `socket`.
    pub(crate) fn new(name: String, socket: &Path, registered_by: PathBuf) -> Result<Self> {
        Ok(Self { name, registered_by, channel: driver::channel(socket)? })
    }

    /// Has the driver prepare the claim; the devices it gives.
    pub(crate) async fn prepare(&self, claim: &Claim) -> Result<Vec<Device>> {
        let mut client = DraPluginClient::new(self.channel.clone());
        let request = NodePrepareResourcesRequest { claims: vec![claim.clone()] };
        let mut reply = driver::ask_within(LIMIT, client.node_prepare_resources(request)).await?;
        let answer = reply.claims.remove(&claim.uid).ok_or_else(|| self.silent("NodePrepareResources"))?;
        if !answer.error.is_empty() {
            return Err(Error::Invalid(format!("driver {}: NodePrepareResources failed: {}", self.name, answer.error)));
        }
        let many = answer.devices.len();
        if many > DEVICES || answer.devices.iter().any(|device| device.cdi_device_ids.len() > IDS) {
            return Err(Error::Invalid(format!(
                "driver {}: NodePrepareResources gave {many} devices: at most {DEVICES} with {IDS} CDI devices each are taken",
                self.name
            )));
        }
        Ok(answer.devices)
    }

    /// Has the driver take the claim's devices back.
    pub(crate) async fn unprepare(&self, claim: &Claim) -> Result<()> {
        let mut client = DraPluginClient::new(self.channel.clone());
        let request = NodeUnprepareResourcesRequest { claims: vec![claim.clone()] };
        let mut reply = driver::ask_within(LIMIT, client.node_unprepare_resources(request)).await?;
        let answer = reply.claims.remove(&claim.uid).ok_or_else(|| self.silent("NodeUnprepareResources"))?;
        if answer.error.is_empty() {
            return Ok(());
        }
        Err(Error::Invalid(format!("driver {}: NodeUnprepareResources failed: {}", self.name, answer.error)))
    }

    fn silent(&self, call: &str) -> Error {
        Error::Invalid(format!("driver {}: {call} says nothing of the claim", self.name))
    }
}

/// The drivers registered here; cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Plugins(watch::Sender<Arc<Known>>);

impl Plugins {
    /// The driver of that name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<Plugin>> {
        let missing = || Error::Invalid(format!("DRA driver {name} is not registered on this node: it is waited for"));
        self.0.borrow().get(name).cloned().ok_or_else(missing)
    }

    pub(crate) fn all(&self) -> Arc<Known> {
        self.0.borrow().clone()
    }

    /// Changes whenever a driver comes or goes.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Known>> {
        self.0.subscribe()
    }

    pub(crate) fn insert(&self, plugin: Arc<Plugin>) {
        self.0.send_modify(|known| {
            Arc::make_mut(known).insert(plugin.name.clone(), plugin);
        });
    }

    /// Forgets the drivers that registered by `socket`; their names.
    pub(crate) fn remove(&self, socket: &Path) -> Vec<String> {
        let all = self.all();
        let its = all.values().filter(|plugin| plugin.registered_by == socket).map(|plugin| plugin.name.clone());
        let its: Vec<String> = its.collect();
        self.0.send_if_modified(|known| {
            its.iter().for_each(|name| drop(Arc::make_mut(known).remove(name)));
            !its.is_empty()
        });
        its
    }
}
