//! One version of a definition: subresources, printer columns, selectable fields, and its schema.

use serde_json::{Value, json};

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

use super::{invalid, names, required, rules, schema, text};

const SELECTABLE: usize = 8;

/// What all versions have alike is looked at once, and complained about as a part of the definition.
pub(super) struct Shared(Vec<&'static str>);

const PARTS: [&str; 4] = ["schema", "subresources", "additionalPrinterColumns", "selectableFields"];

impl Shared {
    pub(super) fn of(versions: &[Value]) -> Self {
        let alike = |key: &str| versions.windows(2).all(|pair| pair[0].get(key) == pair[1].get(key));
        Self(PARTS.into_iter().filter(|key| alike(key)).collect())
    }

    /// Where a part of a version stands; None when it was looked at with an earlier version.
    fn place(&self, key: &str, index: usize) -> Option<String> {
        match (self.0.contains(&key), index) {
            (false, _) => Some(format!("spec.versions[{index}].{key}")),
            (true, 0) if key == "schema" => Some("spec.validation".to_owned()),
            (true, 0) => Some(format!("spec.{key}")),
            (true, _) => None,
        }
    }
}

/// `before` is the version as it was.
pub(super) fn check(version: &Value, before: Option<&Value>, index: usize, shared: &Shared, causes: &mut Vec<Cause>) {
    let at = format!("spec.versions[{index}]");
    let name = text(&version["name"]);
    if let Some(why) = names::label_problem(name) {
        causes.push(invalid(&format!("{at}.name"), &version["name"], &why));
        if index == 0 && !name.is_empty() {
            causes.push(invalid("spec.version", &version["name"], &why));
        }
    }
    deprecation(version, &at, causes);
    if let Some(place) = shared.place("subresources", index) {
        subresources(&version["subresources"], &place, causes);
    }
    if let Some(place) = shared.place("additionalPrinterColumns", index) {
        columns(&version["additionalPrinterColumns"], &place, causes);
    }
    let selectable_at = shared.place("selectableFields", index);
    let Some(tree) = version["schema"].get("openAPIV3Schema").filter(|tree| !tree.is_null()) else {
        causes.push(required(&format!("{at}.schema.openAPIV3Schema"), "schemas are required"));
        let fields = version["selectableFields"].as_array().is_some_and(|fields| !fields.is_empty());
        if let Some(place) = selectable_at.filter(|_| fields) {
            causes.push(invalid(&place, &json!(""), "may only be set when validations.schema is included"));
        }
        return;
    };
    if let Some(place) = shared.place("schema", index) {
        let place = format!("{place}.openAPIV3Schema");
        let found = causes.len();
        schema::check(tree, version["subresources"]["status"].is_object(), &place, causes);
        if causes.len() == found {
            // An expression that was taken once stays, also when it is found too expensive by now.
            let kept = before.is_some_and(|before| before["schema"] == version["schema"]);
            rules::check(tree, &place, kept, causes);
        }
    }
    if let Some(place) = selectable_at {
        selectable(version, tree, &place, causes);
    }
}

fn deprecation(version: &Value, at: &str, causes: &mut Vec<Cause>) {
    let Some(warning) = version["deprecationWarning"].as_str() else { return };
    let field = format!("{at}.deprecationWarning");
    let mut wrong = |why: &str| causes.push(invalid(&field, &json!(warning), why));
    if version["deprecated"] != true {
        wrong("can only be set for deprecated versions");
    } else if warning.is_empty() {
        wrong("must not be an empty string");
    } else if warning.len() > 256 {
        wrong("must be <= 256 characters long");
    } else if let Some(index) = warning.find(char::is_control) {
        wrong(&format!("must only contain printable UTF-8 characters; non-printable character found at index {index}"));
    }
}

fn subresources(subresources: &Value, at: &str, causes: &mut Vec<Cause>) {
    let scale = &subresources["scale"];
    if !scale.is_object() {
        return;
    }
    let fields = [
        ("specReplicasPath", ".spec.", "should be a json path under .spec"),
        ("statusReplicasPath", ".status.", "should be a json path under .status"),
    ];
    for (key, prefix, why) in fields {
        let (field, path) = (format!("{at}.scale.{key}"), text(&scale[key]));
        if path.is_empty() {
            causes.push(required(&field, ""));
        } else if let Some(problem) = path_problem(path) {
            causes.push(invalid(&field, &scale[key], problem));
        } else if !path.starts_with(prefix) {
            causes.push(invalid(&field, &scale[key], why));
        }
    }
    let selector = text(&scale["labelSelectorPath"]);
    if !selector.is_empty() && !selector.starts_with(".spec.") && !selector.starts_with(".status.") {
        let why = "should be a json path under either .spec or .status";
        causes.push(invalid(&format!("{at}.scale.labelSelectorPath"), &scale["labelSelectorPath"], why));
    }
}

/// Scale paths go through fields alone.
fn path_problem(path: &str) -> Option<&'static str> {
    (!path.starts_with('.')).then_some("must be a simple json path starting with .")
}

fn columns(columns: &Value, at: &str, causes: &mut Vec<Cause>) {
    const TYPES: [&str; 5] = ["boolean", "date", "integer", "number", "string"];
    const FORMATS: [&str; 8] = ["int32", "int64", "float", "double", "byte", "date", "date-time", "password"];
    for (index, column) in columns.as_array().into_iter().flatten().enumerate() {
        let field = |key: &str| format!("{at}[{index}].{key}");
        let known = format!("must be one of {}", TYPES.join(","));
        let type_ = text(&column["type"]);
        if text(&column["name"]).is_empty() {
            causes.push(required(&field("name"), ""));
        }
        if type_.is_empty() {
            causes.push(required(&field("type"), &known));
        } else if !TYPES.contains(&type_) {
            causes.push(invalid(&field("type"), &column["type"], &known));
        }
        let format = text(&column["format"]);
        if !format.is_empty() && !FORMATS.contains(&format) {
            let mut known = FORMATS;
            known.sort_unstable();
            causes.push(invalid(&field("format"), &column["format"], &format!("must be one of {}", known.join(","))));
        }
        let path = text(&column["jsonPath"]);
        if path.is_empty() {
            causes.push(required(&field("JSONPath"), ""));
        } else if !path.starts_with('.') {
            let why = "must be a simple json path starting with .";
            causes.push(invalid(&field("JSONPath"), &column["jsonPath"], why));
        }
    }
}

fn selectable(version: &Value, schema: &Value, at: &str, causes: &mut Vec<Cause>) {
    let fields = version["selectableFields"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut seen = Vec::new();
    for (index, field) in fields.iter().enumerate() {
        let (place, path) = (format!("{at}[{index}].jsonPath"), text(&field["jsonPath"]));
        if path.is_empty() {
            causes.push(required(&place, ""));
            continue;
        }
        match field_at(schema, path) {
            Err(why) => causes.push(invalid(&place, &field["jsonPath"], &format!("is an invalid path: {why}"))),
            Ok(node) if !matches!(text(&node["type"]), "string" | "boolean" | "integer") => {
                let why = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
                causes.push(invalid(&place, &field["jsonPath"], why));
            }
            Ok(_) => {}
        }
        if seen.contains(&path) {
            causes.push(cause("FieldValueDuplicate", &place, format!("Duplicate value: {path:?}")));
        }
        seen.push(path);
    }
    if fields.len() > SELECTABLE {
        let message = format!("Too many: {}: must have at most {SELECTABLE} items", fields.len());
        causes.push(cause("FieldValueTooMany", at, message));
    }
}

/// The schema of the field that a simple path leads to.
fn field_at<'a>(schema: &'a Value, path: &str) -> Result<&'a Value, String> {
    if !path.starts_with('.') {
        return Err(format!("expected [ or . but got: {path}"));
    }
    if path.contains(['[', ']']) {
        return Err("array notation is not allowed".to_owned());
    }
    let unknown = || "does not refer to a valid field".to_owned();
    let names: Vec<&str> = path.trim_start_matches('.').split('.').collect();
    if names[0] == "metadata" {
        return Err(unknown());
    }
    let mut node = schema;
    for name in names {
        let below = node["properties"].get(name).or_else(|| node.get("additionalProperties"));
        node = below.filter(|below| below.is_object()).ok_or_else(unknown)?;
    }
    Ok(node)
}
