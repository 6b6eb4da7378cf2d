//! Reserves the addresses of one request: each by creating its Lease, which succeeds for one request of one replica only.

use std::time::Duration;

use futures::{StreamExt, stream};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use kit::Chain;
use kube::Api;
use kube::api::{DeleteParams, PostParams, Preconditions};

use super::mac::Mac;
use super::mirror::Mirror;
use super::pool::{Choice, Exhausted};
use super::reservation::{Object, Reservation, lease_name};
use super::wanted::Slot;

/// How many addresses of one request are reserved at a time.
const AT_ONCE: usize = 16;
/// How often one address is tried for: another replica may have been faster as often.
const TRIES: usize = 64;
/// How many addresses can be reserved in one namespace for requests that were not stored. Whoever has his requests refused
/// after they were here, or asks the webhook himself, uses up neither the range nor the API server.
pub const MOST_OPEN: usize = 1024;

/// Why a request does not get its addresses.
#[derive(Debug, thiserror::Error)]
pub(super) enum Refused {
    /// There is none.
    #[error(transparent)]
    Exhausted(#[from] Exhausted),
    /// Too many requests of the namespace got addresses and were not stored.
    #[error(
        "{0} has {MOST_OPEN} MAC addresses reserved for requests that were not stored: they are free again after {1} seconds"
    )]
    Open(String, u64),
    /// Others were faster, again and again.
    #[error("cannot reserve a MAC address: other requests took each one first")]
    Contested,
    /// The API server refuses.
    #[error("cannot reserve the MAC address {mac}: {}", Chain(source))]
    Api {
        /// Which.
        mac: Mac,
        /// Why.
        source: Box<kube::Error>,
    },
}

/// An address that the request has now.
struct Granted {
    mac: Mac,
    /// Its reservation, if this request is the first to have it.
    made: Option<Reservation>,
}

/// Reserves an address for each of `slots`, interfaces of `owner`; the addresses are in their order. `wait` is how long they
/// count, should the request not be stored.
///
/// # Errors
/// When one cannot be reserved; then none is.
pub(super) async fn grant(
    mirror: &Mirror,
    owner: &Object,
    slots: &[Slot],
    now: Timestamp,
    wait: Duration,
) -> Result<Vec<Mac>, Refused> {
    let open = mirror.pool().open_in(&owner.namespace, MOST_OPEN);
    if open + slots.len() > MOST_OPEN {
        return Err(Refused::Open(owner.namespace.clone(), wait.as_secs()));
    }
    let reservations =
        Reservations { api: Api::namespaced(mirror.client.clone(), &mirror.namespace), mirror, owner, now, wait };
    let work: Vec<_> = slots.iter().map(|slot| reservations.reserve(slot)).collect();
    let outcomes: Vec<_> = stream::iter(work).buffered(AT_ONCE).collect().await;
    let (mut macs, mut made, mut refused) = (Vec::new(), Vec::new(), None);
    for outcome in outcomes {
        match outcome {
            Ok(granted) => {
                macs.push(granted.mac);
                made.extend(granted.made);
            }
            Err(error) => refused = refused.or(Some(error)),
        }
    }
    let Some(error) = refused else { return Ok(macs) };
    let work: Vec<_> = made.iter().map(|reservation| give_back(&reservations.api, reservation)).collect();
    for outcome in stream::iter(work).buffered(AT_ONCE).collect::<Vec<_>>().await {
        // What stays is given back when its time is over.
        if let Err(error) = outcome {
            tracing::debug!(error = %Chain(&error), "reservation of a refused request not deleted");
        }
    }
    Err(error)
}

/// Deletes a reservation as it is known; one that another request has by now stays.
///
/// # Errors
/// When the API server refuses.
pub(super) async fn give_back(api: &Api<Lease>, reservation: &Reservation) -> kube::Result<()> {
    let (uid, resource_version) = reservation.version.clone();
    let preconditions = Preconditions { uid: Some(uid), resource_version: Some(resource_version) };
    let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    match api.delete(&lease_name(reservation.mac), &params).await {
        Ok(_) => Ok(()),
        Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
        Err(error) => Err(error),
    }
}

struct Reservations<'a> {
    api: Api<Lease>,
    mirror: &'a Mirror,
    owner: &'a Object,
    now: Timestamp,
    wait: Duration,
}

/// Has the pool know that an attempt is over, also when it is given up.
struct Attempt<'a>(&'a Mirror, Mac);

impl Drop for Attempt<'_> {
    fn drop(&mut self) {
        self.0.pool().tried(self.1);
    }
}

impl Reservations<'_> {
    async fn reserve(&self, slot: &Slot) -> Result<Granted, Refused> {
        for _ in 0..TRIES {
            let choice = match slot.given {
                Some(mac) => Choice::New(mac),
                None => self.mirror.pool().choose(self.owner, &slot.interface)?,
            };
            let granted = match choice {
                Choice::New(mac) => self.create(mac, slot).await?,
                Choice::Again(reservation) => self.touch(reservation, true).await?,
            };
            if let Some(granted) = granted {
                return Ok(granted);
            }
        }
        Err(Refused::Contested)
    }

    /// None when somebody else has reserved it. An address that the request names is its own all the same.
    async fn create(&self, mac: Mac, slot: &Slot) -> Result<Option<Granted>, Refused> {
        let _attempt = Attempt(self.mirror, mac);
        let wanted = Reservation::new(mac, self.owner, &slot.interface, slot.given.is_none(), self.now);
        match self.api.create(&PostParams::default(), &wanted.lease(self.wait)).await {
            Ok(lease) => {
                self.mirror.answered(&lease);
                return Ok(Some(Granted { mac, made: Reservation::read(&lease) }));
            }
            Err(kube::Error::Api(status)) if status.code == 409 => {}
            Err(error) => return Err(failed(mac, error)),
        }
        match self.look(mac).await? {
            Some(held) if slot.given.is_some() => self.touch(held, false).await,
            _ => Ok(None),
        }
    }

    /// Says that this request has the address, too. None when somebody else wrote the reservation meanwhile.
    async fn touch(&self, reservation: Reservation, chosen: bool) -> Result<Option<Granted>, Refused> {
        let mac = reservation.mac;
        let lease = reservation.touched(chosen, self.now).lease(self.wait);
        match self.api.replace(&lease_name(mac), &PostParams::default(), &lease).await {
            Ok(lease) => {
                self.mirror.answered(&lease);
                Ok(Some(Granted { mac, made: None }))
            }
            Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => {
                self.look(mac).await?;
                Ok(None)
            }
            Err(error) => Err(failed(mac, error)),
        }
    }

    /// The reservation as the API server has it; the watch may be behind.
    async fn look(&self, mac: Mac) -> Result<Option<Reservation>, Refused> {
        let lease = self.api.get_opt(&lease_name(mac)).await.map_err(|error| failed(mac, error))?;
        let Some(lease) = lease else {
            self.mirror.pool().forget(mac);
            return Ok(None);
        };
        self.mirror.answered(&lease);
        Ok(Reservation::read(&lease))
    }
}

fn failed(mac: Mac, error: kube::Error) -> Refused {
    Refused::Api { mac, source: Box::new(error) }
}
