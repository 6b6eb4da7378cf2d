//! Violations by data.

use serde_json::json;

use super::checks::violations;
use super::*;

fn check(spec: &Value, level: Level, expect: &[&str]) {
    assert_eq!(violations(&json!({"metadata": {"name": "p"}, "spec": spec}), level), expect);
}

#[test]
fn a_plain_pod_violates_restricted_as_upstream_words_it() {
    check(
        &json!({"containers": [{"name": "c"}]}),
        Level::Restricted,
        &[
            "allowPrivilegeEscalation != false (container \"c\" must set securityContext.allowPrivilegeEscalation=false)",
            "unrestricted capabilities (container \"c\" must set securityContext.capabilities.drop=[\"ALL\"])",
            "runAsNonRoot != true (pod or container \"c\" must set securityContext.runAsNonRoot=true)",
            "seccompProfile (pod or container \"c\" must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\")",
        ],
    );
    check(&json!({"containers": [{"name": "c"}]}), Level::Baseline, &[]);
}

#[test]
fn a_hardened_pod_passes() {
    check(
        &json!({"securityContext": {"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}, "runAsUser": 107},
            "volumes": [{"name": "v", "emptyDir": {}}],
            "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}}}]}),
        Level::Restricted,
        &[],
    );
}

#[test]
fn baseline_violations() {
    check(
        &json!({"hostNetwork": true, "hostPID": true, "volumes": [{"name": "h", "hostPath": {"path": "/"}}],
            "containers": [
                {"name": "a", "securityContext": {"privileged": true}, "ports": [{"hostPort": 80}]},
                {"name": "b", "securityContext": {"privileged": true, "capabilities": {"add": ["SYS_ADMIN", "CHOWN"]}, "procMount": "Unmasked"}}]}),
        Level::Baseline,
        &[
            "host namespaces (hostNetwork=true, hostPID=true)",
            "privileged (containers \"a\", \"b\" must not set securityContext.privileged=true)",
            "non-default capabilities (container \"b\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)",
            "hostPath volumes (volume \"h\")",
            "hostPort (container \"a\" uses hostPort 80)",
            "procMount (container \"b\" must not set securityContext.procMount to \"Unmasked\")",
        ],
    );
}

#[test]
fn restricted_volumes_and_root() {
    check(
        &json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0, "seccompProfile": {"type": "RuntimeDefault"}},
            "volumes": [{"name": "n", "nfs": {}}],
            "containers": [{"name": "c", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}}]}),
        Level::Restricted,
        &[
            "unrestricted capabilities (container \"c\" must not include \"CHOWN\" in securityContext.capabilities.add)",
            "restricted volume types (volume \"n\" uses restricted volume type \"nfs\")",
            "runAsUser=0 (pod must not set runAsUser=0)",
        ],
    );
}
