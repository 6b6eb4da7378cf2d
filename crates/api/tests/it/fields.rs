//! Every field of the API acts or has a row in [`api::unserved`], and never both.
//!
//! What acts is shown by `reads.txt`, which `cargo xtask codegen reads` makes of what the compiler knows: code of these crates reads
//! this field of this type, and admission, clients and tests do not count. A field acts if each step of its path is read.
//! Beside that stand lists by hand (`fields/by_hand.rs`), most with the code that acts: what is passed on whole, what is read as JSON or
//! acted on by admission, and what has nothing to act on. The test looks that code up, so that an entry ends with it, and it looks
//! for an access of each field in the crates that reads.txt names.
//!
//! What it does not show: that what is done with a value is right, which the tests of each crate do; for a type that stands in
//! several places (FeatureState), at which of them its fields are read; and that a field is still read where another
//! of the same name is read in the same crate, until reads.txt is made again (`cargo xtask codegen reads --check`).

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use api::unserved::{
    ANNOTATIONS, CDI, CDI_FEATURE_GATES, DATA_VOLUME, FEATURE_GATES, HOSTPATH, INSTANCE, KUBEVIRT, LABELS, MACHINE,
    Row, When,
};

mod by_hand;

use by_hand::{INERT, OTHERWISE, WHOLE};

/// The files that have types of the API, by the module that reads.txt calls them by.
const SOURCES: [(&str, &str); 3] = [
    ("kubevirt_v1", "crates/api/src/generated/kubevirt_v1.rs"),
    ("cdi_v1beta1", "crates/api/src/generated/cdi_v1beta1.rs"),
    ("hpp", "crates/api/src/hpp.rs"),
];

/// A schema: its name, the type of what is at `path`, and the rows for it.
struct Root {
    name: &'static str,
    of: (&'static str, &'static str),
    path: &'static str,
    rows: &'static [Row],
}

const ROOTS: [Root; 6] = [
    Root {
        name: "VirtualMachineInstance",
        of: ("kubevirt_v1", "VirtualMachineInstanceSpec"),
        path: "",
        rows: INSTANCE,
    },
    Root { name: "VirtualMachine", of: ("kubevirt_v1", "VirtualMachineSpec"), path: "spec", rows: MACHINE },
    Root { name: "KubeVirt", of: ("kubevirt_v1", "KubeVirtSpec"), path: "spec", rows: KUBEVIRT },
    Root { name: "CDI", of: ("cdi_v1beta1", "CDISpec"), path: "spec", rows: CDI },
    Root { name: "DataVolume", of: ("cdi_v1beta1", "DataVolumeSpec"), path: "spec", rows: DATA_VOLUME },
    Root { name: "HostPathProvisioner", of: ("hpp", "Spec"), path: "spec", rows: HOSTPATH },
];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn source(file: &str) -> String {
    std::fs::read_to_string(root().join(file)).unwrap_or_else(|error| panic!("{file}: {error}"))
}

/// The crates that read each field, by module, type and field.
fn reads() -> BTreeMap<String, Vec<String>> {
    let list = source("crates/api/tests/it/reads.txt");
    let lines = list.lines().filter(|line| !line.starts_with('#'));
    lines
        .map(|line| {
            let mut words = line.split(' ').map(str::to_owned);
            (words.next().unwrap_or_default(), words.collect())
        })
        .collect()
}

/// One field of a type: as the code and as the API calls it, and what it is.
struct Field {
    name: String,
    key: String,
    of: String,
}

type Types = BTreeMap<(String, String), Vec<Field>>;

fn camel(name: &str) -> String {
    let mut parts = name.split('_');
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |all, part| {
        let mut letters = part.chars();
        let upper = letters.next().map(|letter| letter.to_ascii_uppercase());
        all + &upper.into_iter().chain(letters).collect::<String>()
    })
}

fn types() -> Types {
    let mut types = Types::new();
    for (module, file) in SOURCES {
        let (mut open, mut renamed): (Option<String>, Option<String>) = (None, None);
        for line in source(file).lines() {
            if let Some(name) = line.strip_prefix("pub struct ").and_then(|rest| rest.strip_suffix(" {")) {
                open = Some(name.to_owned());
                types.insert((module.to_owned(), name.to_owned()), Vec::new());
            } else if line == "}" {
                open = None;
            } else if let Some((_, rest)) = line.split_once("rename = \"") {
                renamed = rest.split('"').next().map(str::to_owned);
            } else if let Some((name, of)) = line.strip_prefix("    pub ").and_then(|rest| rest.split_once(": "))
                && let Some(of) = of.strip_suffix(',')
                && let Some(fields) = open.as_ref().and_then(|open| types.get_mut(&(module.to_owned(), open.clone())))
            {
                let key = renamed.take().unwrap_or_else(|| camel(name));
                fields.push(Field { name: name.to_owned(), key, of: of.to_owned() });
            }
        }
    }
    types
}

/// The type below lists, maps and options, and how paths write that: `[]` and `{}`.
fn inner(mut of: &str) -> (&str, String) {
    let mut suffix = String::new();
    loop {
        let Some(rest) = of.strip_suffix('>') else { return (of, suffix) };
        if let Some(one) = rest.strip_prefix("Option<").or_else(|| rest.strip_prefix("Box<")) {
            of = one;
        } else if let Some(one) = rest.strip_prefix("Vec<") {
            (of, suffix) = (one, suffix + "[]");
        } else if let Some(one) = rest.strip_prefix("std::collections::BTreeMap<String, ") {
            (of, suffix) = (one, suffix + "{}");
        } else {
            return (of, suffix);
        }
    }
}

/// A path of a schema, and the fields that lead there: module, type and name.
struct Leaf {
    path: String,
    steps: Vec<(String, String)>,
}

fn leaves(types: &Types, of: &(String, String), path: &str, steps: &[(String, String)], found: &mut Vec<Leaf>) {
    for field in &types[of] {
        let (one, suffix) = inner(&field.of);
        let below = match one.strip_prefix("super::").and_then(|rest| rest.split_once("::")) {
            Some((module, name)) => (module.to_owned(), name.to_owned()),
            None => (of.0.clone(), one.to_owned()),
        };
        let path = if path.is_empty() { field.key.clone() } else { format!("{path}.{}", field.key) } + &suffix;
        let mut steps = steps.to_vec();
        steps.push((format!("{}::{}::{}", of.0, of.1, field.name), path.clone()));
        // The template is an instance, which has its own root.
        if types.contains_key(&below) && of.1 != "VirtualMachineInstanceTemplateSpec" {
            leaves(types, &below, &path, &steps, found);
        } else {
            found.push(Leaf { path, steps });
        }
    }
}

fn all(types: &Types, root: &Root) -> Vec<Leaf> {
    let mut found = Vec::new();
    leaves(types, &(root.of.0.to_owned(), root.of.1.to_owned()), root.path, &[], &mut found);
    found
}

fn plain(path: &str) -> String {
    path.replace("[]", "").replace("{}", "")
}

/// Whether `path` is what a row or an entry at `place` is about.
fn covers(place: &str, path: &str) -> bool {
    let (place, path) = (plain(place), plain(path));
    path == place || path.strip_prefix(&place).is_some_and(|rest| rest.starts_with('.'))
}

/// The parts of a crate's sources that are no tests, without comments.
fn production(name: &str) -> String {
    fn collect(directory: &Path, all: &mut String) {
        for entry in std::fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                collect(&entry, all);
            } else if entry.extension().is_some_and(|kind| kind == "rs") && !entry.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&entry).unwrap();
                let code = text.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
                let code = code.lines().filter(|line| !line.trim_start().starts_with("//"));
                code.for_each(|line| all.extend([line, "\n"]));
            }
        }
    }
    let mut all = String::new();
    collect(&root().join("crates").join(name).join("src"), &mut all);
    all
}

#[derive(Default)]
struct Code {
    crates: BTreeMap<String, String>,
}

impl Code {
    fn of(&mut self, name: &str) -> &str {
        self.crates.entry(name.to_owned()).or_insert_with(|| production(name))
    }

    /// Whether code of one of `crates` accesses something called `field`.
    fn accesses(&mut self, crates: &[String], field: &str) -> bool {
        let inside = |c: char| c.is_ascii_alphanumeric() || c == '_';
        crates.iter().any(|name| {
            let code = self.of(name);
            code.match_indices(field).any(|(at, _)| {
                let before = code[..at].chars().next_back().unwrap_or(' ');
                let after = code[at + field.len()..].chars().next().unwrap_or(' ');
                !inside(before) && !inside(after) && after != '('
            })
        })
    }
}

/// What is wrong with the entries of a list by hand: code that is not there, or a place that is not in the schema.
fn stale(code: &mut Code, list: &[(&str, &str, &str, &str)], known: &BTreeMap<&str, Vec<Leaf>>) -> Vec<String> {
    let mut wrong = Vec::new();
    for (schema, place, name, text) in list {
        if !code.of(name).contains(text) {
            wrong.push(format!("{schema} {place}: crates/{name} has no code {text:?}"));
        }
        if !known[schema].iter().any(|leaf| covers(place, &leaf.path)) {
            wrong.push(format!("{schema} {place}: the schema has no such field"));
        }
    }
    wrong
}

#[test]
fn every_field_acts_or_is_listed() {
    let (types, reads, mut code) = (types(), reads(), Code::default());
    let known: BTreeMap<&str, Vec<Leaf>> = ROOTS.iter().map(|root| (root.name, all(&types, root))).collect();
    let mut wrong = stale(&mut code, WHOLE, &known);
    wrong.extend(stale(&mut code, OTHERWISE, &known));
    for (schema, place, _) in INERT {
        if !known[schema].iter().any(|leaf| covers(place, &leaf.path)) {
            wrong.push(format!("{schema} {place}: the schema has no such field"));
        }
    }
    for root in &ROOTS {
        // A row about one value of a field that acts says nothing about the others.
        let rows: Vec<&Row> = root.rows.iter().filter(|row| !matches!(row.when, When::Value(_))).collect();
        for leaf in &known[root.name] {
            let listed = rows.iter().filter(|row| covers(row.path, &leaf.path)).count();
            let entry = |list: &[(&str, &str, &str, &str)]| {
                let of = list.iter().find(|(schema, place, ..)| *schema == root.name && covers(place, &leaf.path));
                of.map(|(_, place, ..)| plain(place))
            };
            let whole = entry(WHOLE);
            // Below what is passed on whole nothing need be read.
            let steps = leaf
                .steps
                .iter()
                .take_while(|(_, path)| whole.as_ref().is_none_or(|whole| plain(path).len() <= whole.len()));
            let inert = INERT.iter().any(|(schema, place, _)| *schema == root.name && covers(place, &leaf.path));
            let otherwise = inert || entry(OTHERWISE).is_some();
            let acts = otherwise
                || steps.into_iter().all(|(field, _)| {
                    let name = field.rsplit("::").next().unwrap_or_default();
                    reads.get(field).is_some_and(|crates| code.accesses(crates, name))
                });
            let by_hand = whole.is_some() || otherwise;
            match (listed, acts) {
                (0, true) => {}
                (0, false) => wrong.push(format!(
                    "{} {}: no code that acts reads it, and crates/api/src/unserved has no row for it",
                    root.name, leaf.path
                )),
                (1, _) if by_hand => wrong.push(format!("{} {}: listed, and said to act", root.name, leaf.path)),
                (1, _) => {}
                _ => wrong.push(format!("{} {}: listed twice", root.name, leaf.path)),
            }
        }
        for row in root.rows {
            let about = known[root.name].iter().any(|leaf| covers(row.path, &leaf.path));
            let elsewhere = row.path.starts_with("spec.template.");
            if !about && !elsewhere {
                wrong.push(format!("{} {}: a row for a field that the schema does not have", root.name, row.path));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn every_property_of_the_definitions_is_a_field() {
    let files = [
        ("VirtualMachineInstance", "virtualmachineinstances.kubevirt.io", ""),
        ("VirtualMachine", "virtualmachines.kubevirt.io", "spec"),
        ("KubeVirt", "kubevirts.kubevirt.io", "spec"),
        ("CDI", "cdis.cdi.kubevirt.io", "spec"),
        ("DataVolume", "datavolumes.cdi.kubevirt.io", "spec"),
        ("HostPathProvisioner", "hostpathprovisioners.hostpathprovisioner.kubevirt.io", "spec"),
    ];
    fn walk(schema: &serde_json::Value, path: &str, known: &BTreeSet<String>, missing: &mut Vec<String>) {
        let schema = if schema["items"].is_object() { &schema["items"] } else { schema };
        let schema = if schema["additionalProperties"].is_object() { &schema["additionalProperties"] } else { schema };
        let schema = if schema["items"].is_object() { &schema["items"] } else { schema };
        for (name, below) in schema["properties"].as_object().into_iter().flatten() {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            let leaf = known.contains(&path);
            let step = known.iter().any(|leaf| covers(&path, leaf));
            if !leaf && step {
                walk(below, &path, known, missing);
            } else if !leaf {
                missing.push(path);
            }
        }
    }
    let types = types();
    for ((name, file, path), root) in files.into_iter().zip(&ROOTS) {
        assert_eq!(name, root.name);
        let text = source(&format!("deploy/crds/{file}.yaml"));
        let definition: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let known: BTreeSet<String> = all(&types, root).iter().map(|leaf| plain(&leaf.path)).collect();
        let version = definition["spec"]["versions"].as_array().unwrap().iter().find(|one| one["storage"] == true);
        let schema = &version.unwrap()["schema"]["openAPIV3Schema"]["properties"]["spec"];
        let mut missing = Vec::new();
        walk(schema, path, &known, &mut missing);
        assert_eq!(missing, [""; 0], "{name}: crates/api has no such fields");
    }
}

#[test]
fn a_feature_gate_that_acts_is_asked_for() {
    let mut code = Code::default();
    for (crates, gates) in [
        (["virt-controller", "virt-api", "api"], FEATURE_GATES.as_slice()),
        (["cdi", "api", "kit"], &CDI_FEATURE_GATES),
    ] {
        for gate in gates {
            let table = format!("[\"{gate}\"");
            let asked = crates.iter().any(|name| {
                let code = code.of(name).replace(&table, "");
                code.lines().any(|line| line.contains(&format!("\"{gate}\"")) && !line.contains("_GATES"))
            });
            assert!(asked, "nothing asks for {gate}");
        }
    }
}

#[test]
fn no_code_reads_an_annotation_or_label_that_is_listed() {
    let mut code = Code::default();
    for name in ["domain", "virt-controller", "virt-handler", "virt-launcher", "virt-export"] {
        for row in ANNOTATIONS.iter().chain(LABELS) {
            assert!(!code.of(name).contains(&format!("\"{}\"", row.path)), "crates/{name} reads {}", row.path);
        }
    }
}
