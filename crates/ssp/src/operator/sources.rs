//! Boot sources: DataSources that machines of templates boot from, and DataImportCrons that keep them up to date. Pure.
//!
//! ```text
//! DataSource NAME ──▶ claim NAME, which somebody uploads
//!           or, when a cron keeps it ──▶ what CDI imported last
//! ```
//!
//! A DataSource is a cron's when one names it, and it is labelled so already or its claim is not there: what somebody uploaded is
//! not replaced until they take it away, or set the label. On clusters of several architectures there is a DataSource of each, and one
//! of the plain name that leads to the default's.

use std::collections::{BTreeMap, BTreeSet};

use api::cdi::constants::label::DATA_IMPORT_CRON;
use api::cdi::v1beta1::{DataImportCron, DataSource};
use kube::ResourceExt;
use serde_json::{Map, Value, json};
use sha2::{Digest, Sha256};

use super::MANAGER;
use super::architectures::Architectures;
use super::manifests::images::OPERAND;
use super::manifests::{self, TEMPLATING};
use crate::object::{CommonTemplates, CronTemplate};
use crate::templates::system::Architecture;
use crate::templates::{self, source as of_architecture};
use crate::words::{ARCHITECTURE, IMAGES};

/// On the template of a cron: the architectures that its image has, separated by commas.
pub const CRON_ARCHITECTURES: &str = "ssp.kubevirt.io/dict.architectures";
/// On the cron of one architecture: the DataSource's name without it.
const PLAIN_SOURCE: &str = "cdi.kubevirt.io/storage.import.datasource-name";
/// On a cron: names the spec it was made with, which cannot change.
const MADE_WITH: &str = "operator.ssp.kubevirt.io/spec";

/// A DataSource that is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Boot {
    /// Its name.
    pub name: String,
    /// The architecture of its disk, on clusters of several.
    pub architecture: Option<Architecture>,
    /// The DataSource that it leads to; none when it leads to the claim of its own name.
    pub leads_to: Option<String>,
    /// The cron that names it.
    pub cron: Option<String>,
}

/// What is to be.
#[derive(Clone, Debug, Default)]
pub struct Wanted {
    /// DataSources, all in the one namespace.
    pub boots: Vec<Boot>,
    /// DataImportCrons, as manifests.
    pub crons: Vec<Value>,
}

/// What is there.
#[derive(Clone, Copy, Debug)]
pub struct Seen<'a> {
    /// The DataSources of the namespace, whoever made them.
    pub sources: &'a [DataSource],
    /// The DataImportCrons that this operator made, wherever they are.
    pub crons: &'a [DataImportCron],
    /// Names of the claims of the namespace.
    pub claims: &'a BTreeSet<String>,
}

/// One change.
#[derive(Clone, Debug, PartialEq)]
pub enum Step {
    /// What is to be made.
    Create(Value),
    /// What is to be merged into an object, which the first part names.
    Merge(Value, Value),
    /// What is to go.
    Delete(Value),
}

/// Labels of what is made here.
fn labels(more: &BTreeMap<String, String>) -> Value {
    manifests::labels(OPERAND, TEMPLATING, more)
}

fn place(kind: &str, namespace: &str, name: &str) -> Value {
    json!({
        "apiVersion": "cdi.kubevirt.io/v1beta1", "kind": kind, "metadata": { "name": name, "namespace": namespace },
    })
}

/// What the object asks for; `more` are labels of it that everything carries.
pub fn wanted(spec: &CommonTemplates, architectures: &Architectures, more: &BTreeMap<String, String>) -> Wanted {
    let crons: Vec<Value> = spec
        .data_import_cron_templates
        .iter()
        .flat_map(|template| cron_manifests(template, architectures, more))
        .collect();
    let keeps: BTreeMap<&str, &str> = crons
        .iter()
        .filter(|cron| cron["metadata"]["namespace"] == IMAGES)
        .filter_map(|cron| Some((cron["spec"]["managedDataSource"].as_str()?, cron["metadata"]["name"].as_str()?)))
        .collect();
    let mut boots = BTreeMap::new();
    let mut add = |name: String, architecture, leads_to: Option<String>| {
        let cron = keeps.get(name.as_str()).map(|cron| (*cron).to_owned());
        // What a cron keeps itself leads nowhere else.
        let leads_to = leads_to.filter(|_| cron.is_none());
        boots.entry(name.clone()).or_insert(Boot { name, architecture, leads_to, cron });
    };
    for architecture in &architectures.all {
        for template in templates::all(*architecture, architectures.several) {
            add(template.source(), architectures.several.then_some(*architecture), None);
        }
    }
    if architectures.several {
        let default = architectures.default();
        let plain = crons.iter().filter_map(|cron| cron["metadata"]["labels"][PLAIN_SOURCE].as_str());
        let named =
            architectures.all.iter().flat_map(|one| templates::all(*one, false)).map(|template| template.source());
        let names: BTreeSet<String> = named.chain(plain.map(str::to_owned)).collect();
        for name in names {
            let leads_to = of_architecture(&name, default, true);
            add(name, None, Some(leads_to));
        }
    }
    Wanted { boots: boots.into_values().collect(), crons }
}

/// The crons of a template: one, or one of each architecture that both the image and the cluster have.
fn cron_manifests(
    template: &CronTemplate,
    architectures: &Architectures,
    more: &BTreeMap<String, String>,
) -> Vec<Value> {
    let said =
        template.metadata.annotations.get(CRON_ARCHITECTURES).map(|said| said.trim()).filter(|said| !said.is_empty());
    match said.filter(|_| architectures.several) {
        None => vec![cron_manifest(template, None, more)],
        Some(said) => {
            let listed: Vec<&str> = said.split(',').map(str::trim).collect();
            let both = architectures.all.iter().filter(|architecture| listed.contains(&architecture.word()));
            both.map(|architecture| cron_manifest(template, Some(*architecture), more)).collect()
        }
    }
}

fn cron_manifest(
    template: &CronTemplate,
    architecture: Option<Architecture>,
    more: &BTreeMap<String, String>,
) -> Value {
    let metadata = &template.metadata;
    let namespace = if metadata.namespace.is_empty() { IMAGES } else { metadata.namespace.as_str() };
    let mut name = metadata.name.clone();
    let mut spec = template.spec.clone();
    let mut marks: BTreeMap<String, String> = metadata.labels.clone();
    let mut annotations = metadata.annotations.clone();
    annotations.remove(CRON_ARCHITECTURES);
    if let Some(architecture) = architecture {
        let plain = spec["managedDataSource"].as_str().unwrap_or_default().to_owned();
        name = of_architecture(&name, architecture, true);
        spec["managedDataSource"] = json!(of_architecture(&plain, architecture, true));
        if let Some(registry) = spec.pointer_mut("/template/spec/source/registry").and_then(Value::as_object_mut) {
            registry.insert("platform".to_owned(), json!({ "architecture": architecture.word() }));
        }
        marks.insert(ARCHITECTURE.to_owned(), architecture.word().to_owned());
        marks.insert(PLAIN_SOURCE.to_owned(), plain);
    }
    marks.extend(more.clone());
    let made: String = Sha256::digest(spec.to_string()).iter().take(20).map(|byte| format!("{byte:02x}")).collect();
    annotations.insert(MADE_WITH.to_owned(), made);
    let mut manifest = place("DataImportCron", namespace, &name);
    manifest["metadata"]["labels"] = labels(&marks);
    manifest["metadata"]["annotations"] = json!(annotations);
    manifest["spec"] = spec;
    manifest
}

/// The steps that lead from `seen` to `wanted`: DataSources before the crons that are to find them.
pub fn plan(wanted: &Wanted, seen: &Seen<'_>, more: &BTreeMap<String, String>) -> Vec<Step> {
    let mut steps = Vec::new();
    // What somebody has uploaded has no cron.
    let mut unkept = BTreeSet::new();
    for boot in &wanted.boots {
        let found = seen.sources.iter().find(|source| source.name_any() == boot.name);
        let labelled = found.is_some_and(|found| found.labels().contains_key(DATA_IMPORT_CRON));
        let kept = boot.cron.as_deref().filter(|_| labelled || !seen.claims.contains(&boot.name));
        if let Some(cron) = &boot.cron
            && kept.is_none()
        {
            unkept.insert(cron.as_str());
        }
        match found {
            None => steps.push(Step::Create(boot_manifest(boot, kept, more))),
            // It is made anew when it is gone.
            Some(found) if found.metadata.deletion_timestamp.is_some() => {}
            Some(found) => steps.extend(boot_change(boot, kept, found, more)),
        }
    }
    let names: BTreeSet<&str> = wanted.boots.iter().map(|boot| boot.name.as_str()).collect();
    let ours =
        |source: &&DataSource| source.labels().get("app.kubernetes.io/managed-by").is_some_and(|by| by == MANAGER);
    let gone = |source: &&DataSource| source.metadata.deletion_timestamp.is_some();
    for source in seen.sources.iter().filter(ours).filter(|source| !gone(source)) {
        if !names.contains(source.name_any().as_str()) {
            steps.push(Step::Delete(place("DataSource", IMAGES, &source.name_any())));
        }
    }
    let mut kept = BTreeSet::new();
    for cron in &wanted.crons {
        let (namespace, name) = (text(cron, "/metadata/namespace"), text(cron, "/metadata/name"));
        if namespace == IMAGES && unkept.contains(name) {
            continue;
        }
        kept.insert((namespace.to_owned(), name.to_owned()));
        let is_it =
            |found: &&DataImportCron| found.name_any() == name && found.namespace().as_deref() == Some(namespace);
        match seen.crons.iter().find(is_it) {
            None => steps.push(Step::Create(cron.clone())),
            Some(found) if found.metadata.deletion_timestamp.is_some() => {}
            Some(found) => steps.extend(cron_change(cron, found)),
        }
    }
    for cron in seen.crons.iter().filter(|cron| cron.metadata.deletion_timestamp.is_none()) {
        let (namespace, name) = (cron.namespace().unwrap_or_default(), cron.name_any());
        if !kept.contains(&(namespace.clone(), name.clone())) {
            steps.push(Step::Delete(place("DataImportCron", &namespace, &name)));
        }
    }
    steps
}

fn text<'a>(value: &'a Value, pointer: &str) -> &'a str {
    value.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

fn source_of(boot: &Boot) -> Value {
    match &boot.leads_to {
        Some(name) => json!({ "dataSource": { "name": name, "namespace": IMAGES } }),
        None => json!({ "pvc": { "name": boot.name, "namespace": IMAGES } }),
    }
}

fn boot_labels(boot: &Boot, kept: Option<&str>, more: &BTreeMap<String, String>) -> Value {
    let mut labels = labels(more);
    if let Some(architecture) = boot.architecture {
        labels[ARCHITECTURE] = json!(architecture.word());
    }
    if let Some(cron) = kept {
        labels[DATA_IMPORT_CRON] = json!(cron);
    }
    labels
}

fn boot_manifest(boot: &Boot, kept: Option<&str>, more: &BTreeMap<String, String>) -> Value {
    let mut manifest = place("DataSource", IMAGES, &boot.name);
    manifest["metadata"]["labels"] = boot_labels(boot, kept, more);
    manifest["spec"] = json!({ "source": source_of(boot) });
    manifest
}

/// Of one that a cron keeps, CDI says where it leads to. All others are as they are wanted, and say nothing of a cron.
fn boot_change(boot: &Boot, kept: Option<&str>, found: &DataSource, more: &BTreeMap<String, String>) -> Option<Step> {
    let mut change = json!({});
    if let Some(cron) = kept {
        if found.labels().get(DATA_IMPORT_CRON).is_none_or(|label| label != cron) {
            change["metadata"] = json!({ "labels": { (DATA_IMPORT_CRON): cron } });
        }
    } else {
        let mut labels = differing(found.labels(), &boot_labels(boot, None, more));
        if found.labels().contains_key(DATA_IMPORT_CRON) {
            labels.insert(DATA_IMPORT_CRON.to_owned(), Value::Null);
        }
        if !labels.is_empty() {
            change["metadata"] = json!({ "labels": labels });
        }
        let wanted = source_of(boot);
        let held = serde_json::to_value(&found.spec.source).unwrap_or_default();
        let held = held.as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
        let held: Map<String, Value> = held.map(|(key, value)| (key.clone(), value.clone())).collect();
        if Value::Object(held.clone()) != wanted {
            let mut source: Map<String, Value> = held.into_iter().map(|(key, _)| (key, Value::Null)).collect();
            source.extend(wanted.as_object().cloned().unwrap_or_default());
            change["spec"] = json!({ "source": source });
        }
    }
    let changes = change.as_object().is_some_and(|change| !change.is_empty());
    changes.then(|| Step::Merge(place("DataSource", IMAGES, &boot.name), change))
}

/// Those of `wanted` that are not so in `held`.
fn differing(held: &BTreeMap<String, String>, wanted: &Value) -> Map<String, Value> {
    let wanted = wanted.as_object().into_iter().flatten();
    let differs = |(key, value): &(&String, &Value)| held.get(*key).map(String::as_str) != value.as_str();
    wanted.filter(differs).map(|(key, value)| (key.clone(), value.clone())).collect()
}

/// The spec of a cron cannot change: one of another spec goes, and is made anew when it is gone.
fn cron_change(wanted: &Value, found: &DataImportCron) -> Option<Step> {
    let address = place("DataImportCron", text(wanted, "/metadata/namespace"), text(wanted, "/metadata/name"));
    let metadata = &wanted["metadata"];
    let spec = serde_json::to_value(&found.spec).unwrap_or_default();
    let made = found.annotations().get(MADE_WITH).map(String::as_str);
    if made != metadata["annotations"][MADE_WITH].as_str() || !is_within(&wanted["spec"], &spec) {
        return Some(Step::Delete(address));
    }
    let labels = differing(found.labels(), &metadata["labels"]);
    let annotations = differing(found.annotations(), &metadata["annotations"]);
    let changes = !labels.is_empty() || !annotations.is_empty();
    changes.then(|| Step::Merge(address, json!({ "metadata": { "labels": labels, "annotations": annotations } })))
}

/// Whether `held` says all that `wanted` does; others may have filled in more.
fn is_within(wanted: &Value, held: &Value) -> bool {
    match (wanted, held) {
        (Value::Object(wanted), held) if wanted.is_empty() => held.is_null() || held.is_object(),
        (Value::Object(wanted), Value::Object(held)) => {
            wanted.iter().all(|(key, wanted)| is_within(wanted, held.get(key).unwrap_or(&Value::Null)))
        }
        (Value::Array(wanted), Value::Null) => wanted.is_empty(),
        (Value::Array(wanted), Value::Array(held)) => {
            wanted.len() == held.len() && wanted.iter().zip(held).all(|(wanted, held)| is_within(wanted, held))
        }
        (wanted, held) => wanted == held,
    }
}

#[cfg(test)]
mod tests;
