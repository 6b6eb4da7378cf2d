//! Text into a tree, within bounds, with the fields noticed that are named twice.
//!
//! Guarantees: a tree nests at most [`DEPTH`] levels, so that it can be put into lists, events and reviews and still be read
//! by parsers that stop at 128; it holds at most [`VALUES`] values, so that a body costs a small multiple of its bytes.

use std::fmt::Write as _;

use serde::de::{DeserializeSeed, Error, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Number, Value};

use apimachinery::error::ApiError;
use apimachinery::patch::json::DEPTH;

use crate::rest::bounds::{VALUES, too_many_values};

/// Paths noted at most; a hostile body may hold millions.
const NOTED: usize = 20;

/// What is known while a tree is read.
#[derive(Default)]
pub(super) struct Reading {
    path: String,
    depth: usize,
    values: usize,
    /// Paths of fields named twice; the last one counts.
    pub(super) duplicates: Vec<String>,
    /// Why reading ended early.
    pub(super) refused: Option<ApiError>,
}

impl Reading {
    fn refuse<E: Error>(&mut self, error: ApiError) -> E {
        let text = E::custom(&error.message);
        self.refused = Some(error);
        text
    }

    fn enter<E: Error>(&mut self) -> Result<(), E> {
        self.depth += 1;
        if self.depth > DEPTH {
            let text = format!("the body is nested too deeply at {:?}: at most {DEPTH} levels are accepted", self.path);
            return Err(self.refuse(ApiError::bad_request(text)));
        }
        Ok(())
    }

    fn count<E: Error>(&mut self) -> Result<(), E> {
        self.values += 1;
        if self.values > VALUES {
            return Err(self.refuse(too_many_values()));
        }
        Ok(())
    }
}

/// Reads one value.
pub(super) struct Tree<'a>(pub(super) &'a mut Reading);

impl<'de> DeserializeSeed<'de> for Tree<'_> {
    type Value = Value;
    fn deserialize<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        self.0.count()?;
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Tree<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("a JSON value")
    }
    fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
        Ok(Number::from_f64(value).map_or(Value::Null, Value::Number))
    }
    fn visit_str<E>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_string<E>(self, value: String) -> Result<Value, E> {
        Ok(value.into())
    }
    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }
    fn visit_some<D: serde::Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        let reading = self.0;
        reading.enter()?;
        let mut items = Vec::new();
        let length = reading.path.len();
        loop {
            // Writing to a string does not fail.
            let _ = write!(reading.path, "[{}]", items.len());
            let item = seq.next_element_seed(Tree(&mut *reading))?;
            reading.path.truncate(length);
            match item {
                Some(item) => items.push(item),
                None => break,
            }
        }
        reading.depth -= 1;
        Ok(Value::Array(items))
    }
    fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Value, A::Error> {
        let reading = self.0;
        reading.enter()?;
        let mut map = Map::new();
        let length = reading.path.len();
        while let Some(key) = access.next_key::<String>()? {
            if length > 0 {
                reading.path.push('.');
            }
            reading.path.push_str(&key);
            let value = access.next_value_seed(Tree(&mut *reading))?;
            if map.insert(key, value).is_some() && reading.duplicates.len() < NOTED {
                reading.duplicates.push(reading.path.clone());
            }
            reading.path.truncate(length);
        }
        reading.depth -= 1;
        Ok(Value::Object(map))
    }
}
