//! What every operand is deployed with.

use kit::workload::Placement;

/// Where it goes, and what it runs.
#[derive(Clone, Debug, Default)]
pub struct Base {
    /// Its namespace.
    pub namespace: String,
    /// Its image.
    pub image: String,
    /// How that is pulled.
    pub pull_policy: String,
    /// On which nodes its pods run.
    pub placement: Placement,
}
