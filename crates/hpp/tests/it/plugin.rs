//! A driver with two pools in a directory of its own; gone when dropped.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use hpp::Pool;
use hpp::csi::Driver;
use kit::shutdown::CancellationToken;
use rpc::csi::controller_client::ControllerClient;
use rpc::csi::identity_client::IdentityClient;
use rpc::csi::node_client::NodeClient;
use rpc::csi::volume_capability::access_mode::Mode;
use rpc::csi::volume_capability::{AccessMode, AccessType, BlockVolume, MountVolume};
use rpc::csi::{CapacityRange, CreateVolumeRequest, GetPluginInfoRequest, ProbeRequest, Volume, VolumeCapability};
use rpc::registration::registration_client::RegistrationClient;
use rpc::registration::{InfoRequest, RegistrationStatus};
use tonic::transport::{Channel, Endpoint};

pub(crate) const NODE: &str = "node1";

pub(crate) struct Plugin {
    pub(crate) dir: tempfile::TempDir,
    pub(crate) identity: IdentityClient<Channel>,
    pub(crate) controller: ControllerClient<Channel>,
    pub(crate) node: NodeClient<Channel>,
    stop: CancellationToken,
}

fn channel(socket: &Path) -> Channel {
    Endpoint::try_from(format!("unix://{}", socket.display())).unwrap().connect_lazy()
}

impl Plugin {
    pub(crate) fn start() -> Plugin {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("pods")).unwrap();
        Self::start_in(dir)
    }

    /// Another node, with a pool that both have.
    pub(crate) fn start_at(dir: tempfile::TempDir, node: &str) -> Plugin {
        let shared = Pool { shared: true, ..Pool::local("shared", dir.path().join("shared")) };
        let driver = Driver::new(hpp::csi::NAME.into(), node.into(), vec![shared]).unwrap();
        let socket = dir.path().join(node);
        Self::serve(dir, driver, &socket)
    }

    /// With a pool that a volume is to be mounted at.
    pub(crate) fn start_mounted(dir: tempfile::TempDir) -> Plugin {
        let pools = vec![
            Pool::local("plain", dir.path().join("plain")),
            Pool { mounted: true, ..Pool::local("mounted", dir.path().join("mounted")) },
        ];
        let driver = Driver::new(hpp::csi::NAME.into(), NODE.into(), pools).unwrap();
        let socket = dir.path().join("csi.sock");
        Self::serve(dir, driver, &socket)
    }

    /// With one pool, in a directory of `disk`.
    pub(crate) fn start_on(disk: &Path) -> Plugin {
        let dir = tempfile::tempdir_in(disk).unwrap();
        std::fs::create_dir_all(dir.path().join("pods")).unwrap();
        let driver = Driver::new(hpp::csi::NAME.into(), NODE.into(), vec![Pool::local("one", dir.path())]).unwrap();
        let socket = dir.path().join("csi.sock");
        Self::serve(dir, driver, &socket)
    }

    fn start_in(dir: tempfile::TempDir) -> Plugin {
        let pool = |name: &str| Pool::local(name, dir.path().join(name));
        let driver = Driver::new(hpp::csi::NAME.into(), NODE.into(), vec![pool("one"), pool("two")]).unwrap();
        let socket = dir.path().join("csi.sock");
        Self::serve(dir, driver, &socket)
    }

    fn serve(dir: tempfile::TempDir, driver: Driver, socket: &Path) -> Plugin {
        let stop = CancellationToken::new();
        let (at, stopped) = (socket.to_path_buf(), stop.clone());
        tokio::spawn(async move { hpp::csi::serve(Arc::new(driver), &at, stopped).await.unwrap() });
        let channel = channel(socket);
        Plugin {
            dir,
            identity: IdentityClient::new(channel.clone()),
            controller: ControllerClient::new(channel.clone()),
            node: NodeClient::new(channel),
            stop,
        }
    }

    /// The same pools, another process.
    pub(crate) fn restarted(self) -> Plugin {
        self.stop.cancel();
        let Plugin { dir, .. } = self;
        Self::start_in(dir)
    }

    /// Waits until it serves.
    pub(crate) async fn ready(mut self) -> Plugin {
        let ready = async {
            while self.identity.probe(ProbeRequest {}).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(std::time::Duration::from_secs(10), ready).await.unwrap();
        self
    }

    pub(crate) async fn create(&mut self, request: CreateVolumeRequest) -> Volume {
        self.controller.create_volume(request).await.unwrap().into_inner().volume.unwrap()
    }

    /// Where the kubelet would want a volume.
    pub(crate) fn target(&self, name: &str) -> PathBuf {
        self.dir.path().join("pods").join(name)
    }
}

pub(crate) fn capability(block: bool, mode: Mode) -> VolumeCapability {
    let access_type = if block { AccessType::Block(BlockVolume {}) } else { AccessType::Mount(MountVolume::default()) };
    VolumeCapability { access_mode: Some(AccessMode { mode: mode.into() }), access_type: Some(access_type) }
}

pub(crate) fn request(name: &str, block: bool, required_bytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.into(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: vec![capability(block, Mode::SingleNodeWriter)],
        parameters: [("storagePool".to_owned(), "one".to_owned())].into(),
        ..Default::default()
    }
}

#[tokio::test]
async fn it_says_what_it_is_and_registers() {
    let mut plugin = Plugin::start().ready().await;
    let info = plugin.identity.get_plugin_info(GetPluginInfoRequest {}).await.unwrap().into_inner();
    assert_eq!(info.name, "kubevirt.io.hostpath-provisioner");
    assert!(!info.vendor_version.is_empty());
    let socket = plugin.dir.path().join("hpp-reg.sock");
    let (at, stop) = (socket.clone(), CancellationToken::new());
    let stopped = stop.clone();
    let serving = tokio::spawn(async move {
        hpp::csi::registration::serve("d".into(), "/endpoint".into(), &at, stopped).await.unwrap();
    });
    let mut registration = RegistrationClient::new(channel(&socket));
    let found = async {
        loop {
            if let Ok(found) = registration.get_info(InfoRequest {}).await {
                break found.into_inner();
            }
            tokio::task::yield_now().await;
        }
    };
    let found = tokio::time::timeout(std::time::Duration::from_secs(10), found).await.unwrap();
    assert_eq!((found.r#type.as_str(), found.name.as_str(), found.endpoint.as_str()), ("CSIPlugin", "d", "/endpoint"));
    let told = RegistrationStatus { plugin_registered: true, error: String::new() };
    registration.notify_registration_status(told).await.unwrap();
    drop(registration);
    stop.cancel();
    serving.await.unwrap();
    assert!(!socket.exists(), "the kubelet is not told that the driver left");
}
