//! Typed parameters: how libvirt reports figures.

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
