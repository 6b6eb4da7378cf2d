//! Typed parameters: how libvirt reports figures.
#![allow(unsafe_code)]

use std::ffi::c_int;

use crate::library::read_string;
use crate::raw::TypedParameter;

#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Such as `balloon.current` or `block.0.rd.bytes`.
    pub name: String,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Boolean(bool),
    Text(String),
}

/// # Safety
/// `parameters` points to `count` parameters, or is null with a count of 0.
pub(crate) unsafe fn read(parameters: *const TypedParameter, count: c_int) -> Vec<Parameter> {
    let count = usize::try_from(count).unwrap_or(0);
    if parameters.is_null() {
        return Vec::new();
    }
    // SAFETY: by contract.
    let parameters = unsafe { std::slice::from_raw_parts(parameters, count) };
    parameters
        .iter()
        .map(|parameter| {
            // SAFETY: a zero-terminated field of the structure.
            let name = unsafe { read_string(parameter.field.as_ptr()) };
            // SAFETY: `kind` says which member of the union is set.
            let value = unsafe {
                match parameter.kind {
                    1 => Value::Signed(parameter.value.int.into()),
                    2 => Value::Unsigned(parameter.value.uint.into()),
                    3 => Value::Signed(parameter.value.llong),
                    4 => Value::Unsigned(parameter.value.ullong),
                    5 => Value::Float(parameter.value.double),
                    6 => Value::Boolean(parameter.value.boolean != 0),
                    7 => Value::Text(read_string(parameter.value.string)),
                    _ => Value::Text(String::new()),
                }
            };
            Parameter { name, value }
        })
        .collect()
}
