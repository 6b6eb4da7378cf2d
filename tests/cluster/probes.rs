//! Probes of each kind: exec, HTTP, TCP, gRPC refused where nothing listens; startup holds the others back.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, ready, sh, special};

pub(crate) const TESTS: &[Test] = &[
    ("readiness_of_each_kind", readiness_of_each_kind),
    ("liveness_restarts", liveness_restarts),
    ("startup_holds_the_others_back", startup_holds_the_others_back),
];

const SERVER: &str =
    "mkdir -p /tmp/www && cd /tmp/www && echo ok > healthy && trap 'exit 0' TERM; busybox httpd -f -p 8080 & wait";

fn readiness_of_each_kind() -> Result<()> {
    let space = Namespace::new("ready")?;
    let probe = |probe: Value| json!({"ports": [{"name": "web", "containerPort": 8080}], "readinessProbe": crate::pods::with(probe, &json!({"periodSeconds": 1}))});
    apply(
        &space,
        &[
            special("exec", SERVER, &probe(json!({"exec": {"command": ["cat", "/tmp/www/healthy"]}})), &json!({})),
            special("http", SERVER, &probe(json!({"httpGet": {"path": "/healthy", "port": "web"}})), &json!({})),
            special("tcp", SERVER, &probe(json!({"tcpSocket": {"port": 8080}})), &json!({})),
            special("grpc", SERVER, &probe(json!({"grpc": {"port": 9999}})), &json!({})),
        ],
    )?;
    for name in ["exec", "http", "tcp"] {
        ready(&space, name)?;
    }
    sh(&space, "http", "rm /tmp/www/healthy")?;
    space.kubectl(&["wait", "pod/http", "--for=condition=Ready=false", "--timeout=60s"])?;
    space.event_with("Pod", "http", "Unhealthy", "HTTP probe failed with statuscode: 404")?;
    space.event_with("Pod", "grpc", "Unhealthy", "Readiness probe failed")?;
    let pod = space.get("pod", "grpc")?;
    ensure!(pod["status"]["containerStatuses"][0]["ready"] == false, "{pod}");
    Ok(())
}

fn liveness_restarts() -> Result<()> {
    let space = Namespace::new("live")?;
    let main = json!({"livenessProbe": {"exec": {"command": ["cat", "/tmp/alive"]}, "initialDelaySeconds": 3, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1}});
    apply(&space, &[special("p", &format!("busybox touch /tmp/alive; {IDLE}"), &main, &json!({}))])?;
    ready(&space, "p")?;
    sh(&space, "p", "rm /tmp/alive")?;
    space.wait("pod", "p", "was restarted", |pod| {
        pod["status"]["containerStatuses"][0]["restartCount"].as_u64() >= Some(1)
    })?;
    space.event_with("Pod", "p", "Killing", "Container main failed liveness probe, will be restarted")?;
    Ok(())
}

fn startup_holds_the_others_back() -> Result<()> {
    let space = Namespace::new("startup")?;
    let main = json!({
        "startupProbe": {"exec": {"command": ["cat", "/tmp/started"]}, "periodSeconds": 1, "failureThreshold": 100},
        "livenessProbe": {"exec": {"command": ["cat", "/tmp/started"]}, "periodSeconds": 1, "timeoutSeconds": 10, "failureThreshold": 1}
    });
    apply(&space, &[special("p", IDLE, &main, &json!({}))])?;
    space.wait("pod", "p", "ran", |pod| pod["status"]["phase"] == "Running")?;
    space.event_with("Pod", "p", "Unhealthy", "Startup probe failed")?;
    let status = space.get("pod", "p")?["status"]["containerStatuses"][0].clone();
    ensure!(status["started"] == false && status["ready"] == false && status["restartCount"] == 0, "{status}");
    sh(&space, "p", "busybox touch /tmp/started")?;
    ready(&space, "p")?;
    ensure!(
        space.get("pod", "p")?["status"]["containerStatuses"][0]["restartCount"] == 0,
        "liveness was not held back"
    );
    Ok(())
}
