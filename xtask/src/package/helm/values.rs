//! What who installs the chart may say, and how. Whatever else is said is refused by Helm, by its name.

use serde_json::{Value, json};

/// `values.yaml`.
pub(super) const VALUES: &str = r#"image:
  # host[:port][/path] to which `ferrovirt images push` sent the images
  registry: ""
  # the chart's appVersion unless it is said
  tag: ""
  # sha256:…, in place of the tag
  digests:
    component: ""
    launcher: ""
    tektonTasks: ""
    # of Tekton's tasks that change disks, which alone need it
    guestfs: ""
  pullPolicy: IfNotPresent

# Where the operators run, beside what they need in any case.
operators:
  nodeSelector: {}
  tolerations: []
  affinity: {}
  priorityClassName: ""

# The object from which everything else follows.
hyperConverged:
  create: true
  annotations: {}
  # fields of spec of hco.kubevirt.io/v1, such as virtualization.evictionStrategy
  spec: {}

# Volumes out of directories of the nodes, where there is no other storage.
storage:
  create: false
  path: /var/hpvolumes
  defaultClass: true

# Whether the definitions, and with them every object of their kinds, outlive the release.
crds:
  keep: true
"#;

/// `values.schema.json`.
pub(super) fn schema() -> String {
    let object =
        |properties: Value| json!({ "type": "object", "additionalProperties": false, "properties": properties });
    let (text, switch) = (json!({ "type": "string" }), json!({ "type": "boolean" }));
    let (map, list) = (json!({ "type": "object" }), json!({ "type": "array" }));
    let digest = json!({ "type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$" });
    let mut schema = object(json!({
        "image": object(json!({
            "registry": { "type": "string", "pattern": "^[^\\s\"]*[^/\\s\"]$|^$", "not": { "pattern": "://" } }, "tag": text,
            "digests": object(json!({
                "component": digest, "launcher": digest, "tektonTasks": digest, "guestfs": digest,
            })),
            "pullPolicy": { "enum": ["Always", "IfNotPresent", "Never"] },
        })),
        "operators": object(json!({ "nodeSelector": map, "tolerations": list, "affinity": map, "priorityClassName": text })),
        "hyperConverged": object(json!({ "create": switch, "annotations": map, "spec": map })),
        "storage": object(json!({ "create": switch, "path": { "type": "string", "pattern": "^/." }, "defaultClass": switch })),
        "crds": object(json!({ "keep": switch })),
        // Given by whoever uses the chart as a part of another.
        "global": map,
    }));
    schema["$schema"] = json!("http://json-schema.org/draft-07/schema#");
    format!("{schema:#}\n")
}
