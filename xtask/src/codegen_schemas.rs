//! Built-in schemas: k8s-openapi's types joined with the list, merge and default facts they lack.
//!
//! ```text
//! xtask/schemas (k8s-openapi + schemars) ─┐
//! data/k8s-schema-facts.json ─────────────┼─> crates/apimachinery/src/generated/schemas.json
//! data/k8s-resources.json ────────────────┴─> crates/kube-apiserver/src/generated/resources.json
//! ```
//!
//! What the types and fields are documented with, the words of the Kubernetes API itself (Apache-2.0), goes to a file of
//! its own, `descriptions.json`: nothing but documents needs it.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Map, Value, json};

const REFERENCE: &str = "#/components/schemas/";

/// Fields of newer API levels that nothing here acts on: to this server they are unknown, and so are refused or warned of by
/// name as any unknown field is.
const UNKNOWN: [(&str, &[&str]); 20] = [
    ("io.k8s.api.core.v1.Container", &["restartPolicyRules"]),
    ("io.k8s.api.core.v1.EphemeralContainer", &["restartPolicyRules"]),
    ("io.k8s.api.core.v1.EnvVarSource", &["fileKeyRef"]),
    ("io.k8s.api.core.v1.NodeStatus", &["declaredFeatures"]),
    ("io.k8s.api.core.v1.PodSpec", &["schedulingGroup"]),
    (
        "io.k8s.api.core.v1.PodStatus",
        &["allocatedResources", "extendedResourceClaimStatus", "nodeAllocatableResourceClaimStatuses", "resources"],
    ),
    ("io.k8s.api.core.v1.ResourceHealth", &["message"]),
    ("io.k8s.api.core.v1.VolumeMountStatus", &["volumeStatus"]),
    ("io.k8s.api.core.v1.VolumeProjection", &["podCertificate"]),
    ("io.k8s.api.resource.v1.AllocationResult", &["allocationTimestamp"]),
    (
        "io.k8s.api.resource.v1.Device",
        &[
            "allowMultipleAllocations",
            "bindingConditions",
            "bindingFailureConditions",
            "bindsToNode",
            "nodeAllocatableResourceMappings",
        ],
    ),
    ("io.k8s.api.resource.v1.DeviceAttribute", &["bools", "ints", "strings", "versions"]),
    ("io.k8s.api.resource.v1.DeviceCapacity", &["requestPolicy"]),
    ("io.k8s.api.resource.v1.DeviceClassSpec", &["extendedResourceName"]),
    ("io.k8s.api.resource.v1.DeviceConstraint", &["distinctAttribute"]),
    (
        "io.k8s.api.resource.v1.DeviceRequestAllocationResult",
        &["bindingConditions", "bindingFailureConditions", "consumedCapacity", "shareID"],
    ),
    ("io.k8s.api.resource.v1.DeviceSubRequest", &["capacity"]),
    ("io.k8s.api.resource.v1.ExactDeviceRequest", &["capacity"]),
    ("io.k8s.api.storage.v1.CSIDriverSpec", &["preventPodSchedulingIfMissing", "serviceAccountTokenInSecrets"]),
    ("io.k8s.apimachinery.pkg.apis.meta.v1.ListMeta", &["shardInfo"]),
];

/// Field labels beyond `metadata.name` and `metadata.namespace` which a list or watch may select by.
const SELECTABLE: [(&str, &[&str]); 10] = [
    (
        "v1 pods",
        &[
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.podIPs",
            "status.nominatedNodeName",
        ],
    ),
    (
        "v1 events",
        &[
            "involvedObject.kind",
            "involvedObject.namespace",
            "involvedObject.name",
            "involvedObject.uid",
            "involvedObject.apiVersion",
            "involvedObject.resourceVersion",
            "involvedObject.fieldPath",
            "reason",
            "reportingComponent",
            "source",
            "type",
        ],
    ),
    ("v1 secrets", &["type"]),
    ("v1 namespaces", &["status.phase"]),
    ("v1 nodes", &["spec.unschedulable"]),
    ("v1 services", &["spec.clusterIP", "spec.type"]),
    ("apps/v1 replicasets", &["status.replicas"]),
    ("batch/v1 jobs", &["status.successful"]),
    ("certificates.k8s.io/v1 certificatesigningrequests", &["spec.signerName"]),
    ("resource.k8s.io/v1 resourceslices", &["spec.nodeName", "spec.driver"]),
];

/// Struct types an applier owns as a whole: references and selectors, half of which would mean something else.
const ATOMIC: [&str; 21] = [
    "ConfigMapKeySelector",
    "CrossVersionObjectReference",
    "EndpointAddress",
    "EndpointPort",
    "LabelSelector",
    "LocalObjectReference",
    "NamedRuleWithOperations",
    "NodeSelector",
    "NodeSelectorTerm",
    "ObjectFieldSelector",
    "ObjectReference",
    "OwnerReference",
    "ParamKind",
    "ParamRef",
    "ResourceFieldSelector",
    "RoleRef",
    "ScopeSelector",
    "SecretKeySelector",
    "SecretReference",
    "Subject",
    "TypedLocalObjectReference",
];

pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    let facts = read(&root.join("xtask/data/k8s-schema-facts.json"))?;
    let mut types = dump(&root.join("xtask/schemas/Cargo.toml"))?;
    forget(&mut types)?;
    let mut descriptions = Descriptions::default();
    for (name, node) in &mut types {
        undescribe(name, node, &mut descriptions);
        tidy(node);
        special(name, node);
        match facts["required"].get(name) {
            Some(required) => node["required"] = required.clone(),
            None => {
                node.as_object_mut().context("a definition is an object")?.remove("required");
            }
        }
    }
    join(&mut types, &facts)?;
    let resources = resources(&read(&root.join("xtask/data/k8s-resources.json"))?, &types)?;

    let descriptions = json!({"texts": descriptions.texts, "types": descriptions.types});
    for (file, value) in [
        ("apimachinery/src/generated/schemas.json", json!(types)),
        ("kube-apiserver/src/generated/resources.json", resources),
        ("kube-apiserver/src/generated/descriptions.json", descriptions),
    ] {
        let (path, text) = (root.join("crates").join(file), value.to_string() + "\n");
        if check {
            ensure!(
                std::fs::read_to_string(&path).is_ok_and(|old| old == text),
                "{file} is stale: run cargo xtask codegen schemas"
            );
        } else {
            std::fs::write(&path, text).with_context(|| format!("write {file}"))?;
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Value> {
    let text = std::fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("parse {}", path.display()))
}

fn dump(manifest: &Path) -> Result<BTreeMap<String, Value>> {
    let output = Command::new("cargo")
        .args(["run", "--quiet", "--locked", "--manifest-path"])
        .arg(manifest)
        .output()
        .context("run the schema dumper")?;
    ensure!(output.status.success(), "the schema dumper failed: {}", String::from_utf8_lossy(&output.stderr));
    serde_json::from_slice(&output.stdout).context("parse the schema dump")
}

/// Takes the fields of [`UNKNOWN`] away, and the types that nothing but these refers to.
fn forget(types: &mut BTreeMap<String, Value>) -> Result<()> {
    let before = referred(types);
    for (name, fields) in UNKNOWN {
        let node = types.get_mut(name).with_context(|| format!("there is no type {name}"))?;
        let properties = node.get_mut("properties").and_then(Value::as_object_mut).context("a type has fields")?;
        for field in fields {
            ensure!(properties.remove(*field).is_some(), "{name} has no field {field}");
        }
    }
    let mut standing = before;
    loop {
        let now = referred(types);
        let gone: Vec<String> = standing.difference(&now).cloned().collect();
        if gone.is_empty() {
            return Ok(());
        }
        gone.iter().for_each(|name| drop(types.remove(name)));
        standing = now;
    }
}

/// The types that others refer to.
fn referred(types: &BTreeMap<String, Value>) -> BTreeSet<String> {
    fn collect(node: &Value, into: &mut BTreeSet<String>) {
        match node {
            Value::Object(map) => {
                if let Some(Value::String(name)) = map.get("$ref") {
                    into.insert(name.trim_start_matches(REFERENCE).to_owned());
                }
                map.values().for_each(|value| collect(value, into));
            }
            Value::Array(items) => items.iter().for_each(|item| collect(item, into)),
            _ => {}
        }
    }
    let mut all = BTreeSet::new();
    types.values().for_each(|node| collect(node, &mut all));
    all
}

/// Each text once, and which type and field (the empty one: the type itself) it describes.
#[derive(Default)]
struct Descriptions {
    texts: Vec<String>,
    known: BTreeMap<String, usize>,
    types: BTreeMap<String, BTreeMap<String, usize>>,
}

impl Descriptions {
    fn add(&mut self, name: &str, field: &str, text: &str) {
        let texts = &mut self.texts;
        let index = *self.known.entry(text.to_owned()).or_insert_with(|| {
            texts.push(text.to_owned());
            texts.len() - 1
        });
        self.types.entry(name.to_owned()).or_default().insert(field.to_owned(), index);
    }
}

/// Moves the documentation of a type and its fields out of its schema.
fn undescribe(name: &str, node: &mut Value, descriptions: &mut Descriptions) {
    let mut take = |field: &str, node: &mut Value| {
        if let Some(Value::String(text)) = node.as_object_mut().and_then(|node| node.remove("description")) {
            descriptions.add(name, field, text.trim());
        }
    };
    take("", node);
    for (field, property) in node.get_mut("properties").and_then(Value::as_object_mut).into_iter().flatten() {
        take(field, property);
    }
}

/// `allOf` of one reference and long references become `{"$ref": "type"}`.
fn tidy(node: &mut Value) {
    match node {
        Value::Object(map) => {
            if let Some(Value::Array(all)) = map.get("allOf")
                && let [Value::Object(only)] = all.as_slice()
            {
                let only = only.clone();
                map.remove("allOf");
                map.extend(only);
            }
            if let Some(Value::String(reference)) = map.get_mut("$ref") {
                *reference = reference.trim_start_matches(REFERENCE).to_owned();
            }
            map.values_mut().for_each(tidy);
        }
        Value::Array(items) => items.iter_mut().for_each(tidy),
        _ => {}
    }
}

/// Types that hold anything, which a JSON schema dump describes as bare objects.
fn special(name: &str, node: &mut Value) {
    let short = name.rsplit('.').next().unwrap_or(name);
    match short {
        "RawExtension" | "FieldsV1" | "Patch" => {
            *node = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
        }
        "JSON" | "JSONSchemaPropsOrArray" | "JSONSchemaPropsOrBool" | "JSONSchemaPropsOrStringArray" => {
            *node = json!({"x-kubernetes-preserve-unknown-fields": true});
        }
        _ => {}
    }
}

/// Adds list types, merge keys and defaults to the fields. Facts about types or fields this version lacks are skipped.
fn join(types: &mut BTreeMap<String, Value>, facts: &Value) -> Result<()> {
    for (path, fact) in facts["lists"].as_object().context("facts hold lists")? {
        let Some(field) = field(types, path) else { continue };
        for (from, to) in [
            ("list", "x-kubernetes-list-type"),
            ("keys", "x-kubernetes-list-map-keys"),
            ("map", "x-kubernetes-map-type"),
            ("patch", "x-kubernetes-patch-strategy"),
            ("merge", "x-kubernetes-patch-merge-key"),
        ] {
            if let Some(value) = fact.get(from) {
                field.insert(to.to_owned(), value.clone());
            }
        }
    }
    for (path, default) in facts["defaults"].as_object().context("facts hold defaults")? {
        if let Some(field) = field(types, path) {
            field.insert("default".to_owned(), default.clone());
        }
    }
    for (name, node) in types.iter_mut() {
        if ATOMIC.contains(&name.rsplit('.').next().unwrap_or(name)) {
            node["x-kubernetes-map-type"] = json!("atomic");
        }
    }
    Ok(())
}

fn field<'a>(types: &'a mut BTreeMap<String, Value>, path: &str) -> Option<&'a mut Map<String, Value>> {
    let (name, field) = path.rsplit_once('.')?;
    types.get_mut(name)?.get_mut("properties")?.get_mut(field)?.as_object_mut()
}

/// The definition name of a kind, as upstream's OpenAPI documents spell it.
fn type_name(group: &str, version: &str, kind: &str) -> String {
    match group {
        "" => format!("io.k8s.api.core.{version}.{kind}"),
        "apiextensions.k8s.io" => format!("io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.{version}.{kind}"),
        "apiregistration.k8s.io" => format!("io.k8s.kube-aggregator.pkg.apis.apiregistration.{version}.{kind}"),
        _ => format!("io.k8s.api.{}.{version}.{kind}", group.split('.').next().unwrap_or(group)),
    }
}

fn resources(facts: &Value, types: &BTreeMap<String, Value>) -> Result<Value> {
    let facts = facts.as_array().context("resource facts are a list")?;
    let mut out = Vec::new();
    for main in facts {
        let (gv, plural, kind) = (text(main, "gv")?, text(main, "name")?, text(main, "kind")?);
        let label = format!("{gv} {plural}");
        if plural.contains('/') {
            continue;
        }
        let (group, version) = gv.rsplit_once('/').unwrap_or(("", gv));
        let name = type_name(group, version, kind);
        if !types.contains_key(&name) {
            continue; // newer than the API level served
        }
        let mut entry = json!({"group": group, "version": version, "kind": kind, "plural": plural, "type": name,
            "singular": main["singularName"], "namespaced": main["namespaced"], "verbs": main["verbs"]});
        for key in ["shortNames", "categories", "columns"] {
            if let Some(value) = main.get(key) {
                entry[key] = value.clone();
            }
        }
        let prefix = format!("{plural}/");
        let mut subresources = Vec::new();
        for sub in facts.iter().filter(|f| f["gv"] == main["gv"]) {
            if let Some(name) = text(sub, "name")?.strip_prefix(&prefix) {
                subresources.push(json!([name, sub["verbs"], sub["kind"]]));
            }
        }
        if !subresources.is_empty() {
            entry["subresources"] = json!(subresources);
        }
        if let Some((_, fields)) = SELECTABLE.iter().find(|(of, _)| *of == label) {
            entry["fields"] = json!(fields);
        }
        out.push(entry);
    }
    if out.is_empty() {
        bail!("no resource of the facts has a schema");
    }
    Ok(Value::Array(out))
}

fn text<'a>(node: &'a Value, key: &str) -> Result<&'a str> {
    node[key].as_str().with_context(|| format!("{key} is missing in {node}"))
}
