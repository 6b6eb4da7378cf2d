//! CronJobs at a time that is due, and signing requests that are old.

use k8s_openapi::api::batch::v1::{CronJob, Job};
use k8s_openapi::api::certificates::v1::CertificateSigningRequest;
use k8s_openapi::api::core::v1::Event;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams, PostParams};
use kube_controllers::{cronjob, csr, gc};
use serde_json::{Value, json};

use crate::cluster::Cluster;

async fn cluster() -> Cluster {
    let cluster = Cluster::new().await;
    cluster.start(cronjob::run);
    cluster.start(gc::run);
    cluster
}

fn template() -> Value {
    json!({"spec": {"template": {"spec": {"restartPolicy": "Never", "containers": [{"name": "c", "image": "i"}]}}}})
}

/// A CronJob whose last time was New Year, and which is held back until [`release`].
async fn cron(cluster: &Cluster, name: &str, change: Value) -> CronJob {
    let mut spec = json!({"schedule": "0 0 1 1 *", "suspend": true, "jobTemplate": template()});
    spec.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    let made = cluster.create::<CronJob>(json!({"metadata": {"name": name}, "spec": spec})).await;
    let long_ago = json!({"status": {"lastScheduleTime": "2024-06-01T00:00:00Z"}});
    cluster.api::<CronJob>().patch_status(name, &PatchParams::default(), &Patch::Merge(long_ago)).await.unwrap();
    made
}

async fn release(cluster: &Cluster, name: &str) {
    let change = json!({"spec": {"suspend": false}});
    cluster.api::<CronJob>().patch(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
}

/// A job of an earlier time.
async fn job(cluster: &Cluster, cron: &CronJob, name: &str) {
    let owner = json!({"apiVersion": "batch/v1", "kind": "CronJob", "name": cron.name_any(), "uid": cron.uid(), "controller": true});
    let mut job = template();
    job["metadata"] = json!({"name": name, "ownerReferences": [owner]});
    cluster.create::<Job>(job).await;
}

async fn end(cluster: &Cluster, name: &str, how: &str) {
    let now = "2026-01-01T00:00:00Z";
    let before = if how == "Complete" { "SuccessCriteriaMet" } else { "FailureTarget" };
    let condition = |kind: &str| json!({"type": kind, "status": "True", "lastTransitionTime": now});
    let mut status = json!({"startTime": now, "conditions": [condition(before), condition(how)]});
    if how == "Complete" {
        status["completionTime"] = now.into();
    }
    let change = json!({"status": status});
    cluster.api::<Job>().patch_status(name, &PatchParams::default(), &Patch::Merge(change)).await.unwrap();
}

async fn event(cluster: &Cluster, cron: &str, reason: &str) -> String {
    let found =
        |event: &&Event| event.involved_object.name.as_deref() == Some(cron) && event.reason.as_deref() == Some(reason);
    let events = cluster.until_all::<Event>(|events| events.iter().any(|event| found(&event))).await;
    events.iter().find(found).unwrap().message.clone().unwrap()
}

fn names(jobs: &[Job]) -> Vec<String> {
    let mut names: Vec<String> = jobs.iter().map(ResourceExt::name_any).collect();
    names.sort();
    names
}

#[tokio::test]
async fn concurrency_is_allowed_forbidden_or_replaced() {
    let cluster = cluster().await;
    for (name, policy) in [("allow", "Allow"), ("forbid", "Forbid"), ("replace", "Replace")] {
        let cron = cron(&cluster, name, json!({"concurrencyPolicy": policy})).await;
        job(&cluster, &cron, &format!("{name}-early")).await;
        let active = |cron: Option<&CronJob>| {
            cron.is_some_and(|cron| cron.status.as_ref().is_some_and(|s| s.active.iter().flatten().count() == 1))
        };
        cluster.until(cluster.api::<CronJob>(), name, active).await;
        release(&cluster, name).await;
    }
    let said = event(&cluster, "forbid", "JobAlreadyActive").await;
    assert_eq!(said, "Not starting job because prior execution is running and concurrency policy is Forbid");
    let of =
        |jobs: &[Job], cron: &str| names(jobs).into_iter().filter(|name| name.starts_with(cron)).collect::<Vec<_>>();
    let jobs = cluster
        .until_all::<Job>(|jobs| {
            of(jobs, "allow").len() == 2 && of(jobs, "replace").len() == 1 && !of(jobs, "replace")[0].ends_with("early")
        })
        .await;
    assert_eq!(of(&jobs, "forbid"), ["forbid-early"]);
    event(&cluster, "replace", "SuccessfulDelete").await;

    end(&cluster, "forbid-early", "Complete").await;
    let said = event(&cluster, "forbid", "SawCompletedJob").await;
    assert_eq!(said, "Saw completed job: forbid-early, condition: Complete");
    let jobs = cluster.until_all::<Job>(|jobs| of(jobs, "forbid").len() == 2).await;
    let made =
        jobs.iter().find(|job| job.name_any().starts_with("forbid-") && !job.name_any().ends_with("early")).unwrap();
    assert!(made.annotations()["batch.kubernetes.io/cronjob-scheduled-timestamp"].ends_with("-01-01T00:00:00Z"));
}

#[tokio::test]
async fn suspended_or_late_jobs_do_not_run() {
    let cluster = cluster().await;
    cron(&cluster, "held", json!({})).await;
    cron(&cluster, "late", json!({"startingDeadlineSeconds": 10})).await;
    release(&cluster, "late").await;
    cron(&cluster, "due", json!({"timeZone": "Etc/GMT-2"})).await;
    release(&cluster, "due").await;
    let jobs = cluster.until_all::<Job>(|jobs| !jobs.is_empty()).await;
    assert!(names(&jobs)[0].starts_with("due-"), "{:?}", names(&jobs));
    let served = |cron: Option<&CronJob>| {
        cron.and_then(|cron| cron.status.as_ref()?.last_schedule_time.clone())
            .is_some_and(|time| time.0.to_string().ends_with("-12-31T22:00:00Z"))
    };
    cluster.until(cluster.api::<CronJob>(), "due", served).await;
    let jobs = cluster.until_all::<Job>(|_| true).await;
    assert_eq!(jobs.len(), 1);
    assert!(
        jobs[0].annotations()["batch.kubernetes.io/cronjob-scheduled-timestamp"].ends_with("-01-01T00:00:00+02:00")
    );
    release(&cluster, "held").await;
    cluster.until_all::<Job>(|jobs| jobs.iter().any(|job| job.name_any().starts_with("held-"))).await;
}

#[tokio::test]
async fn history_keeps_the_last_of_each_outcome() {
    let cluster = cluster().await;
    let cron = cron(&cluster, "c", json!({"successfulJobsHistoryLimit": 1, "failedJobsHistoryLimit": 0})).await;
    for (name, how) in [("a", "Complete"), ("b", "Failed"), ("d", "Complete")] {
        job(&cluster, &cron, name).await;
        end(&cluster, name, how).await;
    }
    cluster.until_all::<Job>(|jobs| names(jobs) == ["d"]).await;
}

#[tokio::test]
async fn old_signing_requests_go() {
    let cluster = Cluster::new().await;
    cluster.start(csr::run);
    let all = cluster.all::<CertificateSigningRequest>();
    for (name, condition, time) in [
        ("denied", "Denied", "2026-01-01T00:00:00Z"),
        ("failed", "Approved", "2026-01-01T00:00:00Z"),
        ("fresh", "Denied", "2126-01-01T00:00:00Z"),
    ] {
        let request = json!({"metadata": {"name": name}, "spec": {"request": REQUEST, "signerName": "x.io/y", "usages": ["client auth"]}});
        all.create(&PostParams::default(), &serde_json::from_value(request).unwrap()).await.unwrap();
        let decided = json!({"status": {"conditions": [{"type": condition, "status": "True", "reason": "r", "message": "m", "lastUpdateTime": time}]}});
        all.patch_approval(name, &PatchParams::default(), &Patch::Merge(decided)).await.unwrap();
    }
    cluster.until(all.clone(), "denied", |request| request.is_none()).await;
    // What is approved waits for its signer, however long; then it may go.
    assert!(all.get_opt("failed").await.unwrap().is_some());
    let old = json!({"type": "Failed", "status": "True", "reason": "r", "message": "m", "lastUpdateTime": "2026-01-01T00:00:00Z"});
    let failed = json!({"status": {"conditions": [old]}});
    all.patch_status("failed", &PatchParams::default(), &Patch::Merge(failed)).await.unwrap();
    cluster.until(all.clone(), "failed", |request| request.is_none()).await;
    assert!(all.get_opt("fresh").await.unwrap().is_some());
}

/// A PKCS#10 request for `CN=ann`.
const REQUEST: &str = "LS0tLS1CRUdJTiBDRVJUSUZJQ0FURSBSRVFVRVNULS0tLS0KTUlISk1IQUNBUUF3RGpFTU1Bb0dBMVVFQXd3RFlXNXVNRmt3RXdZSEtvWkl6ajBDQVFZSUtvWkl6ajBEQVFjRApRZ0FFRmNYZkJLdEpIQ2duUDJxKzdUNE9RT3h4WXVaTU1wY1J1ZGIrd1hQcktzNnlDZ3RXRlcyZmNNUlJmUXNNCkhOY2dRZ3F3MXkxcytVYTJtSlErcUV3WXBLQUFNQW9HQ0NxR1NNNDlCQU1DQTBrQU1FWUNJUURDQmM2SUFGdGEKOElYY3h6cGZJaXVDUHlycFpRbnBkZE83dis3QnZkc0NwZ0loQU1lUDJ6eXlKQ3YyYWNoSGlaOWhhL1dMaTNmQgpDM3VDTzJFT3g2cjFMeFdlCi0tLS0tRU5EIENFUlRJRklDQVRFIFJFUVVFU1QtLS0tLQo=";
