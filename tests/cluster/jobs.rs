//! Jobs: completions in parallel, the back-off limit, the deadline, removal after the end; CronJobs run on request.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{apply, container, with};

pub(crate) const TESTS: &[Test] = &[
    ("completions_are_counted", completions_are_counted),
    ("failures_are_limited", failures_are_limited),
    ("a_deadline_ends_a_job", a_deadline_ends_a_job),
    ("a_cron_job_can_be_run_now", a_cron_job_can_be_run_now),
];

fn job(name: &str, script: &str, spec: &Value) -> Value {
    let template = json!({"spec": {"restartPolicy": "Never", "terminationGracePeriodSeconds": 2, "containers": [container("main", script)]}});
    let base =
        json!({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": {"template": template}});
    with(base, &json!({"spec": spec}))
}

fn completions_are_counted() -> Result<()> {
    let space = Namespace::new("job")?;
    apply(
        &space,
        &[
            job("count", "echo done", &json!({"completions": 3, "parallelism": 2})),
            job(
                "index",
                "echo index $JOB_COMPLETION_INDEX",
                &json!({"completions": 2, "parallelism": 2, "completionMode": "Indexed"}),
            ),
            job("short", "exit 0", &json!({"ttlSecondsAfterFinished": 1})),
        ],
    )?;
    space.kubectl(&["wait", "job/count", "--for=condition=Complete", "--timeout=120s"])?;
    let status = space.get("job", "count")?["status"].clone();
    ensure!(status["succeeded"] == 3 && status["completionTime"].is_string(), "{status}");
    let table = space.kubectl(&["get", "job", "count", "--no-headers"])?;
    ensure!(table.contains("Complete") && table.contains("3/3"), "{table}");
    ensure!(
        space.kubectl(&["logs", "job/count", "--all-pods=false"]).unwrap_or_default().contains("done"),
        "no log by the job's name"
    );
    space.kubectl(&["wait", "job/index", "--for=condition=Complete", "--timeout=120s"])?;
    let index = space.kubectl(&["logs", "-l", "batch.kubernetes.io/job-completion-index=1"])?;
    ensure!(index == "index 1\n", "{index}");
    space.wait("job", "short", "was removed after its end", Value::is_null)?;
    Ok(())
}

fn failures_are_limited() -> Result<()> {
    let space = Namespace::new("fail")?;
    apply(&space, &[job("fail", "exit 4", &json!({"backoffLimit": 0}))])?;
    space.kubectl(&["wait", "job/fail", "--for=condition=Failed", "--timeout=120s"])?;
    let job = space.get("job", "fail")?;
    let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
    ensure!(conditions.iter().any(|c| c["type"] == "Failed" && c["reason"] == "BackoffLimitExceeded"), "{job}");
    ensure!(job["status"]["failed"] == 1, "{job}");
    Ok(())
}

fn a_deadline_ends_a_job() -> Result<()> {
    let space = Namespace::new("deadline")?;
    apply(&space, &[job("late", crate::pods::IDLE, &json!({"activeDeadlineSeconds": 2}))])?;
    space.kubectl(&["wait", "job/late", "--for=condition=Failed", "--timeout=120s"])?;
    let job = space.get("job", "late")?;
    let conditions = job["status"]["conditions"].as_array().cloned().unwrap_or_default();
    ensure!(conditions.iter().any(|c| c["type"] == "Failed" && c["reason"] == "DeadlineExceeded"), "{job}");
    ensure!(
        space.kubectl(&["get", "pods", "--field-selector=status.phase=Running", "-o", "name"])?.is_empty(),
        "its pod runs on"
    );
    Ok(())
}

fn a_cron_job_can_be_run_now() -> Result<()> {
    let space = Namespace::new("cron")?;
    let template = json!({"spec": {"restartPolicy": "Never", "containers": [container("main", "echo by hand")]}});
    apply(
        &space,
        &[json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "c"},
                           "spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}})],
    )?;
    space.kubectl(&["create", "job", "now", "--from=cronjob/c"])?;
    space.kubectl(&["wait", "job/now", "--for=condition=Complete", "--timeout=120s"])?;
    ensure!(space.kubectl(&["logs", "job/now"])? == "by hand\n", "the log");
    let bad = space.refused(
        &json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "d"},
                                    "spec": {"schedule": "often", "jobTemplate": {"spec": {"template": template}}}})
        .to_string(),
    )?;
    ensure!(bad.contains("spec.schedule"), "{bad}");
    Ok(())
}
