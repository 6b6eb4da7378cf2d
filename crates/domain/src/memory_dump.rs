//! What the launcher tells of a dump of the guest's memory.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use serde::{Deserialize, Serialize};

/// A dump that is being written, or the one that ended last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct MemoryDump {
    /// The volume that it is written to.
    pub volume: String,
    /// The file's name there.
    pub file: String,
    /// When the guest was halted for it.
    pub started: Option<Time>,
    /// When it was over, either way.
    pub ended: Option<Time>,
    /// Why there is none.
    pub failure: Option<String>,
}

impl MemoryDump {
    /// The launcher still writes to the volume called so.
    pub fn is_writing(&self, volume: &str) -> bool {
        self.volume == volume && self.started.is_some() && self.ended.is_none()
    }
}
