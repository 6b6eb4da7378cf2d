//! Structural schemas: one tree type for CRDs and shipped built-ins, read by validation, pruning, defaulting, strategic
//! merge, server-side apply and OpenAPI.

pub mod builtin;
pub(crate) mod correlate;
pub mod defaults;
mod formats;
pub mod parse;
pub mod prune;
mod shared;
pub mod stored;
pub mod types;
pub mod validate;

use std::collections::BTreeMap;
use std::sync::Arc;

use serde_json::Value;

/// How a list merges: `x-kubernetes-list-type`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum ListType {
    /// Replaced as a whole.
    #[default]
    Atomic,
    /// A set of scalars.
    Set,
    /// A map keyed by these fields.
    Map(Vec<String>),
}

/// Primitive kind of a node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Type {
    /// Anything (no `type`): an untyped or preserve-unknown node.
    #[default]
    Any,
    /// object
    Object,
    /// array
    Array,
    /// string
    String,
    /// integer
    Integer,
    /// number
    Number,
    /// boolean
    Boolean,
}

impl Type {
    /// As a schema writes it; empty where it says nothing.
    pub fn word(self) -> &'static str {
        match self {
            Self::Any => "",
            Self::Object => "object",
            Self::Array => "array",
            Self::String => "string",
            Self::Integer => "integer",
            Self::Number => "number",
            Self::Boolean => "boolean",
        }
    }
}

/// One node of a structural schema. Shared subtrees are `Arc`s, so a recursive built-in type costs one node.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// Primitive type.
    pub type_: Type,
    /// OpenAPI format.
    pub format: String,
    /// Documentation for `kubectl explain`.
    pub description: String,
    /// null accepted.
    pub nullable: bool,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    /// `x-kubernetes-preserve-unknown-fields`.
    pub preserve_unknown: bool,
    /// `x-kubernetes-embedded-resource`.
    pub embedded_resource: bool,
    /// Known fields.
    pub properties: BTreeMap<String, Arc<Schema>>,
    /// Schema of map values (`additionalProperties`).
    pub additional: Option<Arc<Schema>>,
    /// Schema of list items.
    pub items: Option<Arc<Schema>>,
    /// Required fields.
    pub required: Vec<String>,
    /// Default value.
    pub default: Option<Value>,
    /// Allowed values.
    pub enum_: Vec<Value>,
    /// How lists merge under server-side apply.
    pub list_type: ListType,
    /// `x-kubernetes-map-type: atomic`.
    pub atomic_map: bool,
    /// Strategic merge: `x-kubernetes-patch-strategy` words (`merge`, `replace`, `retainKeys`).
    pub patch_strategy: Vec<String>,
    /// Strategic merge: `x-kubernetes-patch-merge-key`.
    pub patch_merge_key: String,
    /// The rest of the OpenAPI v3 node (bounds, pattern, allOf/anyOf/oneOf/not, validations), kept verbatim.
    pub rules: serde_json::Map<String, Value>,
    /// `io.k8s.api.core.v1.Pod`: definition name of a shipped type, for OpenAPI references; empty otherwise.
    pub type_name: String,
}
