//! What a container is held to: users and groups, capabilities, a read-only root, seccomp, memory, processor time.

use anyhow::{Result, ensure};
use e2e::Namespace;
use serde_json::{Value, json};

use crate::Test;
use crate::pods::{IDLE, apply, once, ready, sh, special};

pub(crate) const TESTS: &[Test] = &[
    ("users_and_groups_are_as_asked", users_and_groups_are_as_asked),
    ("capabilities_and_privileges_are_dropped", capabilities_and_privileges_are_dropped),
    ("too_much_memory_is_the_end", too_much_memory_is_the_end),
    ("too_much_on_the_disk_is_the_end", too_much_on_the_disk_is_the_end),
    ("kernel_settings_of_others_are_refused", kernel_settings_of_others_are_refused),
    ("requests_and_limits_reach_the_kernel", requests_and_limits_reach_the_kernel),
    ("a_pod_that_fits_nowhere_waits", a_pod_that_fits_nowhere_waits),
    ("pod_security_levels_are_enforced", pod_security_levels_are_enforced),
];

fn users_and_groups_are_as_asked() -> Result<()> {
    let space = Namespace::new("users")?;
    let spec = json!({
        "securityContext": {"runAsUser": 1234, "runAsGroup": 2345, "fsGroup": 3456, "supplementalGroups": [4567]},
        "volumes": [{"name": "v", "emptyDir": {}}]
    });
    let main = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let said = once(
        &space,
        &special("p", "id -u; id -g; id -G; busybox touch /v/f && busybox stat -c '%g' /v/f", &main, &spec),
    )?;
    let lines: Vec<_> = said.lines().collect();
    ensure!(lines.first() == Some(&"1234") && lines.get(1) == Some(&"2345"), "{said}");
    ensure!(
        ["2345", "3456", "4567"]
            .iter()
            .all(|group| lines.get(2).is_some_and(|line| line.split(' ').any(|g| g == *group))),
        "{said}"
    );
    ensure!(lines.get(3) == Some(&"3456"), "{said}");
    // A container's own word counts more than its pod's.
    let main = json!({"securityContext": {"runAsUser": 99}});
    ensure!(once(&space, &special("own", "id -u", &main, &spec))? == "99\n", "the container's user");
    // An image that says nothing of its user.
    let main = json!({"image": e2e::machine::DISK_IMAGE, "securityContext": {"runAsNonRoot": true}});
    apply(&space, &[special("root", IDLE, &main, &json!({"securityContext": null}))])?;
    // And one that says another one than root, by number.
    let main = json!({"securityContext": {"runAsNonRoot": true}});
    let own = once(&space, &special("image", "id -u", &main, &json!({"securityContext": null})))?;
    ensure!(own == "1001\n", "the image's user, not {own}");
    let waiting = space.wait("pod", "root", "was refused", |pod| {
        pod["status"]["containerStatuses"][0]["state"]["waiting"]["reason"] == "CreateContainerConfigError"
    })?;
    let message = waiting["status"]["containerStatuses"][0]["state"]["waiting"]["message"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    ensure!(message.contains("container has runAsNonRoot and image will run as root"), "{message}");
    Ok(())
}

fn capabilities_and_privileges_are_dropped() -> Result<()> {
    let space = Namespace::new("capabilities")?;
    let status = "grep -E 'CapEff|NoNewPrivs|Seccomp:' /proc/self/status | busybox tr -d '\\t'; busybox touch /probe 2>/dev/null && echo writable; cat /proc/sys/kernel/shm_rmid_forced";
    let check = |name: &str, context: Value, expect: &[&str]| -> Result<String> {
        let said = once(&space, &special(name, status, &json!({"securityContext": context}), &json!({})))?;
        for words in expect {
            ensure!(said.contains(words), "{name}: {words:?} is not in {said}");
        }
        Ok(said)
    };
    check("plain", json!({}), &["CapEff:00000000a80425fb", "writable"])?;
    check(
        "none",
        json!({"capabilities": {"drop": ["ALL"]}, "allowPrivilegeEscalation": false, "seccompProfile": {"type": "RuntimeDefault"}}),
        &["CapEff:0000000000000000", "NoNewPrivs:1", "Seccomp:2"],
    )?;
    check("one", json!({"capabilities": {"drop": ["ALL"], "add": ["NET_ADMIN"]}}), &["CapEff:0000000000001000"])?;
    let fixed = check("fixed", json!({"readOnlyRootFilesystem": true}), &[])?;
    ensure!(!fixed.contains("writable"), "{fixed}");
    let sysctl = json!({"securityContext": {"sysctls": [{"name": "kernel.shm_rmid_forced", "value": "1"}]}});
    let said = once(&space, &special("sysctl", "cat /proc/sys/kernel/shm_rmid_forced", &json!({}), &sysctl))?;
    ensure!(said == "1\n", "{said}");
    let privileged = once(
        &space,
        &special(
            "all",
            "ls /dev | grep -c loop-control; busybox mount -t tmpfs none /tmp && echo mounted",
            &json!({"securityContext": {"privileged": true}}),
            &json!({}),
        ),
    )?;
    ensure!(privileged.contains("mounted"), "{privileged}");
    Ok(())
}

fn too_much_memory_is_the_end() -> Result<()> {
    let space = Namespace::new("memory")?;
    let main = json!({"resources": {"limits": {"memory": "24Mi"}}});
    let spec = json!({"restartPolicy": "Never"});
    apply(
        &space,
        &[special(
            "p",
            &format!("exec {}", "busybox awk 'BEGIN { s = \"0123456789abcdef\"; while (1) s = s s }'"),
            &main,
            &spec,
        )],
    )?;
    let pod = space.wait("pod", "p", "failed", |pod| pod["status"]["phase"] == "Failed")?;
    let ended = &pod["status"]["containerStatuses"][0]["state"]["terminated"];
    ensure!(ended["reason"] == "OOMKilled" && ended["exitCode"] == 137, "{ended}");
    Ok(())
}

fn too_much_on_the_disk_is_the_end() -> Result<()> {
    let space = Namespace::new("evicted")?;
    let main = json!({"volumeMounts": [{"name": "v", "mountPath": "/v"}]});
    let spec = json!({"volumes": [{"name": "v", "emptyDir": {"sizeLimit": "1Mi"}}]});
    let script = format!("busybox dd if=/dev/zero of=/v/f bs=1M count=3; {IDLE}");
    apply(&space, &[special("p", &script, &main, &spec)])?;
    let pod = space.wait("pod", "p", "was evicted", |pod| pod["status"]["phase"] == "Failed")?;
    let status = &pod["status"];
    ensure!(status["reason"] == "Evicted", "{status}");
    ensure!(status["message"] == "Usage of EmptyDir volume \"v\" exceeds the limit \"1Mi\". ", "{status}");
    let conditions = status["conditions"].as_array().cloned().unwrap_or_default();
    let told = conditions.iter().any(|c| c["type"] == "DisruptionTarget" && c["reason"] == "TerminationByKubelet");
    ensure!(told, "{status}");
    Ok(())
}

fn kernel_settings_of_others_are_refused() -> Result<()> {
    let space = Namespace::new("sysctls")?;
    let sysctl = |name: &str| json!({"securityContext": {"sysctls": [{"name": name, "value": "1024"}]}});
    let refused = special("refused", IDLE, &json!({}), &sysctl("kernel.msgmax"));
    apply(&space, &[refused])?;
    space.wait("pod", "refused", "was refused", |pod| pod["status"]["reason"] == "SysctlForbidden")?;
    let table = space.kubectl(&["get", "pod", "refused", "--no-headers"])?;
    ensure!(table.contains("SysctlForbidden"), "{table}");
    let script = "busybox cat /proc/sys/net/ipv4/ip_unprivileged_port_start";
    let safe = sysctl("net.ipv4.ip_unprivileged_port_start");
    let said = once(&space, &special("safe", script, &json!({}), &safe))?;
    ensure!(said == "1024\n", "{said}");
    Ok(())
}

fn requests_and_limits_reach_the_kernel() -> Result<()> {
    let space = Namespace::new("limits")?;
    let main = json!({"resources": {"requests": {"cpu": "250m", "memory": "32Mi"}, "limits": {"cpu": "500m", "memory": "64Mi"}},
                      "env": [{"name": "CPU", "valueFrom": {"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1m"}}},
                              {"name": "MEMORY", "valueFrom": {"resourceFieldRef": {"resource": "limits.memory"}}}]});
    apply(&space, &[special("p", IDLE, &main, &json!({}))])?;
    ready(&space, "p")?;
    ensure!(space.kubectl(&["get", "pod", "p", "-o", "jsonpath={.status.qosClass}"])? == "Burstable", "the class");
    ensure!(sh(&space, "p", "echo $CPU $MEMORY")? == "500 67108864\n", "the environment");
    let limits = sh(
        &space,
        "p",
        "cat /sys/fs/cgroup/memory/memory.limit_in_bytes /sys/fs/cgroup/cpu/cpu.cfs_quota_us 2>/dev/null || cat /sys/fs/cgroup/memory.max /sys/fs/cgroup/cpu.max",
    )?;
    ensure!(limits.starts_with("67108864\n50000"), "{limits}");
    let equal = json!({"resources": {"limits": {"cpu": "10m", "memory": "32Mi"}}});
    apply(&space, &[special("equal", IDLE, &equal, &json!({}))])?;
    ensure!(
        space.kubectl(&["get", "pod", "equal", "-o", "jsonpath={.status.qosClass}"])? == "Guaranteed",
        "the class of equals"
    );
    let wrong = space.refused(
        &special("wrong", IDLE, &json!({"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}}), &json!({}))
            .to_string(),
    )?;
    ensure!(wrong.contains("must be less than or equal to cpu limit"), "{wrong}");
    Ok(())
}

fn a_pod_that_fits_nowhere_waits() -> Result<()> {
    let space = Namespace::new("fits")?;
    apply(
        &space,
        &[
            special("large", IDLE, &json!({"resources": {"requests": {"memory": "1Pi"}}}), &json!({})),
            special("elsewhere", IDLE, &json!({}), &json!({"nodeSelector": {"no": "where"}})),
        ],
    )?;
    let reason = |name: &str, words: &str| -> Result<()> {
        let pod = space.wait("pod", name, "was unschedulable", |pod| {
            pod["status"]["conditions"][0]["reason"] == "Unschedulable"
        })?;
        let message = pod["status"]["conditions"][0]["message"].as_str().unwrap_or_default();
        ensure!(pod["status"]["phase"] == "Pending" && message.contains(words), "{message}");
        Ok(())
    };
    reason("large", "0/1 nodes are available: 1 Insufficient memory")?;
    reason("elsewhere", "1 node(s) didn't match Pod's node affinity/selector")?;
    Ok(())
}

fn pod_security_levels_are_enforced() -> Result<()> {
    let space = Namespace::new("levels")?;
    space.kubectl(&["label", "namespace", space.name(), "pod-security.kubernetes.io/enforce=restricted"])?;
    let why = space
        .refused(&special("p", IDLE, &json!({"securityContext": {"privileged": true}}), &json!({})).to_string())?;
    for words in [
        "violates PodSecurity \"restricted:latest\"",
        "privileged",
        "allowPrivilegeEscalation != false",
        "unrestricted capabilities",
        "runAsNonRoot != true",
        "seccompProfile",
    ] {
        ensure!(why.contains(words), "{words:?} is not in {why}");
    }
    let main = json!({"securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}});
    apply(
        &space,
        &[special(
            "good",
            IDLE,
            &main,
            &json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 1000, "seccompProfile": {"type": "RuntimeDefault"}}}),
        )],
    )?;
    ready(&space, "good")
}
