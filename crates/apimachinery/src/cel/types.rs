//! Types of expressions: what a schema declares, with how large a value of it can be.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::value::escaped;
use crate::schema::{Schema, Type as Kind};

/// The largest request, in bytes; nothing in an object is larger.
const REQUEST: u64 = 3 << 20;

/// The type of a value. Where it can be long, also how long at most.
#[derive(Clone, Debug, PartialEq)]
pub enum Type {
    /// Known only when it is there.
    Dyn,
    /// true and false.
    Bool,
    /// A signed integer.
    Int,
    /// An unsigned integer.
    Uint,
    /// A floating number.
    Double,
    /// null.
    Null,
    /// Text.
    String(u64),
    /// Octets.
    Bytes(u64),
    /// `google.protobuf.Timestamp`.
    Timestamp,
    /// `google.protobuf.Duration`.
    Duration,
    /// A list.
    List(Arc<Type>, u64),
    /// A map with keys of the first type.
    Map(Arc<Type>, Arc<Type>, u64),
    /// An object with declared fields.
    Object(Arc<Object>),
    /// Something or nothing.
    Optional(Arc<Type>),
    /// A value of a library, or a type itself.
    Opaque(&'static str),
}

/// An object with declared fields.
#[derive(Debug, PartialEq)]
pub struct Object {
    /// As messages name it.
    pub name: String,
    /// By the names expressions use.
    pub fields: BTreeMap<String, Type>,
}

impl std::fmt::Display for Type {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Dyn => f.write_str("dyn"),
            Self::Bool => f.write_str("bool"),
            Self::Int => f.write_str("int"),
            Self::Uint => f.write_str("uint"),
            Self::Double => f.write_str("double"),
            Self::Null => f.write_str("null"),
            Self::String(_) => f.write_str("string"),
            Self::Bytes(_) => f.write_str("bytes"),
            Self::Timestamp => f.write_str("google.protobuf.Timestamp"),
            Self::Duration => f.write_str("google.protobuf.Duration"),
            Self::List(of, _) => write!(f, "list({of})"),
            Self::Map(key, value, _) => write!(f, "map({key}, {value})"),
            Self::Object(object) => f.write_str(&object.name),
            Self::Optional(of) => write!(f, "optional_type({of})"),
            Self::Opaque(name) => f.write_str(name),
        }
    }
}

impl Type {
    /// Text of unknown length.
    pub const TEXT: Self = Self::String(REQUEST);

    /// What a schema declares; `name` is for messages.
    #[must_use]
    pub fn of(schema: &Schema, name: &str) -> Self {
        let limit = |key: &str| schema.rules.get(key).and_then(serde_json::Value::as_u64);
        if schema.int_or_string {
            return Self::Dyn;
        }
        match schema.type_ {
            Kind::Any => Self::Dyn,
            Kind::Boolean => Self::Bool,
            Kind::Integer => Self::Int,
            Kind::Number => Self::Double,
            Kind::String => match schema.format.as_str() {
                "date-time" | "date" => Self::Timestamp,
                "duration" => Self::Duration,
                "byte" => Self::Bytes(limit("maxLength").unwrap_or(REQUEST)),
                _ => {
                    let longest = schema.enum_.iter().filter_map(|v| v.as_str()).map(|text| text.len() as u64).max();
                    Self::String(longest.or(limit("maxLength")).unwrap_or(REQUEST).min(REQUEST))
                }
            },
            Kind::Array => {
                let Some(items) = &schema.items else { return Self::List(Arc::new(Self::Dyn), REQUEST) };
                let of = Self::of(items, &format!("{name}.@idx"));
                let most = REQUEST / (smallest(items) + 1);
                Self::List(Arc::new(of), limit("maxItems").unwrap_or(most).min(most))
            }
            Kind::Object => Self::object(schema, name),
        }
    }

    /// What the rules of a whole custom resource see.
    #[must_use]
    pub fn root(schema: &Schema) -> Self {
        let mut fields = match Self::of(schema, "selfType") {
            Self::Object(object) => object.fields.clone(),
            _ => BTreeMap::new(),
        };
        for field in ["apiVersion", "kind"] {
            fields.insert(field.to_owned(), Self::String(253));
        }
        fields.insert("metadata".to_owned(), Self::names("selfType"));
        Self::Object(Arc::new(Object { name: "selfType".to_owned(), fields }))
    }

    fn object(schema: &Schema, name: &str) -> Self {
        let limit = schema.rules.get("maxProperties").and_then(serde_json::Value::as_u64);
        if let Some(values) = &schema.additional {
            let of = Self::of(values, &format!("{name}.@elem"));
            let most = REQUEST / (smallest(values) + 6);
            return Self::Map(Arc::new(Self::TEXT), Arc::new(of), limit.unwrap_or(most).min(most));
        }
        let mut fields: BTreeMap<String, Self> = schema
            .properties
            .iter()
            .map(|(field, of)| (escaped(field), Self::of(of, &format!("{name}.{field}"))))
            .collect();
        if schema.embedded_resource {
            for field in ["apiVersion", "kind"] {
                fields.entry(field.to_owned()).or_insert(Self::TEXT);
            }
            fields.insert("metadata".to_owned(), Self::names(name));
        }
        Self::Object(Arc::new(Object { name: name.to_owned(), fields }))
    }

    /// What rules see of metadata.
    #[must_use]
    pub fn names(owner: &str) -> Self {
        let fields = ["name", "generateName"].map(|field| (field.to_owned(), Self::String(253)));
        Self::Object(Arc::new(Object { name: format!("{owner}.metadata"), fields: fields.into_iter().collect() }))
    }

    /// How long a value can be; 1 for what has no length.
    #[must_use]
    pub fn size(&self) -> u64 {
        match self {
            Self::String(size) | Self::Bytes(size) | Self::List(_, size) | Self::Map(_, _, size) => *size,
            Self::Optional(of) => of.size(),
            // What is known only later is taken for a small thing: a wrong guess must not refuse a good rule.
            _ => 1,
        }
    }
}

/// The bytes the smallest value of a schema takes in a request.
fn smallest(schema: &Schema) -> u64 {
    match schema.type_ {
        Kind::Boolean => 4,
        Kind::Array | Kind::String => 2,
        Kind::Object => {
            let required = schema.required.iter().filter_map(|name| {
                let of = schema.properties.get(name)?;
                of.default.is_none().then(|| name.len() as u64 + 4 + smallest(of))
            });
            2 + required.sum::<u64>()
        }
        Kind::Any | Kind::Integer | Kind::Number => 1,
    }
}
