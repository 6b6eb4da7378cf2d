//! The drivers of claimed devices that are registered here, and the record of what they were asked. No pod and no API server.

mod plugins;
pub(crate) mod record;

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use plugins::{Plugin, Plugins};

/// What the node knows of claims on devices.
pub(crate) struct DeviceClaims {
    pub(crate) plugins: Plugins,
    pub(crate) records: PathBuf,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<()>>>>,
}

impl DeviceClaims {
    /// `records` is a directory of its own.
    pub(crate) fn new(records: PathBuf) -> Self {
        Self { plugins: Plugins::default(), records, locks: Mutex::default() }
    }

    /// The lock of a claim: pods that share it take turns.
    pub(crate) fn lock(&self, uid: &str) -> Arc<tokio::sync::Mutex<()>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        locks.retain(|_, lock| Arc::strong_count(lock) > 1);
        locks.entry(uid.to_owned()).or_default().clone()
    }

    /// The pods that are on record.
    pub(crate) fn pods(&self) -> Vec<String> {
        record::all(&self.records).into_iter().flat_map(|record| record.pods).collect()
    }
}
