//! A CEL expression and, after a NUL, the object it speaks of: a value or an error, within the budget.
#![no_main]

use std::collections::HashMap;

use apimachinery::cel::types::Type;
use apimachinery::cel::{Budget, PER_CALL, Program, Variables, check, value};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    let mut parts = bytes.splitn(2, |byte| *byte == 0);
    let Some(Ok(source)) = parts.next().map(std::str::from_utf8) else { return };
    let Ok(program) = Program::compile(source) else { return };
    let _ = check::check(&program, &HashMap::from([("self".to_owned(), Type::Dyn)]));
    let object = parts.next().and_then(|json| serde_json::from_slice(json).ok()).unwrap_or_default();
    let mut budget = Budget::new(PER_CALL);
    let _ = program.evaluate(&Variables::default().with("self", value::plain(&object)), &mut budget);
    assert!(budget.left() <= PER_CALL);
});
