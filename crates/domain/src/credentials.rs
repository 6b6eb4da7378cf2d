//! What the launcher tells of the credentials that it hands over to the guest's agent.

use serde::{Deserialize, Serialize};

/// What became of them when they were handed over last.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CredentialsOutcome {
    /// The guest has all of them.
    pub succeeded: bool,
    /// Which it has not, and why. Nothing of the credentials themselves.
    pub message: String,
}
