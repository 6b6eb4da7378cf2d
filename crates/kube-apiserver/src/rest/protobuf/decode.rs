//! Bodies in protobuf as trees.

use base64::Engine;
use serde_json::{Map, Value, json};

use apimachinery::error::ApiError;
use apimachinery::patch::json as patch;

use super::table::{self, MESSAGES};
use super::wire::{Item, Wire};
use super::{MAGIC, malformed};

/// Messages within messages.
const DEPTH: usize = patch::DEPTH;

/// A body as a tree: an object in its envelope.
pub fn document(bytes: &[u8]) -> Result<Value, ApiError> {
    let unknown = bytes.strip_prefix(MAGIC).ok_or_else(malformed)?;
    let (mut api_version, mut kind, mut raw) = (String::new(), String::new(), &[][..]);
    for part in Wire(unknown) {
        match part? {
            (1, Item::Bytes(meta)) => {
                for part in Wire(meta) {
                    match part? {
                        (1, Item::Bytes(text)) => api_version = utf8(text)?,
                        (2, Item::Bytes(text)) => kind = utf8(text)?,
                        _ => {}
                    }
                }
            }
            (2, Item::Bytes(bytes)) => raw = bytes,
            _ => {}
        }
    }
    let name = table::of_kind(&api_version, &kind).ok_or_else(|| {
        ApiError::new(
            415,
            "UnsupportedMediaType",
            format!("{kind} of {api_version} is accepted as application/json or application/yaml only"),
        )
    })?;
    let mut object = message(raw, &name, DEPTH)?;
    object.insert("apiVersion".into(), api_version.into());
    object.insert("kind".into(), kind.into());
    let object = Value::Object(object);
    if patch::depth(&object) > patch::DEPTH { Err(malformed()) } else { Ok(object) }
}

fn utf8(bytes: &[u8]) -> Result<String, ApiError> {
    String::from_utf8(bytes.to_vec()).map_err(|_| malformed())
}

fn message(bytes: &[u8], name: &str, depth: usize) -> Result<Map<String, Value>, ApiError> {
    let fields = MESSAGES.get(name).filter(|_| depth > 0).ok_or_else(malformed)?;
    let mut object = Map::new();
    for part in Wire(bytes) {
        let (number, item) = part?;
        let Some(field) = u32::try_from(number).ok().and_then(|number| fields.get(&number)) else { continue };
        let (json_name, code, nested) = (&field.name, field.code.as_str(), field.nested.as_str());
        if json_name.is_empty() {
            if let Item::Bytes(bytes) = item {
                object.extend(message(bytes, nested, depth - 1)?);
            }
        } else if let Some(code) = code.strip_prefix('*') {
            // Only among any values there is null.
            let Some(value) = value(&item, code, nested, depth)?.or_else(|| (code == "J").then_some(Value::Null))
            else {
                continue;
            };
            match object.entry(json_name).or_insert_with(|| json!([])) {
                Value::Array(list) => list.push(value),
                _ => return Err(malformed()),
            }
        } else if let Some(code) = code.strip_prefix('{') {
            let Item::Bytes(bytes) = item else { return Err(malformed()) };
            let (mut key, mut entry) = (String::new(), empty(code));
            for part in Wire(bytes) {
                match part? {
                    (1, Item::Bytes(text)) => key = utf8(text)?,
                    (2, item) => entry = value(&item, code, nested, depth)?.unwrap_or_else(|| empty(code)),
                    _ => {}
                }
            }
            object.entry(json_name).or_insert_with(|| json!({}))[&key] = entry;
        } else if let Some(value) = value(&item, code, nested, depth)?
            && (!zero(&value) || code == "B" || table::zero_counts(name, json_name, &value))
        {
            object.insert(json_name.clone(), value);
        }
    }
    Ok(object)
}

fn zero(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::String(text) => text.is_empty(),
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::Bool(on) => !on,
        Value::Object(_) | Value::Array(_) => false,
    }
}

fn empty(code: &str) -> Value {
    match code {
        "s" | "y" | "Q" => "".into(),
        "i" => 0.into(),
        "b" => false.into(),
        "w" => json!([]),
        _ => json!({}),
    }
}

/// One value; None when it is JSON's null.
fn value(item: &Item<'_>, code: &str, nested: &str, depth: usize) -> Result<Option<Value>, ApiError> {
    let signed = |number: u64| number.cast_signed();
    Ok(match (code, item) {
        ("s", Item::Bytes(text)) => Some(utf8(text)?.into()),
        ("y", Item::Bytes(bytes)) => Some(base64::engine::general_purpose::STANDARD.encode(bytes).into()),
        ("i", Item::Number(number)) => Some(signed(*number).into()),
        ("b", Item::Number(number)) => Some((*number != 0).into()),
        ("d", Item::Fixed(bits)) => Some(double(f64::from_bits(*bits))),
        ("m", Item::Bytes(bytes)) => Some(Value::Object(message(bytes, nested, depth - 1)?)),
        ("w", Item::Bytes(bytes)) => {
            let texts = Wire(bytes).map(|part| match part? {
                (1, Item::Bytes(text)) => utf8(text).map(Value::from),
                _ => Err(malformed()),
            });
            Some(Value::Array(texts.collect::<Result<_, _>>()?))
        }
        ("T" | "U", Item::Bytes(bytes)) => time(bytes, code == "U")?,
        ("Q", Item::Bytes(bytes)) => Some(first_text(bytes)?.into()),
        ("I", Item::Bytes(bytes)) => Some(int_or_string(bytes)?),
        ("R" | "J", Item::Bytes(bytes)) => {
            let raw = first_bytes(bytes)?;
            if raw.is_empty() { None } else { Some(serde_json::from_slice(raw).map_err(|_| malformed())?) }
        }
        ("A" | "B" | "C", Item::Bytes(bytes)) => Some(either(bytes, code, nested, depth)?),
        _ => return Err(malformed()),
    })
}

/// A schema, or what stands in place of one: schemas (`A`), a flag (`B`), texts (`C`).
fn either(bytes: &[u8], code: &str, nested: &str, depth: usize) -> Result<Value, ApiError> {
    let (mut schema, mut flag, mut list) = (None, false, Vec::new());
    for part in Wire(bytes) {
        match (code, part?) {
            ("A" | "C", (1, Item::Bytes(bytes))) | ("B", (2, Item::Bytes(bytes))) => {
                schema = Some(Value::Object(message(bytes, nested, depth - 1)?));
            }
            ("A", (2, Item::Bytes(bytes))) => list.push(Value::Object(message(bytes, nested, depth - 1)?)),
            ("B", (1, Item::Number(number))) => flag = number != 0,
            ("C", (2, Item::Bytes(text))) => list.push(utf8(text)?.into()),
            _ => {}
        }
    }
    Ok(schema.unwrap_or_else(|| if code == "B" { flag.into() } else { list.into() }))
}

/// A whole number is written without a fraction.
fn double(value: f64) -> Value {
    const EXACT: f64 = 9_007_199_254_740_992.0;
    if value.fract() == 0.0 && value.abs() < EXACT { (value as i64).into() } else { value.into() }
}

fn numbers(bytes: &[u8]) -> Result<[i64; 4], ApiError> {
    let mut found = [0; 4];
    for part in Wire(bytes) {
        if let (field @ 1..=4, Item::Number(number)) = part?
            && let Some(slot) = usize::try_from(field - 1).ok().and_then(|i| found.get_mut(i))
        {
            *slot = number.cast_signed();
        }
    }
    Ok(found)
}

fn first_bytes(bytes: &[u8]) -> Result<&[u8], ApiError> {
    for part in Wire(bytes) {
        if let (1, Item::Bytes(inner)) = part? {
            return Ok(inner);
        }
    }
    Ok(&[])
}

fn first_text(bytes: &[u8]) -> Result<String, ApiError> {
    utf8(first_bytes(bytes)?)
}

fn time(bytes: &[u8], micro: bool) -> Result<Option<Value>, ApiError> {
    let [seconds, nanos, ..] = numbers(bytes)?;
    // Go's zero time stands for none.
    if bytes.is_empty() || seconds <= -62_135_596_800 {
        return Ok(None);
    }
    let nanos = i32::try_from(nanos).map_err(|_| malformed())?;
    let stamp = jiff::Timestamp::new(seconds, nanos).map_err(|_| malformed())?;
    let format = if micro { "%Y-%m-%dT%H:%M:%S.%6fZ" } else { "%Y-%m-%dT%H:%M:%SZ" };
    Ok(Some(stamp.strftime(format).to_string().into()))
}

fn int_or_string(bytes: &[u8]) -> Result<Value, ApiError> {
    let [kind, number, ..] = numbers(bytes)?;
    if kind == 0 {
        return Ok(number.into());
    }
    for part in Wire(bytes) {
        if let (3, Item::Bytes(text)) = part? {
            return Ok(utf8(text)?.into());
        }
    }
    Ok("".into())
}
