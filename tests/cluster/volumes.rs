//! Volumes of each kind, and that what they show follows the API.

use anyhow::{Result, ensure};
use e2e::{Namespace, until};
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, container, once, pod, ready, sh, special, with};

pub(crate) const TESTS: &[Test] = &[
    ("empty_dirs_are_shared_and_bounded", empty_dirs_are_shared_and_bounded),
    ("config_maps_and_secrets_are_files", config_maps_and_secrets_are_files),
    ("files_follow_the_api", files_follow_the_api),
    ("a_projection_gathers", a_projection_gathers),
    ("the_downward_api_tells_a_pod_of_itself", the_downward_api_tells_a_pod_of_itself),
    ("sub_paths_and_host_paths", sub_paths_and_host_paths),
    ("environment_of_each_kind", environment_of_each_kind),
    ("a_pod_with_missing_volume_sources_names_them", a_pod_with_missing_volume_sources_names_them),
];

fn empty_dirs_are_shared_and_bounded() -> Result<()> {
    let space = Namespace::new("empty")?;
    let mount =
        json!({"volumeMounts": [{"name": "disk", "mountPath": "/disk"}, {"name": "memory", "mountPath": "/memory"}]});
    let volumes = json!([{"name": "disk", "emptyDir": {}}, {"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "8Mi"}}]);
    let containers = json!([with(container("main", IDLE), &mount), with(container("other", IDLE), &mount)]);
    apply(&space, &[with(pod("p", IDLE), &json!({"spec": {"containers": containers, "volumes": volumes}}))])?;
    ready(&space, "p")?;
    sh(&space, "p", "echo shared > /disk/f")?;
    ensure!(space.kubectl(&["exec", "p", "-c", "other", "--", "cat", "/disk/f"])? == "shared\n", "the other container");
    let memory = sh(&space, "p", "df -k /memory | tail -n 1")?;
    ensure!(memory.starts_with("tmpfs") && memory.contains("8192"), "{memory}");
    let full = space.output(&[
        "exec",
        "p",
        "-c",
        "main",
        "--",
        "sh",
        "-c",
        "busybox dd if=/dev/zero of=/memory/f bs=1M count=9",
    ])?;
    ensure!(!full.status.success(), "the memory was not bounded");
    Ok(())
}

fn config_maps_and_secrets_are_files() -> Result<()> {
    let space = Namespace::new("files")?;
    apply(
        &space,
        &[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1", "b": "2"}, "binaryData": {"c": "AP8="}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"p": "w"}}),
        ],
    )?;
    let main = json!({"volumeMounts": [{"name": "m", "mountPath": "/m"}, {"name": "i", "mountPath": "/i"}, {"name": "s", "mountPath": "/s", "readOnly": true}, {"name": "o", "mountPath": "/o"}]});
    let volumes = json!({"volumes": [
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "i", "configMap": {"name": "m", "items": [{"key": "a", "path": "deep/er", "mode": 0o400}]}},
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o440}},
        {"name": "o", "secret": {"secretName": "absent", "optional": true}}
    ]});
    let script = "cat /m/a /m/b; echo; busybox hexdump -e '1/1 \"%02x\"' /m/c; echo; cat /i/deep/er; ls /i; busybox stat -Lc %a /i/deep/er; cat /s/p; busybox stat -Lc %a /s/p; ls -a /o | busybox wc -l";
    let said = once(&space, &special("p", script, &main, &volumes))?;
    ensure!(said.starts_with("12\n00ff\n1deep\n400\nw440\n"), "{said}");
    Ok(())
}

fn files_follow_the_api() -> Result<()> {
    let space = Namespace::new("follow-files")?;
    apply(
        &space,
        &[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "before"}})],
    )?;
    let main = json!({"volumeMounts": [{"name": "m", "mountPath": "/m"}, {"name": "d", "mountPath": "/d"}]});
    let volumes = json!({"volumes": [
        {"name": "m", "configMap": {"name": "m"}},
        {"name": "d", "downwardAPI": {"items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]}}
    ]});
    apply(&space, &[special("p", IDLE, &main, &volumes)])?;
    ready(&space, "p")?;
    ensure!(sh(&space, "p", "cat /m/k")? == "before", "the first content");
    space.kubectl(&["patch", "cm", "m", "--type=merge", "-p", r#"{"data":{"k":"after","new":"file"}}"#])?;
    space.kubectl(&["label", "pod", "p", "added=later"])?;
    until("the file followed the map", || {
        Ok((sh(&space, "p", "cat /m/k /m/new 2>/dev/null || true")? == "afterfile").then_some(()))
    })?;
    until("the file followed the labels", || {
        Ok(sh(&space, "p", "cat /d/labels")?.contains("added=\"later\"").then_some(()))
    })
}

fn a_projection_gathers() -> Result<()> {
    let space = Namespace::new("projected")?;
    apply(
        &space,
        &[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"a": "1"}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"p": "w"}}),
        ],
    )?;
    let volumes = json!({"volumes": [{"name": "all", "projected": {"sources": [
        {"configMap": {"name": "m"}}, {"secret": {"name": "s", "items": [{"key": "p", "path": "secret/p"}]}},
        {"downwardAPI": {"items": [{"path": "name", "fieldRef": {"fieldPath": "metadata.name"}}]}},
        {"serviceAccountToken": {"path": "token", "expirationSeconds": 600}}
    ]}}]});
    let main = json!({"volumeMounts": [{"name": "all", "mountPath": "/all"}]});
    let said = once(
        &space,
        &special("p", "cat /all/a /all/secret/p /all/name; echo; busybox wc -c < /all/token", &main, &volumes),
    )?;
    ensure!(
        said.starts_with("1wp\n")
            && said.lines().nth(1).is_some_and(|n| n.trim().parse::<u32>().is_ok_and(|n| n > 100)),
        "{said}"
    );
    Ok(())
}

fn the_downward_api_tells_a_pod_of_itself() -> Result<()> {
    let space = Namespace::new("downward")?;
    let field = |name: &str, path: &str| json!({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}});
    let main = json!({
        "env": [field("NAME", "metadata.name"), field("SPACE", "metadata.namespace"), field("NODE", "spec.nodeName"), field("IP", "status.podIP"),
                field("HOST", "status.hostIP"), field("LABEL", "metadata.labels['app']"), field("ACCOUNT", "spec.serviceAccountName")],
        "resources": {"requests": {"cpu": "20m"}, "limits": {"memory": "48Mi"}},
        "volumeMounts": [{"name": "d", "mountPath": "/d"}]
    });
    let volumes = json!({"volumes": [{"name": "d", "downwardAPI": {"items": [
        {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
        {"path": "memory", "resourceFieldRef": {"containerName": "main", "resource": "limits.memory", "divisor": "1Mi"}}
    ]}}]});
    let said = once(
        &space,
        &special(
            "p",
            "echo $NAME $SPACE $NODE $HOST $LABEL $ACCOUNT; echo $IP; cat /d/name /d/memory",
            &main,
            &volumes,
        ),
    )?;
    ensure!(
        said.starts_with(&format!("p {} node1 10.88.0.11 p default\n10.244.", space.name())) && said.ends_with("p48"),
        "{said}"
    );
    Ok(())
}

fn sub_paths_and_host_paths() -> Result<()> {
    let space = Namespace::new("paths")?;
    apply(
        &space,
        &[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"k": "only me"}})],
    )?;
    let main = json!({
        "env": [{"name": "NAME", "value": "expanded"}],
        "volumeMounts": [
            {"name": "m", "mountPath": "/etc/one-file", "subPath": "k"},
            {"name": "h", "mountPath": "/h/below", "subPath": "made/below"},
            {"name": "h", "mountPath": "/h/expr", "subPathExpr": "$(NAME)"}
        ]
    });
    let dir = format!("/var/lib/e2e-{}", space.name());
    let spec = |kind: &str| json!({"volumes": [{"name": "m", "configMap": {"name": "m"}}, {"name": "h", "hostPath": {"path": dir, "type": kind}}]});
    let said = once(
        &space,
        &special(
            "p",
            "cat /etc/one-file; ls /etc/passwd; echo x > /h/below/f; echo y > /h/expr/g",
            &main,
            &spec("DirectoryOrCreate"),
        ),
    )?;
    ensure!(said == "only me/etc/passwd\n", "{said}");
    let all = json!({"volumeMounts": [{"name": "h", "mountPath": "/h"}]});
    let said = once(&space, &special("q", "cat /h/made/below/f /h/expanded/g; rm -r /h/*", &all, &spec("Directory")))?;
    ensure!(said == "x\ny\n", "{said}");
    // Who may write to a volume may write below it.
    let user = json!({"volumeMounts": [{"name": "e", "mountPath": "/e", "subPath": "a/b"}]});
    let empty = json!({"securityContext": {"runAsUser": 1234}, "volumes": [{"name": "e", "emptyDir": {}}]});
    let said = once(&space, &special("user", "echo z > /e/f && cat /e/f", &user, &empty))?;
    ensure!(said == "z\n", "{said}");
    // A file is no directory, and nothing is not there.
    let absent = json!({"volumes": [{"name": "h", "hostPath": {"path": "/no/such/place", "type": "Directory"}}]});
    apply(&space, &[special("absent", IDLE, &all, &absent)])?;
    space.event_with("Pod", "absent", "FailedMount", "/no/such/place")?;
    Ok(())
}

fn environment_of_each_kind() -> Result<()> {
    let space = Namespace::new("env")?;
    apply(
        &space,
        &[
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {"A": "1", "B": "2"}}),
            json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "stringData": {"p": "w"}}),
            json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "some-service"}, "spec": {"ports": [{"port": 8080}]}}),
        ],
    )?;
    let main = json!({
        "envFrom": [{"prefix": "M_", "configMapRef": {"name": "m"}}],
        "env": [
            {"name": "PLAIN", "value": "plain"}, {"name": "DEPENDENT", "value": "$(PLAIN) and $$(PLAIN) and $(NOBODY)"},
            {"name": "SECRET", "valueFrom": {"secretKeyRef": {"name": "s", "key": "p"}}},
            {"name": "OPTIONAL", "valueFrom": {"configMapKeyRef": {"name": "absent", "key": "p", "optional": true}}}
        ],
        "args": ["$(PLAIN)"]
    });
    let said = once(
        &space,
        &special(
            "p",
            "echo $M_A$M_B $SECRET [$OPTIONAL] $SOME_SERVICE_SERVICE_PORT; echo \"$DEPENDENT\"; echo $0",
            &main,
            &json!({}),
        ),
    )?;
    ensure!(said == "12 w [] 8080\nplain and $(PLAIN) and $(NOBODY)\nplain\n", "{said}");
    Ok(())
}

fn a_pod_with_missing_volume_sources_names_them() -> Result<()> {
    let space = Namespace::new("missing")?;
    let mount = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let key = json!({"env": [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "late", "key": "k"}}}]});
    apply(
        &space,
        &[
            special(
                "volume",
                "cat /v/k",
                &mount,
                &json!({"restartPolicy": "Never", "volumes": [{"name": "v", "configMap": {"name": "late"}}]}),
            ),
            special("env", "echo $A", &key, &json!({"restartPolicy": "Never"})),
        ],
    )?;
    space.event_with("Pod", "volume", "FailedMount", "configmap \"late\" not found")?;
    let env = space.wait("pod", "env", "told what it lacks", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    })?;
    let message = env["status"]["containerStatuses"][0]["state"]["waiting"]["message"].to_string();
    ensure!(message.contains("configmap \\\"late\\\" not found"), "{message}");
    apply(
        &space,
        &[json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "late"}, "data": {"k": "there"}})],
    )?;
    for name in ["volume", "env"] {
        let pod: Value =
            space.wait("pod", name, "succeeded once it was there", |pod| pod["status"]["phase"] == "Succeeded")?;
        ensure!(pod["status"]["phase"] == "Succeeded", "{pod}");
    }
    Ok(())
}
