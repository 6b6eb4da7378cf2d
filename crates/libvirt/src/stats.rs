//! Typed parameters: how libvirt reports figures.

#[derive(Clone, Debug, PartialEq)]
pub struct Parameter {
    /// Such as `balloon.current` or `block.0.rd.bytes`.
    pub name: String,
    pub value: Value,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    /// Of 32 bits: what libvirt is told has to have the very width it expects.
    Integer(i32),
    Signed(i64),
    Unsigned(u64),
    Float(f64),
    Boolean(bool),
    Text(String),
}

impl Value {
    /// The number, if it is a whole one and not below zero.
    pub fn as_u64(&self) -> Option<u64> {
        match self {
            Self::Integer(value) => (*value).try_into().ok(),
            Self::Signed(value) => (*value).try_into().ok(),
            Self::Unsigned(value) => Some(*value),
            Self::Float(_) | Self::Boolean(_) | Self::Text(_) => None,
        }
    }
}
