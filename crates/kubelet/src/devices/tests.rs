//! What is given out, and what is kept while plugins come and go.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::stream::{self, StreamExt as _};
use rpc::deviceplugin::device_plugin_server::{DevicePlugin, DevicePluginServer};

use super::*;

#[test]
fn choosing() {
    let devices = BTreeMap::from([("a".into(), true), ("b".into(), false), ("c".into(), true), ("d".into(), true)]);
    let taken = BTreeSet::from(["a".to_owned()]);
    let check = |had: &[&str], amount, expect: Option<&[&str]>| {
        let had: Vec<String> = had.iter().map(|id| (*id).to_owned()).collect();
        let own = |list: &[&str]| list.iter().map(|id| (*id).to_owned()).collect::<Vec<_>>();
        assert_eq!(choose(&devices, &taken, &had, amount), expect.map(own));
    };
    check(&[], 2, Some(&["c", "d"]));
    check(&["d"], 2, Some(&["d", "c"]));
    check(&["b"], 1, Some(&["c"]));
    check(&[], 3, None);
}

/// A plugin with one device, which it names in the environment.
struct One {
    stop: CancellationToken,
    /// How often devices were asked for.
    asked: Arc<AtomicUsize>,
}

#[tonic::async_trait]
impl DevicePlugin for One {
    type ListAndWatchStream = stream::BoxStream<'static, Result<plugin::ListAndWatchResponse, Status>>;

    async fn get_device_plugin_options(
        &self,
        _: Request<plugin::Empty>,
    ) -> Result<Response<plugin::DevicePluginOptions>, Status> {
        Ok(Response::new(plugin::DevicePluginOptions::default()))
    }

    async fn list_and_watch(&self, _: Request<plugin::Empty>) -> Result<Response<Self::ListAndWatchStream>, Status> {
        let device = plugin::Device { id: "d0".into(), health: HEALTHY.into(), ..Default::default() };
        let list = Ok(plugin::ListAndWatchResponse { devices: vec![device] });
        let lasting = stream::iter([list]).chain(stream::pending()).take_until(self.stop.clone().cancelled_owned());
        Ok(Response::new(Box::pin(lasting)))
    }

    async fn get_preferred_allocation(
        &self,
        _: Request<plugin::PreferredAllocationRequest>,
    ) -> Result<Response<plugin::PreferredAllocationResponse>, Status> {
        Ok(Response::new(plugin::PreferredAllocationResponse::default()))
    }

    async fn allocate(
        &self,
        request: Request<plugin::AllocateRequest>,
    ) -> Result<Response<plugin::AllocateResponse>, Status> {
        self.asked.fetch_add(1, Ordering::Relaxed);
        let of = |asked: plugin::ContainerAllocateRequest| plugin::ContainerAllocateResponse {
            envs: HashMap::from([("DEVICE".to_owned(), asked.devices_ids.join(","))]),
            ..Default::default()
        };
        let container_responses = request.into_inner().container_requests.into_iter().map(of).collect();
        Ok(Response::new(plugin::AllocateResponse { container_responses }))
    }

    async fn pre_start_container(
        &self,
        _: Request<plugin::PreStartContainerRequest>,
    ) -> Result<Response<plugin::PreStartContainerResponse>, Status> {
        Ok(Response::new(plugin::PreStartContainerResponse {}))
    }
}

/// Serves the plugin until the token is cancelled.
fn plug(dir: &Path, asked: &Arc<AtomicUsize>) -> CancellationToken {
    let _ = std::fs::remove_file(dir.join("one.sock"));
    let incoming = rpc::unix::listen(&dir.join("one.sock")).unwrap();
    let stop = CancellationToken::new();
    let one = One { stop: stop.clone(), asked: asked.clone() };
    let stopped = stop.clone().cancelled_owned();
    kit::spawn("plugin", async move {
        let server = tonic::transport::Server::builder().add_service(DevicePluginServer::new(one));
        server.serve_with_incoming_shutdown(incoming, stopped).await.unwrap();
    })
    .detach();
    stop
}

async fn until(devices: &Devices, amount: Amount) {
    let mut changes = devices.changes();
    while devices.amounts().get("example.com/one") != Some(&amount) {
        changes.changed().await.unwrap();
    }
}

#[tokio::test]
async fn a_container_starts_again_while_its_plugin_is_away() {
    let dir = tempfile::tempdir().unwrap();
    let devices = Devices::new(dir.path().to_owned());
    let wanted = [("example.com/one".to_owned(), 1)];
    let asked = Arc::default();
    let plugged = plug(dir.path(), &asked);
    devices.adopt("example.com/one".into(), "one.sock".into()).await.unwrap();
    until(&devices, Amount { capacity: 1, allocatable: 1 }).await;
    let first = devices.allocate("pod", "main", &wanted).await.unwrap();
    assert_eq!(first.envs, [("DEVICE".to_owned(), "d0".to_owned())]);
    plugged.cancel();
    until(&devices, Amount { capacity: 1, allocatable: 0 }).await;
    let again = devices.allocate("pod", "main", &wanted).await.unwrap();
    assert_eq!(again.envs, first.envs);
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    // For others there is none, nor when the plugin is back, until the first one is gone.
    assert!(devices.allocate("other", "main", &wanted).await.is_err());
    let _plugged = plug(dir.path(), &asked);
    devices.adopt("example.com/one".into(), "one.sock".into()).await.unwrap();
    until(&devices, Amount { capacity: 1, allocatable: 1 }).await;
    assert!(devices.allocate("other", "main", &wanted).await.is_err());
    devices.release("pod");
    assert_eq!(devices.allocate("other", "main", &wanted).await.unwrap().envs, again.envs);
}

#[tokio::test]
async fn devices_stay_a_pods_own_over_a_restart_and_are_prepared_anew_for_another_sandbox() {
    let dir = tempfile::tempdir().unwrap();
    let one = Amount { capacity: 1, allocatable: 1 };
    let asked = Arc::default();
    let _plugged = plug(dir.path(), &asked);
    let start = async || {
        let devices = Devices::new(dir.path().to_owned());
        devices.adopt("example.com/one".into(), "one.sock".into()).await.unwrap();
        until(&devices, one).await;
        devices
    };
    let devices = start().await;
    // Before any container is there.
    assert_eq!(devices.give("pod", "main", "example.com/one", 1).await.unwrap(), ["d0"]);
    let devices = start().await;
    assert!(devices.give("other", "main", "example.com/one", 1).await.is_err(), "it is another pod's");
    let both = tokio::join!(
        devices.give("pod", "main", "example.com/one", 1),
        devices.give("pod", "main", "example.com/one", 1)
    );
    assert_eq!((both.0.unwrap(), both.1.unwrap()), (vec!["d0".to_owned()], vec!["d0".to_owned()]));
    assert_eq!(asked.load(Ordering::Relaxed), 1);
    devices.ask_again("pod", "example.com/one");
    assert_eq!(devices.give("pod", "main", "example.com/one", 1).await.unwrap(), ["d0"]);
    assert_eq!(asked.load(Ordering::Relaxed), 2);
    // One that went while nobody looked.
    devices.release_all_but(|pod| pod != "pod");
    let devices = start().await;
    assert_eq!(devices.give("other", "main", "example.com/one", 1).await.unwrap(), ["d0"]);
}
