//! From a VMI to a domain that runs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use api::kubevirt::v1::VirtualMachineInstance;
use domain::{Environment, ResolvedDisk};
use libvirt::{Connection, Domain};

use crate::Dirs;
use crate::prepare::{self, Prepared};
use crate::tpm;
use crate::usable::{self, Unusable};

/// What QEMU reads a time zone from; it takes one that is not there for UTC.
const ZONES: &str = "/usr/share/zoneinfo";

/// Whoever has moved here has taken its devices within this time of their being free.
const HANDED_OVER: Duration = Duration::from_millis(500);

/// Why a VMI does not start. The sentence reaches the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the VirtualMachineInstance cannot be read: {0}")]
    Vmi(serde_json::Error),
    #[error("the environment cannot be read: {0}")]
    Environment(serde_json::Error),
    #[error("{}", kit::Chain(.0))]
    Prepare(prepare::Error),
    #[error("spec.domain.clock.timezone {0:?} is not a known time zone: write it like Europe/Berlin")]
    TimeZone(String),
    #[error("{}", kit::Chain(.0))]
    Tpm(tpm::Error),
    #[error("{0}")]
    Domain(domain::Error),
    #[error("{0}")]
    Libvirt(libvirt::Error),
    #[error("{0}")]
    Device(#[from] Unusable),
    #[error("the launcher is ending")]
    Ending,
}

impl Failure {
    /// Somebody else has a disk of it.
    pub(crate) fn is_contested(&self) -> bool {
        matches!(self, Self::Prepare(prepare::Error::InUse { .. }))
    }

    /// The same VMI would fail in the same way again.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Prepare(error) => error.is_final(),
            Self::Domain(domain::Error::NotPlugged { .. }) => false,
            Self::Domain(_) | Self::Vmi(_) | Self::TimeZone(_) | Self::Device(_) => true,
            Self::Environment(_) | Self::Tpm(_) | Self::Libvirt(_) | Self::Ending => false,
        }
    }
}

/// `contested`: somebody else held a device of it when it was tried last.
pub(super) async fn domain(
    vmi: &VirtualMachineInstance,
    mut environment: Environment,
    dirs: &Dirs,
    connection: &Connection,
    contested: bool,
) -> Result<(Prepared, Domain), Failure> {
    let zone = vmi.spec.domain.clock.as_ref().and_then(|clock| clock.timezone.as_deref());
    if let Some(zone) = zone.filter(|zone| !is_zone(Path::new(ZONES), zone)) {
        return Err(Failure::TimeZone(zone.to_owned()));
    }
    if !environment.emulation {
        usable::check(usable::KVM)?;
    }
    if !environment.interfaces.is_empty() {
        usable::check(usable::TUN)?;
    }
    let mut prepared = prepare::prepare(vmi, dirs, prepare::Moment::Start).await.map_err(Failure::Prepare)?;
    prepared.devices.take().map_err(Failure::Prepare)?;
    if contested {
        // Its holder may have moved to this node: then its guest runs here and takes the device any moment.
        prepared.devices.put_back();
        tokio::time::sleep(HANDED_OVER).await;
        prepared.devices.take().map_err(Failure::Prepare)?;
    }
    environment.disks.clone_from(&prepared.disks);
    environment.kernel.clone_from(&prepared.kernel);
    environment.firmware.nvram = dirs.nvram().display().to_string();
    let xml = domain::to_xml(vmi, &environment).map_err(Failure::Domain)?;
    tracing::debug!(xml, "domain");
    let paused = vmi.spec.start_strategy.as_deref() == Some("Paused");
    if tpm::wanted(vmi) {
        let (private, uuid) = (dirs.private(), domain::uuid(vmi));
        let made = tokio::task::spawn_blocking(move || tpm::manufacture(&private, &uuid)).await;
        made.map_err(|_| Failure::Ending)?.map_err(Failure::Tpm)?;
    }
    let connection = connection.clone();
    let started = tokio::task::spawn_blocking(move || {
        let domain = connection.define(&xml)?;
        let started = if paused { domain.start_paused() } else { domain.start() };
        if let Err(error) = started {
            // What did not start must not look like a guest that ended.
            if let Err(undefine) = domain.undefine() {
                tracing::warn!(error = %undefine, "the domain stays defined");
            }
            return Err(error);
        }
        Ok(domain)
    });
    let domain = started.await.map_err(|_| Failure::Ending)?.map_err(|error| {
        locked(&error.to_string(), &prepared.disks)
            .map(|volume| Failure::Prepare(prepare::Error::InUse { volume: volume.to_owned() }))
            .unwrap_or(Failure::Libvirt(error))
    })?;
    Ok((prepared, domain))
}

/// The volume whose image QEMU could not lock, if that is what `message` says.
pub(super) fn locked<'a>(message: &str, disks: &'a BTreeMap<String, ResolvedDisk>) -> Option<&'a str> {
    let (_, rest) = message.split_once("Failed to get ").filter(|(_, rest)| rest.contains("lock"))?;
    let (path, _) = rest.split_once("image [")?.1.split_once(']')?;
    let below = |file: &Option<domain::Backing>| file.as_ref().is_some_and(|below| below.path == path);
    let of = |disk: &ResolvedDisk| disk.path == path || below(&disk.backing) || below(&disk.data);
    disks.iter().find(|(_, disk)| of(disk)).map(|(volume, _)| volume.as_str())
}

fn is_zone(zones: &Path, name: &str) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '_' | '-' | '+');
    name.chars().all(plain) && !name.starts_with('/') && zones.join(name).is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lock_that_is_held_is_told_by_its_volume() {
        let message = "virDomainCreate: internal error: process exited while connecting to monitor: qemu-system-x86_64: \
             -blockdev {\"driver\":\"file\"}: Failed to get \"write\" lock\nIs another process using the image [/x/root.img]?";
        let disk = |path: &str| ResolvedDisk { path: path.to_owned(), ..ResolvedDisk::default() };
        let disks =
            BTreeMap::from([("data".to_owned(), disk("/x/data.img")), ("root".to_owned(), disk("/x/root.img"))]);
        assert_eq!(locked(message, &disks), Some("root"));
        assert_eq!(locked("virDomainCreate: no memory for image [/x/root.img]", &disks), None);
    }

    #[test]
    fn zones_are_files_below_their_directory() {
        let zones = std::env::temp_dir().join(format!("zones-{}", std::process::id()));
        std::fs::create_dir_all(zones.join("Europe")).unwrap();
        std::fs::write(zones.join("Europe/Berlin"), "TZif2").unwrap();
        for (name, expect) in
            [("Europe/Berlin", true), ("Europe", false), ("Europe/Bärlin", false), ("/etc/passwd", false)]
        {
            assert_eq!(is_zone(&zones, name), expect, "{name}");
        }
        assert!(!is_zone(&zones, "../etc/passwd"));
        std::fs::remove_dir_all(zones).unwrap();
    }
}
