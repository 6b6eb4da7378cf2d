//! virt-launcher: the process that owns one virtual machine, inside its pod and without privilege.
//!
//! ```text
//!   virt-handler --gRPC--> server --Request--> driver ---> libvirtd (session) ---> QEMU
//!                            ^                   | ^            |
//!                            +----- watch -------+ +-- events --+
//! ```
//!
//! One task, the driver, changes the domain; everything else sends it requests and reads what it publishes. The process
//! ends when the guest is gone for good and somebody has read that it is.

mod agent;
mod args;
mod cloud_init;
mod console_log;
mod credentials;
mod daemon;
mod dirs;
mod domain_state;
mod driver;
mod exec;
mod hotplug;
mod hotplug_server;
mod inside;
mod migration;
mod node_capabilities;
mod prepare;
mod publish;
mod reaper;
mod request_queue;
mod screenshot;
mod server;
mod socket;
mod tpm;
mod usable;

use std::time::Duration;

use kit::shutdown::CancellationToken;

pub use args::Args;
pub use dirs::Dirs;
pub use driver::{Driver, DriverError, Handle};
pub use inside::{FreezerArgs, InsideError, ProbeArgs, freezer, probe};
pub use node_capabilities::{CapabilitiesArgs, node_capabilities};

/// Why the launcher ends with a failure.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("starting the runtime")]
    Runtime(#[source] std::io::Error),
    #[error("preparing {path}")]
    Prepare {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("starting libvirtd")]
    Daemon(#[from] daemon::Error),
    #[error("talking to libvirt")]
    Libvirt(#[from] libvirt::Error),
    #[error("serving on {path}")]
    Serve {
        path: std::path::PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("nobody asked for the virtual machine to start within {0:?}")]
    NeverStarted(Duration),
    #[error("libvirtd ended while the virtual machine ran")]
    DaemonDied,
}

/// Runs until the guest is gone, on a runtime of one thread.
pub fn run(args: Args) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .max_blocking_threads(6)
        .thread_keep_alive(Duration::from_secs(2))
        .thread_stack_size(512 << 10)
        .build()
        .map_err(Error::Runtime)?;
    let outcome = runtime.block_on(launch(args));
    // A blocking call into a dead daemon must not keep the process.
    runtime.shutdown_timeout(Duration::from_secs(1));
    outcome
}

async fn launch(args: Args) -> Result<(), Error> {
    let shutdown = kit::shutdown::on_signals().map_err(Error::Runtime)?;
    let dirs = args.dirs();
    dirs.create(&args.uid)?;
    let children = reaper::start().map_err(Error::Runtime)?;
    let mut daemon = daemon::Daemon::start(&dirs, children).await?;
    let connection = daemon.connect().await?;
    ask_early(connection.clone());
    let started = serve(&args, dirs, connection, shutdown).await?;
    let gone = CancellationToken::new();
    let outcome = tokio::select! {
        outcome = started.driver.run(gone.clone()) => outcome,
        () = daemon.ended() => Err(Error::DaemonDied),
    };
    gone.cancel();
    started.server.abort();
    daemon.stop().await;
    outcome
}

/// Has libvirt find out what its QEMU can do, which it does once and takes 0.3 s for, before a machine waits for it. Not before
/// `/dev/kvm` is the pod's user's, which the node agent sees to: libvirt would remember that there is no KVM.
fn ask_early(connection: libvirt::Connection) {
    let asking = async move {
        let kvm = usable::is_there(usable::KVM);
        if kvm && !usable::given_within(usable::KVM, GIVEN).await {
            return;
        }
        let asked = move || connection.capabilities(libvirt::Capability::Domain { kvm });
        if let Ok(Err(error)) = tokio::task::spawn_blocking(asked).await {
            // Whoever needs them asks again and reports it.
            tracing::debug!(%error, "QEMU's capabilities are not known yet");
        }
    };
    kit::spawn("capabilities", asking).detach();
}

/// How long the node agent may take to find this pod.
const GIVEN: Duration = Duration::from_secs(60);

struct Started {
    driver: Driver,
    server: kit::Task<()>,
    _hotplug: kit::Task<()>,
}

/// The driver and the server in front of it, not yet driving.
async fn serve(
    args: &Args,
    dirs: Dirs,
    connection: libvirt::Connection,
    shutdown: CancellationToken,
) -> Result<Started, Error> {
    let socket = dirs.launcher_socket();
    let (driver, handle) = Driver::new(args, dirs.clone(), connection, shutdown)?;
    let failed = |source| Error::Serve { path: dirs.hotplug_socket(), source };
    let hotplug = hotplug_server::listen(&dirs, handle.requests.clone()).map_err(failed)?;
    let listener = socket::listen(&socket).map_err(|source| Error::Serve { path: socket.clone(), source })?;
    let server = kit::spawn("server", async move {
        if let Err(error) = server::serve(listener, handle).await {
            tracing::error!(error = %kit::Chain(&error), "the server ended");
        }
    });
    tracing::info!(socket = %socket.display(), "ready");
    Ok(Started { driver, server, _hotplug: hotplug })
}
