//! The command line, as virt-controller writes it into the pod.

use std::path::PathBuf;

use crate::Dirs;

/// The process that owns one virtual machine.
#[derive(Clone, Debug, clap::Parser)]
#[command(name = "virt-launcher")]
pub struct Args {
    /// Name of the VirtualMachineInstance.
    #[arg(long)]
    pub name: String,
    /// Its namespace.
    #[arg(long)]
    pub namespace: String,
    /// Its UID.
    #[arg(long)]
    pub uid: String,
    /// How long the guest may take to shut down before it is switched off.
    #[arg(long, default_value_t = 30)]
    pub grace_period_seconds: u64,
    /// How long to wait for the first request to start the guest.
    #[arg(long, default_value_t = 300)]
    pub start_timeout_seconds: u64,
    /// Everything is below this directory: for running outside of a pod.
    #[arg(long, default_value = "/var/run")]
    pub run_dir: PathBuf,
    /// QEMU, when it is not where Debian puts it.
    #[arg(long, default_value = "/usr/bin/qemu-system-x86_64")]
    pub emulator: String,
}

impl Args {
    pub(crate) fn dirs(&self) -> Dirs {
        Dirs::below(&self.run_dir)
    }
}
