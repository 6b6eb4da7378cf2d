//! The CSI drivers that are registered here, what is known of their volumes, and what is asked of them. No pod and no API server.

pub(crate) mod driver;
mod in_use;
pub(crate) mod places;
pub(crate) mod request;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

pub(crate) use driver::Driver;
pub(crate) use in_use::InUse;
use tokio::sync::watch;

use crate::error::{Error, Result};

type Known = BTreeMap<String, Arc<Driver>>;

/// What the node knows of CSI.
pub(crate) struct Csi {
    pub(crate) drivers: Drivers,
    pub(crate) in_use: InUse,
    /// Held while CSINode and the node's annotation are read and written.
    pub(crate) node_object: tokio::sync::Mutex<()>,
    locks: Mutex<BTreeMap<String, Arc<tokio::sync::Mutex<Staged>>>>,
}

/// What is known of one volume of the node beyond its records; held while anything is done with it.
#[derive(Debug, Default)]
pub(crate) struct Staged {
    /// It was staged in this life of the process, so the driver need not be asked again.
    pub(crate) staged: bool,
}

impl Csi {
    pub(crate) fn new() -> Self {
        Csi {
            drivers: Drivers(watch::Sender::default()),
            in_use: InUse::default(),
            node_object: tokio::sync::Mutex::default(),
            locks: Mutex::default(),
        }
    }

    /// The lock of a volume: two pods that use it take turns.
    pub(crate) fn lock(&self, driver: &str, handle: &str) -> Arc<tokio::sync::Mutex<Staged>> {
        let mut locks = self.locks.lock().unwrap_or_else(PoisonError::into_inner);
        // Those that nobody holds and that know nothing are forgotten: volumes come and go for as long as a node lives.
        locks.retain(|_, lock| Arc::strong_count(lock) > 1 || lock.try_lock().is_ok_and(|staged| staged.staged));
        locks.entry(unique_name(driver, handle)).or_default().clone()
    }
}

/// What a volume is called in a node's status.
pub(crate) fn unique_name(driver: &str, handle: &str) -> String {
    format!("kubernetes.io/csi/{driver}^{handle}")
}

/// The drivers registered here; cheap to clone.
#[derive(Clone)]
pub(crate) struct Drivers(watch::Sender<Arc<Known>>);

impl Drivers {
    /// The driver of that name.
    pub(crate) fn get(&self, name: &str) -> Result<Arc<Driver>> {
        let missing = || Error::Invalid(format!("driver name {name} not found in the list of registered CSI drivers"));
        self.0.borrow().get(name).cloned().ok_or_else(missing)
    }

    pub(crate) fn all(&self) -> Arc<Known> {
        self.0.borrow().clone()
    }

    /// Changes whenever a driver comes or goes.
    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Known>> {
        self.0.subscribe()
    }

    pub(crate) fn insert(&self, driver: Arc<Driver>) {
        self.0.send_modify(|known| {
            Arc::make_mut(known).insert(driver.name.clone(), driver);
        });
    }

    /// Forgets the driver if it is still the one registered by `socket`.
    pub(crate) fn remove(&self, name: &str, socket: &std::path::Path) -> bool {
        self.0.send_if_modified(|known| {
            let its = known.get(name).is_some_and(|driver| driver.registered_by == socket);
            its && Arc::make_mut(known).remove(name).is_some()
        })
    }
}
