//! The attached volumes this node uses, as its status says: the cluster does not detach one while it is named there.

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::sync::watch;

use crate::drivers::places::Places;
use crate::drivers::unique_name;
use crate::error::{Error, Result};

/// How long a volume may wait for the node's status to name it.
const PATIENCE: Duration = Duration::from_secs(10);

/// Names of volumes, as they are used and as they were last written.
#[derive(Debug, Default)]
pub(crate) struct InUse {
    wanted: watch::Sender<BTreeSet<String>>,
    written: watch::Sender<BTreeSet<String>>,
}

impl InUse {
    /// What an earlier life of this process used.
    pub(crate) fn restore(&self, places: Places<'_>) {
        let pods = places.pods();
        let published = pods.iter().flat_map(|uid| places.volumes_of(uid)).filter_map(|(_, record)| record);
        let staged = places.staged_volumes().into_iter().map(|(_, record, _)| record);
        let attached = published.chain(staged).filter(|record| !record.attachment.is_empty());
        let names: BTreeSet<String> = attached.map(|record| unique_name(&record.driver, &record.handle)).collect();
        self.wanted.send_modify(|wanted| wanted.extend(names));
    }

    pub(crate) fn names(&self) -> BTreeSet<String> {
        self.wanted.borrow().clone()
    }

    pub(crate) fn changes(&self) -> watch::Receiver<BTreeSet<String>> {
        self.wanted.subscribe()
    }

    /// The node's status names these now.
    pub(crate) fn wrote(&self, names: &[String]) {
        let names: BTreeSet<String> = names.iter().cloned().collect();
        self.written.send_if_modified(|written| std::mem::replace(written, names.clone()) != names);
    }

    /// Takes the volume into use; returns when the cluster knows.
    pub(crate) async fn add(&self, name: &str) -> Result<()> {
        self.wanted.send_if_modified(|wanted| wanted.insert(name.to_owned()));
        let mut written = self.written.subscribe();
        let known = tokio::time::timeout(PATIENCE, written.wait_for(|names| names.contains(name))).await;
        match known {
            Ok(Ok(_)) => Ok(()),
            _ => Err(Error::Invalid(
                "Volume has not been added to the list of VolumesInUse in the node's volume status".into(),
            )),
        }
    }

    pub(crate) fn remove(&self, name: &str) {
        self.wanted.send_if_modified(|wanted| wanted.remove(name));
    }
}
