//! How a domain moves: what the node agent asks of a launcher, and what the launcher tells while it happens.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// What a migration may do and how long it may take.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationOptions {
    /// UID of the VirtualMachineInstanceMigration.
    pub uid: String,
    /// Bytes a second; 0 is no limit.
    pub bandwidth: u64,
    /// Volumes on claims that the target has its own for, whose disks are copied; those that only a pod has are copied anyway.
    pub copied_volumes: Vec<String>,
    /// What the target's disks of those are, where that is known.
    pub destinations: BTreeMap<String, Destination>,
    /// Slow the guest down when it changes memory faster than it can be sent.
    pub auto_converge: bool,
    /// Let the guest run on the target before all of its memory is there, when time runs out.
    pub post_copy: bool,
    /// Pause the guest, when time runs out and post-copy is not allowed.
    pub workload_disruption: bool,
    /// Seconds for each GiB of memory and of copied disks; 0 is no limit.
    pub completion_timeout_per_gib: u64,
    /// Seconds without progress; 0 is no limit.
    pub progress_timeout: u64,
    /// Milliseconds the guest may stand still; 0 leaves it to QEMU.
    pub max_downtime: u64,
    /// Leave it to the administrator that shared disks are safe with their caches.
    pub trust_disks: bool,
    /// Compress memory on its way.
    pub compression: bool,
    /// Allow QEMU a longer pause step by step, up to `max_downtime`.
    pub ramp: Option<DowntimeRamp>,
    /// Judge progress by what remains after each pass over the memory, in place of `progress_timeout`.
    pub stall: Option<StallDetector>,
}

/// The disk that one is copied into.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Destination {
    /// It is a device, and not an image on a file system.
    pub block: bool,
    /// How large its claim is, in bytes.
    pub capacity: u64,
    /// It came while the guest ran.
    pub hotplugged: bool,
}

/// How the pause that QEMU may take grows.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct DowntimeRamp {
    /// Milliseconds at first.
    pub initial: u64,
    /// Equal steps from there to the longest pause.
    pub steps: u64,
    /// Passes over the memory before the first step.
    pub start_after: u64,
    /// Seconds between two steps.
    pub cooldown: u64,
}

impl Default for DowntimeRamp {
    fn default() -> Self {
        Self { initial: 150, steps: 7, start_after: 3, cooldown: 10 }
    }
}

/// When a migration has stopped to converge, and what follows.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct StallDetector {
    /// Percent that count as no difference.
    pub margin: u64,
    /// Seconds that what remains may not get less.
    pub window: u64,
    /// Seconds that the hand-over may take once it was asked for.
    pub switchover_timeout: u64,
    /// Weight of the newest sample of the bandwidth.
    pub ewma_alpha: f64,
    /// How many times the longest pause a pause may seem to take before the migration is given up.
    pub possible_factor: f64,
    /// By how much the patience for a good moment shrinks each time that none has come.
    pub patience_decay: f64,
    /// Wait for a moment in which little remains.
    pub search_minimum: bool,
    /// How many times the time to complete a migration may take in all.
    pub completion_factor: f64,
}

impl Default for StallDetector {
    fn default() -> Self {
        Self {
            margin: 4,
            window: 40,
            switchover_timeout: 60,
            ewma_alpha: 0.4,
            possible_factor: 1.5,
            patience_decay: 0.5,
            search_minimum: true,
            completion_factor: 2.0,
        }
    }
}

/// How the guest gets over.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationMode {
    /// It runs on the source until all is sent.
    #[default]
    PreCopy,
    /// It runs on the target and fetches what it lacks.
    PostCopy,
    /// It stands still while the rest is sent.
    Paused,
}

/// Where a migration is. Sizes are bytes, rates bytes a second, times milliseconds.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MigrationProgress {
    pub uid: String,
    pub mode: MigrationMode,
    pub elapsed: u64,
    /// Of memory and of copied disks.
    pub total: u64,
    pub processed: u64,
    pub remaining: u64,
    pub rate: u64,
    pub dirty_rate: u64,
    /// The pause that QEMU expects.
    pub expected_downtime: u64,
    /// How much the guest is slowed down, in percent.
    pub throttle: u64,
    /// The way broke while the guest was handed over: whether it runs on the target, the target has to say.
    pub uncertain: bool,
    pub outcome: Option<MigrationOutcome>,
}

/// How a migration ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum MigrationOutcome {
    /// The guest runs on the target.
    Moved,
    /// Somebody ended it; the guest is where it was.
    Aborted,
    /// Why it failed; the guest is where it was.
    Failed(String),
}

/// What a migration connects to on the target.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MigrationChannel {
    /// The daemon, for libvirt's own protocol.
    Libvirt,
    /// QEMU, for memory and the state of devices.
    Memory,
    /// QEMU, for disks.
    Disks,
}

impl MigrationChannel {
    pub const ALL: [Self; 3] = [Self::Libvirt, Self::Memory, Self::Disks];

    /// The channel's name, as it goes over the wire.
    pub fn name(self) -> &'static str {
        match self {
            Self::Libvirt => "libvirt",
            Self::Memory => "memory",
            Self::Disks => "disks",
        }
    }

    /// The channel of this name.
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|channel| channel.name() == name)
    }

    /// The socket that stands for the target in the source's directory of sockets; memory and disks have the same one on the
    /// target.
    pub fn socket(self) -> &'static str {
        match self {
            Self::Libvirt => "migration-libvirt",
            Self::Memory => "migration-memory",
            Self::Disks => "migration-disks",
        }
    }
}
