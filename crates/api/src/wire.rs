//! How values arrive on the wire: `null` where a value may be absent, numbers where a quantity may be a string.

use std::collections::BTreeMap;

use k8s_openapi::apimachinery::pkg::api::resource::Quantity;
use serde::{Deserialize, Deserializer};

/// `null` reads as the default.
pub(crate) fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(from: D) -> Result<T, D::Error> {
    Option::deserialize(from).map(Option::unwrap_or_default)
}

/// A quantity as users write it: `"1Gi"`, `2`, `0.5`.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Text(String),
    Integer(i64),
    Float(f64),
}

impl From<Written> for Quantity {
    fn from(written: Written) -> Self {
        Self(match written {
            Written::Text(text) => text,
            Written::Integer(number) => number.to_string(),
            Written::Float(number) => number.to_string(),
        })
    }
}

pub(crate) fn quantity<'de, D: Deserializer<'de>>(from: D) -> Result<Quantity, D::Error> {
    Option::<Written>::deserialize(from).map(|written| written.map(Quantity::from).unwrap_or_default())
}

pub(crate) fn optional_quantity<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Quantity>, D::Error> {
    Option::<Written>::deserialize(from).map(|written| written.map(Quantity::from))
}

pub(crate) fn quantities<'de, D: Deserializer<'de>>(from: D) -> Result<BTreeMap<String, Quantity>, D::Error> {
    let written = Option::<BTreeMap<String, Written>>::deserialize(from)?.unwrap_or_default();
    Ok(written.into_iter().map(|(name, value)| (name, value.into())).collect())
}
