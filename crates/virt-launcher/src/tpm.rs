//! The state of an emulated TPM, made before libvirt looks for it.
//!
//! libvirt would ask for certificates of the endorsement key as well, which takes a certificate authority that a pod does
//! not have; a state that exists already is used as it is.

use std::fs;
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use api::kubevirt::v1::VirtualMachineInstance;

/// Bytes of the program's complaints that are kept.
const COMPLAINTS: u64 = 4 << 10;

#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("preparing the TPM's state in {path}")]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error("running swtpm_setup")]
    Spawn(#[source] std::io::Error),
    #[error("swtpm_setup made no TPM state: {0}")]
    NoState(String),
}

/// True when the guest gets a TPM.
pub(crate) fn wanted(vmi: &VirtualMachineInstance) -> bool {
    vmi.spec.domain.devices.tpm.as_ref().is_some_and(|tpm| tpm.enabled.unwrap_or(true))
}

/// Makes the state of the domain `uuid` unless it is there. Blocks.
pub(crate) fn manufacture(private: &Path, uuid: &str) -> Result<(), Error> {
    let directory = private.join("libvirt/qemu/swtpm").join(uuid).join("tpm2");
    let state = directory.join("tpm2-00.permall");
    if state.exists() {
        return Ok(());
    }
    fs::create_dir_all(&directory).map_err(|source| Error::Directory { path: directory.clone(), source })?;
    let mut child = Command::new("swtpm_setup")
        .args(["--tpm2", "--createek", "--lock-nvram", "--not-overwrite", "--pcr-banks", "sha256", "--tpm-state"])
        .arg(&directory)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(Error::Spawn)?;
    let mut complaints = String::new();
    if let Some(stderr) = child.stderr.take() {
        // Without its words the state alone tells whether it worked.
        let _ = stderr.take(COMPLAINTS).read_to_string(&mut complaints);
    }
    // The reaper may have met it first: its exit code is not to be had, but the state is.
    let _ = child.wait();
    if state.exists() { Ok(()) } else { Err(Error::NoState(complaints.trim().replace('\n', "; "))) }
}
