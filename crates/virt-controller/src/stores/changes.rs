//! Whom a change concerns.

use std::sync::Arc;

use api::backup::v1alpha1::{VirtualMachineBackup, VirtualMachineBackupTracker};
use api::cdi::v1beta1::DataVolume;
use api::export::v1::VirtualMachineExport;
use api::kubevirt::v1::{KubeVirt, VirtualMachine, VirtualMachineInstance, VirtualMachineInstanceMigration};
use api::snapshot::v1beta1::{VirtualMachineRestore, VirtualMachineSnapshot};
use k8s_openapi::api::core::v1::{Node, PersistentVolume, PersistentVolumeClaim, Pod};
use k8s_openapi::api::storage::v1::StorageClass;
use kit::Task;
use kit::queue::Queue;
use kit::store::{Change, Key};
use meta::volume_snapshot::{VolumeSnapshot, VolumeSnapshotClass};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};

use super::Stores;

/// The subscribers of each of the stores, under the store's name.
#[derive(Default)]
pub(crate) struct Changes {
    pub(crate) vms: Heard<VirtualMachine>,
    pub(crate) vmis: Heard<VirtualMachineInstance>,
    pub(crate) pods: Heard<Pod>,
    pub(crate) attachments: Heard<Pod>,
    pub(crate) claims: Heard<PersistentVolumeClaim>,
    pub(crate) data_volumes: Heard<DataVolume>,
    pub(crate) put_backs: Heard<PersistentVolume>,
    pub(crate) storage_classes: Heard<StorageClass>,
    pub(crate) snapshot_classes: Heard<VolumeSnapshotClass>,
    pub(crate) volume_snapshots: Heard<VolumeSnapshot>,
    pub(crate) snapshots: Heard<VirtualMachineSnapshot>,
    pub(crate) restores: Heard<VirtualMachineRestore>,
    pub(crate) backups: Heard<VirtualMachineBackup>,
    pub(crate) trackers: Heard<VirtualMachineBackupTracker>,
    pub(crate) exports: Heard<VirtualMachineExport>,
    pub(crate) nodes: Heard<Node>,
    pub(crate) kubevirts: Heard<KubeVirt>,
    pub(crate) migrations: Heard<VirtualMachineInstanceMigration>,
    pub(crate) stranded: HeardNews,
    pub(crate) copying: HeardNews,
    pub(crate) outgrown: HeardNews,
}

/// Those whom the changes of one kind concern. A change is lent to one after the other, after the store has it.
pub(crate) struct Heard<K>(Vec<Hear<K>>);

type Hear<K> = Box<dyn FnMut(&Stores, &Change<'_, K>) + Send>;

impl<K> Default for Heard<K> {
    fn default() -> Self {
        Heard(Vec::new())
    }
}

impl<K> Heard<K> {
    /// Puts into `queue` the keys that each change leads to, from the first list on. Finding them must not wait for anything.
    pub(crate) fn wake<I: IntoIterator<Item = Key>>(
        &mut self,
        queue: &Queue<Key>,
        mut keys: impl FnMut(&Stores, &Change<'_, K>) -> I + Send + 'static,
    ) {
        let queue = queue.clone();
        self.0.push(Box::new(move |stores, change| queue.add_all(keys(stores, change))));
    }

    pub(super) fn tell(&mut self, stores: &Stores, change: &Change<'_, K>) {
        self.0.iter_mut().for_each(|hear| hear(stores, change));
    }
}

/// The index values that the changed object had and has.
pub(crate) fn index_values<'a, K>(change: &Change<'a, K>) -> impl Iterator<Item = &'a String> + use<'a, K> {
    change.was.iter().chain(change.is)
}

/// Where a controller tells of machines what no object says.
#[derive(Clone, Debug)]
pub(crate) struct News(UnboundedSender<Key>);

impl News {
    /// Tells of the machine under `key`.
    pub(crate) fn send(&self, key: Key) {
        // Nobody hears it once the controllers have been stopped.
        let _ = self.0.send(key);
    }
}

/// Those who hear of [`News`].
pub(crate) struct HeardNews {
    news: News,
    arrived: UnboundedReceiver<Key>,
    heard: Vec<HearOf>,
}

type HearOf = Box<dyn FnMut(&Stores, &Key) + Send>;

impl Default for HeardNews {
    fn default() -> Self {
        let (sender, arrived) = unbounded_channel();
        HeardNews { news: News(sender), arrived, heard: Vec::new() }
    }
}

impl HeardNews {
    /// Puts into `queue` the keys that the news of a machine leads to. Finding them must not wait for anything.
    pub(crate) fn wake<I: IntoIterator<Item = Key>>(
        &mut self,
        queue: &Queue<Key>,
        mut keys: impl FnMut(&Stores, &Key) -> I + Send + 'static,
    ) {
        let queue = queue.clone();
        self.heard.push(Box::new(move |stores, machine| queue.add_all(keys(stores, machine))));
    }

    pub(super) fn news(&self) -> News {
        self.news.clone()
    }

    pub(super) fn tell(self, stores: Arc<Stores>) -> Task<()> {
        let HeardNews { news: _, mut arrived, mut heard } = self;
        kit::spawn("news", async move {
            while let Some(key) = arrived.recv().await {
                heard.iter_mut().for_each(|hear| hear(&stores, &key));
            }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn every_subscriber_finds_keys_of_its_own() {
        let (stores, mut changes) = Stores::new();
        let (own, by_word) = (Queue::default(), Queue::default());
        changes.vmis.wake(&own, |_, change| [change.key.clone()]);
        changes.vmis.wake(&by_word, |_, change| {
            index_values(change).map(|word| Key::new("", word.as_str())).collect::<Vec<_>>()
        });
        let key = Key::new("ns", "vm");
        changes.vmis.tell(&stores, &Change { key: &key, new: None, was: &["was".to_owned()], is: &["is".to_owned()] });
        assert_eq!(own.next().await, key);
        assert_eq!([by_word.next().await.name, by_word.next().await.name], ["was", "is"]);
    }

    #[tokio::test]
    async fn news_from_before_the_start_is_told() {
        let (stores, mut changes) = Stores::new();
        let (queue, key) = (Queue::default(), Key::new("ns", "vm"));
        changes.stranded.wake(&queue, |_, vmi| [vmi.clone()]);
        stores.stranded.send(key.clone());
        let _telling = changes.stranded.tell(Arc::new(stores));
        assert_eq!(queue.next().await, key);
    }
}
