//! The recorded requests, unpacked: bodies and answers are kept as changes of those of their group's first.

use std::collections::HashMap;
use std::io::Read;

use serde::Deserialize;
use serde_json::{Map, Value};

const CORPUS: &[u8] = include_bytes!("../../../testdata/corpus/requests.jsonl.gz");

/// One request and what a real server answered.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub(super) struct Entry {
    pub(super) id: String,
    pub(super) method: String,
    pub(super) path: String,
    pub(super) query: String,
    #[serde(rename = "type")]
    pub(super) content_type: Option<String>,
    pub(super) headers: HashMap<String, String>,
    #[serde(deserialize_with = "present")]
    pub(super) body: Option<Value>,
    pub(super) raw: Option<String>,
    base: Option<String>,
    edit: Vec<Vec<Value>>,
    pub(super) capture: HashMap<String, String>,
    /// Seconds within which the answer must become a success.
    pub(super) until: Option<u64>,
    /// Seconds within which the answer must become 404.
    pub(super) absent: Option<u64>,
    pub(super) check: Option<Vec<String>>,
    pub(super) keep: Vec<String>,
    pub(super) drop: Vec<String>,
    pub(super) real: Map<String, Value>,
}

fn present<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(from).map(Some)
}

impl Entry {
    /// What stands before the slash of the id.
    pub(super) fn group(&self) -> &str {
        self.id.split('/').next().unwrap()
    }

    /// Whether this part of the answer counts.
    pub(super) fn checks(&self, part: &str) -> bool {
        match &self.check {
            Some(parts) => parts.iter().any(|p| p == part),
            None => matches!(part, "code" | "reason" | "causes" | "stored"),
        }
    }
}

/// All requests, in the order in which they were sent.
pub(super) fn load() -> Vec<Entry> {
    let mut text = String::new();
    flate2::read::GzDecoder::new(CORPUS).read_to_string(&mut text).unwrap();
    let mut entries: Vec<Entry> = text
        .lines()
        .filter(|line| !line.is_empty())
        .map(|line| serde_json::from_value(substitute(&serde_json::from_str(line).unwrap(), &HashMap::new())).unwrap())
        .collect();
    let bases: HashMap<String, (Option<Value>, Option<Value>)> = entries
        .iter()
        .filter(|e| e.id.ends_with("/valid"))
        .map(|e| (e.id.clone(), (e.body.clone(), e.real.get("stored").cloned())))
        .collect();
    for entry in &mut entries {
        if let Some(base) = entry.base.take() {
            entry.body = Some(edited(bases[&base].0.clone().unwrap(), &std::mem::take(&mut entry.edit)));
        }
        if let Some(Value::String(base)) = entry.real.remove("storedBase") {
            let changes: Vec<Vec<Value>> = serde_json::from_value(entry.real.remove("storedEdit").unwrap()).unwrap();
            entry.real.insert("stored".into(), edited(bases[&base].1.clone().unwrap(), &changes));
        }
    }
    entries
}

/// `${name}` stands for what an earlier answer held, `{"$repeat": [text, n]}` for a long text.
pub(super) fn substitute(value: &Value, variables: &HashMap<String, String>) -> Value {
    match value {
        Value::String(text) => Value::String(substitute_text(text, variables)),
        Value::Array(items) => items.iter().map(|item| substitute(item, variables)).collect(),
        Value::Object(map) => match map.get("$repeat").filter(|_| map.len() == 1) {
            Some(repeat) => {
                let times = repeat[1].as_u64().unwrap() as usize;
                Value::String(repeat[0].as_str().unwrap().repeat(times))
            }
            None => map.iter().map(|(key, value)| (key.clone(), substitute(value, variables))).collect(),
        },
        other => other.clone(),
    }
}

/// The same in a text.
pub(super) fn substitute_text(text: &str, variables: &HashMap<String, String>) -> String {
    let mut text = text.to_owned();
    if text.contains("${") {
        for (name, value) in variables {
            text = text.replace(&format!("${{{name}}}"), value);
        }
    }
    text
}

/// `[path, value]` sets, `[path]` removes.
fn edited(mut value: Value, changes: &[Vec<Value>]) -> Value {
    for change in changes {
        let path = change[0].as_str().unwrap();
        if path.is_empty() {
            value = change[1].clone();
            continue;
        }
        let (parent, last) = path.rsplit_once('/').unwrap();
        let last = last.replace("~1", "/").replace("~0", "~");
        let parent = value.pointer_mut(parent).unwrap();
        match (parent, change.get(1)) {
            (Value::Array(items), Some(new)) => items[last.parse::<usize>().unwrap()] = new.clone(),
            (Value::Array(items), None) => drop(items.remove(last.parse().unwrap())),
            (Value::Object(map), Some(new)) => drop(map.insert(last, new.clone())),
            (Value::Object(map), None) => drop(map.remove(&last)),
            _ => panic!("{path} cannot be edited"),
        }
    }
    value
}
