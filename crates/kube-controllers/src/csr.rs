//! Signing requests that have served their purpose: what was decided goes after an hour, what waits after a day.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::clock;
use kit::controller::{self, During, Result, gone_is_none};
use kit::queue::{self, Next};
use kit::store::Key;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, ResourceExt};

use crate::context::Context;

const DECIDED: i64 = 3600;
const PENDING: i64 = 24 * 3600;

/// Runs until the context's shutdown.
pub async fn run(ctx: Context) {
    let queue = Arc::new(queue::eager());
    let requests = ctx.store::<CertificateSigningRequest>();
    requests.on_change({
        let queue = queue.clone();
        move |_, new| {
            if let Some(request) = new {
                queue.add(request.name_any());
            }
        }
    });
    requests.synced().await;
    controller::work(&queue, "csrcleaner", 1, |name| reconcile(&ctx, name)).await;
}

/// Seconds until the request may go; None while it is approved and waits for its signer.
fn goes_in(request: &CertificateSigningRequest, now: &Time) -> Option<i64> {
    let status = request.status.as_ref();
    let conditions = status.and_then(|status| status.conditions.as_deref()).unwrap_or_default();
    let left =
        |since: &Option<Time>, age: i64| since.as_ref().map(|since| (age - clock::seconds_between(since, now)).max(0));
    if conditions.is_empty() {
        return left(&request.metadata.creation_timestamp, PENDING);
    }
    let issued = status.is_some_and(|status| status.certificate.as_ref().is_some_and(|bytes| !bytes.0.is_empty()));
    let decided = conditions.iter().filter(|condition| match condition.type_.as_str() {
        "Approved" => issued,
        "Denied" | "Failed" => true,
        _ => false,
    });
    decided.filter_map(|condition| left(&condition.last_update_time, DECIDED)).min()
}

async fn reconcile(ctx: &Context, name: String) -> Result<Next> {
    let store = ctx.store::<CertificateSigningRequest>();
    let key = Key::new("", &name);
    let Some(request) = store.get(&key) else { return Ok(Next::Wait) };
    let Some(seconds) = goes_in(&request, &clock::time()) else { return Ok(Next::Wait) };
    if let Some(wait) = u64::try_from(seconds).ok().filter(|seconds| *seconds > 0) {
        return Ok(Next::After(Duration::from_secs(wait)));
    }
    let api: Api<CertificateSigningRequest> = Api::all(ctx.client.clone());
    let this = Preconditions { uid: request.uid(), resource_version: request.resource_version() };
    let deleted = api.delete(&name, &DeleteParams::default().preconditions(this)).await;
    gone_is_none(deleted.during("delete certificatesigningrequest", &name))?;
    Ok(Next::Wait)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[track_caller]
    #[expect(clippy::needless_pass_by_value, reason = "cases are literals")]
    fn check(status: Value, expect: Option<i64>) {
        let request = json!({"metadata": {"name": "r", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"request": "", "signerName": "x.io/y", "usages": []}, "status": status});
        let now = Time("2026-01-01T00:30:00Z".parse().unwrap());
        assert_eq!(goes_in(&serde_json::from_value(request).unwrap(), &now), expect);
    }

    #[test]
    fn decided_signing_requests_are_deleted_after_an_hour() {
        let decided = |kind: &str, certificate: Option<&str>, at: &str| json!({"conditions": [{"type": kind, "status": "True", "lastUpdateTime": at}], "certificate": certificate});
        check(json!({}), Some(PENDING - 1800));
        check(decided("Approved", Some("eA=="), "2026-01-01T00:10:00Z"), Some(2400));
        check(decided("Approved", Some("eA=="), "2025-12-31T23:00:00Z"), Some(0));
        check(decided("Approved", None, "2025-12-31T23:00:00Z"), None);
        check(decided("Denied", None, "2025-12-31T23:20:00Z"), Some(0));
        check(decided("Failed", None, "2026-01-01T00:30:00Z"), Some(3600));
    }
}
