//! How a Task is put together. Pure.

use serde_json::{Map, Value, json};

/// What images steps run in.
#[derive(Clone, Copy, Debug)]
pub(super) struct Images<'a> {
    /// That of the program.
    pub(super) tasks: &'a str,
    /// One with the tools of libguestfs beside it.
    pub(super) disk: &'a str,
    /// Version of the product.
    pub(super) version: &'a str,
}

/// A param: its name, what it is for, and what it is where nobody says; none has to be given.
pub(super) enum Param {
    Text(&'static str, &'static str, Option<&'static str>),
    List(&'static str, &'static str),
}

/// A Task.
pub(super) struct Task {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    pub(super) description: &'static str,
    pub(super) params: Vec<Param>,
    /// Name and what it is.
    pub(super) results: Vec<(&'static str, &'static str)>,
    pub(super) workspaces: Vec<String>,
    pub(super) steps: Vec<Value>,
    pub(super) volumes: Vec<Value>,
}

impl Task {
    /// What its steps do, without a name.
    pub(super) fn spec(&self) -> Value {
        let params: Vec<Value> = self.params.iter().map(param).collect();
        let mut spec = json!({ "description": self.description, "params": params, "steps": self.steps });
        let results = |(name, description): &(&str, &str)| json!({ "name": name, "description": description });
        put(&mut spec, "results", &self.results.iter().map(results).collect::<Vec<_>>());
        let workspaces = |name: &String| json!({ "name": name, "optional": true, "description": format!("An optional workspace {name}") });
        put(&mut spec, "workspaces", &self.workspaces.iter().map(workspaces).collect::<Vec<_>>());
        put(&mut spec, "volumes", &self.volumes);
        spec
    }

    pub(super) fn render(self, images: Images<'_>) -> Value {
        // Its tools are those of x86.
        let platforms =
            if self.name == "modify-windows-iso-file" { "linux/amd64" } else { "linux/amd64,linux/arm64,linux/s390x" };
        json!({
            "apiVersion": "tekton.dev/v1", "kind": "Task",
            "metadata": {
                "name": self.name,
                "labels": { "app.kubernetes.io/version": images.version },
                "annotations": {
                    "tekton.dev/pipelines.minVersion": "0.43.0", "tekton.dev/categories": "Automation",
                    "tekton.dev/tags": "kubevirt", "tekton.dev/displayName": self.title,
                    "tekton.dev/platforms": platforms, "artifacthub.io/category": "integration-delivery",
                    "artifacthub.io/provider": PROVIDER,
                    "artifacthub.io/maintainers": format!("- name: {PROVIDER}\n  email: {MAIL}\n"),
                    "artifacthub.io/recommendations": format!("- url: {HUB}/{}\n", beside(self.name)),
                },
            },
            "spec": self.spec(),
        })
    }
}

const PROVIDER: &str = "Ferrovirt";
const MAIL: &str = "maintainers@ferrovirt.example";
/// Where the hub describes the contract that the Tasks keep.
const HUB: &str = "https://artifacthub.io/packages/tekton-task/kubevirt-tekton-tasks";

/// The Task that one comes to want beside another.
fn beside(task: &str) -> &'static str {
    match task {
        "create-vm-from-manifest" | "create-vm-from-template" | "cleanup-vm" => "wait-for-vmi-status",
        "generate-ssh-keys" => "execute-in-vm",
        "execute-in-vm" => "generate-ssh-keys",
        "wait-for-vmi-status" => "cleanup-vm",
        "modify-data-object" | "copy-template" | "modify-vm-template" => "create-vm-from-manifest",
        _ => "modify-data-object",
    }
}

fn put(spec: &mut Value, field: &str, list: &[Value]) {
    if !list.is_empty() {
        spec[field] = json!(list);
    }
}

fn param(param: &Param) -> Value {
    match param {
        Param::Text(name, description, default) => {
            let mut out = json!({ "name": name, "type": "string", "description": description });
            if let Some(default) = default {
                out["default"] = json!(default);
            }
            out
        }
        Param::List(name, description) => {
            json!({ "name": name, "type": "array", "description": description, "default": [] })
        }
    }
}

/// A step of the program: `tekton-task WHAT`, with a flag for each param that a field of `given` names, results and lists last.
pub(super) fn step(name: &str, image: &str, args: &[String]) -> Value {
    json!({
        "name": name, "image": image, "imagePullPolicy": "IfNotPresent",
        "command": [crate::PROGRAM], "args": args,
        "env": [
            field("POD_NAME", "metadata.name"), field("POD_UID", "metadata.uid"),
            { "name": "HOME", "value": "/tmp" },
        ],
        "securityContext": unprivileged(),
    })
}

fn field(name: &str, path: &str) -> Value {
    json!({ "name": name, "valueFrom": { "fieldRef": { "apiVersion": "v1", "fieldPath": path } } })
}

/// Of no rights on its node.
pub(super) fn unprivileged() -> Value {
    json!({
        "runAsNonRoot": true, "runAsUser": 1001, "allowPrivilegeEscalation": false, "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    })
}

/// `--FLAG=$(params.NAME)`.
pub(super) fn text(flag: &str, param: &str) -> String {
    format!("--{flag}=$(params.{param})")
}

/// `--FLAG=$(results.NAME.path)`.
pub(super) fn result(flag: &str, name: &str) -> String {
    format!("--{flag}=$(results.{name}.path)")
}

/// Mounts of volumes, by name.
pub(super) fn mounted(mut step: Value, mounts: &[(&str, &str)]) -> Value {
    step["volumeMounts"] = mounts.iter().map(|(name, path)| json!({ "name": name, "mountPath": path })).collect();
    step
}

/// More fields of a step.
pub(super) fn with(mut step: Value, more: Value) -> Value {
    if let (Some(step), Value::Object(more)) = (step.as_object_mut(), more) {
        step.extend(more.into_iter().collect::<Map<_, _>>());
    }
    step
}
