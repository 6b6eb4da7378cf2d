//! Rollouts: scale, status, restart, history, undo, pause, `set image`, expose; rolling and all at once.

use anyhow::{Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, template, text};

pub(crate) const TESTS: &[Test] = &[
    ("a_deployment_rolls_and_rolls_back", a_deployment_rolls_and_rolls_back),
    ("a_bad_image_does_not_take_the_good_pods", a_bad_image_does_not_take_the_good_pods),
    ("recreate_never_runs_two_versions", recreate_never_runs_two_versions),
];

fn deployment(name: &str, replicas: i32, spec: &Value) -> Value {
    let labels = json!({"app": name});
    let base = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
           "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": template(&labels, IDLE)}});
    crate::pods::with(base, &json!({"spec": spec}))
}

fn a_deployment_rolls_and_rolls_back() -> Result<()> {
    let space = Namespace::new("rollout")?;
    apply(&space, &[deployment("web", 2, &json!({}))])?;
    let status = space.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    ensure!(status.contains("successfully rolled out"), "{status}");
    space.kubectl(&["scale", "deployment/web", "--replicas=3"])?;
    space.kubectl(&["wait", "deployment/web", "--for=jsonpath={.status.readyReplicas}=3", "--timeout=120s"])?;
    let wrong = space.output(&["scale", "deployment/web", "--current-replicas=1", "--replicas=5"])?;
    ensure!(!wrong.status.success(), "the wrong current scale was accepted");

    space.kubectl(&["set", "env", "deployment/web", "VERSION=2"])?;
    space.kubectl(&["annotate", "deployment/web", "kubernetes.io/change-cause=second"])?;
    space.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let history = space.kubectl(&["rollout", "history", "deployment/web"])?;
    ensure!(history.contains("second"), "{history}");
    let revision = space.kubectl(&["rollout", "history", "deployment/web", "--revision=2"])?;
    ensure!(revision.contains("VERSION"), "{revision}");
    space.kubectl(&["rollout", "undo", "deployment/web"])?;
    space.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let env = space.kubectl(&["get", "deployment", "web", "-o", "jsonpath={.spec.template.spec.containers[0].env}"])?;
    ensure!(env.is_empty(), "undo left {env}");

    space.kubectl(&["rollout", "pause", "deployment/web"])?;
    space
        .kubectl(&["rollout", "restart", "deployment/web"])
        .err()
        .ok_or_else(|| anyhow::anyhow!("a paused one restarted"))?;
    space.kubectl(&["rollout", "resume", "deployment/web"])?;
    space.kubectl(&["rollout", "restart", "deployment/web"])?;
    space.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    let sets: Value = serde_json::from_str(&space.kubectl(&["get", "rs", "-l", "app=web", "-o", "json"])?)?;
    let running = sets["items"].as_array().into_iter().flatten().filter(|set| set["spec"]["replicas"] == 3).count();
    ensure!(running == 1, "{sets}");

    let exposed = space.kubectl(&["expose", "deployment/web", "--port=80", "--target-port=8080"])?;
    ensure!(exposed.contains("service/web exposed"), "{exposed}");
    let service = space.get("service", "web")?;
    ensure!(
        service["spec"]["selector"] == json!({"app": "web"}) && service["spec"]["ports"][0]["targetPort"] == 8080,
        "{service}"
    );
    Ok(())
}

fn a_bad_image_does_not_take_the_good_pods() -> Result<()> {
    let space = Namespace::new("stuck")?;
    apply(&space, &[deployment("web", 2, &json!({"strategy": {"rollingUpdate": {"maxUnavailable": 0}}}))])?;
    space.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    space.patch("deployment", "web", &json!({"spec": {"progressDeadlineSeconds": 5}}))?;
    space.kubectl(&["set", "image", "deployment/web", "main=ferrovirt.local/no-such-image:v9"])?;
    let stuck = space.output(&["rollout", "status", "deployment/web", "--timeout=60s"])?;
    ensure!(text(&stuck.stderr).contains("exceeded its progress deadline"), "{stuck:?}");
    let status = space.get("deployment", "web")?["status"].clone();
    ensure!(status["availableReplicas"] == 2, "{status}");
    space.kubectl(&["rollout", "undo", "deployment/web"])?;
    space.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    Ok(())
}

fn recreate_never_runs_two_versions() -> Result<()> {
    let space = Namespace::new("recreate")?;
    apply(&space, &[deployment("web", 2, &json!({"strategy": {"type": "Recreate", "rollingUpdate": null}}))])?;
    space.kubectl(&["rollout", "status", "deployment/web", "--timeout=120s"])?;
    space.kubectl(&["set", "env", "deployment/web", "VERSION=2"])?;
    until("the new pods were up", || {
        let pods: Value = serde_json::from_str(&space.kubectl(&["get", "pods", "-l", "app=web", "-o", "json"])?)?;
        let pods = pods["items"].as_array().cloned().unwrap_or_default();
        let new = pods.iter().filter(|pod| pod["spec"]["containers"][0]["env"].is_array()).count();
        ensure!(new == 0 || new == pods.len(), "old and new pods at once");
        let ready = |pod: &&Value| pod["status"]["phase"] == "Running";
        Ok((new == 2 && pods.iter().filter(ready).count() == 2).then_some(()))
    })
}
