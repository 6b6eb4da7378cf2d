//! What the status of a HostPathProvisioner says. Pure.

use api::hpp::{ClaimStatus, PoolStatus, Status, StoragePool};
use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{DaemonSet, Deployment};
use k8s_openapi::api::core::v1::PersistentVolumeClaim;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kit::operator;
use kube::ResourceExt;
use meta::conditions;

use super::claims;
use super::pools::Refusal;
use super::registered::Registered;

/// What was found.
pub(crate) struct Seen<'a> {
    /// What runs was deployed for this object, and not for another.
    pub(crate) active: bool,
    /// What is asked for, or why that cannot be had.
    pub(crate) pools: Result<&'a [StoragePool], &'a Refusal>,
    /// The driver, and the legacy provisioner where it is asked for.
    pub(crate) workloads: &'a [Option<DaemonSet>],
    /// Claims of pools that are volumes.
    pub(crate) claims: &'a [PersistentVolumeClaim],
    /// What mounts them.
    pub(crate) mounters: &'a [Deployment],
    /// On which nodes the kubelet knows the driver.
    pub(crate) registered: &'a Registered,
    /// Why the last try to deploy it failed.
    pub(crate) failure: Option<String>,
    /// What the object asks for and nothing acts on, in a sentence each.
    pub(crate) ignored: Vec<String>,
    /// The product's version.
    pub(crate) version: &'a str,
}

/// The status that follows; `before` is what it says so far.
pub(crate) fn status(before: Option<&Status>, seen: &Seen<'_>, now: Timestamp) -> Status {
    let counts = seen.workloads.iter().map(|set| set.as_ref().map(operator::rolled_out_on).unwrap_or_default());
    // The slowest counts.
    let (ready, wanted) = counts.min_by_key(|(ready, wanted)| ready - wanted).unwrap_or_default();
    let there = !seen.workloads.is_empty()
        && seen.workloads.iter().all(|workload| workload.as_ref().is_some_and(|set| set.status.is_some()));
    let complaint = seen.registered.complaint();
    // A driver that is restarted is registered again in a moment: what was available stays so meanwhile.
    let nowhere = seen.registered.nodes == 0 && !seen.registered.lacking.is_empty();
    let unknown = nowhere && (complaint.is_some() || !before.is_some_and(|before| before.is("Available")));
    let whole = seen.active && there && wanted > 0 && ready >= wanted && !unknown;
    let wrong = match (seen.pools, &seen.failure, complaint) {
        (Err(refusal), ..) => Some(("InvalidSpec", refusal.to_string())),
        (_, Some(failure), _) => Some(("DeploymentFailed", failure.clone())),
        (.., Some(complaint)) => Some(("DriverNotRegistered", complaint)),
        _ => None,
    };
    let available = match &wrong {
        Some((reason, message)) if !whole => ("False", *reason, message.clone()),
        _ if whole => {
            let said = ["Application Available".to_owned()].into_iter().chain(seen.ignored.iter().cloned());
            ("True", "Complete", said.collect::<Vec<_>>().join("; "))
        }
        _ if there && wanted == 0 => ("False", "NoNodes", "spec.workload: no node is selected".to_owned()),
        _ if unknown && ready >= wanted => {
            ("False", "DeployInProgress", "the driver runs, and waits for a kubelet to register it".to_owned())
        }
        _ => ("False", "DeployInProgress", format!("the driver runs on {ready} of {wanted} nodes")),
    };
    let progressing = match (&wrong, whole) {
        (None, false) => ("True", available.1, available.2.clone()),
        _ => ("False", "Complete", String::new()),
    };
    let degraded = match wrong {
        Some((reason, message)) => ("True", reason, message),
        None => ("False", "Complete", String::new()),
    };
    let before_conditions = before.map(|before| before.conditions.as_slice()).unwrap_or_default();
    let said = [("Available", available), ("Progressing", progressing), ("Degraded", degraded)];
    let said = said.map(|(type_, (state, reason, message))| {
        conditions::said(before_conditions, type_, state, Some(reason), Some(&message), &Time(now))
    });
    let pools = seen.pools.unwrap_or_default().iter().map(|pool| {
        let (ready, wanted) = mounted(pool, seen.mounters).unwrap_or((ready, wanted));
        PoolStatus {
            name: pool.name.clone(),
            phase: if whole && ready >= wanted { "Ready" } else { "Preparing" }.into(),
            desired_ready: wanted,
            current_ready: ready,
            claim_statuses: claims_of(pool, seen.claims),
        }
    });
    let observed = before.and_then(|before| before.observed_version.clone());
    Status {
        conditions: said.into(),
        storage_pool_statuses: pools.collect(),
        observed_version: if whole { Some(seen.version.to_owned()) } else { observed },
        operator_version: Some(seen.version.to_owned()),
        target_version: Some(seen.version.to_owned()),
    }
}

/// Of a pool that is a volume of each node: on how many nodes it is mounted, and on how many it is to be.
fn mounted(pool: &StoragePool, all: &[Deployment]) -> Option<(i32, i32)> {
    pool.pvc_template.as_ref()?;
    let mut counts = (0, 0);
    for mounter in all.iter().filter(|mounter| claims::is_of(&mounter.metadata, pool)) {
        counts.1 += 1;
        counts.0 += i32::from(mounter.status.as_ref().and_then(|status| status.available_replicas).unwrap_or(0) > 0);
    }
    Some(counts)
}

/// How the claims of a pool are.
fn claims_of(pool: &StoragePool, all: &[PersistentVolumeClaim]) -> Vec<ClaimStatus> {
    let its = all.iter().filter(|claim| claims::is_of(&claim.metadata, pool));
    its.map(|claim| ClaimStatus { name: claim.name_any(), status: claim.status.clone().unwrap_or_default() }).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::super::registered::Lacking;
    use super::*;

    fn set(generation: i64, observed: i64, wanted: i32, ready: i32) -> DaemonSet {
        serde_json::from_value(json!({"metadata": {"generation": generation}, "spec": {"selector": {}, "template": {}},
            "status": {"observedGeneration": observed, "desiredNumberScheduled": wanted, "currentNumberScheduled": wanted,
                "numberMisscheduled": 0, "numberReady": ready, "updatedNumberScheduled": ready, "numberAvailable": ready}}))
        .unwrap()
    }

    fn conditions_of(status: &Status) -> Value {
        let words =
            status.conditions.iter().map(|c| format!("{}={} {}", c.type_, c.status, c.reason.as_deref().unwrap()));
        json!(words.collect::<Vec<_>>())
    }

    #[track_caller]
    fn check(driver: Option<DaemonSet>, failure: Option<&str>, expect: [&str; 3], phase: &str) {
        check_registered(driver, failure, &Registered::default(), expect, phase);
    }

    #[track_caller]
    fn check_registered(
        driver: Option<DaemonSet>,
        failure: Option<&str>,
        registered: &Registered,
        expect: [&str; 3],
        phase: &str,
    ) {
        let pools = [StoragePool { name: "p".into(), ..StoragePool::default() }];
        let workloads = [driver];
        let failure = failure.map(str::to_owned);
        let seen = Seen {
            active: true,
            pools: Ok(&pools),
            workloads: &workloads,
            claims: &[],
            mounters: &[],
            registered,
            failure,
            ignored: Vec::new(),
            version: "v1",
        };
        let got = status(None, &seen, Timestamp::UNIX_EPOCH);
        assert_eq!(conditions_of(&got), json!(expect));
        assert_eq!(got.storage_pool_statuses[0].phase, phase);
    }

    #[test]
    fn conditions_follow_the_daemon_set() {
        let waiting =
            ["Available=False DeployInProgress", "Progressing=True DeployInProgress", "Degraded=False Complete"];
        let done = ["Available=True Complete", "Progressing=False Complete", "Degraded=False Complete"];
        check(None, None, waiting, "Preparing");
        check(Some(set(1, 1, 2, 1)), None, waiting, "Preparing");
        check(Some(set(2, 1, 2, 2)), None, waiting, "Preparing");
        check(Some(set(1, 1, 2, 2)), None, done, "Ready");
        let nowhere = ["Available=False NoNodes", "Progressing=True NoNodes", "Degraded=False Complete"];
        check(Some(set(1, 1, 0, 0)), None, nowhere, "Preparing");
        let failed = ["Available=True Complete", "Progressing=False Complete", "Degraded=True DeploymentFailed"];
        check(Some(set(1, 1, 2, 2)), Some("forbidden"), failed, "Ready");
    }

    #[test]
    fn a_driver_that_no_kubelet_knows_is_not_healthy() {
        let lacking = |left: u64| {
            vec![Lacking { node: "n2".into(), pod: "p".into(), left: std::time::Duration::from_secs(left) }]
        };
        let waiting =
            ["Available=False DeployInProgress", "Progressing=True DeployInProgress", "Degraded=False Complete"];
        let none = Registered { lacking: lacking(5), nodes: 0 };
        check_registered(Some(set(1, 1, 1, 1)), None, &none, waiting, "Preparing");
        let none = Registered { lacking: lacking(0), nodes: 0 };
        let broken =
            ["Available=False DriverNotRegistered", "Progressing=False Complete", "Degraded=True DriverNotRegistered"];
        check_registered(Some(set(1, 1, 1, 1)), None, &none, broken, "Preparing");
        let one = Registered { lacking: lacking(0), nodes: 1 };
        let lame = ["Available=True Complete", "Progressing=False Complete", "Degraded=True DriverNotRegistered"];
        check_registered(Some(set(1, 1, 2, 2)), None, &one, lame, "Ready");
    }

    #[test]
    fn ignored_fields_are_named_in_the_status() {
        let spec = json!({
            "featureGates": ["Snapshotting"],
            "storagePools": [{ "name": "p", "path": "/p", "snapshotProvider": "reflink", "overlayClassName": "" }],
        });
        let ignored = super::super::ignored(&serde_json::from_value(spec).unwrap());
        let expect = [
            "spec.featureGates is not acted on in this version: nothing waits for a gate",
            "spec.storagePools[0].snapshotProvider is not acted on in this version: the driver takes the snapshots of its volumes",
        ];
        assert_eq!(ignored, expect);
        let workloads = [Some(set(1, 1, 1, 1))];
        let seen = Seen {
            active: true,
            pools: Ok(&[]),
            workloads: &workloads,
            claims: &[],
            mounters: &[],
            registered: &Registered::default(),
            failure: None,
            ignored,
            version: "v1",
        };
        let found = status(None, &seen, Timestamp::UNIX_EPOCH);
        let message = found.conditions[0].message.as_deref().unwrap();
        assert_eq!(message, format!("Application Available; {}", expect.join("; ")));
    }

    #[test]
    fn the_same_is_not_said_twice() {
        let pools = [StoragePool { name: "p".into(), ..StoragePool::default() }];
        let workloads = [Some(set(1, 1, 1, 1))];
        let seen = Seen {
            active: true,
            pools: Ok(&pools),
            workloads: &workloads,
            claims: &[],
            mounters: &[],
            registered: &Registered::default(),
            failure: None,
            ignored: Vec::new(),
            version: "v1",
        };
        let first = status(None, &seen, Timestamp::UNIX_EPOCH);
        assert_eq!(status(Some(&first), &seen, Timestamp::MAX), first);
        let wrong = super::super::pools::of(&api::hpp::Spec::default()).unwrap_err();
        let refused = status(Some(&first), &Seen { pools: Err(&wrong), workloads: &[], ..seen }, Timestamp::MAX);
        assert_eq!(
            conditions_of(&refused),
            json!(["Available=False InvalidSpec", "Progressing=False Complete", "Degraded=True InvalidSpec"])
        );
        assert_eq!(refused.observed_version.as_deref(), Some("v1"));
    }
}
