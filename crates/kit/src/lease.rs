//! Leader election on a Lease: one holder, taken over by resourceVersion, the process ends on loss.
//!
//! The holder renews every two seconds and considers itself deposed when it could not for ten; others take over after
//! fifteen seconds without a renewal. A restarted container of the same pod keeps its identity and goes on at once.

use std::time::Duration;

use jiff::SignedDuration;
use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::MicroTime;
use kube::api::PostParams;
use kube::core::ObjectMeta;
use kube::{Api, Client};
use tokio::time::{Instant, sleep};

use crate::shutdown::CancellationToken;
use crate::{Chain, clock};

const DURATION: Duration = Duration::from_secs(15);
const DEADLINE: Duration = Duration::from_secs(10);
const PERIOD: Duration = Duration::from_secs(2);

/// The election was given up before it was won.
#[derive(Debug, thiserror::Error)]
#[error("shut down before becoming the leader of {0}")]
pub struct Stopped(pub String);

/// What to do about a lease, given what is in it.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Take,
    Renew,
    Wait,
}

fn step(spec: &LeaseSpec, me: &str, now: jiff::Timestamp) -> Step {
    let holder = spec.holder_identity.as_deref().unwrap_or_default();
    if holder == me {
        return Step::Renew;
    }
    let seconds = i64::from(spec.lease_duration_seconds.unwrap_or(0));
    let expired = spec
        .renew_time
        .as_ref()
        .is_none_or(|MicroTime(at)| now.duration_since(*at) > SignedDuration::from_secs(seconds));
    if holder.is_empty() || expired { Step::Take } else { Step::Wait }
}

/// Leadership being held. [`Leadership::run`] keeps it.
pub struct Leadership {
    api: Api<Lease>,
    lease: Lease,
    me: String,
}

/// Waits until this process leads `name` in `namespace`.
///
/// # Errors
/// Only when `stop` fires first; failures of the API server are retried.
pub async fn acquire(
    client: Client,
    namespace: &str,
    name: &str,
    me: &str,
    stop: &CancellationToken,
) -> Result<Leadership, Stopped> {
    let api: Api<Lease> = Api::namespaced(client, namespace);
    loop {
        match attempt(&api, name, me).await {
            Ok(Some(lease)) => {
                tracing::info!(lease = name, identity = me, "successfully acquired lease");
                return Ok(Leadership { api, lease, me: me.to_owned() });
            }
            Ok(None) => {}
            Err(error) => tracing::debug!(lease = name, error = %Chain(&error), "lease not taken"),
        }
        tokio::select! {
            () = sleep(PERIOD) => {}
            () = stop.cancelled() => return Err(Stopped(name.to_owned())),
        }
    }
}

async fn attempt(api: &Api<Lease>, name: &str, me: &str) -> kube::Result<Option<Lease>> {
    let Some(mut lease) = api.get_opt(name).await? else {
        let metadata = ObjectMeta { name: Some(name.to_owned()), ..Default::default() };
        let lease = Lease { metadata, spec: Some(held(LeaseSpec::default(), me, true)) };
        return api.create(&PostParams::default(), &lease).await.map(Some);
    };
    let spec = lease.spec.take().unwrap_or_default();
    let spec = match step(&spec, me, clock::now()) {
        Step::Wait => return Ok(None),
        Step::Take => held(spec, me, true),
        Step::Renew => held(spec, me, false),
    };
    lease.spec = Some(spec);
    // The resourceVersion read above makes a second taker fail with a conflict.
    api.replace(name, &PostParams::default(), &lease).await.map(Some)
}

fn held(mut spec: LeaseSpec, me: &str, taken: bool) -> LeaseSpec {
    let now = clock::micro_time();
    if taken {
        spec.lease_transitions = Some(spec.lease_transitions.map_or(0, |n| n.saturating_add(1)));
        spec.acquire_time = Some(now.clone());
    }
    spec.holder_identity = Some(me.to_owned());
    spec.lease_duration_seconds = i32::try_from(DURATION.as_secs()).ok();
    spec.renew_time = Some(now);
    spec
}

impl Leadership {
    /// Renews until `stop`, then releases the lease so that a successor need not wait. Returns false when leadership
    /// was lost: the caller must end the process, because work of a deposed leader may still be in flight.
    pub async fn run(mut self, stop: &CancellationToken) -> bool {
        let name = self.lease.metadata.name.clone().unwrap_or_default();
        let mut renewed = Instant::now();
        loop {
            tokio::select! {
                () = sleep(PERIOD) => {}
                () = stop.cancelled() => {
                    self.release(&name).await;
                    return true;
                }
            }
            let mut next = self.lease.clone();
            next.spec = Some(held(next.spec.unwrap_or_default(), &self.me, false));
            let reply = tokio::time::timeout(PERIOD * 2, self.api.replace(&name, &PostParams::default(), &next)).await;
            match reply {
                Ok(Ok(lease)) => {
                    self.lease = lease;
                    renewed = Instant::now();
                }
                Ok(Err(kube::Error::Api(status))) if status.code == 409 || status.code == 404 => {
                    // Somebody wrote it. Ours again only if it still says so.
                    match attempt(&self.api, &name, &self.me).await {
                        Ok(Some(lease)) => {
                            self.lease = lease;
                            renewed = Instant::now();
                        }
                        Ok(None) => return false,
                        Err(_) => {}
                    }
                }
                Ok(Err(error)) => tracing::warn!(lease = %name, error = %Chain(&error), "lease not renewed"),
                Err(_) => tracing::warn!(lease = %name, "lease not renewed: no answer in time"),
            }
            if renewed.elapsed() > DEADLINE {
                return false;
            }
        }
    }

    async fn release(mut self, name: &str) {
        if let Some(spec) = &mut self.lease.spec {
            spec.holder_identity = Some(String::new());
            spec.lease_duration_seconds = Some(1);
        }
        let params = PostParams::default();
        let write = self.api.replace(name, &params, &self.lease);
        // Best effort: an unreleased lease only costs the successor its duration.
        let _ = tokio::time::timeout(PERIOD, write).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(holder: &str, age: i64, expect: Step) {
        let now = jiff::Timestamp::from_second(1_000_000).unwrap();
        let spec = LeaseSpec {
            holder_identity: Some(holder.into()),
            lease_duration_seconds: Some(15),
            renew_time: Some(MicroTime(now - SignedDuration::from_secs(age))),
            ..Default::default()
        };
        assert_eq!(step(&spec, "me", now), expect);
    }

    #[test]
    fn a_lease_is_taken_only_when_free_or_expired() {
        check("me", 100, Step::Renew);
        check("other", 3, Step::Wait);
        check("other", 16, Step::Take);
        check("", 1, Step::Take);
    }
}
