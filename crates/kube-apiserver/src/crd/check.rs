//! What a CustomResourceDefinition must say.

pub(crate) mod conversion;
mod names;
mod rules;
mod schema;
mod version;

use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

/// The words of the four kinds of field errors, for everything below.
pub(crate) fn required(field: &str, why: &str) -> Cause {
    let message = if why.is_empty() { "Required value".to_owned() } else { format!("Required value: {why}") };
    cause("FieldValueRequired", field, message)
}

pub(crate) fn invalid(field: &str, value: &Value, why: &str) -> Cause {
    // Kubernetes shows whole structures too; a word for them says as much.
    let shown = match value {
        Value::Array(_) | Value::Object(_) => Value::from(apimachinery::schema::validate::kind_of(value)),
        other => other.clone(),
    };
    cause("FieldValueInvalid", field, format!("Invalid value: {shown}: {why}"))
}

pub(crate) fn forbidden(field: &str, why: &str) -> Cause {
    cause("FieldValueForbidden", field, format!("Forbidden: {why}"))
}

pub(crate) fn unsupported(field: &str, value: &Value, known: &[&str]) -> Cause {
    let listed: Vec<String> = known.iter().map(|word| format!("{word:?}")).collect();
    let message = format!("Unsupported value: {value}: supported values: {}", listed.join(", "));
    cause("FieldValueNotSupported", field, message)
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

/// Adds a cause for everything that keeps a definition from being served.
pub(crate) fn validate(crd: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    let spec = &crd["spec"];
    names::check(crd, old, causes);
    if text(&spec["scope"]).is_empty() {
        causes.push(required("spec.scope", ""));
    } else {
        crate::validation::one_of("spec.scope", &spec["scope"], &["Cluster", "Namespaced"], causes);
    }
    if spec["preserveUnknownFields"] == true {
        let why = "must be false; set x-kubernetes-preserve-unknown-fields to true in the schema instead";
        causes.push(invalid("spec.preserveUnknownFields", &json!(true), why));
    }
    versions(spec, old, causes);
    conversion::check(&spec["conversion"], causes);
    stored_versions(crd, causes);
    approval(crd, old, causes);
}

fn versions(spec: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    let versions = spec["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut seen = std::collections::HashSet::new();
    let shared = version::Shared::of(versions);
    for (index, entry) in versions.iter().enumerate() {
        let name = text(&entry["name"]);
        let before = old.and_then(|old| old["spec"]["versions"].as_array()?.iter().find(|v| v["name"] == name));
        version::check(entry, before, index, &shared, causes);
        if !seen.insert(name) {
            causes.push(invalid("spec.versions", &spec["versions"], "must contain unique version names"));
        }
    }
    if versions.iter().filter(|version| version["storage"] == true).count() != 1 {
        let why = "must have exactly one version marked as storage version";
        causes.push(invalid("spec.versions", &spec["versions"], why));
    }
}

/// A version in which objects are stored stays until they are stored in another one.
fn stored_versions(crd: &Value, causes: &mut Vec<Cause>) {
    const FIELD: &str = "status.storedVersions";
    let stored = crd["status"]["storedVersions"].as_array().map(Vec::as_slice).unwrap_or_default();
    if stored.is_empty() {
        causes.push(invalid(FIELD, &json!([]), "must have at least one stored version"));
        return;
    }
    let versions = crd["spec"]["versions"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut unnamed: Vec<&str> = stored.iter().map(text).collect();
    for version in versions {
        let known = unnamed.iter().position(|name| *name == text(&version["name"])).map(|at| unnamed.remove(at));
        if known.is_none() && version["storage"] == true {
            let why = format!("must have the storage version {}", text(&version["name"]));
            causes.push(invalid(FIELD, &crd["status"]["storedVersions"], &why));
        }
    }
    for (index, name) in stored.iter().enumerate() {
        if unnamed.contains(&text(name)) {
            let name_text = text(name);
            let why = format!(
                "missing from spec.versions; {name_text} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name_text} and removes {name_text} from status.storedVersions"
            );
            causes.push(invalid(&format!("{FIELD}[{index}]"), name, &why));
        }
    }
}

/// What a definition says about the approval of a group that is Kubernetes' own.
pub(super) enum Approval {
    /// The group is somebody else's.
    NotNeeded,
    /// Approved there, or known not to be.
    Given(Result<String, String>),
    Missing,
    Unusable(String),
}

pub(super) const APPROVAL: &str = "api-approved.kubernetes.io";

pub(super) fn approval_of(crd: &Value) -> Approval {
    let group = text(&crd["spec"]["group"]);
    let guarded = |domain: &str| group == domain || group.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
    if !guarded("k8s.io") && !guarded("kubernetes.io") {
        return Approval::NotNeeded;
    }
    let said = text(&crd["metadata"]["annotations"][APPROVAL]);
    if said.is_empty() {
        return Approval::Missing;
    }
    if said.starts_with("unapproved") {
        return Approval::Given(Err(format!("not approved: {said:?}")));
    }
    match url::Url::parse(said) {
        Ok(url) if url.has_host() => Approval::Given(Ok(format!("approved in {said}"))),
        _ => Approval::Unusable(said.to_owned()),
    }
}

fn approval(crd: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    // What was stored without approval may stay so.
    if old.is_some_and(|old| !matches!(approval_of(old), Approval::NotNeeded | Approval::Given(_))) {
        return;
    }
    let field = format!("metadata.annotations[{APPROVAL}]");
    match approval_of(crd) {
        Approval::NotNeeded | Approval::Given(_) => {}
        Approval::Missing => {
            let why = format!(
                "protected groups must have approval annotation {APPROVAL:?}, see https://github.com/kubernetes/enhancements/pull/1111"
            );
            causes.push(required(&field, &why));
        }
        Approval::Unusable(said) => {
            let why = format!(
                "protected groups must have approval annotation {APPROVAL:?} with either a URL or a reason starting with \"unapproved\", see https://github.com/kubernetes/enhancements/pull/1111"
            );
            causes.push(invalid(&field, &said.into(), &why));
        }
    }
}

#[cfg(test)]
mod tests;
