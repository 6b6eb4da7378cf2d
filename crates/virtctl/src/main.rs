//! virtctl
fn main() {}
