//! The claims and driver volumes that pods have here, for who measures and grows them.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use tokio::sync::watch;

use crate::drivers::request;

/// A claim by namespace and name.
pub(crate) type ClaimName = (String, String);

/// One volume in one pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InPod {
    pub(crate) claim: Option<ClaimName>,
    pub(crate) path: PathBuf,
    /// What its driver knows it by, if it has one.
    pub(crate) csi: Option<request::Volume>,
}

/// By pod uid and by the volume's name in the pod.
pub(crate) type Volumes = BTreeMap<String, BTreeMap<String, InPod>>;

/// Filled when volumes are set up, which each life of this process does once for each pod.
#[derive(Debug, Default)]
pub(crate) struct Inventory(watch::Sender<Arc<Volumes>>);

impl Inventory {
    pub(crate) fn put(&self, uid: &str, name: &str, volume: InPod) {
        self.0.send_if_modified(|all| {
            if all.get(uid).and_then(|pod| pod.get(name)) == Some(&volume) {
                return false;
            }
            Arc::make_mut(all).entry(uid.to_owned()).or_default().insert(name.to_owned(), volume);
            true
        });
    }

    pub(crate) fn forget(&self, uid: &str) {
        self.0.send_if_modified(|all| all.contains_key(uid) && Arc::make_mut(all).remove(uid).is_some());
    }

    pub(crate) fn all(&self) -> Arc<Volumes> {
        self.0.borrow().clone()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<Arc<Volumes>> {
        self.0.subscribe()
    }
}
