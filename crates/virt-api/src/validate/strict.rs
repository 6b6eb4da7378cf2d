//! Decoding that refuses what it does not know, and names it by its path.

use kit::admission::Cause;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::invalid;

/// `object` as a `T`; every field that a `T` does not have is a cause.
pub(crate) fn decode<T: DeserializeOwned + Serialize>(object: &Value) -> Result<T, Vec<Cause>> {
    let typed: T = match serde_json::from_value(object.clone()) {
        Ok(typed) => typed,
        Err(error) => {
            return Err(vec![invalid("spec".to_owned(), format!("the object cannot be decoded: {error}"))]);
        }
    };
    let known = serde_json::to_value(&typed).unwrap_or_default();
    let mut causes = Vec::new();
    if let (Some(given), Some(known)) = (object.get("spec"), known.get("spec")) {
        compare("spec", given, known, &mut causes);
    }
    if causes.is_empty() { Ok(typed) } else { Err(causes) }
}

/// True for what a decoder may drop without losing anything.
fn nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Array(list) => list.is_empty(),
        Value::Object(map) => map.values().all(nothing),
        _ => false,
    }
}

fn compare(path: &str, given: &Value, known: &Value, causes: &mut Vec<Cause>) {
    match (given, known) {
        (Value::Object(given), Value::Object(known)) => {
            for (key, value) in given {
                let field = format!("{path}.{key}");
                match known.get(key) {
                    Some(known) => compare(&field, value, known, causes),
                    None if nothing(value) => {}
                    None => {
                        let message = match nearest(key, known.keys()) {
                            Some(other) => format!("unknown field \"{field}\": did you mean {other}?"),
                            None => format!("unknown field \"{field}\": remove it, or check its place and spelling"),
                        };
                        causes.push(invalid(field, message));
                    }
                }
            }
        }
        (Value::Array(given), Value::Array(known)) => {
            for (index, (given, known)) in given.iter().zip(known).enumerate() {
                compare(&format!("{path}[{index}]"), given, known, causes);
            }
        }
        _ => {}
    }
}

/// A field that differs only in case or by one letter.
fn nearest<'a>(key: &str, mut known: impl Iterator<Item = &'a String>) -> Option<&'a String> {
    known.find(|other| other.eq_ignore_ascii_case(key) || one_apart(other, key))
}

fn one_apart(a: &str, b: &str) -> bool {
    let (a, b) = if a.len() <= b.len() { (a.as_bytes(), b.as_bytes()) } else { (b.as_bytes(), a.as_bytes()) };
    if b.len() - a.len() > 1 {
        return false;
    }
    let same = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    if a.len() == b.len() { a[same + 1..] == b[same + 1..] } else { a[same..] == b[same + 1..] }
}
