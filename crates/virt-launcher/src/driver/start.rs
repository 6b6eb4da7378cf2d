//! From a VMI to a domain that runs.

use api::kubevirt::v1::VirtualMachineInstance;
use domain::Environment;
use libvirt::{Connection, Domain};

use crate::Dirs;
use crate::prepare::{self, Prepared};

/// Why a VMI does not start. The sentence reaches the user.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    #[error("the VirtualMachineInstance cannot be read: {0}")]
    Vmi(serde_json::Error),
    #[error("the environment cannot be read: {0}")]
    Environment(serde_json::Error),
    #[error("{}", kit::Chain(.0))]
    Prepare(prepare::Error),
    #[error("{0}")]
    Domain(domain::Error),
    #[error("{0}")]
    Libvirt(libvirt::Error),
    #[error("the launcher is ending")]
    Ending,
}

impl Failure {
    /// The same VMI would fail in the same way again.
    pub(crate) fn is_final(&self) -> bool {
        match self {
            Self::Prepare(error) => error.is_final(),
            Self::Domain(domain::Error::NotPlugged { .. }) => false,
            Self::Domain(_) | Self::Vmi(_) => true,
            Self::Environment(_) | Self::Libvirt(_) | Self::Ending => false,
        }
    }
}

pub(super) async fn domain(
    vmi: &VirtualMachineInstance,
    mut environment: Environment,
    dirs: &Dirs,
    connection: &Connection,
) -> Result<(Prepared, Domain), Failure> {
    let prepared = prepare::prepare(vmi, dirs).await.map_err(Failure::Prepare)?;
    environment.disks.clone_from(&prepared.disks);
    environment.kernel.clone_from(&prepared.kernel);
    environment.firmware.nvram = dirs.private().join("libvirt/nvram.fd").display().to_string();
    let xml = domain::to_xml(vmi, &environment).map_err(Failure::Domain)?;
    tracing::debug!(xml, "domain");
    let paused = vmi.spec.start_strategy.as_deref() == Some("Paused");
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
    let domain = started.await.map_err(|_| Failure::Ending)?.map_err(Failure::Libvirt)?;
    Ok((prepared, domain))
}
