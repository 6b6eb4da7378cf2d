//! `/openapi/v2` in the protobuf form old clients insist on: the gnostic messages, written straight from the JSON document.

use prost::encoding::{WireType, encode_key, encode_varint};
use serde_json::Value;

/// How a JSON field becomes a protobuf field.
#[derive(Clone, Copy)]
enum Kind {
    Text,
    Flag,
    Integer,
    Double,
    Texts,
    /// Any JSON value, carried as YAML text; JSON is YAML.
    Any,
    Anys,
    Message(Message),
    Messages(Message),
    /// A JSON object as a message of repeated name and value pairs.
    Map(Message),
    /// A message wrapped in one more, as its field of this number.
    Wrapped(u32, Message),
}

type Field = (&'static str, u32, Kind);

#[derive(Clone, Copy)]
enum Message {
    Info,
    PathItem,
    Operation,
    Parameter,
    Response,
    Schema,
}

const DOCUMENT: &[Field] = &[("swagger", 1, Kind::Text), ("info", 2, Kind::Message(Message::Info))];
const INFO: &[Field] = &[("title", 1, Kind::Text), ("version", 2, Kind::Text), ("description", 3, Kind::Text)];
const PATH_ITEM: &[Field] = &[
    ("get", 2, Kind::Message(Message::Operation)),
    ("put", 3, Kind::Message(Message::Operation)),
    ("post", 4, Kind::Message(Message::Operation)),
    ("delete", 5, Kind::Message(Message::Operation)),
    ("patch", 8, Kind::Message(Message::Operation)),
    ("parameters", 9, Kind::Messages(Message::Parameter)),
];
const OPERATION: &[Field] = &[
    ("description", 3, Kind::Text),
    ("operationId", 5, Kind::Text),
    ("produces", 6, Kind::Texts),
    ("consumes", 7, Kind::Texts),
    ("parameters", 8, Kind::Messages(Message::Parameter)),
    ("responses", 9, Kind::Map(Message::Response)),
];
const BODY: &[Field] = &[
    ("description", 1, Kind::Text),
    ("name", 2, Kind::Text),
    ("in", 3, Kind::Text),
    ("required", 4, Kind::Flag),
    ("schema", 5, Kind::Message(Message::Schema)),
];
const QUERY: &[Field] = &[
    ("required", 1, Kind::Flag),
    ("in", 2, Kind::Text),
    ("description", 3, Kind::Text),
    ("name", 4, Kind::Text),
    ("type", 6, Kind::Text),
    ("uniqueItems", 20, Kind::Flag),
];
const PATH: &[Field] = &[
    ("required", 1, Kind::Flag),
    ("in", 2, Kind::Text),
    ("description", 3, Kind::Text),
    ("name", 4, Kind::Text),
    ("type", 5, Kind::Text),
    ("uniqueItems", 19, Kind::Flag),
];
const RESPONSE: &[Field] = &[("description", 1, Kind::Text), ("schema", 2, Kind::Wrapped(1, Message::Schema))];
const SCHEMA: &[Field] = &[
    ("$ref", 1, Kind::Text),
    ("format", 2, Kind::Text),
    ("title", 3, Kind::Text),
    ("description", 4, Kind::Text),
    ("default", 5, Kind::Any),
    ("multipleOf", 6, Kind::Double),
    ("maximum", 7, Kind::Double),
    ("exclusiveMaximum", 8, Kind::Flag),
    ("minimum", 9, Kind::Double),
    ("exclusiveMinimum", 10, Kind::Flag),
    ("maxLength", 11, Kind::Integer),
    ("minLength", 12, Kind::Integer),
    ("pattern", 13, Kind::Text),
    ("maxItems", 14, Kind::Integer),
    ("minItems", 15, Kind::Integer),
    ("uniqueItems", 16, Kind::Flag),
    ("maxProperties", 17, Kind::Integer),
    ("minProperties", 18, Kind::Integer),
    ("required", 19, Kind::Texts),
    ("enum", 20, Kind::Anys),
    ("additionalProperties", 21, Kind::Wrapped(1, Message::Schema)),
    ("type", 22, Kind::Wrapped(1, Message::Schema)),
    ("items", 23, Kind::Wrapped(1, Message::Schema)),
    ("properties", 25, Kind::Map(Message::Schema)),
    ("example", 30, Kind::Any),
];

/// The document as protobuf.
pub fn encode(document: &Value) -> Vec<u8> {
    let mut out = Vec::new();
    fields(DOCUMENT, document, &mut out);
    let mut paths = Vec::new();
    named(2, Message::PathItem, &document["paths"], &mut paths);
    bytes(8, &paths, &mut out);
    let mut definitions = Vec::new();
    named(1, Message::Schema, &document["definitions"], &mut definitions);
    bytes(9, &definitions, &mut out);
    out
}

fn message(kind: Message, value: &Value, out: &mut Vec<u8>) {
    match kind {
        Message::Info => fields(INFO, value, out),
        Message::PathItem => fields(PATH_ITEM, value, out),
        Message::Operation => {
            fields(OPERATION, value, out);
            extensions(13, value, out);
        }
        Message::Parameter => parameter(value, out),
        Message::Response => {
            let mut response = Vec::new();
            fields(RESPONSE, value, &mut response);
            bytes(1, &response, out);
        }
        Message::Schema => {
            fields(SCHEMA, value, out);
            extensions(31, value, out);
        }
    }
}

/// ParametersItem > Parameter > body, or non-body > query or path.
fn parameter(value: &Value, out: &mut Vec<u8>) {
    let (mut inner, mut outer) = (Vec::new(), Vec::new());
    match value["in"].as_str() {
        Some("body") => {
            fields(BODY, value, &mut inner);
            bytes(1, &inner, &mut outer);
        }
        place => {
            let (table, number) = if place == Some("path") { (PATH, 4) } else { (QUERY, 3) };
            fields(table, value, &mut inner);
            let mut non_body = Vec::new();
            bytes(number, &inner, &mut non_body);
            bytes(2, &non_body, &mut outer);
        }
    }
    bytes(1, &outer, out);
}

fn fields(table: &[Field], value: &Value, out: &mut Vec<u8>) {
    for (key, number, kind) in table {
        let Some(value) = value.get(*key) else { continue };
        field(*number, *kind, value, out);
    }
}

fn field(number: u32, kind: Kind, value: &Value, out: &mut Vec<u8>) {
    match kind {
        Kind::Text => bytes(number, value.as_str().unwrap_or_default().as_bytes(), out),
        Kind::Flag => {
            encode_key(number, WireType::Varint, out);
            encode_varint(u64::from(value.as_bool().unwrap_or_default()), out);
        }
        Kind::Integer => {
            encode_key(number, WireType::Varint, out);
            encode_varint(value.as_i64().unwrap_or_default().cast_unsigned(), out);
        }
        Kind::Double => {
            encode_key(number, WireType::SixtyFourBit, out);
            out.extend_from_slice(&value.as_f64().unwrap_or_default().to_le_bytes());
        }
        Kind::Texts => value.as_array().into_iter().flatten().for_each(|text| field(number, Kind::Text, text, out)),
        Kind::Any => any(number, value, out),
        Kind::Anys => value.as_array().into_iter().flatten().for_each(|value| any(number, value, out)),
        Kind::Message(kind) => {
            let mut inner = Vec::new();
            message(kind, value, &mut inner);
            bytes(number, &inner, out);
        }
        Kind::Messages(kind) => {
            value.as_array().into_iter().flatten().for_each(|value| field(number, Kind::Message(kind), value, out));
        }
        Kind::Map(kind) => {
            let mut inner = Vec::new();
            named(1, kind, value, &mut inner);
            bytes(number, &inner, out);
        }
        Kind::Wrapped(inside, kind) => {
            let mut wrapper = Vec::new();
            match value {
                // `type` is a list of words; `additionalProperties` may be a plain yes or no.
                Value::String(text) => bytes(inside, text.as_bytes(), &mut wrapper),
                Value::Bool(_) => field(2, Kind::Flag, value, &mut wrapper),
                _ => field(inside, Kind::Message(kind), value, &mut wrapper),
            }
            bytes(number, &wrapper, out);
        }
    }
}

fn named(number: u32, kind: Message, map: &Value, out: &mut Vec<u8>) {
    for (name, value) in map.as_object().into_iter().flatten() {
        let mut pair = Vec::new();
        bytes(1, name.as_bytes(), &mut pair);
        field(2, Kind::Message(kind), value, &mut pair);
        bytes(number, &pair, out);
    }
}

fn extensions(number: u32, value: &Value, out: &mut Vec<u8>) {
    for (name, value) in value.as_object().into_iter().flatten().filter(|(name, _)| name.starts_with("x-")) {
        let mut pair = Vec::new();
        bytes(1, name.as_bytes(), &mut pair);
        any(2, value, &mut pair);
        bytes(number, &pair, out);
    }
}

fn any(number: u32, value: &Value, out: &mut Vec<u8>) {
    let mut inner = Vec::new();
    bytes(2, value.to_string().as_bytes(), &mut inner);
    bytes(number, &inner, out);
}

fn bytes(number: u32, payload: &[u8], out: &mut Vec<u8>) {
    encode_key(number, WireType::LengthDelimited, out);
    encode_varint(payload.len() as u64, out);
    out.extend_from_slice(payload);
}
