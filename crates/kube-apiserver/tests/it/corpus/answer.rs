//! What of an answer is compared: times, identities and addresses that the server chose are taken out.

use std::collections::HashSet;
use std::sync::LazyLock;

use regex::Regex;
use serde_json::{Map, Value, json};

use super::entry::Entry;

static TIME: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?Z$").unwrap());
static UUID: LazyLock<Regex> =
    LazyLock::new(|| Regex::new("[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}").unwrap());
static ADDRESS: LazyLock<Regex> =
    LazyLock::new(|| Regex::new(r"^(\d+\.\d+\.\d+\.\d+|[0-9a-f:]*::[0-9a-f:]*)$").unwrap());
static TOO_OLD: LazyLock<Regex> = LazyLock::new(|| Regex::new(r"(too old resource version: \d+) \(\d+\)").unwrap());
static TOKEN_VOLUME: LazyLock<Regex> = LazyLock::new(|| Regex::new("kube-api-access-[a-z0-9]{5}$").unwrap());
static WARNING: LazyLock<Regex> = LazyLock::new(|| Regex::new(r#"^299 \S+ "(.*)"$"#).unwrap());

/// An answer as it came.
pub(super) struct Answer {
    pub(super) code: u16,
    kind: String,
    warnings: Vec<String>,
    /// The body, if it is JSON or YAML.
    pub(super) value: Option<Value>,
    text: String,
}

impl Answer {
    pub(super) fn read(parts: &http::response::Parts, body: &[u8]) -> Self {
        let text = String::from_utf8_lossy(body).into_owned();
        let kind = parts.headers.get("content-type").and_then(|v| v.to_str().ok()).unwrap_or_default();
        let kind = kind.split(';').next().unwrap_or_default().to_owned();
        let value = if kind.contains("json") {
            serde_json::from_str(&text).ok().or_else(|| {
                let lines = text.lines().filter(|line| !line.is_empty());
                lines.map(serde_json::from_str).collect::<Result<Vec<Value>, _>>().ok().map(Value::Array)
            })
        } else if kind.contains("yaml") {
            serde_saphyr::from_str(&text).ok()
        } else {
            None
        };
        let warnings = parts.headers.get_all("warning").iter().filter_map(|v| std::str::from_utf8(v.as_bytes()).ok());
        let mut warnings: Vec<String> = warnings.map(|w| WARNING.replace(w, "$1").replace("\\\"", "\"")).collect();
        warnings.sort();
        warnings.dedup();
        Self { code: parts.status.as_u16(), kind, warnings, value, text }
    }

    /// In the form in which the corpus keeps answers.
    pub(super) fn digest(&self, entry: &Entry, body: Option<&Value>) -> Map<String, Value> {
        let mut digest = Map::new();
        digest.insert("code".into(), json!(self.code));
        if !self.warnings.is_empty() {
            digest.insert("warnings".into(), json!(self.warnings));
        }
        if self.kind != "application/json" {
            digest.insert("type".into(), json!(self.kind));
        }
        let mut sent = HashSet::new();
        scalars(body.unwrap_or(&Value::Null), &mut sent);
        let volatile = Volatile { sent, keep: &entry.keep };
        match &self.value {
            Some(status) if status["kind"] == "Status" && self.code >= 400 => {
                digest.insert("reason".into(), json!(status["reason"].as_str().unwrap_or_default()));
                let causes = status["details"]["causes"].as_array().cloned().unwrap_or_default();
                let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
                let causes: Vec<Value> =
                    causes.iter().map(|c| json!({"field": text(&c["field"]), "reason": text(&c["reason"])})).collect();
                if !causes.is_empty() {
                    digest.insert("causes".into(), json!(causes));
                }
                digest.insert("message".into(), json!(status["message"].as_str().unwrap_or_default()));
            }
            Some(Value::Array(events)) if self.kind == "application/json" => {
                let events = events.iter().map(|event| {
                    json!({"type": event["type"], "object": volatile.without(event.get("object").unwrap_or(&json!({})), "")})
                });
                digest.insert("stored".into(), events.collect());
            }
            Some(value) => {
                let mut stored = volatile.without(value, "");
                for path in &entry.drop {
                    let (parent, last) = path.rsplit_once('.').unwrap_or(("", path));
                    let parent = if parent.is_empty() { Some(&mut stored) } else { stored.get_mut(parent) };
                    if let Some(map) = parent.and_then(Value::as_object_mut) {
                        map.remove(last);
                    }
                }
                digest.insert("stored".into(), stored);
            }
            None if self.code >= 400 => {
                digest.insert("message".into(), json!(self.text.trim()));
            }
            None => {}
        }
        digest
    }
}

/// What was sent, scalar by scalar: in the answer it is not the server's choice.
fn scalars(value: &Value, out: &mut HashSet<String>) {
    match value {
        Value::Object(map) => map.values().for_each(|v| scalars(v, out)),
        Value::Array(items) => items.iter().for_each(|v| scalars(v, out)),
        other => drop(out.insert(scalar(other))),
    }
}

fn scalar(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), ToOwned::to_owned)
}

/// Takes out what differs from server to server.
struct Volatile<'a> {
    sent: HashSet<String>,
    keep: &'a [String],
}

impl Volatile<'_> {
    fn keeps(&self, what: &str) -> bool {
        self.keep.iter().any(|k| k == what)
    }

    fn without(&self, value: &Value, key: &str) -> Value {
        match value {
            Value::Object(map) => self.object(map, key),
            Value::Array(items) => {
                let items = items.iter().map(|item| self.without(item, key));
                items.map(|item| if self.keeps("kube-api-access") { item } else { token_volume(item) }).collect()
            }
            Value::String(text) if !self.sent.contains(text) => self.text(text),
            other => other.clone(),
        }
    }

    fn object(&self, map: &Map<String, Value>, key: &str) -> Value {
        let mut out = Map::new();
        for (k, v) in map {
            let chosen = || !self.sent.contains(&scalar(v));
            let managed = matches!(k.as_str(), "uid" | "creationTimestamp" | "resourceVersion");
            if (managed || k == "selfLink") && (v.is_null() || v.is_string()) && chosen() {
                continue;
            }
            if managed && matches!(key, "metadata" | "preconditions") || k == "managedFields" && !self.keeps(k) {
                continue;
            }
            let stand_in = match k.as_str() {
                "token" | "certificate" if map.get("expirationTimestamp").is_some_and(set) => Some("SOME"),
                "nodePort" | "healthCheckNodePort" if set(v) && chosen() => Some("PORT"),
                "remainingItemCount" => Some("SOME"),
                "continue" if set(v) => Some("SOME"),
                _ => None,
            };
            out.insert(k.clone(), stand_in.map_or_else(|| self.without(v, k), |s| json!(s)));
        }
        if map.get("apiVersion").is_some_and(|v| v == "certificates.k8s.io/v1")
            && let Some(spec) = out.get_mut("spec").and_then(Value::as_object_mut)
        {
            spec.retain(|k, _| !matches!(k.as_str(), "username" | "groups" | "extra" | "uid"));
        }
        let mut out = Value::Object(out);
        if map.get("kind").is_some_and(|kind| kind == "Table") {
            ages(&mut out);
        }
        let generated = out["metadata"]["generateName"].as_str().filter(|base| !base.is_empty());
        if let Some(stand_in) = generated.map(|base| format!("{base}XXXXX")) {
            let name = scalar(&out["metadata"]["name"]);
            if !self.sent.contains(&name) {
                rename(&mut out, &name, &stand_in);
            }
        }
        out
    }

    fn text(&self, text: &str) -> Value {
        if TIME.is_match(text) {
            return json!("TIME");
        }
        if ADDRESS.is_match(text) && text != "0.0.0.0" && text != "::" {
            return json!("IP");
        }
        let text = UUID.replace_all(text, "UUID");
        let text = TOO_OLD.replace_all(&text, "$1 (N)");
        json!(TOKEN_VOLUME.replace(&text, "kube-api-access-XXXXX"))
    }
}

fn set(value: &Value) -> bool {
    !matches!(value, Value::Null | Value::Bool(false)) && *value != json!("") && *value != json!(0)
}

/// What the server puts into this volume is looked at once, not in each pod.
fn token_volume(item: Value) -> Value {
    if item["name"] == "kube-api-access-XXXXX" && item.get("projected").is_some() {
        json!({"name": item["name"]})
    } else {
        item
    }
}

fn ages(table: &mut Value) {
    let columns = table["columnDefinitions"].as_array().cloned().unwrap_or_default();
    let moving = |name: &Value| matches!(name.as_str(), Some("Age" | "Last Seen" | "First Seen" | "Duration"));
    let ages: Vec<usize> = (0..columns.len()).filter(|i| moving(&columns[*i]["name"])).collect();
    for row in table.get_mut("rows").and_then(Value::as_array_mut).into_iter().flatten() {
        for i in &ages {
            row["cells"][*i] = json!("AGE");
        }
    }
}

fn rename(value: &mut Value, old: &str, new: &str) {
    match value {
        Value::Object(map) => map.values_mut().for_each(|v| rename(v, old, new)),
        Value::Array(items) => items.iter_mut().for_each(|v| rename(v, old, new)),
        Value::String(text) if text == old => new.clone_into(text),
        _ => {}
    }
}
