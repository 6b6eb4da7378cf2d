//! Addresses that are taken: one Lease each.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::api::core::v1::ConfigMap;
use kit::store::{self, Key, Store, Watch};
use kit::{Chain, Task, clock};
use kube::api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions};
use kube::core::ObjectMeta;
use kube::runtime::watcher;
use kube::{Api, Client, ResourceExt};
use serde_json::json;

use super::mac::Mac;
use super::range::{CONFIG, Range};

/// On a Lease: the address that it stands for.
pub(super) const ADDRESS: &str = "kubemacpool.io/address";
/// How many addresses are tried that others take at the same moment.
const TRIES: u32 = 64;

/// Why there is no address.
#[derive(Debug, thiserror::Error)]
pub enum Unavailable {
    /// All are taken.
    #[error("failed to allocate a MAC address: the range is full ({0}): enlarge it in the ConfigMap {CONFIG}")]
    Full(Range),
    /// The ConfigMap holds no range.
    #[error("failed to allocate a MAC address: the ConfigMap {CONFIG} holds no range: {0}")]
    NoRange(String),
    /// Others were faster again and again.
    #[error("failed to allocate a MAC address: others took each that was tried: try again")]
    Contended,
    /// The API server refused.
    #[error("failed to allocate a MAC address")]
    Refused(#[source] kube::Error),
}

/// The addresses of the cluster.
pub struct Pool {
    namespace: String,
    api: Api<Lease>,
    leases: Store<Lease>,
    configs: Store<ConfigMap>,
    /// The one that was given last by this replica.
    last: Mutex<Option<Mac>>,
}

impl Pool {
    /// Follows the Leases and the range in `namespace` while the tasks are held.
    pub(super) fn follow(client: Client, namespace: &str) -> (Self, Vec<Task<()>>) {
        let api: Api<Lease> = Api::namespaced(client.clone(), namespace);
        let pool = Pool {
            namespace: namespace.to_owned(),
            api: api.clone(),
            leases: Store::default(),
            configs: Store::default(),
            last: Mutex::default(),
        };
        let leases = store::watch(api, how(), pool.leases.clone(), |_| {});
        let config = watcher::Config::default().fields(&format!("metadata.name={CONFIG}"));
        let maps: Api<ConfigMap> = Api::namespaced(client, namespace);
        let range = store::watch(maps, Watch { config, ..Watch::default() }, pool.configs.clone(), |_| {});
        (pool, vec![leases, range])
    }

    /// Waits until what is taken is known.
    pub async fn synced(&self) {
        self.leases.synced().await;
        self.configs.synced().await;
    }

    fn range(&self) -> Result<Range, Unavailable> {
        let data = self.configs.list().pop().and_then(|config| config.data).unwrap_or_default();
        Range::of_config(&data).map_err(|invalid| Unavailable::NoRange(invalid.to_string()))
    }

    fn key(&self, mac: Mac) -> Key {
        Key::new(self.namespace.clone(), name(mac))
    }

    /// The Leases, for who follows them.
    pub(super) fn leases(&self) -> Api<Lease> {
        self.api.clone()
    }

    /// Whether an address is taken.
    pub fn is_taken(&self, mac: Mac) -> bool {
        self.leases.contains(&self.key(mac))
    }

    /// The Lease of an address.
    pub(super) fn lease(&self, mac: Mac) -> Option<Lease> {
        self.leases.get(&self.key(mac))
    }

    /// Takes the next free address for `owner`, for whoever reads the Lease.
    ///
    /// # Errors
    /// When there is none.
    pub async fn take(&self, owner: &str) -> Result<Mac, Unavailable> {
        let range = self.range()?;
        for _ in 0..TRIES {
            let last = *self.last();
            let Some(mac) = range.next(last, |mac| self.is_taken(mac)) else { return Err(Unavailable::Full(range)) };
            // Whoever asks at the same moment here begins behind it.
            *self.last() = Some(mac);
            match self.create(mac, owner).await {
                Ok(()) => return Ok(mac),
                // Another replica was faster, and the watch has not told yet.
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                Err(error) => return Err(Unavailable::Refused(error)),
            }
        }
        Err(Unavailable::Contended)
    }

    /// Notes that `owner` has an address that was not asked for here. One that is taken already is noted anew: it is not given back
    /// for as long as that may take to be stored.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn note(&self, mac: Mac, owner: &str) -> Result<(), kube::Error> {
        for _ in 0..TRIES {
            match self.create(mac, owner).await {
                Err(kube::Error::Api(status)) if status.code == 409 => {}
                other => return other,
            }
            let renewed = json!({ "spec": { "renewTime": clock::micro_time() } });
            match self.api.patch(&name(mac), &PatchParams::default(), &Patch::Merge(renewed)).await {
                Ok(lease) => {
                    self.leases.put(&lease, Vec::new());
                    return Ok(());
                }
                // It was given back at this moment.
                Err(kube::Error::Api(status)) if status.code == 404 => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    async fn create(&self, mac: Mac, owner: &str) -> Result<(), kube::Error> {
        let now = clock::micro_time();
        let label = BTreeMap::from([(ADDRESS.to_owned(), mac.word())]);
        let lease = Lease {
            metadata: ObjectMeta { name: Some(name(mac)), labels: Some(label), ..ObjectMeta::default() },
            spec: Some(LeaseSpec {
                holder_identity: Some(owner.to_owned()),
                acquire_time: Some(now.clone()),
                renew_time: Some(now),
                ..LeaseSpec::default()
            }),
        };
        let made = self.api.create(&PostParams::default(), &lease).await?;
        self.leases.put(&made, Vec::new());
        Ok(())
    }

    /// Gives an address back, if its Lease is still the one that was read.
    ///
    /// # Errors
    /// When the API server refuses; a conflict when somebody noted it meanwhile.
    pub(super) async fn give_back(&self, lease: &Lease) -> Result<(), kube::Error> {
        let preconditions = Preconditions { uid: lease.uid(), resource_version: lease.resource_version() };
        let params = DeleteParams::default().preconditions(preconditions);
        match self.api.delete(&lease.name_any(), &params).await {
            Ok(_) => Ok(()),
            Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Gives addresses back at once that were taken for a request that is refused.
    pub(super) async fn undo(&self, taken: &[Mac]) {
        for mac in taken {
            if let Some(lease) = self.lease(*mac)
                && let Err(error) = self.give_back(&lease).await
            {
                tracing::debug!(%mac, error = %Chain(&error), "given back later, by its age");
            }
        }
    }

    fn last(&self) -> MutexGuard<'_, Option<Mac>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How the Leases of addresses are watched: those of elections are none.
pub(super) fn how() -> Watch<Lease> {
    Watch { config: watcher::Config::default().labels(ADDRESS), ..Watch::default() }
}

fn name(mac: Mac) -> String {
    format!("mac-{}", mac.word())
}

/// The address that a Lease stands for.
pub(super) fn address(lease: &Lease) -> Option<Mac> {
    Mac::parse(lease.labels().get(ADDRESS)?)
}

/// When a Lease was noted last.
pub(super) fn noted(lease: &Lease) -> Timestamp {
    let spec = lease.spec.as_ref();
    spec.and_then(|spec| spec.renew_time.as_ref()).map_or(Timestamp::UNIX_EPOCH, |time| time.0)
}
