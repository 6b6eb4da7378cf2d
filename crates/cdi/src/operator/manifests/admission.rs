//! Webhook configurations and the aggregated API, all served by cdi-apiserver.

use api::cdi::constants::label;
use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

use super::Input;

/// The Service in front of cdi-apiserver.
pub const SERVICE: &str = "cdi-api";

struct Hook {
    /// Name of the configuration, as upgrades of CDI expect it.
    configuration: &'static str,
    name: &'static str,
    path: &'static str,
    mutating: bool,
    operations: &'static [&'static str],
    resources: &'static [&'static str],
    /// An account of ours whose updates need no look.
    trusted: &'static str,
}

const HOOK: Hook = Hook {
    configuration: "",
    name: "",
    path: "",
    mutating: false,
    operations: &["CREATE", "UPDATE"],
    resources: &[],
    trusted: "cdi-sa",
};

const HOOKS: &[Hook] = &[
    Hook {
        configuration: "cdi-api-datavolume-validate",
        name: "datavolume-validate.cdi.kubevirt.io",
        path: "/datavolume-validate",
        resources: &["datavolumes"],
        ..HOOK
    },
    Hook {
        configuration: "cdi-api-datavolume-mutate",
        name: "datavolume-mutate.cdi.kubevirt.io",
        path: "/datavolume-mutate",
        mutating: true,
        resources: &["datavolumes"],
        ..HOOK
    },
    Hook {
        configuration: "cdi-api-validate",
        name: "cdi-validate.cdi.kubevirt.io",
        path: "/cdi-validate",
        operations: &["CREATE", "UPDATE", "DELETE"],
        resources: &["cdis"],
        trusted: "cdi-operator",
        ..HOOK
    },
    Hook {
        configuration: "objecttransfer-api-validate",
        name: "objecttransfer-validate.cdi.kubevirt.io",
        path: "/objecttransfer-validate",
        resources: &["objecttransfers"],
        ..HOOK
    },
    Hook {
        configuration: "cdi-api-dataimportcron-validate",
        name: "dataimportcron-validate.cdi.kubevirt.io",
        path: "/dataimportcron-validate",
        resources: &["dataimportcrons"],
        ..HOOK
    },
    Hook {
        configuration: "cdi-api-populator-validate",
        name: "populator-validate.cdi.kubevirt.io",
        path: "/populator-validate",
        resources: &["volumeimportsources", "volumeuploadsources"],
        ..HOOK
    },
    Hook {
        configuration: "cdi-api-datasource-validate",
        name: "datasource-validate.cdi.kubevirt.io",
        path: "/datasource-validate",
        resources: &["datasources"],
        ..HOOK
    },
];

/// The configurations and the APIServices.
pub fn render(input: &Input) -> Vec<Value> {
    let ca = BASE64_STANDARD.encode(&input.ca_bundle);
    let mut out: Vec<Value> = HOOKS.iter().map(|hook| configuration(hook, &input.namespace, &ca)).collect();
    if input.render_claims {
        out.push(claims(&input.namespace, &ca));
    }
    for (version, priority) in [("v1beta1", 16), ("v1alpha1", 15)] {
        out.push(json!({
            "apiVersion": "apiregistration.k8s.io/v1", "kind": "APIService",
            "metadata": { "name": format!("{version}.upload.cdi.kubevirt.io") },
            "spec": {
                "service": { "namespace": input.namespace, "name": SERVICE, "port": 443 },
                "group": "upload.cdi.kubevirt.io", "version": version, "caBundle": ca,
                "groupPriorityMinimum": 1000, "versionPriority": priority,
            },
        }));
    }
    out
}

fn webhook(name: &str, path: &str, namespace: &str, ca: &str, rule: &Value) -> Value {
    json!({
        "name": name,
        "admissionReviewVersions": ["v1", "v1beta1"],
        "clientConfig": {
            "service": { "namespace": namespace, "name": SERVICE, "path": path, "port": 443 }, "caBundle": ca,
        },
        "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None", "timeoutSeconds": 10,
        "rules": [rule],
    })
}

fn configuration(hook: &Hook, namespace: &str, ca: &str) -> Value {
    let rule = json!({
        "apiGroups": ["cdi.kubevirt.io"], "apiVersions": ["v1beta1", "v1alpha1"], "scope": "*",
        "operations": hook.operations, "resources": hook.resources,
    });
    let mut webhook = webhook(hook.name, hook.path, namespace, ca, &rule);
    let account = format!("system:serviceaccount:{namespace}:{}", hook.trusted);
    let expression = format!("request.operation != 'UPDATE' || request.userInfo.username != '{account}'");
    webhook["matchConditions"] = json!([{ "name": "not-our-component", "expression": expression }]);
    let kind = if hook.mutating { "MutatingWebhookConfiguration" } else { "ValidatingWebhookConfiguration" };
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": kind,
        "metadata": { "name": hook.configuration, "labels": { "cdi.kubevirt.io": SERVICE } }, "webhooks": [webhook],
    })
}

/// Claims are asked about only when they carry the label: all others are created without us.
fn claims(namespace: &str, ca: &str) -> Value {
    let rule = json!({
        "apiGroups": [""], "apiVersions": ["v1"], "scope": "Namespaced",
        "operations": ["CREATE"], "resources": ["persistentvolumeclaims"],
    });
    let mut webhook = webhook("pvc-mutate.cdi.kubevirt.io", "/pvc-mutate", namespace, ca, &rule);
    webhook["objectSelector"] = json!({ "matchLabels": { label::APPLY_STORAGE_PROFILE: "true" } });
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": { "name": "cdi-api-pvc-mutate", "labels": { "cdi.kubevirt.io": SERVICE } }, "webhooks": [webhook],
    })
}
