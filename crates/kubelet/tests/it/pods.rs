//! Pods from manifests, as a user sees them.

use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::{ConfigMap, Event, Pod, Secret};
use kube::api::{ListParams, Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::json;

use crate::machine::{Machine, condition};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pods_run_on_containerd() {
    let mut machine = Machine::start().await;
    thread(&machine).await;
    tokio::join!(
        one_shot(&machine),
        inits_and_sidecars(&machine),
        environment_and_volumes(&machine),
        security(&machine),
        crash_loop(&machine),
        missing_image(&machine),
        probes(&machine),
        terminal(&machine),
        resources(&machine),
        crate::streams::streams(&machine, &machine.tls),
    );
    crate::csi::volumes(&mut machine).await;
    crate::claims::claims_on_devices(&mut machine).await;
    restart_of_the_kubelet(&mut machine).await;
}

/// Two containers, a volume between them, and the time it takes.
async fn thread(machine: &Machine) {
    let began = Instant::now();
    machine
        .create(
            "thread",
            json!({"terminationGracePeriodSeconds": 1, "containers": [
                {"name": "a", "command": ["sh", "-c", "echo hello > /shared/file; sleep 1000"], "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]},
                {"name": "b", "command": ["sh", "-c", "until cat /shared/file; do sleep 0.1; done; sleep 1000"], "volumeMounts": [{"name": "shared", "mountPath": "/shared"}]}],
                "volumes": [{"name": "shared", "emptyDir": {}}]}),
        )
        .await;
    let pod = machine.ready("thread").await;
    println!("two containers ready after {:?}", began.elapsed());
    let status = pod.status.as_ref().unwrap();
    assert_eq!(status.phase.as_deref(), Some("Running"));
    assert!(status.pod_ip.as_deref().unwrap().starts_with("10.199."));
    assert_eq!(status.qos_class.as_deref(), Some("BestEffort"));
    let began = Instant::now();
    machine.delete("thread", 1).await;
    println!("deleted after {:?}", began.elapsed());
}

async fn one_shot(machine: &Machine) {
    let spec = json!({"restartPolicy": "Never", "containers": [
        {"name": "c", "command": ["sh", "-c", "echo out; echo words > /dev/termination-log; exit 3"]}]});
    machine.create("one-shot", spec).await;
    let pod = machine.phase("one-shot", "Failed").await;
    let status = &pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
    let ended = status.state.as_ref().unwrap().terminated.as_ref().unwrap();
    assert_eq!(
        (ended.exit_code, ended.reason.as_deref(), ended.message.as_deref()),
        (3, Some("Error"), Some("words\n"))
    );
    assert_eq!(machine.log(&pod, "c", 0), "out\n");
    machine.delete("one-shot", 0).await;
}

async fn inits_and_sidecars(machine: &Machine) {
    let mounts = json!([{"name": "v", "mountPath": "/v"}]);
    let spec = json!({"restartPolicy": "Never", "terminationGracePeriodSeconds": 1, "containers": [
            {"name": "c", "command": ["sh", "-c", "cat /v/order; until test -f /v/side; do sleep 0.1; done"], "volumeMounts": mounts}],
        "initContainers": [
            {"name": "one", "command": ["sh", "-c", "echo one >> /v/order"], "volumeMounts": mounts},
            {"name": "side", "restartPolicy": "Always", "command": ["sh", "-c", "touch /v/side; sleep 1000"], "volumeMounts": mounts},
            {"name": "two", "command": ["sh", "-c", "echo two >> /v/order"], "volumeMounts": mounts}],
        "volumes": [{"name": "v", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}}]});
    machine.create("inits", spec).await;
    let pod = machine.phase("inits", "Succeeded").await;
    assert_eq!(machine.log(&pod, "c", 0), "one\ntwo\n");
    machine.delete("inits", 0).await;
}

async fn environment_and_volumes(machine: &Machine) {
    let maps: Api<ConfigMap> = Api::namespaced(machine.client.clone(), "default");
    let map = json!({"metadata": {"name": "settings"}, "data": {"key": "value", "other": "2"}});
    maps.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    let secrets: Api<Secret> = Api::namespaced(machine.client.clone(), "default");
    let secret = json!({"metadata": {"name": "hidden"}, "stringData": {"password": "pw"}});
    secrets.create(&PostParams::default(), &serde_json::from_value(secret).unwrap()).await.unwrap();
    let script = "echo $A $B $C $NAME $CPU; cat /cm/key; echo; cat /sec/password; echo; cat /down/labels; echo; cat /all/sub/k; echo; cat /one; echo; \
                  test -s /var/run/secrets/kubernetes.io/serviceaccount/token && echo token; grep -c alias.example /etc/hosts; hostname; stat -c %a /sec/..data/password";
    let spec = json!({"restartPolicy": "Never", "hostname": "renamed", "hostAliases": [{"ip": "1.2.3.4", "hostnames": ["alias.example"]}],
        "serviceAccountName": "default", "automountServiceAccountToken": false, "containers": [{"name": "c", "command": ["sh", "-c", script],
            "resources": {"requests": {"cpu": "150m"}},
            "envFrom": [{"prefix": "P_", "configMapRef": {"name": "settings"}}],
            "env": [{"name": "A", "value": "a"}, {"name": "B", "value": "$(A)$(P_key)"}, {"name": "C", "valueFrom": {"secretKeyRef": {"name": "hidden", "key": "password"}}},
                {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                {"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "requests.cpu", "divisor": "1m"}}}],
            "volumeMounts": [{"name": "cm", "mountPath": "/cm"}, {"name": "sec", "mountPath": "/sec"}, {"name": "down", "mountPath": "/down"}, {"name": "all", "mountPath": "/all"},
                {"name": "cm", "mountPath": "/one", "subPath": "other"}, {"name": "token", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]}],
        "volumes": [{"name": "cm", "configMap": {"name": "settings"}}, {"name": "sec", "secret": {"secretName": "hidden", "defaultMode": 256}},
            {"name": "down", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}},
            {"name": "all", "projected": {"sources": [{"configMap": {"name": "settings", "items": [{"key": "key", "path": "sub/k"}]}}]}},
            {"name": "token", "projected": {"sources": [{"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}}]}}]});
    machine.create("inputs", spec).await;
    let pod = machine.phase("inputs", "Succeeded").await;
    let expect = "a avalue pw inputs 150\nvalue\npw\napp=\"inputs\"\nvalue\n2\ntoken\n1\nrenamed\n400\n";
    assert_eq!(machine.log(&pod, "c", 0), expect);
    machine.delete("inputs", 0).await;
}

async fn security(machine: &Machine) {
    let script = "id -u; id -g; id -G; grep -E '^(CapEff|NoNewPrivs|Seccomp):' /proc/self/status; touch /x 2>/dev/null || echo read-only; touch /v/f && stat -c %g /v/f";
    let spec = json!({"restartPolicy": "Never", "securityContext": {"runAsUser": 107, "runAsGroup": 107, "runAsNonRoot": true, "fsGroup": 2000, "supplementalGroups": [3000], "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [{"name": "c", "command": ["sh", "-c", script], "volumeMounts": [{"name": "v", "mountPath": "/v"}],
            "securityContext": {"allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true, "capabilities": {"drop": ["ALL"]}}}],
        "volumes": [{"name": "v", "emptyDir": {}}]});
    machine.create("security", spec).await;
    let pod = machine.phase("security", "Succeeded").await;
    let log = machine.log(&pod, "c", 0);
    let expect = "107\n107\n107 2000 3000\nCapEff:\t0000000000000000\nNoNewPrivs:\t1\nSeccomp:\t2\nread-only\n2000\n";
    assert_eq!(log, expect);
    machine.delete("security", 0).await;
    let spec =
        json!({"restartPolicy": "Never", "securityContext": {"runAsNonRoot": true}, "containers": [{"name": "c"}]});
    machine.create("root-refused", spec).await;
    waits(machine, "root-refused", "CreateContainerConfigError").await;
    machine.delete("root-refused", 0).await;
}

async fn waits(machine: &Machine, name: &str, reason: &'static str) -> Pod {
    let waiting = move |pod: Option<&Pod>| {
        let statuses = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses.is_some_and(|list| {
            list.iter().any(|s| s.state.as_ref().and_then(|s| s.waiting.as_ref()?.reason.as_deref()) == Some(reason))
        })
    };
    machine.wait(name, reason, waiting).await.unwrap()
}

async fn crash_loop(machine: &Machine) {
    machine.create("crash", json!({"containers": [{"name": "c", "command": ["sh", "-c", "exit 1"]}]})).await;
    let pod = waits(machine, "crash", "CrashLoopBackOff").await;
    let status = &pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
    assert_eq!(status.restart_count, 1, "the first restart is immediate");
    let message = status.state.as_ref().unwrap().waiting.as_ref().unwrap().message.clone().unwrap();
    assert_eq!(
        message,
        format!("back-off 10s restarting failed container=c pod=crash_default({})", pod.uid().unwrap())
    );
    assert_eq!(pod.status.as_ref().unwrap().phase.as_deref(), Some("Running"));
    machine.delete("crash", 0).await;
}

async fn missing_image(machine: &Machine) {
    let spec = json!({"containers": [{"name": "c", "image": "127.0.0.1:1/none:1", "imagePullPolicy": "IfNotPresent"}, {"name": "n", "image": "none.local/x:1", "imagePullPolicy": "Never"}]});
    machine.create("no-image", spec).await;
    waits(machine, "no-image", "ErrImagePull").await;
    waits(machine, "no-image", "ErrImageNeverPull").await;
    let events: Api<Event> = Api::namespaced(machine.client.clone(), "default");
    let about = ListParams::default().fields("involvedObject.name=no-image");
    let reasons: Vec<String> =
        events.list(&about).await.unwrap().into_iter().filter_map(|event| event.reason).collect();
    for reason in ["Pulling", "Failed", "ErrImageNeverPull"] {
        assert!(reasons.iter().any(|known| known == reason), "{reason} is not in {reasons:?}");
    }
    machine.delete("no-image", 0).await;
}

async fn probes(machine: &Machine) {
    let spec = json!({"terminationGracePeriodSeconds": 0, "containers": [
        {"name": "web", "command": ["sh", "-c", "mkdir /www; echo ok > /www/index.html; httpd -f -p 8080 -h /www"], "ports": [{"name": "http", "containerPort": 8080}],
            "startupProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 1, "failureThreshold": 30},
            "readinessProbe": {"httpGet": {"path": "/index.html", "port": "http"}, "periodSeconds": 1}},
        {"name": "sick", "command": ["sh", "-c", "touch /alive; sleep 2; mkdir /dead; sleep 1000"],
            "livenessProbe": {"exec": {"command": ["test", "!", "-d", "/dead"]}, "periodSeconds": 1, "failureThreshold": 1}}]});
    machine.create("probes", spec).await;
    machine.ready("probes").await;
    let restarted = |pod: Option<&Pod>| {
        let statuses = pod.and_then(|pod| pod.status.as_ref()?.container_statuses.as_ref());
        statuses.is_some_and(|list| list.iter().any(|status| status.name == "sick" && status.restart_count == 1))
    };
    machine.wait("probes", "restarted by its liveness probe", restarted).await;
    machine.delete("probes", 0).await;
}

/// A pod that shall live for two seconds only.
async fn terminal(machine: &Machine) {
    let spec = json!({"activeDeadlineSeconds": 2, "terminationGracePeriodSeconds": 0, "containers": [{"name": "c"}]});
    machine.create("deadline", spec).await;
    let pod = machine.phase("deadline", "Failed").await;
    assert_eq!(pod.status.as_ref().unwrap().reason.as_deref(), Some("DeadlineExceeded"));
    machine.delete("deadline", 0).await;
}

async fn resources(machine: &Machine) {
    let spec = json!({"restartPolicy": "Never", "hostNetwork": true, "containers": [{"name": "c", "command": ["sh", "-c", "cat /proc/self/cgroup"],
        "resources": {"requests": {"cpu": "100m", "memory": "16Mi"}, "limits": {"cpu": "500m", "memory": "32Mi"}}}]});
    machine.create("limits", spec).await;
    let pod = machine.phase("limits", "Succeeded").await;
    let status = pod.status.as_ref().unwrap();
    assert_eq!((status.qos_class.as_deref(), status.pod_ip.as_deref()), (Some("Burstable"), Some("127.0.0.1")));
    let group = format!("/ferrovirt/{}/pod{}/", crate::machine::node(), pod.uid().unwrap());
    let log = machine.log(&pod, "c", 0);
    assert!(log.contains(&group) || log.contains("memory:/"), "{log}");
    machine.delete("limits", 0).await;
}

/// The kubelet goes and comes back: containers stay, and what happened meanwhile is noticed.
async fn restart_of_the_kubelet(machine: &mut Machine) {
    let spec = |command: &str| {
        json!({"terminationGracePeriodSeconds": 0, "restartPolicy": "Never", "containers": [{"name": "c", "command": ["sh", "-c", command],
        "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1}}]})
    };
    machine.create("stays", spec("sleep 1000")).await;
    machine.create("ends", spec("until test -f /tmp-end; do sleep 0.1; done; exit 7")).await;
    let before = machine.ready("stays").await;
    machine.ready("ends").await;
    let ends = machine.pods().get("ends").await.unwrap();
    machine.stop_kubelet().await;
    let id = ends.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0].container_id.clone().unwrap();
    let id = id.trim_start_matches("containerd://");
    assert!(machine.ctr(&["-n", "k8s.io", "tasks", "exec", "--exec-id", "end", id, "touch", "/tmp-end"]));
    machine.start_kubelet();
    machine.phase("ends", "Failed").await;
    let label = json!({"metadata": {"labels": {"new": "label"}}});
    machine.pods().patch("stays", &PatchParams::default(), &Patch::Merge(label)).await.unwrap();
    let after = machine.ready("stays").await;
    let ids = |pod: &Pod| {
        let status = &pod.status.as_ref().unwrap().container_statuses.as_ref().unwrap()[0];
        (status.container_id.clone(), status.restart_count, status.state.clone())
    };
    assert_eq!(ids(&before), ids(&after));
    assert_eq!(condition(Some(&after), "Ready").as_deref(), Some("True"));
    machine.delete("stays", 0).await;
    machine.delete("ends", 0).await;
    let began = Instant::now();
    while std::fs::read_dir(machine.dir.join("kubelet/pods")).is_ok_and(|mut dir| dir.next().is_some()) {
        assert!(began.elapsed() < Duration::from_secs(10), "volumes of deleted pods stay");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
