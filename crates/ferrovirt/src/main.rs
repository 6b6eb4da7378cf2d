//! ferrovirt
fn main() {}
