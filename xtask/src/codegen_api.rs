//! Rust types of the APIs of virtualization, generated from OpenAPI documents: KubeVirt's own, and one of CDI's kinds.
//!
//! Core Kubernetes definitions become k8s-openapi types; everything else that a root reaches becomes a struct whose
//! JSON is the document's, field for field. A required field is a plain value, an optional one an `Option`, a list or
//! a map is empty when it is absent. A large optional structure is boxed: most machines leave most of them out, and
//! values that nest by value grow to kilobytes that every move copies and every frame of a decoder holds.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde_json::Value;

/// A kind served by the API server.
struct Kind {
    definition: &'static str,
    plural: &'static str,
    group: &'static str,
    namespaced: bool,
}

const fn namespaced(definition: &'static str, plural: &'static str) -> Kind {
    Kind { definition, plural, group: "kubevirt.io", namespaced: true }
}

const fn cdi(definition: &'static str, plural: &'static str, namespaced: bool) -> Kind {
    Kind { definition, plural, group: "cdi.kubevirt.io", namespaced }
}

const fn snapshot(definition: &'static str, plural: &'static str) -> Kind {
    Kind { definition, plural, group: "snapshot.kubevirt.io", namespaced: true }
}

const KINDS: &[Kind] = &[
    namespaced("v1.VirtualMachine", "virtualmachines"),
    namespaced("v1.VirtualMachineInstance", "virtualmachineinstances"),
    namespaced("v1.VirtualMachineInstanceMigration", "virtualmachineinstancemigrations"),
    namespaced("v1.VirtualMachineInstanceReplicaSet", "virtualmachineinstancereplicasets"),
    namespaced("v1.VirtualMachineInstancePreset", "virtualmachineinstancepresets"),
    namespaced("v1.KubeVirt", "kubevirts"),
    Kind {
        definition: "v1alpha1.MigrationPolicy",
        plural: "migrationpolicies",
        group: "migrations.kubevirt.io",
        namespaced: false,
    },
    snapshot("v1beta1.VirtualMachineSnapshot", "virtualmachinesnapshots"),
    snapshot("v1beta1.VirtualMachineSnapshotContent", "virtualmachinesnapshotcontents"),
    snapshot("v1beta1.VirtualMachineRestore", "virtualmachinerestores"),
    Kind {
        definition: "v1beta1.VirtualMachineClone",
        plural: "virtualmachineclones",
        group: "clone.kubevirt.io",
        namespaced: true,
    },
    Kind {
        definition: "v1beta1.VirtualMachinePool",
        plural: "virtualmachinepools",
        group: "pool.kubevirt.io",
        namespaced: true,
    },
    Kind {
        definition: "v1alpha1.VirtualMachineBackup",
        plural: "virtualmachinebackups",
        group: "backup.kubevirt.io",
        namespaced: true,
    },
    Kind {
        definition: "v1alpha1.VirtualMachineBackupTracker",
        plural: "virtualmachinebackuptrackers",
        group: "backup.kubevirt.io",
        namespaced: true,
    },
    Kind {
        definition: "v1.VirtualMachineExport",
        plural: "virtualmachineexports",
        group: "export.kubevirt.io",
        namespaced: true,
    },
    cdi("v1beta1.DataVolume", "datavolumes", true),
    cdi("v1beta1.DataSource", "datasources", true),
    cdi("v1beta1.DataImportCron", "dataimportcrons", true),
    cdi("v1beta1.StorageProfile", "storageprofiles", false),
    cdi("v1beta1.CDIConfig", "cdiconfigs", false),
    cdi("v1beta1.CDI", "cdis", false),
    cdi("v1beta1.ObjectTransfer", "objecttransfers", false),
    cdi("v1beta1.VolumeImportSource", "volumeimportsources", true),
    cdi("v1beta1.VolumeUploadSource", "volumeuploadsources", true),
    cdi("v1beta1.VolumeCloneSource", "volumeclonesources", true),
    Kind {
        definition: "v1beta1.UploadTokenRequest",
        plural: "uploadtokenrequests",
        group: "upload.cdi.kubevirt.io",
        namespaced: true,
    },
];

/// Bodies and answers of subresources.
const BODIES: &[&str] = &[
    "v1.StartOptions",
    "v1.StopOptions",
    "v1.RestartOptions",
    "v1.PauseOptions",
    "v1.UnpauseOptions",
    "v1.MigrateOptions",
    "v1.EvacuateCancelOptions",
    "v1.FreezeUnfreezeTimeout",
    "v1alpha1.BackupOptions",
    "v1alpha1.BackupCheckpoint",
    "v1.AddVolumeOptions",
    "v1.RemoveVolumeOptions",
    "v1.VirtualMachineInstanceGuestAgentInfo",
    "v1.VirtualMachineInstanceGuestOSUserList",
    "v1.VirtualMachineInstanceFileSystemList",
];

/// A definition of a later document replaces an earlier one: KubeVirt's holds CDI's structures as of an older release.
const INPUTS: [&str; 2] = ["xtask/data/kubevirt-openapi.json", "xtask/data/cdi-openapi.json"];
/// What KubeVirt serves and its document leaves out, as its CRDs have it.
const LEFT_OUT: &str = "xtask/data/backup-openapi.json";
const CORE: &str = "k8s.io.api.core.v1.";
const META: &str = "k8s.io.apimachinery.pkg.apis.meta.v1.";

/// The size in words from which an optional structure is boxed.
const BOXED_FROM: usize = 16;

type Definitions = serde_json::Map<String, Value>;

/// Writes the files, or with `check` fails when one differs from what would be written.
pub(crate) fn run(root: &Path, check: bool) -> Result<()> {
    for (path, content) in generate(root)? {
        let content = format(&content).with_context(|| format!("formatting {}", path.display()))?;
        let target = root.join(&path);
        if check {
            let found = std::fs::read_to_string(&target).unwrap_or_default();
            if found != content {
                bail!("{} is out of date: run `cargo xtask codegen api`", path.display());
            }
        } else {
            if let Some(folder) = target.parent() {
                std::fs::create_dir_all(folder)?;
            }
            std::fs::write(&target, content).with_context(|| format!("writing {}", target.display()))?;
        }
    }
    Ok(())
}

fn format(source: &str) -> Result<String> {
    let mut child = Command::new("rustfmt")
        .args(["--edition", "2024", "--config", "max_width=120,use_small_heuristics=Max"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .context("starting rustfmt")?;
    let mut input = child.stdin.take().context("rustfmt has no input")?;
    let source = source.to_owned();
    let writer = std::thread::spawn(move || input.write_all(source.as_bytes()));
    let output = child.wait_with_output()?;
    writer.join().ok().context("writing to rustfmt")??;
    if !output.status.success() {
        bail!("rustfmt failed");
    }
    Ok(String::from_utf8(output.stdout)?)
}

/// The generated files below `root`, path and content, not yet formatted by rustfmt.
fn generate(root: &Path) -> Result<Vec<(PathBuf, String)>> {
    let definitions = &definitions(root)?;

    let mut reached = BTreeSet::new();
    for name in KINDS.iter().map(|kind| kind.definition).chain(BODIES.iter().copied()) {
        reach(definitions, name, &mut reached)?;
    }
    let mut modules: BTreeMap<&str, String> = BTreeMap::new();
    for name in &reached {
        let (group, short) = split(name)?;
        let definition = definitions.get(*name).with_context(|| format!("no definition {name}"))?;
        let out = modules.entry(module_of(group, short)?).or_default();
        let kind = KINDS.iter().find(|kind| kind.definition == *name);
        structure(out, definitions, (group, short), definition, kind).with_context(|| format!("generating {name}"))?;
    }
    let mut files = vec![(
        PathBuf::from("crates/api/src/generated.rs"),
        format!(
            "//! Types generated by `cargo xtask codegen api`.\n\n#![expect(missing_docs, reason = \"fields have the names of \
             the API, whose reference says what they are\")]\n\n{}",
            modules.keys().fold(String::new(), |all, module| all + &format!("pub mod {module};\n"))
        ),
    )];
    for (module, body) in modules {
        let header = format!("//! Generated by `cargo xtask codegen api` from {}.\n\n", INPUTS.join(" and "));
        files.push((PathBuf::from(format!("crates/api/src/generated/{module}.rs")), header + &body));
    }
    Ok(files)
}

fn definitions(root: &Path) -> Result<Definitions> {
    let mut all = Definitions::new();
    for input in INPUTS.into_iter().chain([LEFT_OUT]) {
        let text = std::fs::read_to_string(root.join(input)).with_context(|| format!("reading {input}"))?;
        let mut document: Value = serde_json::from_str(&text).with_context(|| format!("parsing {input}"))?;
        let found = document["definitions"].as_object_mut().with_context(|| format!("{input} has no definitions"))?;
        all.append(found);
    }
    Ok(all)
}

fn reach<'a>(definitions: &'a Definitions, name: &str, reached: &mut BTreeSet<&'a str>) -> Result<()> {
    if name.starts_with("k8s.io.") {
        return Ok(());
    }
    let (key, definition) = definitions.get_key_value(name).with_context(|| format!("no definition {name}"))?;
    if !reached.insert(key) {
        return Ok(());
    }
    let mut targets = Vec::new();
    references(definition, &mut targets);
    targets.into_iter().try_for_each(|target| reach(definitions, target, reached))
}

fn references<'a>(value: &'a Value, out: &mut Vec<&'a str>) {
    match value {
        Value::Object(map) => {
            if let Some(target) = map.get("$ref").and_then(Value::as_str) {
                out.push(target.trim_start_matches("#/definitions/"));
            }
            map.values().for_each(|child| references(child, out));
        }
        Value::Array(items) => items.iter().for_each(|child| references(child, out)),
        _ => {}
    }
}

fn split(name: &str) -> Result<(&str, &str)> {
    name.rsplit_once('.').with_context(|| format!("{name} has no version prefix"))
}

/// What several groups call v1beta1, by the beginnings of names: those of snapshots.kubevirt.io and of what they hold.
const OF_SNAPSHOTS: &[&str] = &[
    "VirtualMachine",
    "Volume",
    "Snapshot",
    "SourceIndication",
    "SourceSpec",
    "Condition",
    "Error",
    "PersistentVolumeClaim",
];
/// What is of version v1, and of exports.
const OF_EXPORTS: &[&str] = &["VirtualMachineExport", "Condition"];
/// Those that begin so, too, and are CDI's.
const OF_VOLUMES: &[&str] = &["VolumeImport", "VolumeUpload", "VolumeClone"];

/// What several groups call v1alpha1, by the beginnings of names: those of backups.
const OF_BACKUPS: &[&str] = &["VirtualMachineBackup", "Backup"];

/// What pools are made of.
const OF_POOLS: &[&str] =
    &["VirtualMachinePool", "VirtualMachineOpportunisticUpdateStrategy", "VirtualMachineTemplateSpec"];

fn module_of(version: &str, name: &str) -> Result<&'static str> {
    let begins = |with: &[&str]| with.iter().any(|start| name.starts_with(start));
    Ok(match version {
        "v1" if begins(OF_EXPORTS) => "export_v1",
        "v1" => "kubevirt_v1",
        "v1alpha1" if begins(OF_BACKUPS) => "backup_v1alpha1",
        "v1alpha1" => "migrations_v1alpha1",
        "v1beta1" if name.starts_with("VirtualMachineClone") => "clone_v1beta1",
        "v1beta1" if begins(OF_POOLS) => "pool_v1beta1",
        "v1beta1" if begins(OF_SNAPSHOTS) && !begins(OF_VOLUMES) => "snapshot_v1beta1",
        "v1beta1" => "cdi_v1beta1",
        other => bail!("no module for definitions of {other}"),
    })
}

/// The properties of a definition, and whether each is required.
fn properties(definition: &Value) -> impl Iterator<Item = (&String, &Value, bool)> {
    let required = definition["required"].as_array();
    let required = move |name: &str| required.is_some_and(|names| names.iter().any(|one| one == name));
    let properties = definition["properties"].as_object().into_iter().flatten();
    properties.map(move |(name, schema)| (name, schema, required(name)))
}

/// Roughly how many words a value of the definition takes in memory.
fn words(definitions: &Definitions, name: &str) -> usize {
    match (definitions.get(name), name.rsplit('.').next()) {
        (_, Some("Quantity" | "Time" | "IntOrString" | "Duration" | "RawExtension")) => 3,
        (_, Some("ObjectMeta")) => 38,
        // The rest of the core group: small structures, or unions whose members are small.
        (_, _) if name.starts_with("k8s.io.") => 12,
        (None, _) => 0,
        (Some(definition), _) => {
            properties(definition).map(|(_, schema, always)| field_words(definitions, schema, always)).sum()
        }
    }
}

fn field_words(definitions: &Definitions, schema: &Value, always: bool) -> usize {
    match (target(schema), schema["type"].as_str()) {
        (Some(_), _) if !always && boxed(definitions, schema) => 1,
        (Some(target), _) => words(definitions, target),
        (None, Some("boolean" | "integer" | "number")) => 1,
        (None, _) => 3,
    }
}

fn boxed(definitions: &Definitions, schema: &Value) -> bool {
    // Those of the core group are left as k8s-openapi's users expect them.
    target(schema).is_some_and(|name| !name.starts_with("k8s.io.") && words(definitions, name) >= BOXED_FROM)
}

/// The definition that a schema refers to.
fn target(schema: &Value) -> Option<&str> {
    schema["$ref"].as_str().map(|target| target.trim_start_matches("#/definitions/"))
}

fn structure(
    out: &mut String,
    definitions: &Definitions,
    (group, name): (&str, &str),
    definition: &Value,
    served: Option<&Kind>,
) -> Result<()> {
    let derives = if served.is_some() { "Deserialize" } else { "Serialize, serde::Deserialize" };
    write!(
        out,
        "#[derive(Clone, Debug, Default, PartialEq, serde::{derives})]\n#[serde(rename_all = \"camelCase\")]\n"
    )?;
    writeln!(out, "pub struct {name} {{")?;
    let mut fields = Vec::new();
    for (json, schema, required) in properties(definition) {
        if served.is_some() && matches!(json.as_str(), "apiVersion" | "kind") {
            continue;
        }
        let always = required || (served.is_some() && json == "metadata");
        let mut field =
            Field::new(module_of(group, name)?, json, schema, always).with_context(|| format!("field {json}"))?;
        if field.shape == Shape::Optional && boxed(definitions, schema) {
            field.kind = format!("Box<{}>", field.kind);
        }
        field.declare(out)?;
        fields.push(field);
    }
    out.push_str("}\n\n");
    if let Some(served) = served {
        kind(out, (group, name), served, &fields)?;
    }
    Ok(())
}

/// How a field behaves when it is absent or empty.
#[derive(PartialEq)]
enum Shape {
    Plain,
    Optional,
    Collection,
}

struct Field<'a> {
    json: &'a str,
    rust: String,
    kind: String,
    shape: Shape,
}

impl<'a> Field<'a> {
    fn new(module: &str, json: &'a str, schema: &Value, always: bool) -> Result<Self> {
        let (mut kind, collection) = rust_type(module, schema)?;
        // The document calls every Go `int` an int32; byte counts do not fit in one.
        if matches!(json, "totalBytes" | "usedBytes") {
            kind = "i64".to_owned();
        }
        let shape = match (collection, always) {
            (true, false) => Shape::Collection,
            (_, true) => Shape::Plain,
            (false, false) => Shape::Optional,
        };
        Ok(Self { json, rust: snake(json), kind, shape })
    }

    fn declare(&self, out: &mut String) -> Result<()> {
        let mut serde = Vec::new();
        if camel(self.rust.trim_end_matches('_')) != self.json || self.rust.ends_with('_') {
            serde.push(format!("rename = {:?}", self.json));
        }
        serde.push("default".to_owned());
        let quantity = "k8s_openapi::apimachinery::pkg::api::resource::Quantity";
        let read = match (&self.shape, self.kind.contains(quantity)) {
            (Shape::Optional, false) => None,
            (Shape::Optional, true) => Some("crate::wire::optional_quantity"),
            (Shape::Plain, true) if self.kind == quantity => Some("crate::wire::quantity"),
            (_, true) => Some("crate::wire::quantities"),
            (_, false) => Some("crate::wire::or_default"),
        };
        if let Some(read) = read {
            serde.push(format!("deserialize_with = {read:?}"));
        }
        let kind = match self.shape {
            Shape::Optional => {
                serde.push("skip_serializing_if = \"Option::is_none\"".to_owned());
                format!("Option<{}>", self.kind)
            }
            Shape::Collection => {
                let container = if self.kind.starts_with("Vec") { "Vec" } else { "BTreeMap" };
                let path = if container == "Vec" { "Vec" } else { "std::collections::BTreeMap" };
                serde.push(format!("skip_serializing_if = \"{path}::is_empty\""));
                self.kind.clone()
            }
            Shape::Plain => self.kind.clone(),
        };
        writeln!(out, "#[serde({})]\npub {}: {kind},", serde.join(", "), self.rust)?;
        Ok(())
    }
}

/// The type of a value, and whether it is a collection (empty means absent).
fn rust_type(module: &str, schema: &Value) -> Result<(String, bool)> {
    if let Some(target) = target(schema) {
        return Ok((named(module, target)?, false));
    }
    let kind = match &schema["type"] {
        Value::String(kind) => kind.as_str(),
        // The only lists of types: a nullable time and a port that is a number or a name.
        Value::Array(kinds) if kinds.contains(&Value::from("null")) => {
            return Ok(("k8s_openapi::apimachinery::pkg::apis::meta::v1::Time".to_owned(), false));
        }
        other => bail!("no Rust type for {other}"),
    };
    Ok(match (kind, schema["format"].as_str()) {
        ("string", Some("date-time")) => ("k8s_openapi::apimachinery::pkg::apis::meta::v1::Time".to_owned(), false),
        ("string", _) => ("String".to_owned(), false),
        ("boolean", _) => ("bool".to_owned(), false),
        ("integer", Some("int32" | "byte")) => ("i32".to_owned(), false),
        ("integer", _) => ("i64".to_owned(), false),
        ("number", _) => ("f64".to_owned(), false),
        ("array", _) => (format!("Vec<{}>", rust_type(module, &schema["items"])?.0), true),
        ("object", _) if schema.get("additionalProperties").is_some() => {
            let value = rust_type(module, &schema["additionalProperties"])?.0;
            (format!("std::collections::BTreeMap<String, {value}>"), true)
        }
        ("object", _) => ("serde_json::Value".to_owned(), false),
        (other, format) => bail!("no Rust type for {other} {format:?}"),
    })
}

fn named(module: &str, target: &str) -> Result<String> {
    if let Some(name) = target.strip_prefix(CORE) {
        return Ok(format!("k8s_openapi::api::core::v1::{name}"));
    }
    if target == "k8s.io.apimachinery.pkg.apis.meta.v1.Duration" {
        return Ok("String".to_owned());
    }
    if let Some(name) = target.strip_prefix(META) {
        return Ok(format!("k8s_openapi::apimachinery::pkg::apis::meta::v1::{name}"));
    }
    Ok(match target {
        "k8s.io.apimachinery.pkg.api.resource.Quantity" => {
            "k8s_openapi::apimachinery::pkg::api::resource::Quantity".to_owned()
        }
        "k8s.io.apimachinery.pkg.util.intstr.IntOrString" => {
            "k8s_openapi::apimachinery::pkg::util::intstr::IntOrString".to_owned()
        }
        "k8s.io.apimachinery.pkg.runtime.RawExtension" => "serde_json::Value".to_owned(),
        other => {
            let (version, name) = split(other)?;
            let home = module_of(version, name)?;
            if home == module { name.to_owned() } else { format!("super::{home}::{name}") }
        }
    })
}

/// What makes a struct a kind: its identity, its metadata, and `apiVersion` and `kind` in its JSON.
fn kind(out: &mut String, (version, name): (&str, &str), kind: &Kind, fields: &[Field<'_>]) -> Result<()> {
    let Kind { plural, group, namespaced, .. } = *kind;
    let scope = if namespaced { "Namespace" } else { "Cluster" };
    let api_version = format!("{group}/{version}");
    write!(
        out,
        "impl kube_core::Resource for {name} {{
            type DynamicType = ();
            type Scope = kube_core::{scope}ResourceScope;
            fn kind(_: &()) -> std::borrow::Cow<'_, str> {{ {name:?}.into() }}
            fn group(_: &()) -> std::borrow::Cow<'_, str> {{ {group:?}.into() }}
            fn version(_: &()) -> std::borrow::Cow<'_, str> {{ {version:?}.into() }}
            fn api_version(_: &()) -> std::borrow::Cow<'_, str> {{ {api_version:?}.into() }}
            fn plural(_: &()) -> std::borrow::Cow<'_, str> {{ {plural:?}.into() }}
            fn meta(&self) -> &k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {{ &self.metadata }}
            fn meta_mut(&mut self) -> &mut k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta {{
                &mut self.metadata
            }}
        }}

        impl serde::Serialize for {name} {{
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {{
                use serde::ser::SerializeStruct as _;
                let mut out = serializer.serialize_struct({name:?}, {})?;
                out.serialize_field(\"apiVersion\", {api_version:?})?;
                out.serialize_field(\"kind\", {name:?})?;\n",
        fields.len() + 2
    )?;
    for field in fields {
        let (rust, json) = (&field.rust, field.json);
        match field.shape {
            Shape::Optional => write!(
                out,
                "match &self.{rust} {{
                    Some({rust}) => out.serialize_field({json:?}, {rust})?,
                    None => out.skip_field({json:?})?,
                }}\n"
            )?,
            _ => writeln!(out, "out.serialize_field({json:?}, &self.{rust})?;")?,
        }
    }
    out.push_str("out.end()\n}\n}\n\n");
    Ok(())
}

/// `dedicatedIOThread` -> `dedicated_io_thread`, `activePods` -> `active_pods`, `type` -> `type_`.
fn snake(json: &str) -> String {
    let chars: Vec<char> = json.chars().collect();
    let mut out = String::new();
    for (i, &c) in chars.iter().enumerate() {
        if c.is_ascii_uppercase() && i > 0 {
            let before = chars[i - 1];
            // A capital inside a run opens a word only when a lower-case letter follows it (a plural `s` does not count).
            let next = chars.get(i + 1);
            let plural = next == Some(&'s') && chars.get(i + 2).is_none_or(char::is_ascii_uppercase);
            if !before.is_ascii_uppercase() || (next.is_some_and(char::is_ascii_lowercase) && !plural) {
                out.push('_');
            }
        }
        out.extend(if c == '-' { '_' } else { c.to_ascii_lowercase() }.to_lowercase());
    }
    if matches!(out.as_str(), "type" | "ref" | "match" | "use" | "virtual" | "static" | "enum" | "struct" | "final") {
        out.push('_');
    }
    out
}

/// What serde's `rename_all = "camelCase"` makes of a field name.
fn camel(rust: &str) -> String {
    let mut out = String::new();
    let mut upper = false;
    for c in rust.chars() {
        match c {
            '_' => upper = true,
            c if upper => {
                out.extend(c.to_uppercase());
                upper = false;
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::snake;

    #[track_caller]
    fn check(json: &str, expect: &str) {
        assert_eq!(snake(json), expect);
    }

    #[test]
    fn field_names() {
        check("activePods", "active_pods");
        check("dedicatedIOThread", "dedicated_io_thread");
        check("ipAddresses", "ip_addresses");
        check("podIPs", "pod_ips");
        check("autoattachVSOCK", "autoattach_vsock");
        check("cloudInitNoCloud", "cloud_init_no_cloud");
        check("type", "type_");
        check("efi", "efi");
    }
}
