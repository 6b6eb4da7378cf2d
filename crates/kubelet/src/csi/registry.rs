//! Plugin registration: every socket below `plugins_registry` is asked what it is, told whether it was taken, and
//! forgotten when it goes.
//!
//! ```text
//!  socket seen ─▶ GetInfo ─▶ CSIPlugin: NodeGetInfo ─▶ CSINode, labels ─▶ Drivers ─▶ NotifyRegistrationStatus
//!                         ├▶ DevicePlugin: as if it had called the device plugins' socket
//!                         └▶ DRAPlugin: Plugins of claims on devices
//!  socket gone ─▶ Drivers, CSINode; Plugins, ResourceSlices
//! ```

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use inotify::{EventStream, Inotify, WatchMask};
use kit::backoff::Backoff;
use rpc::registration::registration_client::RegistrationClient;
use rpc::registration::{CSI_PLUGIN, DEVICE_PLUGIN, DRA_PLUGIN, InfoRequest, PluginInfo, RegistrationStatus};
use tokio_util::sync::CancellationToken;
use tonic::transport::Channel;

use super::node_object;
use crate::context::Context;
use crate::device_claims;
use crate::device_drivers::Plugin;
use crate::drivers::{Driver, driver};
use crate::error::{Error, Result};

/// The directory is read this often even when nobody says that it changed.
const RESCAN: Duration = Duration::from_secs(10);
/// A socket is there a moment before somebody listens on it.
const SETTLE: Duration = Duration::from_millis(50);
const ANSWER: Duration = Duration::from_secs(10);
const RETRY: Backoff = Backoff { base: Duration::from_millis(250), max: Duration::from_secs(30) };
/// How deep sockets are looked for.
const DEPTH: usize = 3;
/// A driver that the cluster knows and that has not come back this long after a start is gone.
const RETURN: Duration = Duration::from_secs(60);

/// A socket that is replaced has another one.
type Identity = (u64, i64, i64);
type Sockets = BTreeMap<PathBuf, Identity>;

/// Registers and forgets plugins until `shutdown`.
///
/// # Errors
/// When the directory cannot be made.
pub(crate) async fn run(context: Arc<Context>, shutdown: CancellationToken) -> Result<()> {
    let dir = context.config.root.join("plugins_registry");
    for dir in [&dir, &context.config.root.join("plugins")] {
        fs::create_dir_all(dir).map_err(Error::file("create", dir))?;
    }
    let mut told = watch(&dir);
    let mut known: BTreeMap<PathBuf, (Identity, kit::Task<()>)> = BTreeMap::new();
    let forgetting = tokio::time::sleep(RETURN);
    tokio::pin!(forgetting);
    let mut forgotten = false;
    loop {
        let found = scan(&dir, told.as_ref());
        let before = known.iter().map(|(path, (identity, _))| (path.clone(), *identity)).collect();
        let changes = compare(&before, &found);
        for path in changes.gone {
            // Dropping its task ends what was still being said.
            known.remove(&path);
            leave(&context, &path);
        }
        for (path, identity) in changes.fresh {
            let task = kit::spawn("plugin-registration", register(context.clone(), path.clone()));
            known.insert(path, (identity, task));
        }
        tokio::select! {
            () = shutdown.cancelled() => return Ok(()),
            () = changed(&mut told) => tokio::time::sleep(SETTLE).await,
            () = tokio::time::sleep(RESCAN) => {}
            () = &mut forgetting, if !forgotten => {
                forgotten = true;
                kit::spawn("csi-forgotten", node_object::forget_absent(context.clone())).detach();
                kit::spawn("dra-forgotten", device_claims::withdraw_absent(context.clone())).detach();
            }
        }
    }
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Changes {
    gone: Vec<PathBuf>,
    /// New, or another socket at the same path.
    fresh: Vec<(PathBuf, Identity)>,
}

fn compare(known: &Sockets, found: &Sockets) -> Changes {
    Changes {
        gone: known.keys().filter(|path| !found.contains_key(*path)).cloned().collect(),
        fresh: found
            .iter()
            .filter(|(path, identity)| known.get(*path) != Some(identity))
            .map(|(path, identity)| (path.clone(), *identity))
            .collect(),
    }
}

fn watch(dir: &Path) -> Option<EventStream<[u8; 4096]>> {
    let watching = || {
        let inotify = Inotify::init()?;
        inotify.watches().add(dir, mask())?;
        inotify.into_event_stream([0; 4096])
    };
    watching()
        .inspect_err(|error: &std::io::Error| tracing::warn!(%error, "plugin sockets cannot be watched: they are looked for every few seconds"))
        .ok()
}

fn mask() -> WatchMask {
    WatchMask::CREATE | WatchMask::DELETE | WatchMask::MOVE
}

async fn changed(told: &mut Option<EventStream<[u8; 4096]>>) {
    let good = match told {
        Some(stream) => stream.next().await.is_some_and(|event| event.is_ok()),
        None => std::future::pending().await,
    };
    if !good {
        *told = None;
    }
}

/// The sockets below `dir`; directories on the way are watched too.
fn scan(dir: &Path, told: Option<&EventStream<[u8; 4096]>>) -> Sockets {
    let mut sockets = Sockets::new();
    let mut dirs = vec![(dir.to_path_buf(), 0)];
    while let Some((dir, depth)) = dirs.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            // Links are not followed; a hidden file is one that is still being made.
            let Ok(meta) = entry.metadata() else { continue };
            if entry.file_name().to_string_lossy().starts_with('.') {
                continue;
            }
            if meta.file_type().is_socket() {
                sockets.insert(entry.path(), (meta.ino(), meta.ctime(), meta.ctime_nsec()));
            } else if meta.is_dir() && depth < DEPTH {
                if let Some(stream) = told
                    && let Err(error) = stream.watches().add(entry.path(), mask())
                {
                    tracing::debug!(%error, dir = %entry.path().display(), "a directory of plugins is not watched");
                }
                dirs.push((entry.path(), depth + 1));
            }
        }
    }
    sockets
}

/// Talks to the socket until it is registered, or refused for good.
async fn register(context: Arc<Context>, path: PathBuf) {
    let mut failures = 0;
    loop {
        match introduce(&context, &path).await {
            Ok(Some(name)) => {
                tracing::info!(plugin = name, socket = %path.display(), "plugin registered");
                return;
            }
            Ok(None) => return,
            Err(error) => {
                failures += 1;
                let chain = kit::Chain(&error).to_string();
                tracing::warn!(socket = %path.display(), error = chain, "a plugin is not registered yet");
            }
        }
        tokio::time::sleep(RETRY.delay(failures)).await;
    }
}

/// One try: its name when it is registered, none when it was refused for what it is.
async fn introduce(context: &Arc<Context>, path: &Path) -> Result<Option<String>> {
    let mut plugin = RegistrationClient::new(driver::channel(path)?);
    let info = driver::ask_within(ANSWER, plugin.get_info(InfoRequest {})).await?;
    let endpoint = if info.endpoint.is_empty() { path.to_path_buf() } else { PathBuf::from(&info.endpoint) };
    if let Err(refusal) = acceptable(&info) {
        tracing::warn!(socket = %path.display(), refusal, "a plugin was refused");
        notify(&mut plugin, Err(refusal)).await?;
        return Ok(None);
    }
    let taken = match info.r#type.as_str() {
        DEVICE_PLUGIN => context.devices.adopt(info.name.clone(), endpoint.display().to_string()).await,
        DRA_PLUGIN => Plugin::new(info.name.clone(), &endpoint, path.to_path_buf())
            .map(|plugin| context.device_claims.plugins.insert(Arc::new(plugin))),
        _ => take_driver(context, info.name.clone(), endpoint, path).await,
    };
    match taken {
        Ok(()) => {
            notify(&mut plugin, Ok(())).await?;
            Ok(Some(info.name))
        }
        Err(error) => {
            notify(&mut plugin, Err(format!("RegisterPlugin error -- {}", kit::Chain(&error)))).await?;
            Err(error)
        }
    }
}

async fn take_driver(context: &Arc<Context>, name: String, endpoint: PathBuf, path: &Path) -> Result<()> {
    let driver = Arc::new(Driver::meet(name, endpoint, path.to_path_buf()).await?);
    // Known here before it is known elsewhere: who reads of it in CSINode may ask for it at once.
    context.csi.drivers.insert(driver.clone());
    let announced = node_object::announce(context, &driver).await;
    if announced.is_err() {
        context.csi.drivers.remove(&driver.name, path);
    }
    announced
}

async fn notify(plugin: &mut RegistrationClient<Channel>, outcome: Result<(), String>) -> Result<()> {
    let status = RegistrationStatus { plugin_registered: outcome.is_ok(), error: outcome.err().unwrap_or_default() };
    driver::ask_within(ANSWER, plugin.notify_registration_status(status)).await.map(drop)
}

/// Why a plugin cannot be taken, whatever it does.
fn acceptable(info: &PluginInfo) -> Result<(), String> {
    match info.r#type.as_str() {
        CSI_PLUGIN => {
            let is_one = |version: &String| version.trim_start_matches('v').split('.').next() == Some("1");
            if info.name.is_empty() || info.name.len() > 63 {
                return Err(format!("the driver's name {:?} is not one of 1 to 63 characters", info.name));
            }
            if !info.supported_versions.iter().any(is_one) {
                let versions = &info.supported_versions;
                return Err(format!("versions {versions:?} of driver {} are not supported: 1.x is", info.name));
            }
            Ok(())
        }
        DRA_PLUGIN => {
            if info.name.is_empty() || info.name.len() > 63 {
                return Err(format!("the DRA driver's name {:?} is not one of 1 to 63 characters", info.name));
            }
            if !info.supported_versions.iter().any(|version| version == rpc::dra::SERVICE) {
                let (versions, served) = (&info.supported_versions, rpc::dra::SERVICE);
                return Err(format!(
                    "versions {versions:?} of DRA driver {} are not supported: {served} is",
                    info.name
                ));
            }
            Ok(())
        }
        DEVICE_PLUGIN if info.name.contains('/') => Ok(()),
        DEVICE_PLUGIN => Err(format!("the device plugin's resource name {:?} is not a qualified one", info.name)),
        other => Err(format!("no handler registered for plugin type: {other}")),
    }
}

/// The socket went: so did the driver that had registered there.
fn leave(context: &Arc<Context>, path: &Path) {
    for name in context.device_claims.plugins.remove(path) {
        tracing::info!(driver = name, "DRA driver left");
        kit::spawn("dra-left", device_claims::withdraw(context.clone(), name)).detach();
    }
    let its: Vec<String> = context
        .csi
        .drivers
        .all()
        .values()
        .filter(|driver| driver.registered_by == path)
        .map(|driver| driver.name.clone())
        .collect();
    for name in its.into_iter().filter(|name| context.csi.drivers.remove(name, path)) {
        tracing::info!(driver = name, "CSI driver left");
        kit::spawn("csi-left", node_object::withdraw(context.clone(), name)).detach();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sockets_come_go_and_are_replaced() {
        let sockets = |list: &[(&str, u64)]| -> Sockets {
            list.iter().map(|(path, inode)| (PathBuf::from(path), (*inode, 0, 0))).collect()
        };
        let check = |known: &[(&str, u64)], found: &[(&str, u64)], gone: &[&str], fresh: &[&str]| {
            let changes = compare(&sockets(known), &sockets(found));
            assert_eq!(changes.gone, gone.iter().map(PathBuf::from).collect::<Vec<_>>());
            let paths: Vec<_> = changes.fresh.into_iter().map(|(path, _)| path).collect();
            assert_eq!(paths, fresh.iter().map(PathBuf::from).collect::<Vec<_>>());
        };
        check(&[], &[("a", 1)], &[], &["a"]);
        check(&[("a", 1)], &[("a", 1)], &[], &[]);
        check(&[("a", 1)], &[("a", 2), ("b", 3)], &[], &["a", "b"]);
        check(&[("a", 1), ("b", 2)], &[("b", 2)], &["a"], &[]);
    }

    #[test]
    fn invalid_plugin_registrations_are_refused() {
        let check = |kind: &str, name: &str, versions: &[&str], expect: Result<(), &str>| {
            let info = PluginInfo {
                r#type: kind.into(),
                name: name.into(),
                endpoint: String::new(),
                supported_versions: versions.iter().map(|v| (*v).to_owned()).collect(),
            };
            assert_eq!(acceptable(&info), expect.map_err(str::to_owned));
        };
        check("CSIPlugin", "d.io", &["1.0.0"], Ok(()));
        check("CSIPlugin", "d.io", &["0.3.0", "v1.2"], Ok(()));
        check("CSIPlugin", "d.io", &["0.3.0"], Err("versions [\"0.3.0\"] of driver d.io are not supported: 1.x is"));
        check("CSIPlugin", "", &["1.0.0"], Err("the driver's name \"\" is not one of 1 to 63 characters"));
        check("DevicePlugin", "gpu", &[], Err("the device plugin's resource name \"gpu\" is not a qualified one"));
        check("DRAPlugin", "d.io", &["v1beta1.DRAPlugin", "v1.DRAPlugin"], Ok(()));
        check(
            "DRAPlugin",
            "d.io",
            &["v1beta1.DRAPlugin"],
            Err("versions [\"v1beta1.DRAPlugin\"] of DRA driver d.io are not supported: v1.DRAPlugin is"),
        );
        check("DRAPlugin", "", &["v1.DRAPlugin"], Err("the DRA driver's name \"\" is not one of 1 to 63 characters"));
        check("OtherPlugin", "x", &[], Err("no handler registered for plugin type: OtherPlugin"));
    }
}
