//! Where the cluster keeps what it must remember, and the fixed addresses of a cluster on one machine.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::Context;
use clap::Parser;
use sys::lock;

use crate::failure::{advise, parse};
use crate::terminal;

/// The product's version; images carry it as their tag.
pub(crate) const VERSION: &str = concat!("v", env!("CARGO_PKG_VERSION"));

/// Port of the API server.
pub(crate) const API_PORT: u16 = 6443;

/// Arguments of every command that needs the state directory.
#[derive(Clone, Debug, clap::Args)]
pub(crate) struct StateArgs {
    /// Directory of the cluster's keys, objects, images and logs
    #[arg(long, env = "FERROVIRT_STATE", default_value = "/var/lib/ferrovirt", value_name = "DIR")]
    state_dir: PathBuf,
}

impl StateArgs {
    /// The state directory, absolute, so that it means the same in every process.
    pub(crate) fn state(&self) -> anyhow::Result<State> {
        let dir = std::path::absolute(&self.state_dir)
            .with_context(|| format!("cannot use the state directory {}", self.state_dir.display()))?;
        Ok(State { dir })
    }
}

/// The state directory.
#[derive(Clone, Debug)]
pub(crate) struct State {
    dir: PathBuf,
}

impl State {
    #[cfg(test)]
    pub(crate) fn at(dir: PathBuf) -> Self {
        Self { dir }
    }

    pub(crate) fn dir(&self) -> &Path {
        &self.dir
    }

    pub(crate) fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    pub(crate) fn pki(&self) -> PathBuf {
        self.dir.join("pki")
    }

    pub(crate) fn store(&self) -> PathBuf {
        self.dir.join("store")
    }

    /// A complete state out of a backup, on its way to its place.
    pub(crate) fn restoring(&self) -> PathBuf {
        self.dir.join("restore")
    }

    /// Objects and keys that a restore has replaced.
    pub(crate) fn replaced(&self) -> PathBuf {
        self.dir.join("replaced")
    }

    /// Each node's directory lies here, by its name.
    pub(crate) fn nodes_dir(&self) -> PathBuf {
        self.dir.join("nodes")
    }

    /// What all nodes share: their /srv/shared.
    pub(crate) fn shared_dir(&self) -> PathBuf {
        self.dir.join("shared")
    }

    pub(crate) fn log(&self, part: &str) -> PathBuf {
        self.dir.join("log").join(format!("{part}.log"))
    }

    /// Puts a log that has grown large aside; the one put aside before goes.
    pub(crate) fn rotate(&self, part: &str) -> anyhow::Result<()> {
        const LARGE: u64 = 16 << 20;
        let path = self.log(part);
        if path.metadata().is_ok_and(|metadata| metadata.len() > LARGE) {
            std::fs::rename(&path, path.with_extension("log.1"))
                .with_context(|| format!("cannot put {} aside", path.display()))?;
        }
        Ok(())
    }

    /// Host settings as they were before the cluster changed them.
    pub(crate) fn host_settings(&self) -> PathBuf {
        self.dir.join("host-settings.json")
    }

    /// Held by the control plane as long as it lives.
    pub(crate) fn control_plane_lock(&self) -> PathBuf {
        self.dir.join("control-plane.lock")
    }

    /// Held by the process that is the simulated nodes, as long as it lives.
    pub(crate) fn simulated_lock(&self) -> PathBuf {
        self.dir.join("simulated.lock")
    }

    /// How many simulated nodes there are to be.
    pub(crate) fn simulated_count(&self) -> PathBuf {
        self.dir.join("simulated-nodes")
    }

    /// Held while a command changes what the cluster is made of.
    fn command_lock(&self) -> PathBuf {
        self.dir.join("command.lock")
    }

    /// Makes the directories, closed to everybody but root: keys lie below, and the volumes of pods, which are open to
    /// whoever a pod runs as.
    pub(crate) fn make(&self) -> anyhow::Result<()> {
        use std::os::unix::fs::PermissionsExt;
        for dir in [self.dir.clone(), self.dir.join("log"), self.pki(), self.store(), self.nodes_dir()] {
            std::fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        for dir in [self.dir.clone(), self.pki(), self.nodes_dir()] {
            std::fs::set_permissions(&dir, std::fs::Permissions::from_mode(0o700))
                .with_context(|| format!("cannot set the mode of {}", dir.display()))?;
        }
        Ok(())
    }

    /// Keeps other commands that change the cluster away until dropped.
    pub(crate) fn exclusive(&self) -> anyhow::Result<lock::Lock> {
        let path = self.command_lock();
        lock::acquire(&path)?.ok_or_else(|| {
            let by = lock::holder(&path).ok().flatten().map(|pid| format!(" (pid {pid})")).unwrap_or_default();
            advise(
                anyhow::anyhow!("another command that changes the cluster is at work{by}"),
                "wait for it, or end it with Ctrl-C",
            )
        })
    }

    /// Like [`State::exclusive`], but waits for its turn: nodes may be added and removed by several hands.
    pub(crate) fn exclusive_in_turn(&self) -> anyhow::Result<lock::Lock> {
        let deadline = Instant::now() + TURN;
        loop {
            if let Some(turn) = lock::acquire(&self.command_lock())? {
                return Ok(turn);
            }
            if Instant::now() > deadline {
                return self.exclusive();
            }
            sys::process::pause(Duration::from_millis(20));
        }
    }

    /// The pid of the running control plane.
    pub(crate) fn control_plane_pid(&self) -> anyhow::Result<Option<u32>> {
        Ok(lock::holder(&self.control_plane_lock())?)
    }
}

/// Longer than commands take, but for `node stop`, which waits for as long as pods are granted.
const TURN: Duration = Duration::from_secs(60);

/// Refuses to go on without root.
pub(crate) fn need_root() -> anyhow::Result<()> {
    if sys::process::is_root() {
        return Ok(());
    }
    Err(advise(
        anyhow::anyhow!("this command makes namespaces, mounts and interfaces, which only root may"),
        "use sudo",
    ))
}

/// Print the path of the kubeconfig
#[derive(Debug, Parser)]
#[command(name = "kubeconfig")]
struct KubeconfigArgs {
    #[command(flatten)]
    state: StateArgs,
}

/// `ferrovirt kubeconfig`
pub(crate) fn print_kubeconfig(words: Vec<OsString>) -> anyhow::Result<()> {
    let Some(arguments) = parse::<KubeconfigArgs>(words)? else { return Ok(()) };
    let path = arguments.state.state()?.kubeconfig();
    if !path.exists() {
        return Err(advise(anyhow::anyhow!("there is no {}", path.display()), "`ferrovirt up` makes it"));
    }
    terminal::say(&path.display().to_string());
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;

    use super::*;

    #[test]
    fn no_other_user_of_the_host_reaches_a_volume() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
        let state = State::at(dir.path().join("state"));
        for made in [state.nodes_dir().join("node1/var"), state.shared_dir()] {
            std::fs::create_dir_all(&made).unwrap();
            std::fs::write(made.join("disk.img"), "secret").unwrap();
            std::fs::set_permissions(made.join("disk.img"), std::fs::Permissions::from_mode(0o666)).unwrap();
        }
        // What an earlier version made is closed as well.
        std::fs::set_permissions(dir.path().join("state"), std::fs::Permissions::from_mode(0o711)).unwrap();
        state.make().unwrap();
        let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(state.dir()), mode(&state.nodes_dir())), (0o700, 0o700));
        if sys::process::is_root() {
            for disk in [state.nodes_dir().join("node1/var/disk.img"), state.shared_dir().join("disk.img")] {
                let tried = std::process::Command::new("cat").arg(&disk).uid(65534).gid(65534).output().unwrap();
                assert!(!tried.status.success(), "{}", disk.display());
            }
        }
    }
}
