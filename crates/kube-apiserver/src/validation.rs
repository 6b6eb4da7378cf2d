//! The words and rules in which objects are refused.

pub(crate) mod label_selector;
pub(crate) mod rules;

use serde_json::Value;

use apimachinery::error::Cause;
use apimachinery::schema::validate::cause;

pub(crate) fn required(field: &str, causes: &mut Vec<Cause>) {
    causes.push(cause("FieldValueRequired", field, "Required value".into()));
}

pub(crate) fn invalid(field: &str, value: &Value, why: &str, causes: &mut Vec<Cause>) {
    causes.push(cause("FieldValueInvalid", field, format!("Invalid value: {value}: {why}")));
}

pub(crate) fn one_of(field: &str, value: &Value, allowed: &[&str], causes: &mut Vec<Cause>) {
    let Some(text) = value.as_str() else { return };
    if !allowed.contains(&text) {
        let listed: Vec<String> = allowed.iter().map(|word| format!("{word:?}")).collect();
        let message = format!("Unsupported value: {value}: supported values: {}", listed.join(", "));
        causes.push(cause("FieldValueNotSupported", field, message));
    }
}
