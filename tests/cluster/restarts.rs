//! How pods live and end: restart policies and back-off, init containers and sidecars, hooks, grace, images that
//! cannot be had, deadlines.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, container, once, pod, ready, sh, special, with};

pub(crate) const TESTS: &[Test] = &[
    ("restart_policies_are_kept", restart_policies_are_kept),
    ("restarts_back_off", restarts_back_off),
    ("init_containers_come_first", init_containers_come_first),
    ("sidecars_run_beside_and_end_last", sidecars_run_beside_and_end_last),
    ("hooks_run_and_grace_is_given", hooks_run_and_grace_is_given),
    ("images_that_cannot_be_had_are_named", images_that_cannot_be_had_are_named),
    ("a_pod_may_have_a_deadline", a_pod_may_have_a_deadline),
    ("a_termination_message_is_kept", a_termination_message_is_kept),
    ("ephemeral_containers_join_a_running_pod", ephemeral_containers_join_a_running_pod),
];

fn restart_policies_are_kept() -> Result<()> {
    let space = Namespace::new("policy")?;
    let policy =
        |name: &str, script: &str, policy: &str| special(name, script, &json!({}), &json!({"restartPolicy": policy}));
    apply(
        &space,
        &[
            policy("never", "exit 3", "Never"),
            policy("success", "exit 0", "OnFailure"),
            policy("failure", "exit 1", "OnFailure"),
            policy("always", "exit 0", "Always"),
        ],
    )?;
    space.wait("pod", "never", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    space.wait("pod", "success", "succeeded", |pod| pod["status"]["phase"] == "Succeeded")?;
    let restarted = |pod: &Value| pod["status"]["containerStatuses"][0]["restartCount"].as_u64() >= Some(1);
    space.wait("pod", "failure", "was restarted", restarted)?;
    space.wait("pod", "always", "was restarted", restarted)?;
    let never = space.get("pod", "never")?["status"]["containerStatuses"][0].clone();
    ensure!(never["restartCount"] == 0 && never["state"]["terminated"]["exitCode"] == 3, "{never}");
    let table = space.kubectl(&["get", "pod", "never", "success", "--no-headers"])?;
    ensure!(table.contains("Error") && table.contains("Completed"), "{table}");
    Ok(())
}

fn restarts_back_off() -> Result<()> {
    let space = Namespace::new("backoff")?;
    apply(&space, &[pod("p", "exit 1")])?;
    let waiting = space.wait("pod", "p", "waited before its next start", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CrashLoopBackOff"
    })?;
    let message = waiting["status"]["containerStatuses"][0]["state"]["waiting"]["message"].as_str().unwrap_or_default();
    ensure!(message.contains("restarting failed container=main pod=p_"), "{message}");
    space.event_with("Pod", "p", "BackOff", "Back-off restarting failed container main")?;
    Ok(())
}

fn init_containers_come_first() -> Result<()> {
    let space = Namespace::new("init")?;
    let mount = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let init = |name: &str, script: &str| with(container(name, script), &mount);
    let spec = |inits: Value| json!({"volumes": [{"name": "v", "emptyDir": {}}], "initContainers": inits});
    let inits = json!([init("one", "echo one >> /v/order"), init("two", "echo two >> /v/order")]);
    let said = once(&space, &special("p", "cat /v/order", &mount, &spec(inits)))?;
    ensure!(said == "one\ntwo\n", "{said}");
    apply(
        &space,
        &[special(
            "stuck",
            IDLE,
            &json!({}),
            &json!({"restartPolicy": "Never", "initContainers": [container("bad", "exit 9")]}),
        )],
    )?;
    let stuck = space.wait("pod", "stuck", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    ensure!(stuck["status"]["initContainerStatuses"][0]["state"]["terminated"]["exitCode"] == 9, "{stuck}");
    let table = space.kubectl(&["get", "pod", "stuck", "--no-headers"])?;
    ensure!(table.contains("Init:Error"), "{table}");
    Ok(())
}

fn sidecars_run_beside_and_end_last() -> Result<()> {
    let space = Namespace::new("sidecar")?;
    let mount = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let side = with(
        container("side", "busybox touch /v/up; trap 'echo side ended; exit 0' TERM; sleep 100000 & wait"),
        &with(
            mount.clone(),
            &json!({
                "restartPolicy": "Always", "startupProbe": {"exec": {"command": ["cat", "/v/up"]}, "periodSeconds": 1}
            }),
        ),
    );
    let spec = json!({"restartPolicy": "Never", "volumes": [{"name": "v", "emptyDir": {}}], "initContainers": [side]});
    apply(&space, &[special("p", "cat /v/up && echo the sidecar was first", &mount, &spec)])?;
    space.wait("pod", "p", "succeeded when its main container had", |pod| pod["status"]["phase"] == "Succeeded")?;
    ensure!(space.kubectl(&["logs", "p", "-c", "main"])?.contains("the sidecar was first"), "the order");
    ensure!(space.kubectl(&["logs", "p", "-c", "side"])?.contains("side ended"), "the sidecar was not told to end");
    Ok(())
}

fn hooks_run_and_grace_is_given() -> Result<()> {
    let space = Namespace::new("hooks")?;
    let dir = format!("/var/lib/e2e-{}", space.name());
    let main = json!({
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
        "lifecycle": {
            "postStart": {"exec": {"command": ["sh", "-c", "echo started > /v/order"]}},
            "preStop": {"exec": {"command": ["sh", "-c", "echo stopping >> /v/order"]}}
        }
    });
    let spec = json!({"terminationGracePeriodSeconds": 30, "volumes": [{"name": "v", "hostPath": {"path": dir, "type": "DirectoryOrCreate"}}]});
    apply(
        &space,
        &[special("p", "trap 'sleep 1; echo told >> /v/order; exit 0' TERM; sleep 100000 & wait", &main, &spec)],
    )?;
    ready(&space, "p")?;
    ensure!(sh(&space, "p", "cat /v/order")? == "started\n", "the postStart hook");
    space.kubectl(&["delete", "pod", "p", "--timeout=60s"])?;
    let reader = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let order = once(&space, &special("after", "cat /v/order; rm -r /v/*", &reader, &spec))?;
    ensure!(order == "started\nstopping\ntold\n", "{order}");
    Ok(())
}

fn images_that_cannot_be_had_are_named() -> Result<()> {
    let space = Namespace::new("images")?;
    apply(
        &space,
        &[
            special("absent", IDLE, &json!({"image": "127.0.0.1:1/no/such:v1"}), &json!({})),
            special(
                "never",
                IDLE,
                &json!({"image": "ferrovirt.local/absent:v1", "imagePullPolicy": "Never"}),
                &json!({}),
            ),
            special("wrong", IDLE, &json!({"image": "Not A Name"}), &json!({})),
        ],
    )?;
    let waits = |name: &str, reasons: &[&str], words: &str| -> Result<()> {
        let pod = space.wait("pod", name, "told why it waits", |pod| {
            let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
            reasons.iter().any(|reason| waiting["reason"] == *reason)
        })?;
        let message = pod["status"]["containerStatuses"][0]["state"]["waiting"]["message"].to_string();
        ensure!(message.contains(words), "{name}: {message}");
        Ok(())
    };
    waits("absent", &["ErrImagePull", "ImagePullBackOff"], "127.0.0.1:1/no/such:v1")?;
    waits("never", &["ErrImageNeverPull"], "ferrovirt.local/absent:v1")?;
    waits("wrong", &["InvalidImageName"], "Not A Name")?;
    space.event_with("Pod", "absent", "Failed", "Failed to pull image \"127.0.0.1:1/no/such:v1\"")?;
    Ok(())
}

fn a_pod_may_have_a_deadline() -> Result<()> {
    let space = Namespace::new("pod-deadline")?;
    apply(&space, &[special("p", IDLE, &json!({}), &json!({"activeDeadlineSeconds": 1}))])?;
    let pod = space.wait("pod", "p", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    ensure!(pod["status"]["reason"] == "DeadlineExceeded", "{}", pod["status"]);
    Ok(())
}

fn a_termination_message_is_kept() -> Result<()> {
    let space = Namespace::new("message")?;
    apply(
        &space,
        &[
            special(
                "file",
                "echo -n last words > /dev/termination-log",
                &json!({}),
                &json!({"restartPolicy": "Never"}),
            ),
            special(
                "log",
                "echo from the log; exit 1",
                &json!({"terminationMessagePolicy": "FallbackToLogsOnError"}),
                &json!({"restartPolicy": "Never"}),
            ),
        ],
    )?;
    let message = |name: &str| -> Result<Value> {
        let pod = space.wait("pod", name, "ended", |pod| {
            matches!(pod["status"]["phase"].as_str(), Some("Succeeded" | "Failed"))
        })?;
        Ok(pod["status"]["containerStatuses"][0]["state"]["terminated"]["message"].clone())
    };
    ensure!(message("file")? == "last words", "{}", message("file")?);
    ensure!(message("log")? == "from the log\n", "{}", message("log")?);
    Ok(())
}

fn ephemeral_containers_join_a_running_pod() -> Result<()> {
    let space = Namespace::new("debug")?;
    crate::pods::idle(&space, "p")?;
    let image = format!("--image={}", crate::pods::IMAGE);
    space.kubectl(&[
        "debug",
        "p",
        "--container=look",
        &image,
        "--target=main",
        "--",
        "sh",
        "-c",
        "echo from beside; trap 'exit 0' TERM; sleep 100000 & wait",
    ])?;
    space.wait("pod", "p", "ran the ephemeral container", |pod| {
        pod["status"]["ephemeralContainerStatuses"][0]["state"]["running"].is_object()
    })?;
    e2e::until("it wrote", || Ok((space.kubectl(&["logs", "p", "-c", "look"])? == "from beside\n").then_some(())))?;
    let seen = space.kubectl(&["exec", "p", "-c", "look", "--", "ps"])?;
    ensure!(seen.contains("sleep 100000"), "{seen}");
    Ok(())
}
