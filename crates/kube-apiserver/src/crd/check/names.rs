//! The names of a definition: present, of the right form, and fixed once they are in use.

use serde_json::Value;

use apimachinery::error::Cause;

use super::{invalid, required, text};

const LABEL_1035: &str = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";

/// What is wrong with a DNS-1035 label.
pub(super) fn label_problem(text: &str) -> Option<String> {
    if text.len() > 63 {
        return Some("must be no more than 63 bytes".to_owned());
    }
    let ok = text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.ends_with(|c: char| c.is_ascii_lowercase() || c.is_ascii_digit())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
    (!ok).then(|| LABEL_1035.to_owned())
}

fn is_subdomain(text: &str) -> bool {
    let alphanumeric = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    let label = |part: &str| {
        part.starts_with(alphanumeric)
            && part.ends_with(alphanumeric)
            && part.chars().all(|c| alphanumeric(c) || c == '-')
    };
    text.len() <= 253 && text.split('.').all(label)
}

pub(super) fn check(crd: &Value, old: Option<&Value>, causes: &mut Vec<Cause>) {
    let spec = &crd["spec"];
    let names = &spec["names"];
    let (group, plural) = (text(&spec["group"]), text(&names["plural"]));
    let name = text(&crd["metadata"]["name"]);
    if old.is_none() && !name.is_empty() && name != format!("{plural}.{group}") {
        causes.push(invalid("metadata.name", &crd["metadata"]["name"], "must be spec.names.plural+\".\"+spec.group"));
    }
    let base = &crd["metadata"]["generateName"];
    if old.is_none() && !text(base).is_empty() {
        causes.push(invalid("metadata.generateName", base, "must be spec.names.plural+\".\"+spec.group"));
    }
    if group.is_empty() {
        causes.push(required("spec.group", ""));
    } else if !is_subdomain(group) {
        causes.push(invalid("spec.group", &spec["group"], SUBDOMAIN));
    } else if !group.contains('.') {
        causes.push(invalid("spec.group", &spec["group"], "should be a domain with at least one dot"));
    }
    for key in ["plural", "singular", "kind", "listKind"] {
        let field = format!("spec.names.{key}");
        let name = text(&names[key]);
        let mixed = key.ends_with("ind");
        if name.is_empty() {
            causes.push(required(&field, ""));
        } else if let Some(why) = label_problem(&if mixed { name.to_lowercase() } else { name.to_owned() }) {
            let prefix = if mixed { "may have mixed case, but should otherwise match: " } else { "" };
            causes.push(invalid(&field, &names[key], &format!("{prefix}{why}")));
        }
    }
    for key in ["shortNames", "categories"] {
        for (index, name) in names[key].as_array().into_iter().flatten().enumerate() {
            if let Some(why) = label_problem(text(name)) {
                causes.push(invalid(&format!("spec.names.{key}[{index}]"), name, &why));
            }
        }
    }
    if !text(&names["kind"]).is_empty() && names["kind"] == names["listKind"] {
        let why = "kind and listKind may not be the same";
        causes.push(invalid("spec.names.listKind", &names["listKind"], why));
    }
    if let Some(old) = old {
        fixed(spec, old, causes);
    }
}

/// What the stored objects depend on.
fn fixed(spec: &Value, old: &Value, causes: &mut Vec<Cause>) {
    let conditions = old["status"]["conditions"].as_array();
    let established =
        conditions.is_some_and(|list| list.iter().any(|c| c["type"] == "Established" && c["status"] == "True"));
    let fields = [("/scope", true), ("/names/kind", true), ("/group", false), ("/names/plural", false)];
    for (pointer, only_established) in fields {
        let (before, after) = (old["spec"].pointer(pointer), spec.pointer(pointer));
        if before != after && (established || !only_established) {
            let field = format!("spec{}", pointer.replace('/', "."));
            causes.push(invalid(&field, after.unwrap_or(&Value::Null), "field is immutable"));
        }
    }
}
