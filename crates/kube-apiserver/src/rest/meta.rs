//! Object metadata: what the server sets, what it checks, when the generation moves on.

use serde_json::{Value, json};

use apimachinery::error::{ApiError, Cause};
use apimachinery::names::{
    label_name_problem, label_value_problem, path_segment_problem, qualified_name_problem, subdomain_problem,
};

use crate::registry::Resource;

/// A string below metadata, empty when absent.
pub(super) fn text<'a>(object: &'a Value, field: &str) -> &'a str {
    object["metadata"][field].as_str().unwrap_or_default()
}

/// The revision an object says it was made from; none, or 0, leaves that open.
pub(super) fn revision(object: &Value) -> Result<Option<u64>, ApiError> {
    let said = text(object, "resourceVersion");
    if said.is_empty() {
        return Ok(None);
    }
    // The code that Kubernetes answers with.
    let wrong = |_| ApiError::new(500, "", super::options::wrong_number(said));
    Ok(Some(said.parse().map_err(wrong)?).filter(|revision| *revision != 0))
}

/// Whether deletion has begun.
pub(super) fn terminating(object: &Value) -> bool {
    object["metadata"]["deletionTimestamp"].is_string()
}

/// Names of the finalizers.
pub(super) fn finalizers(object: &Value) -> Vec<&str> {
    object["metadata"]["finalizers"].as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

const IP_NAME: &str = "must be a valid IP address in canonical form, (e.g. 10.9.8.7 or 2001:db8::ffff)";

/// What is wrong with a name for this resource; None when nothing is. A prefix of names may end with a dash.
pub(super) fn name_problem(resource: &Resource, name: &str, prefix: bool) -> Option<&'static str> {
    let masked;
    let name = match name.strip_suffix('-').filter(|_| prefix) {
        Some(rest) => {
            masked = format!("{rest}a");
            &masked
        }
        None => name,
    };
    match (resource.group.as_str(), resource.plural.as_str()) {
        ("rbac.authorization.k8s.io" | "apiregistration.k8s.io", _)
        | ("policy", "poddisruptionbudgets")
        | ("certificates.k8s.io", _)
        | ("", "events") => path_segment_problem(name),
        ("", "services" | "namespaces") | ("apps", "statefulsets") => label_name_problem(name),
        ("networking.k8s.io", "ipaddresses") => {
            let canonical = name.parse::<std::net::IpAddr>().is_ok_and(|ip| ip.to_string() == name);
            (!canonical).then_some(IP_NAME)
        }
        _ => subdomain_problem(name),
    }
}

fn cause(field: &str, value: &Value, why: &str) -> Cause {
    Cause {
        reason: "FieldValueInvalid".into(),
        message: format!("Invalid value: {value}: {why}"),
        field: format!("metadata.{field}"),
    }
}

/// Checks names, labels, annotations, finalizers and owners.
pub(super) fn check(resource: &Resource, object: &Value, causes: &mut Vec<Cause>) {
    let metadata = &object["metadata"];
    let name = text(object, "name");
    if name.is_empty() {
        causes.push(Cause {
            reason: "FieldValueRequired".into(),
            message: "Required value: name or generateName is required".into(),
            field: "metadata.name".into(),
        });
    } else if let Some(why) = name_problem(resource, name, false) {
        causes.push(cause("name", &json!(name), why));
    }
    let generate = text(object, "generateName");
    if let Some(why) = name_problem(resource, generate, true).filter(|_| !generate.is_empty()) {
        causes.push(cause("generateName", &json!(generate), why));
    }
    if metadata["generation"].as_i64().is_some_and(|generation| generation < 0) {
        causes.push(cause("generation", &metadata["generation"], "must be greater than or equal to 0"));
    }
    for (key, value) in metadata["labels"].as_object().into_iter().flatten() {
        if let Some(why) = qualified_name_problem(key) {
            causes.push(cause("labels", &json!(key), &why));
        }
        if let Some(why) = label_value_problem(value.as_str().unwrap_or_default()) {
            causes.push(cause("labels", value, &why));
        }
    }
    let mut total = 0;
    for (key, value) in metadata["annotations"].as_object().into_iter().flatten() {
        total += key.len() + value.as_str().map_or(0, str::len);
        if let Some(why) = qualified_name_problem(&key.to_lowercase()) {
            causes.push(cause("annotations", &json!(key), &why));
        }
    }
    if total > 256 * 1024 {
        causes.push(Cause {
            reason: "FieldValueTooLong".into(),
            message: "Too long: may not be more than 262144 bytes".into(),
            field: "metadata.annotations".into(),
        });
    }
    check_finalizers(resource, &finalizers(object), causes);
    check_owners(&metadata["ownerReferences"], causes);
}

fn check_finalizers(resource: &Resource, finalizers: &[&str], causes: &mut Vec<Cause>) {
    const STANDARD: [&str; 3] = ["foregroundDeletion", "kubernetes", "orphan"];
    // Definitions and API services are served beside the rest, and as custom resources are.
    let beside = matches!(resource.group.as_str(), "apiextensions.k8s.io" | "apiregistration.k8s.io");
    let own = resource.crd.is_none() && !beside;
    for (index, finalizer) in finalizers.iter().enumerate() {
        if let Some(why) = qualified_name_problem(finalizer) {
            causes.push(cause("finalizers", &json!(finalizer), &why));
        } else if own && !finalizer.contains('/') && !STANDARD.contains(finalizer) {
            let why = "name is neither a standard finalizer name nor is it fully qualified";
            causes.push(cause(&format!("finalizers[{index}]"), &json!(finalizer), why));
        }
    }
    if ["orphan", "foregroundDeletion"].iter().all(|policy| finalizers.contains(policy)) {
        let why = "finalizer orphan and foregroundDeletion cannot be both set";
        causes.push(cause("finalizers", &json!(finalizers), why));
    }
}

fn check_owners(owners: &Value, causes: &mut Vec<Cause>) {
    let owners = owners.as_array().map(Vec::as_slice).unwrap_or_default();
    for owner in owners {
        let word = |field: &str| owner[field].as_str().unwrap_or_default();
        let version = match word("apiVersion").split_once('/') {
            Some((_, version)) => version,
            None => word("apiVersion"),
        };
        if version.is_empty() || version.contains('/') {
            causes.push(cause("ownerReferences.apiVersion", &json!(word("apiVersion")), "version must not be empty"));
        }
        for field in ["kind", "name", "uid"] {
            if word(field).is_empty() {
                causes.push(cause(&format!("ownerReferences.{field}"), &json!(""), "must not be empty"));
            }
        }
        if matches!((word("apiVersion"), word("kind")), ("v1" | "events.k8s.io/v1", "Event")) {
            let (group, version) = word("apiVersion").split_once('/').unwrap_or(("", word("apiVersion")));
            let why = format!("{group}/{version}, Kind=Event is disallowed from being an owner");
            causes.push(cause("ownerReferences", owner, &why));
        }
    }
    let controllers: Vec<&str> = owners
        .iter()
        .filter(|owner| owner["controller"] == true)
        .map(|owner| owner["name"].as_str().unwrap_or_default())
        .collect();
    if let [first, second, ..] = controllers.as_slice() {
        let why = format!(
            "Only one reference can have Controller set to true. Found \"true\" in references for {first} and {second}"
        );
        causes.push(cause("ownerReferences", &json!(owners), &why));
    }
}

/// An update names what it is about itself.
pub(super) fn check_named(object: &Value, name: &str) -> Result<(), ApiError> {
    if object.is_object() && text(object, "name").is_empty() {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        )));
    }
    Ok(())
}

/// What nobody writes: a patch may not change the identity of an object, and nothing but a deletion begins one.
pub(super) fn check_immutable(call: &super::Call, old: &Value, new: &Value) -> Result<(), ApiError> {
    for field in ["uid", "deletionTimestamp"] {
        let said = text(new, field);
        let of_patch = field == "deletionTimestamp" || call.info.verb == "patch";
        if of_patch && !said.is_empty() && said != text(old, field) {
            let causes = vec![cause(field, &json!(said), "field is immutable")];
            return Err(ApiError::invalid(&call.resource.group, &call.resource.kind, text(old, "name"), causes));
        }
    }
    Ok(())
}

/// Why an object is not one of the resource, if it says what it is.
pub(super) fn other_kind(resource: &Resource, object: &Value) -> Option<String> {
    let (version, kind) = (resource.api_version(), &resource.kind);
    let said = ["apiVersion", "kind"].map(|field| object[field].as_str().unwrap_or_default());
    let same = [&version, kind].iter().zip(said).all(|(is, said)| said.is_empty() || *is == said);
    (!same).then(|| {
        format!(
            "the object provided is unrecognized (must be of type {kind}): the API version in the data ({}, Kind={}) does not match the expected API version ({version}, Kind={kind})",
            said[0], said[1]
        )
    })
}

/// A patch does not make a custom resource one of another kind. (That of another kind is none for its decoder.)
pub(super) fn check_type(resource: &Resource, object: &Value) -> Result<(), ApiError> {
    if resource.crd.is_none() {
        return Ok(());
    }
    let expected = [("kind", resource.kind.clone()), ("apiVersion", resource.api_version())];
    let wrong = expected.iter().filter(|(field, expected)| object[*field] != expected.as_str());
    let causes: Vec<Cause> = wrong
        .map(|(field, expected)| Cause {
            reason: "FieldValueInvalid".into(),
            message: format!("Invalid value: {}: must be {expected}", object[*field]),
            field: (*field).into(),
        })
        .collect();
    if causes.is_empty() {
        return Ok(());
    }
    let kind = object["kind"].as_str().unwrap_or_default();
    Err(ApiError::invalid(&resource.group, kind, text(object, "name"), causes))
}

/// Checks that a body is about what the path names, and fills in what it leaves out.
pub(super) fn check_identity(
    resource: &Resource,
    object: &mut Value,
    namespace: &str,
    name: &str,
) -> Result<(), ApiError> {
    if !object.is_object() {
        return Err(ApiError::bad_request("the body of the request must be an object"));
    }
    let (version, kind) = (resource.api_version(), resource.kind.clone());
    let said = (object["apiVersion"].as_str().unwrap_or_default(), object["kind"].as_str().unwrap_or_default());
    if resource.crd.is_some() {
        if said.1.is_empty() {
            return Err(ApiError::bad_request("Object 'Kind' is missing"));
        }
        if said.0.is_empty() {
            return Err(ApiError::bad_request(format!(
                "the API version in the data () does not match the expected API version ({version})"
            )));
        }
        if said.0 == version {
            check_type(resource, object)?;
        }
    }
    if let Some(why) = other_kind(resource, object) {
        return Err(ApiError::bad_request(why));
    }
    object["apiVersion"] = version.into();
    object["kind"] = kind.as_str().into();
    match object.get("metadata") {
        Some(Value::Object(_)) => {}
        None | Some(Value::Null) => object["metadata"] = json!({}),
        Some(other) => {
            let found = if other.is_array() { "array" } else { apimachinery::schema::validate::kind_of(other) };
            return Err(ApiError::bad_request(format!(
                "{kind} in version {:?} cannot be handled as a {kind}: json: cannot unmarshal {found} into Go struct field {kind}.metadata of type v1.ObjectMeta",
                resource.version
            )));
        }
    }
    let said = text(object, "namespace");
    if resource.namespaced && !said.is_empty() && said != namespace {
        return Err(ApiError::bad_request(
            "the namespace of the provided object does not match the namespace sent on the request",
        ));
    }
    let said = text(object, "name");
    if !name.is_empty() && !said.is_empty() && said != name {
        return Err(ApiError::bad_request(format!(
            "the name of the object ({said}) does not match the name on the URL ({name})"
        )));
    }
    if !name.is_empty() {
        object["metadata"]["name"] = name.into();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::stamp::generated;

    #[test]
    fn names() {
        let resource =
            |group: &str, plural: &str| Resource { group: group.into(), plural: plural.into(), ..Resource::default() };
        let pods = resource("", "pods");
        for (name, ok) in [("a", true), ("a.b-c", true), ("A", false), ("a..b", false), ("-a", false), ("a_b", false)] {
            assert_eq!(name_problem(&pods, name, false).is_none(), ok, "{name}");
        }
        assert!(name_problem(&pods, "a-", false).is_some());
        assert!(name_problem(&pods, "a-", true).is_none());
        assert_eq!(name_problem(&resource("", "services"), "a.b", false), Some("must not contain dots"));
        assert!(name_problem(&resource("rbac.authorization.k8s.io", "roles"), "system:node:X", false).is_none());
        assert_eq!(generated(&"x".repeat(100)).len(), 63);
    }
}
