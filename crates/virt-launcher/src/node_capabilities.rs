//! `virt-node-capabilities`: asks the libvirt and QEMU that guests will have what this node can give them, once, before
//! virt-handler starts, and leaves the answer in a file for it.

use std::io;
use std::os::unix::fs::chown;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use domain::NodeCapabilities;
use libvirt::{Capability, Connection};

use crate::{Dirs, Error, daemon, reaper};

/// The user guests run as. libvirt's session driver, which they have, is for ordinary users.
const USER: u32 = 107;

/// Tell what guests can have on this node.
#[derive(Clone, Debug, clap::Args)]
pub struct CapabilitiesArgs {
    /// The file to write, as JSON.
    #[arg(long)]
    pub output: PathBuf,
    /// Everything else is below this directory.
    #[arg(long, default_value = "/var/run")]
    pub run_dir: PathBuf,
}

/// Asks and writes. A node whose libvirt does not answer is a node without known capabilities, not one without guests:
/// virt-handler then says less of it.
///
/// # Errors
/// When the file cannot be written.
pub async fn node_capabilities(args: CapabilitiesArgs) -> Result<(), Error> {
    let dirs = Dirs::below(&args.run_dir);
    let directory = args.output.parent().unwrap_or(Path::new("/")).to_owned();
    let prepare = |path: &Path| {
        let path = path.to_owned();
        move |source| Error::Prepare { path, source }
    };
    if rustix::process::geteuid().is_root() {
        return Err(prepare(&directory)(become_user(&args, &directory)));
    }
    dirs.create("node")?;
    let found = ask(&dirs).await.unwrap_or_else(|error| NodeCapabilities {
        trouble: kit::Chain(&error).to_string(),
        ..NodeCapabilities::default()
    });
    let text = serde_json::to_vec(&found).map_err(|error| prepare(&args.output)(error.into()))?;
    std::fs::write(&args.output, text).map_err(prepare(&args.output))
}

/// Goes on as the user guests run as, with the directories and, if there is one, the KVM device that user needs: in a
/// container of its own all of them are the container's. Returns only when that fails.
fn become_user(args: &CapabilitiesArgs, directory: &Path) -> io::Error {
    let own = |path: &Path| chown(path, Some(USER), Some(USER));
    let kvm = Path::new("/dev/kvm");
    let prepared = std::fs::create_dir_all(&args.run_dir)
        .and_then(|()| own(&args.run_dir))
        .and_then(|()| own(directory))
        .and_then(|()| if kvm.exists() { own(kvm) } else { Ok(()) });
    if let Err(error) = prepared {
        return error;
    }
    let arguments = std::env::args_os();
    let mut again = Command::new("/proc/self/exe");
    again.arg0("virt-node-capabilities").args(arguments.skip(1)).uid(USER).gid(USER).exec()
}

async fn ask(dirs: &Dirs) -> Result<NodeCapabilities, Error> {
    let children = reaper::start().map_err(Error::Runtime)?;
    let mut daemon = daemon::Daemon::start(dirs, children).await?;
    let connection = daemon.connect().await?;
    let kvm = sys::kvm::verdict().is_usable();
    let asked = tokio::task::spawn_blocking(move || questions(&connection, kvm)).await;
    daemon.stop().await;
    asked.map_err(|error| Error::Runtime(io::Error::other(error)))?
}

fn questions(connection: &Connection, kvm: bool) -> Result<NodeCapabilities, Error> {
    let mut found = NodeCapabilities::default();
    let domain = connection.capabilities(Capability::Domain { kvm })?;
    let read = |source: domain::ReadError| Error::Runtime(io::Error::other(source));
    found.read_domain(&domain).map_err(read)?;
    found.read_host(&connection.capabilities(Capability::Host)?).map_err(read)?;
    // Without its features the rest is worth having.
    match connection.expand_cpu(kvm, &found.host_cpu()) {
        Ok(expanded) => found.read_expanded(&expanded).map_err(read)?,
        Err(error) => found.trouble = kit::Chain(&error).to_string(),
    }
    Ok(found)
}
