//! Webhook configurations and the aggregated API, all served by virt-api (and virt-operator for its own object).
//!
//! Only what is served is registered: a webhook nobody answers would refuse every object of its kind.

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::Input;

/// Services of these names answer.
pub const API_SERVICE: &str = "virt-api";
/// The webhooks of virt-api that change what is written.
pub const MUTATORS_NAME: &str = "virt-api-mutator";
/// The operator's own webhook service.
pub const OPERATOR_SERVICE: &str = "kubevirt-operator-webhook";

struct Hook {
    name: &'static str,
    path: &'static str,
    operations: &'static [&'static str],
    group: &'static str,
    versions: &'static [&'static str],
    resources: &'static [&'static str],
}

/// What most hooks are about.
const HOOK: Hook =
    Hook { name: "", path: "", operations: &[], group: "kubevirt.io", versions: &["v1alpha3", "v1"], resources: &[] };

const SNAPSHOT: Hook = Hook { group: "snapshot.kubevirt.io", versions: &["v1beta1"], ..HOOK };

const CLONE: Hook =
    Hook { group: "clone.kubevirt.io", versions: &["v1beta1"], resources: &["virtualmachineclones"], ..HOOK };

const CHOSEN: Hook =
    Hook { operations: &["CREATE", "UPDATE"], group: "instancetype.kubevirt.io", versions: &["v1beta1"], ..HOOK };

const VALIDATORS: &[Hook] = &[
    Hook {
        name: "virtualmachineinstances-create-validator.kubevirt.io",
        path: "/virtualmachineinstances-validate-create",
        operations: &["CREATE"],
        resources: &["virtualmachineinstances"],
        ..HOOK
    },
    Hook {
        name: "virtualmachineinstances-update-validator.kubevirt.io",
        path: "/virtualmachineinstances-validate-update",
        operations: &["UPDATE"],
        resources: &["virtualmachineinstances"],
        ..HOOK
    },
    Hook {
        name: "virtualmachine-validator.kubevirt.io",
        path: "/virtualmachines-validate",
        operations: &["CREATE", "UPDATE"],
        resources: &["virtualmachines"],
        ..HOOK
    },
    Hook {
        name: "virtualmachinereplicaset-validator.kubevirt.io",
        path: "/virtualmachinereplicaset-validate",
        operations: &["CREATE", "UPDATE"],
        resources: &["virtualmachineinstancereplicasets"],
        ..HOOK
    },
    Hook {
        name: "virtualmachinepreset-validator.kubevirt.io",
        path: "/vmipreset-validate",
        operations: &["CREATE", "UPDATE"],
        resources: &["virtualmachineinstancepresets"],
        ..HOOK
    },
    Hook {
        name: "virtualmachinepool-validator.kubevirt.io",
        path: "/virtualmachinepool-validate",
        operations: &["CREATE", "UPDATE"],
        group: "pool.kubevirt.io",
        versions: &["v1alpha1", "v1beta1"],
        resources: &["virtualmachinepools"],
    },
    Hook {
        name: "migration-create-validator.kubevirt.io",
        path: "/migration-validate-create",
        operations: &["CREATE"],
        resources: &["virtualmachineinstancemigrations"],
        ..HOOK
    },
    Hook {
        name: "migration-update-validator.kubevirt.io",
        path: "/migration-validate-update",
        operations: &["UPDATE"],
        resources: &["virtualmachineinstancemigrations"],
        ..HOOK
    },
    Hook {
        name: "kubevirt-crd-status-validator.kubevirt.io",
        path: "/status-validate",
        operations: &["CREATE", "UPDATE"],
        resources: &["virtualmachines/status"],
        ..HOOK
    },
    Hook {
        name: "migration-policy-validator.kubevirt.io",
        path: "/migration-policy-validate-create",
        operations: &["CREATE", "UPDATE"],
        group: "migrations.kubevirt.io",
        versions: &["v1alpha1"],
        resources: &["migrationpolicies"],
    },
    Hook {
        name: "virtualmachinesnapshot-validator.snapshot.kubevirt.io",
        path: "/virtualmachinesnapshots-validate",
        operations: &["CREATE", "UPDATE"],
        resources: &["virtualmachinesnapshots"],
        ..SNAPSHOT
    },
    Hook {
        name: "virtualmachinerestore-validator.snapshot.kubevirt.io",
        path: "/virtualmachinerestores-validate",
        operations: &["CREATE", "UPDATE"],
        resources: &["virtualmachinerestores"],
        ..SNAPSHOT
    },
    Hook {
        name: "vm-clone-validator.kubevirt.io",
        path: "/vm-clone-validate-create",
        operations: &["CREATE", "UPDATE"],
        ..CLONE
    },
    Hook {
        name: "virtualmachinebackup-validator.backup.kubevirt.io",
        path: "/virtualmachinebackups-validate",
        operations: &["CREATE", "UPDATE"],
        group: "backup.kubevirt.io",
        versions: &["v1alpha1"],
        resources: &["virtualmachinebackups"],
    },
    Hook {
        name: "virtualmachinebackuptracker-validator.backup.kubevirt.io",
        path: "/virtualmachinebackuptrackers-validate",
        operations: &["CREATE", "UPDATE"],
        group: "backup.kubevirt.io",
        versions: &["v1alpha1"],
        resources: &["virtualmachinebackuptrackers"],
    },
    Hook {
        name: "virtualmachineexport-validator.export.kubevirt.io",
        path: "/virtualmachineexports-validate",
        operations: &["CREATE", "UPDATE"],
        group: "export.kubevirt.io",
        versions: &["v1beta1", "v1"],
        resources: &["virtualmachineexports"],
    },
    Hook {
        name: "virtualmachineinstancetype-validator.instancetype.kubevirt.io",
        path: "/virtualmachineinstancetypes-validate",
        resources: &["virtualmachineinstancetypes"],
        ..CHOSEN
    },
    Hook {
        name: "virtualmachineclusterinstancetype-validator.instancetype.kubevirt.io",
        path: "/virtualmachineclusterinstancetypes-validate",
        resources: &["virtualmachineclusterinstancetypes"],
        ..CHOSEN
    },
    Hook {
        name: "virtualmachinepreference-validator.instancetype.kubevirt.io",
        path: "/virtualmachinepreferences-validate",
        resources: &["virtualmachinepreferences"],
        ..CHOSEN
    },
    Hook {
        name: "virtualmachineclusterpreference-validator.instancetype.kubevirt.io",
        path: "/virtualmachineclusterpreferences-validate",
        resources: &["virtualmachineclusterpreferences"],
        ..CHOSEN
    },
];

/// The pods whose eviction is judged: those of guests, and those that hold volumes for them.
const GUARDED: &str = "request.name.startsWith('virt-launcher') || request.name.startsWith('hp-volume-')";

const MUTATORS: &[Hook] = &[
    Hook {
        name: "virtualmachines-mutator.kubevirt.io",
        path: "/virtualmachines-mutate",
        operations: &["CREATE", "UPDATE"],
        resources: &["virtualmachines"],
        ..HOOK
    },
    Hook {
        name: "virtualmachineinstances-mutator.kubevirt.io",
        path: "/virtualmachineinstances-mutate",
        operations: &["CREATE", "UPDATE"],
        resources: &["virtualmachineinstances"],
        ..HOOK
    },
    Hook {
        name: "migrations-mutator.kubevirt.io",
        path: "/migration-mutate-create",
        operations: &["CREATE"],
        resources: &["virtualmachineinstancemigrations"],
        ..HOOK
    },
    Hook {
        name: "virtualmachineclones-mutator.kubevirt.io",
        path: "/vm-clone-mutate-create",
        operations: &["CREATE"],
        ..CLONE
    },
];

const OPERATOR_VALIDATORS: &[Hook] = &[
    Hook {
        name: "kubevirt-validator.kubevirt.io",
        path: "/kubevirt-validate-delete",
        operations: &["DELETE"],
        resources: &["kubevirts"],
        ..HOOK
    },
    Hook {
        name: "kubevirt-update-validator.kubevirt.io",
        path: "/kubevirt-validate-update",
        operations: &["UPDATE"],
        resources: &["kubevirts"],
        ..HOOK
    },
    Hook {
        name: "kubevirt-create-validator.kubevirt.io",
        path: "/kubevirt-validate-create",
        operations: &["CREATE"],
        resources: &["kubevirts"],
        ..HOOK
    },
];

/// Evictions of launcher pods. Every other eviction in the cluster passes without asking.
fn evictions(namespace: &str, ca: &str) -> Value {
    json!({
        "name": "virt-launcher-eviction-interceptor.kubevirt.io",
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": {
            "service": { "namespace": namespace, "name": API_SERVICE, "path": "/pod-eviction-validate", "port": 443 },
            "caBundle": ca,
        },
        "matchConditions": [{ "name": "only-vms", "expression": GUARDED }],
        "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "NoneOnDryRun", "timeoutSeconds": 10,
        "rules": [{
            "apiGroups": [""], "apiVersions": ["v1"], "scope": "*", "operations": ["*"], "resources": ["pods/eviction"],
        }],
    })
}

/// The configurations and the APIServices.
pub fn render(input: &Input) -> Vec<Value> {
    let ca = BASE64_STANDARD.encode(&input.ca_bundle);
    let webhooks = |hooks: &[Hook], service: &str| -> Vec<Value> {
        hooks.iter().map(|hook| webhook(hook, service, &input.namespace, &ca)).collect()
    };
    let configuration = |kind: &str, name: &str, webhooks: Vec<Value>| {
        json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
            "metadata": { "name": name }, "webhooks": webhooks,
        })
    };
    let validating = "ValidatingWebhookConfiguration";
    let mut judges = vec![evictions(&input.namespace, &ca)];
    judges.extend(webhooks(VALIDATORS, API_SERVICE));
    let mut out = vec![
        configuration(validating, "virt-api-validator", judges),
        configuration("MutatingWebhookConfiguration", MUTATORS_NAME, webhooks(MUTATORS, API_SERVICE)),
        configuration(validating, "virt-operator-validator", webhooks(OPERATOR_VALIDATORS, OPERATOR_SERVICE)),
    ];
    let machines = [("v1", 16), ("v1alpha3", 15)].map(|version| ("subresources.kubevirt.io", version));
    let [newer, older] = api::template::VERSIONS;
    let templates = [(newer, 16), (older, 15)].map(|version| (api::template::SUBRESOURCES, version));
    for (group, (version, priority)) in machines.into_iter().chain(templates) {
        out.push(json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": format!("{version}.{group}") },
            "spec": {
                "service": { "namespace": input.namespace, "name": API_SERVICE, "port": 443 },
                "group": group, "version": version, "caBundle": ca,
                "groupPriorityMinimum": 1000, "versionPriority": priority,
            },
        }));
    }
    out
}

/// Our own components write a machine's status many times; what they write is not defaulted or judged.
fn not_ours(namespace: &str) -> Value {
    let accounts = ["kubevirt-apiserver", "kubevirt-controller", "kubevirt-handler"];
    let users = accounts.map(|name| format!("'system:serviceaccount:{namespace}:{name}'")).join(", ");
    let expression = format!("request.operation != 'UPDATE' || !(request.userInfo.username in [{users}])");
    json!([{ "name": "not-our-components", "expression": expression }])
}

fn webhook(hook: &Hook, service: &str, namespace: &str, ca: &str) -> Value {
    let conditions = if hook.operations.contains(&"UPDATE") { not_ours(namespace) } else { json!([]) };
    json!({
        "matchConditions": conditions,
        "name": hook.name,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": {
            "service": { "namespace": namespace, "name": service, "path": hook.path, "port": 443 }, "caBundle": ca,
        },
        "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None", "timeoutSeconds": 10,
        "rules": [{
            "apiGroups": [hook.group], "apiVersions": hook.versions, "scope": "*",
            "operations": hook.operations, "resources": hook.resources,
        }],
    })
}
