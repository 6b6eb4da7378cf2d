//! The gRPC protocols Ferrovirt speaks, generated from `proto/` by `cargo xtask codegen rpc` and committed.
//!
//! Nothing here is written by hand except the module tree, the protocol constants and how foreign clients are served on
//! unix sockets ([`unix`]): see `proto/` for the meaning of each message. The foreign protocols are subsets: what we never
//! send or read is left out.

pub mod unix;

/// The Container Runtime Interface: the kubelet is the client, containerd the server.
#[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
pub mod cri {
    include!("generated/runtime.v1.rs");
}

/// containerd's own API, for what the CRI lacks: exec with FIFOs and the event stream.
pub mod containerd {
    /// The header naming the containerd namespace a call is about.
    pub const NAMESPACE_HEADER: &str = "containerd-namespace";
    /// The namespace the CRI plugin keeps its containers in.
    pub const CRI_NAMESPACE: &str = "k8s.io";

    #[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
    pub mod tasks {
        include!("generated/containerd.services.tasks.v1.rs");
    }
    #[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
    pub mod containers {
        include!("generated/containerd.services.containers.v1.rs");
    }
    #[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
    pub mod events {
        include!("generated/containerd.services.events.v1.rs");
    }
}

/// The device plugin protocol, both sides.
pub mod deviceplugin {
    /// The version both sides name when registering.
    pub const VERSION: &str = "v1beta1";
    /// What [`Device::health`] says of a device that can be allocated.
    pub const HEALTHY: &str = "Healthy";
    /// What [`Device::health`] says of a device that cannot.
    pub const UNHEALTHY: &str = "Unhealthy";
    /// Where plugins find the kubelet's registration socket and place their own, unless told otherwise.
    pub const PLUGIN_DIR: &str = "/var/lib/kubelet/device-plugins";
    /// The registration socket's name in [`PLUGIN_DIR`].
    pub const KUBELET_SOCKET: &str = "kubelet.sock";

    pub use generated::*;

    #[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
    mod generated {
        include!("generated/v1beta1.rs");
    }
}

/// What the kubelet says of the devices that pods of its node have.
pub mod podresources {
    /// Its socket, unless the kubelet has another root directory.
    pub const SOCKET: &str = "/var/lib/kubelet/pod-resources/kubelet.sock";

    pub use generated::*;

    #[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
    mod generated {
        include!("generated/v1.rs");
    }
}

/// How a plugin's socket tells the kubelet what it is: the plugin is the server.
pub mod registration {
    /// Where plugins place their registration sockets, unless told otherwise.
    pub const REGISTRY_DIR: &str = "/var/lib/kubelet/plugins_registry";
    /// What [`PluginInfo::type`](PluginInfo) says of a CSI driver.
    pub const CSI_PLUGIN: &str = "CSIPlugin";
    /// What it says of a device plugin.
    pub const DEVICE_PLUGIN: &str = "DevicePlugin";
    /// What it says of a driver of dynamic resource allocation.
    pub const DRA_PLUGIN: &str = "DRAPlugin";

    pub use generated::*;

    #[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
    mod generated {
        include!("generated/pluginregistration.rs");
    }
}

/// Dynamic resource allocation: the kubelet is the client, a driver of devices the server.
pub mod dra {
    /// The service, as plugins name what they support.
    pub const SERVICE: &str = "v1.DRAPlugin";

    pub use generated::*;

    #[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
    mod generated {
        include!("generated/k8s.io.kubelet.pkg.apis.dra.v1.rs");
    }
}

/// The Container Storage Interface, both sides.
#[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
pub mod csi {
    include!("generated/csi.v1.rs");
}

/// The launcher protocol: virt-handler is the client, virt-launcher the server.
#[allow(clippy::all, unreachable_pub, unused_qualifications, rust_2018_idioms)]
pub mod launcher {
    include!("generated/ferrovirt.launcher.v1.rs");
}
