//! Device plugins: they register on a socket, list their devices, and say what a container needs to use one.

mod checkpoint;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rpc::cri;
use rpc::deviceplugin::device_plugin_client::DevicePluginClient;
use rpc::deviceplugin::registration_server::{Registration, RegistrationServer};
use rpc::deviceplugin::{self as plugin, HEALTHY, KUBELET_SOCKET, VERSION};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;
use tonic::transport::Endpoint;
use tonic::{Request, Response, Status};

use self::checkpoint::{Held, Kept};
use crate::error::{Error, Result};
use crate::link_device;

type Client = DevicePluginClient<tonic::transport::Channel>;

/// The plugins of this node; cheap to clone.
#[derive(Clone)]
pub(crate) struct Devices {
    dir: PathBuf,
    state: Arc<Mutex<State>>,
    changed: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    plugins: BTreeMap<String, Plugin>,
    /// What containers have: one that starts again is not asked for again, also while its plugin is away.
    held: Held,
    /// One question for devices of a pod at a time.
    asking: HashMap<String, Arc<tokio::sync::Mutex<()>>>,
    /// Resources that plugins have ever registered: without its plugin, nothing of them can be given.
    of_plugins: BTreeSet<String>,
    /// Resources that somebody wrote into the node's capacity: they are counted, and there is nothing to give.
    advertised: BTreeSet<String>,
}

/// Where the names of the plugins' resources are kept for the next life of this process.
const REGISTERED: &str = "registered-resources.json";

/// Where it is kept what containers have.
const GIVEN: &str = "given-devices.json";

/// Devices, and what a container needs to use them.
type Answered = (Vec<String>, Vec<plugin::ContainerAllocateResponse>);

struct Plugin {
    client: Client,
    options: plugin::DevicePluginOptions,
    /// Device and whether it is healthy.
    devices: BTreeMap<String, bool>,
    registration: u64,
}

/// What a container gets.
#[derive(Clone, Debug, Default)]
pub(crate) struct Allocation {
    pub(crate) envs: Vec<(String, String)>,
    pub(crate) mounts: Vec<cri::Mount>,
    pub(crate) devices: Vec<cri::Device>,
    pub(crate) annotations: HashMap<String, String>,
}

/// How many devices of a resource there are, and how many of them work.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Amount {
    pub(crate) capacity: usize,
    pub(crate) allocatable: usize,
}

impl Devices {
    pub(crate) fn new(dir: PathBuf) -> Self {
        let names = std::fs::read(dir.join(REGISTERED)).ok().and_then(|text| serde_json::from_slice(&text).ok());
        let held = checkpoint::read(&dir.join(GIVEN)).unwrap_or_else(|error| {
            tracing::error!(%error, "what devices pods have is not known any more: they may be given again");
            Held::new()
        });
        let state = State { of_plugins: names.unwrap_or_default(), held, ..State::default() };
        Devices { dir, state: Arc::new(Mutex::new(state)), changed: watch::Sender::new(0) }
    }

    /// Of the resources in the node's capacity those that no plugin has ever registered are counted only.
    pub(crate) fn advertise<'a>(&self, names: impl Iterator<Item = &'a String>) -> BTreeSet<String> {
        let mut state = self.state();
        let advertised: BTreeSet<String> =
            names.filter(|name| name.contains('/') && !state.of_plugins.contains(*name)).cloned().collect();
        state.advertised.clone_from(&advertised);
        advertised
    }

    fn is_only_counted(&self, resource: &str) -> bool {
        let state = self.state();
        !state.of_plugins.contains(resource) && state.advertised.contains(resource)
    }

    fn remember(&self, resource: &str) {
        let names = {
            let mut state = self.state();
            if !state.of_plugins.insert(resource.to_owned()) {
                return;
            }
            serde_json::to_vec(&state.of_plugins).unwrap_or_default()
        };
        if let Err(error) = std::fs::write(self.dir.join(REGISTERED), names) {
            tracing::warn!(resource, %error, "that a plugin has this resource is not remembered over a restart");
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes whenever amounts change.
    pub(crate) fn changes(&self) -> watch::Receiver<u64> {
        self.changed.subscribe()
    }

    pub(crate) fn amounts(&self) -> BTreeMap<String, Amount> {
        let count = |plugin: &Plugin| Amount {
            capacity: plugin.devices.len(),
            allocatable: plugin.devices.values().filter(|healthy| **healthy).count(),
        };
        self.state().plugins.iter().map(|(resource, plugin)| (resource.clone(), count(plugin))).collect()
    }

    /// Takes back what a pod had.
    pub(crate) fn release(&self, uid: &str) {
        self.release_all_but(|pod| pod != uid);
    }

    /// Takes back what pods had that are gone, as those that went while this process did not run.
    pub(crate) fn release_all_but(&self, is_there: impl Fn(&str) -> bool) {
        let mut state = self.state();
        let before = state.held.len();
        state.held.retain(|(pod, _), _| is_there(pod));
        state.asking.retain(|pod, _| is_there(pod));
        if state.held.len() != before
            && let Err(error) = self.keep(&state)
        {
            tracing::warn!(%error, "devices that are free again are not known as such after a restart");
        }
    }

    /// Writes down what containers have.
    fn keep(&self, state: &State) -> std::io::Result<()> {
        checkpoint::write(&self.dir.join(GIVEN), &state.held)
    }

    fn alone(&self, uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        self.state().asking.entry(uid.to_owned()).or_default().clone()
    }

    /// Gives a container devices; one that has some keeps them over restarts.
    pub(crate) async fn allocate(&self, uid: &str, container: &str, wanted: &[(String, usize)]) -> Result<Allocation> {
        let alone = self.alone(uid);
        let _alone = alone.lock().await;
        let mut allocation = Allocation::default();
        for (resource, amount) in wanted.iter().filter(|(resource, _)| !self.is_only_counted(resource)) {
            let (ids, answers) = match self.kept(uid, container, resource, *amount) {
                Some(kept) => kept,
                None => self.ask(uid, container, resource, *amount).await?,
            };
            if let Some(mut client) = self.prepares(resource) {
                let request = plugin::PreStartContainerRequest { devices_ids: ids.clone() };
                client.pre_start_container(request).await.map_err(Error::runtime("prepare devices"))?;
            }
            for answer in answers {
                add(&mut allocation, answer);
            }
        }
        Ok(allocation)
    }

    /// Gives a container devices of one resource before it starts, and says which; none where the resource is only counted.
    pub(crate) async fn give(&self, uid: &str, container: &str, resource: &str, amount: usize) -> Result<Vec<String>> {
        if self.is_only_counted(resource) {
            return Ok(Vec::new());
        }
        let alone = self.alone(uid);
        let _alone = alone.lock().await;
        match self.kept(uid, container, resource, amount) {
            Some((ids, _)) => Ok(ids),
            None => Ok(self.ask(uid, container, resource, amount).await?.0),
        }
    }

    /// Has the plugin asked anew for the devices of this resource that the pod has: what it had made of them went with a sandbox.
    pub(crate) fn ask_again(&self, uid: &str, resource: &str) {
        for ((pod, _), resources) in &mut self.state().held {
            if let Some(kept) = resources.get_mut(resource).filter(|_| pod == uid) {
                kept.answers = None;
            }
        }
    }

    /// What the container was given of the resource before, if it is as much as it wants.
    fn kept(&self, uid: &str, container: &str, resource: &str, amount: usize) -> Option<Answered> {
        let (state, key) = (self.state(), (uid.to_owned(), container.to_owned()));
        let kept = state.held.get(&key)?.get(resource).filter(|kept| kept.ids.len() == amount)?;
        Some((kept.ids.clone(), kept.answers.clone()?))
    }

    /// Chooses devices, and asks their plugin what the container needs for them.
    async fn ask(&self, uid: &str, container: &str, resource: &str, amount: usize) -> Result<Answered> {
        let (mut client, ids) = self.reserve(uid, container, resource, amount)?;
        let request = plugin::ContainerAllocateRequest { devices_ids: ids.clone() };
        let reply = client.allocate(plugin::AllocateRequest { container_requests: vec![request] }).await;
        let answers = reply.map_err(Error::runtime("allocate devices"))?.into_inner().container_responses;
        for device in answers.iter().flat_map(|answer| &answer.devices) {
            link_device::make_link_device(Path::new(&device.host_path))
                .map_err(|error| Error::Invalid(kit::Chain(&error).to_string()))?;
        }
        let key = (uid.to_owned(), container.to_owned());
        let mut state = self.state();
        let kept = Kept { ids: ids.clone(), answers: Some(answers.clone()) };
        state.held.entry(key).or_default().insert(resource.to_owned(), kept);
        self.keep(&state).map_err(Error::file("write", self.dir.join(GIVEN)))?;
        Ok((ids, answers))
    }

    /// The plugin, if it wants to be told of each start.
    fn prepares(&self, resource: &str) -> Option<Client> {
        let state = self.state();
        state
            .plugins
            .get(resource)
            .filter(|plugin| plugin.options.pre_start_required)
            .map(|plugin| plugin.client.clone())
    }

    fn reserve(&self, uid: &str, container: &str, resource: &str, amount: usize) -> Result<(Client, Vec<String>)> {
        let mut state = self.state();
        let key = (uid.to_owned(), container.to_owned());
        let taken: BTreeSet<String> = state
            .held
            .iter()
            .filter(|(other, _)| **other != key)
            .filter_map(|(_, held)| held.get(resource))
            .flat_map(|kept| kept.ids.iter().cloned())
            .collect();
        let had = state.held.get(&key).and_then(|held| held.get(resource)).cloned().unwrap_or_default().ids;
        let Some(found) = state.plugins.get(resource) else {
            return Err(Error::Invalid(format!("no device plugin is registered for {resource}")));
        };
        let ids = choose(&found.devices, &taken, &had, amount)
            .ok_or_else(|| Error::Invalid(format!("not enough free devices of {resource}: {amount} requested")))?;
        let client = found.client.clone();
        let kept = Kept { ids: ids.clone(), answers: None };
        state.held.entry(key).or_default().insert(resource.to_owned(), kept);
        // Before the plugin is asked: whoever is asked for after this process has started again must not get them.
        self.keep(&state).map_err(Error::file("write", self.dir.join(GIVEN)))?;
        Ok((client, ids))
    }

    /// Serves registrations until `shutdown`. A fresh socket tells plugins to register again.
    pub(crate) async fn serve(self, shutdown: CancellationToken) -> Result<()> {
        std::fs::create_dir_all(&self.dir).map_err(Error::file("create", &self.dir))?;
        let socket = self.dir.join(KUBELET_SOCKET);
        match std::fs::remove_file(&socket) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(Error::file("remove", socket)(error));
            }
            _ => {}
        }
        let incoming = rpc::unix::listen(&socket)
            .map_err(|source| Error::Listen { what: socket.display().to_string(), source })?;
        let service = RegistrationServer::new(self);
        tonic::transport::Server::builder()
            .add_service(service)
            .serve_with_incoming_shutdown(incoming, shutdown.cancelled())
            .await
            .map_err(|source| Error::Connect { what: "device plugins", socket, source })
    }

    /// Takes a plugin that was found instead of having called: `endpoint` is its socket.
    pub(crate) async fn adopt(&self, resource_name: String, endpoint: String) -> Result<()> {
        self.connect(plugin::RegisterRequest { version: VERSION.into(), endpoint, resource_name, options: None }).await
    }

    async fn connect(&self, request: plugin::RegisterRequest) -> Result<()> {
        let socket = self.dir.join(&request.endpoint);
        let fail = |source| Error::Connect { what: "the device plugin", socket: socket.clone(), source };
        let endpoint = Endpoint::try_from(format!("unix://{}", socket.display())).map_err(fail)?;
        let mut client = DevicePluginClient::new(endpoint.connect().await.map_err(fail)?);
        let options = match request.options {
            Some(options) => options,
            None => {
                client.get_device_plugin_options(plugin::Empty {}).await.map(Response::into_inner).unwrap_or_default()
            }
        };
        let mut stream =
            client.list_and_watch(plugin::Empty {}).await.map_err(Error::runtime("list devices"))?.into_inner();
        let resource = request.resource_name;
        let registration = {
            let mut state = self.state();
            let registration = state.plugins.get(&resource).map_or(1, |known| known.registration + 1);
            let fresh = Plugin { client, options, devices: BTreeMap::new(), registration };
            state.plugins.insert(resource.clone(), fresh);
            registration
        };
        self.remember(&resource);
        tracing::info!(resource, "device plugin registered");
        let devices = self.clone();
        kit::spawn("device-plugin", async move {
            while let Ok(Some(update)) = stream.message().await {
                let list = update.devices.into_iter().map(|device| (device.id, device.health == HEALTHY)).collect();
                if !devices.update(&resource, registration, list) {
                    return;
                }
            }
            // The plugin is gone: its devices cannot be allocated, but those given stay given.
            tracing::info!(resource, "device plugin left");
            devices.leave(&resource, registration);
        })
        .detach();
        Ok(())
    }

    fn update(&self, resource: &str, registration: u64, list: BTreeMap<String, bool>) -> bool {
        let mut state = self.state();
        let Some(known) = state.plugins.get_mut(resource).filter(|known| known.registration == registration) else {
            return false;
        };
        if known.devices != list {
            known.devices = list;
            self.changed.send_modify(|version| *version += 1);
        }
        true
    }

    fn leave(&self, resource: &str, registration: u64) {
        let mut state = self.state();
        if let Some(known) = state.plugins.get_mut(resource).filter(|known| known.registration == registration) {
            known.devices.values_mut().for_each(|healthy| *healthy = false);
            self.changed.send_modify(|version| *version += 1);
        }
    }
}

#[tonic::async_trait]
impl Registration for Devices {
    async fn register(&self, request: Request<plugin::RegisterRequest>) -> Result<Response<plugin::Empty>, Status> {
        let request = request.into_inner();
        if request.version != VERSION {
            return Err(Status::invalid_argument(format!("version {:?} is not {VERSION:?}", request.version)));
        }
        if !request.resource_name.contains('/') || Path::new(&request.endpoint).components().count() != 1 {
            return Err(Status::invalid_argument("a qualified resource name and a plain endpoint are needed"));
        }
        let devices = self.clone();
        // Plugins may serve only once their registration is answered.
        kit::spawn("device-plugin-connect", async move {
            let resource = request.resource_name.clone();
            let backoff = kit::backoff::Backoff::QUEUE;
            for attempt in 1..8 {
                match devices.connect(request.clone()).await {
                    Ok(()) => return,
                    Err(error) => {
                        tracing::debug!(resource, error = %kit::Chain(&error), "device plugin does not answer yet");
                    }
                }
                tokio::time::sleep(backoff.delay(attempt)).await;
            }
            tracing::warn!(resource, "a registered device plugin does not answer");
        })
        .detach();
        Ok(Response::new(plugin::Empty {}))
    }
}

/// Devices a container had and that still work, then free ones.
fn choose(
    devices: &BTreeMap<String, bool>,
    taken: &BTreeSet<String>,
    had: &[String],
    amount: usize,
) -> Option<Vec<String>> {
    let kept = had.iter().filter(|id| devices.get(*id) == Some(&true));
    let free =
        devices.iter().filter(|(id, healthy)| **healthy && !taken.contains(*id) && !had.contains(id)).map(|(id, _)| id);
    let chosen: Vec<String> = kept.chain(free).take(amount).cloned().collect();
    (chosen.len() == amount).then_some(chosen)
}

fn add(allocation: &mut Allocation, answer: plugin::ContainerAllocateResponse) {
    allocation.envs.extend(answer.envs);
    allocation.annotations.extend(answer.annotations);
    allocation.mounts.extend(answer.mounts.into_iter().map(|mount| cri::Mount {
        container_path: mount.container_path,
        host_path: mount.host_path,
        readonly: mount.read_only,
        ..Default::default()
    }));
    allocation.devices.extend(answer.devices.into_iter().map(|device| cri::Device {
        container_path: device.container_path,
        host_path: device.host_path,
        permissions: device.permissions,
    }));
}

#[cfg(test)]
mod tests;
